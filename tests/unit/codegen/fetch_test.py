#!/usr/bin/env python3
"""cuda_headers/fetch, with packages of our own in a local folder instead of an index."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

FETCH = pathlib.Path(__file__).resolve().parents[3] / "cuda_headers" / "fetch"


class FetchTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.wheels = self.folder / "wheels"
        self.wheels.mkdir()

    def make_wheel(self, name, files):
        """A wheel that pip accepts; returns its checksum."""
        stem = f"{name.replace('-', '_')}-1.0"
        path = self.wheels / f"{stem}-py3-none-manylinux2014_x86_64.whl"
        metadata = {f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
                    f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-manylinux2014_x86_64\n",
                    f"{stem}.dist-info/RECORD": ""}
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in {**files, **metadata}.items():
                archive.writestr(file, text)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def list_packages(self, checksums):
        packages = ", ".join(f'{{ name = "{name}", version = "1.0", sha256 = "{checksum}" }}'
                             for name, checksum in checksums.items())
        (self.folder / "releases.toml").write_text(f'[[release]]\nrelease = "99.0"\npackages = [{packages}]\n')

    def fetch(self, *arguments):
        environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        return subprocess.run([sys.executable, str(FETCH), "--list", str(self.folder / "releases.toml"),
                               "--to", str(self.folder / "to"), *arguments],
                              env=environment, capture_output=True, text=True)

    def header(self, name):
        return self.folder / "to" / "99.0" / "include" / name

    def test_headers_of_all_packages_land_in_one_folder(self):
        self.list_packages({"vendor-a": self.make_wheel("vendor-a", {"vendor/cu99/include/a.h": "a"}),
                            "vendor-b": self.make_wheel("vendor-b", {"vendor/include/crt/b.h": "b", "vendor/lib/c.so": "c"})})
        ran = self.fetch()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.header("a.h").read_text(), "a")
        self.assertEqual(self.header("crt/b.h").read_text(), "b")
        self.assertEqual(len([p for p in self.header("").rglob("*") if p.is_file()]), 2)

    def test_wrong_checksum_is_named_and_nothing_of_it_is_unpacked(self):
        self.make_wheel("vendor-a", {"vendor/include/a.h": "a"})
        self.list_packages({"vendor-a": "0" * 64})
        ran = self.fetch()
        self.assertEqual(ran.returncode, 1)
        self.assertIn("vendor-a 1.0: its checksum is", ran.stderr)
        self.assertFalse(self.header("a.h").exists())

    def test_what_is_missing_is_named_and_the_rest_is_fetched(self):
        self.list_packages({"vendor-none": "0" * 64,
                            "vendor-a": self.make_wheel("vendor-a", {"vendor/include/a.h": "a"})})
        ran = self.fetch()
        self.assertEqual(ran.returncode, 1)
        self.assertIn("could not get CUDA 99.0: vendor-none 1.0: ", ran.stderr)
        self.assertTrue(self.header("a.h").exists())

    def test_takes_up_where_it_stopped(self):
        first = self.make_wheel("vendor-a", {"vendor/include/a.h": "a"})
        self.list_packages({"vendor-a": first, "vendor-b": "0" * 64})
        self.assertEqual(self.fetch().returncode, 1)
        (self.wheels / "vendor_a-1.0-py3-none-manylinux2014_x86_64.whl").unlink()  # not asked for again
        self.list_packages({"vendor-a": first, "vendor-b": self.make_wheel("vendor-b", {"vendor/include/b.h": "b"})})
        ran = self.fetch()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertTrue(self.header("a.h").exists() and self.header("b.h").exists())

    def test_package_cannot_write_outside_its_folder(self):
        self.list_packages({"vendor-a": self.make_wheel("vendor-a", {"vendor/include/../out.h": "a",
                                                                      "vendor/include/a.h": "a"})})
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual([p.name for p in self.folder.rglob("out.h")], [])

    def test_unknown_release_is_named(self):
        self.list_packages({})
        ran = self.fetch("12.9")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("unknown release 12.9", ran.stderr)


if __name__ == "__main__":
    unittest.main()
