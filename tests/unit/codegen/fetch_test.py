#!/usr/bin/env python3
"""cuda_headers/fetch, with packages of our own in a local folder instead of an index."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from local_index import CUDA_HEADERS, LocalIndex, write_toolkit


class FetchTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.index = LocalIndex(self.folder / "index")
        self.downloads = LocalIndex(self.folder / "to" / "wheels")  # what is here already needs no slow pip

    def list_releases(self, releases):
        """releases: {release: {list: [(name, version, gives, checksum)]}}"""
        text = ""
        for release, lists in releases.items():
            text += f'[[release]]\nrelease = "{release}"\n'
            for key, packages in lists.items():
                lines = [f'{{ name = "{name}", version = "{version}", gives = {gives}, sha256 = "{checksum}" }}'
                         for name, version, gives, checksum in packages]
                text += f"{key} = [{', '.join(lines)}]\n"
        (self.folder / "releases.toml").write_text(text)

    def list_packages(self, *packages, oracles=()):
        self.list_releases({"99.0": {"packages": [(name, "1.0", gives, sum_) for name, gives, sum_ in packages],
                                     "oracles": [(name, "1.0", ["cupti"], sum_) for name, sum_ in oracles]}})

    def fetch(self, *arguments, **environment):
        return subprocess.run([sys.executable, str(CUDA_HEADERS / "fetch"), "--list", str(self.folder / "releases.toml"),
                               "--to", str(self.folder / "to"), *arguments],
                              env={**self.index.environment(), **environment}, capture_output=True, text=True)

    def fetched(self, release="99.0"):
        """{path: text} of everything that lies in a release's folder, but for the fetcher's own notes."""
        folder = self.folder / "to" / release
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*")
                if path.is_file() and not str(path.relative_to(folder)).startswith(".")}

    def test_each_package_gives_what_the_list_says_and_all_lands_in_one_folder(self):
        self.list_packages(
            ("vendor-a", ["include", "lib"], self.downloads.add("vendor-a", {
                "vendor/cu99/include/a.h": "a", "vendor/cu99/include/__init__.py": "", "vendor/cu99/lib/libcudart.so.99": "so",
                "vendor/cu99/lib/libcudart_static.a": "static", "vendor/cu99/lib/libOpenCL.so.1": "other"})),
            ("vendor-b", ["crt"], self.downloads.add("vendor-b", {
                "vendor/include/crt/b.h": "b", "vendor/include/c.h": "c", "vendor/bin/ptxas": "ptxas",
                "vendor/lib/libcudart.so.98": "other", "vendor/nvvm/include/nvvm.h": "nvvm"})))
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.fetched(), {"include/a.h": "a", "include/crt/b.h": "b", "lib/libcudart.so.99": "so"})

    def test_wheels_of_every_age_are_found(self):
        tags = ["manylinux1_x86_64", "manylinux1_x86_64.manylinux_2_5_x86_64", "manylinux2010_x86_64.manylinux_2_12_x86_64",
                "manylinux2014_x86_64", "manylinux2014_x86_64.manylinux_2_17_x86_64", "manylinux_2_25_x86_64",
                "manylinux_2_34_x86_64"]
        self.list_packages(*[(f"vendor-{number}", ["include"],
                              self.index.add(f"vendor-{number}", {f"include/{number}.h": tag}, tag=tag))
                             for number, tag in enumerate(tags)])
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(len(self.fetched()), len(tags))

    def test_oracles_come_on_demand_into_a_folder_of_their_own(self):
        self.list_packages(("vendor-a", ["include"], self.downloads.add("vendor-a", {"include/a.h": "a"})),
                           oracles=[("vendor-cupti", self.downloads.add("vendor-cupti", {"x/include/cbid.h": "1",
                                                                                     "x/lib/libcupti.so": "so"}))])
        self.assertEqual(self.fetch("99.0").returncode, 0)
        self.assertEqual(self.fetched(), {"include/a.h": "a"})
        self.assertEqual(self.fetch("--oracles", "99.0").returncode, 0)
        self.assertEqual(self.fetched(), {"include/a.h": "a", "cupti/cbid.h": "1"})

    def test_wrong_checksum_is_named_and_nothing_of_it_is_unpacked(self):
        self.index.add("vendor-a", {"vendor/include/a.h": "a"})
        self.list_packages(("vendor-a", ["include"], "0" * 64))
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("vendor-a 1.0: its checksum is", ran.stderr)
        self.assertIn("0" * 64, ran.stderr)
        self.assertEqual(self.fetched(), {})

    def test_what_is_missing_is_named_and_the_rest_is_fetched(self):
        self.list_packages(("vendor-none", ["include"], "0" * 64),
                           ("vendor-a", ["include"], self.index.add("vendor-a", {"vendor/include/a.h": "a"})))
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("could not get CUDA 99.0: vendor-none 1.0: ", ran.stderr)
        self.assertEqual(self.fetched(), {"include/a.h": "a"})

    def test_package_without_what_it_should_give_is_named(self):
        self.list_packages(("vendor-a", ["include", "lib"], self.downloads.add("vendor-a", {"vendor/include/a.h": "a"})))
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("vendor-a 1.0: the package holds no lib", ran.stderr)

    def test_takes_up_where_it_stopped(self):
        first = ("vendor-a", ["include"], self.index.add("vendor-a", {"vendor/include/a.h": "a"}))
        self.list_packages(first, ("vendor-b", ["include"], "0" * 64))
        self.assertEqual(self.fetch("99.0").returncode, 1)
        self.index.withdraw("vendor-a")  # not asked for again
        self.downloads.withdraw("vendor-a")  # what is unpacked stays good
        self.list_packages(first, ("vendor-b", ["include"], self.index.add("vendor-b", {"vendor/include/b.h": "b"})))
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.fetched(), {"include/a.h": "a", "include/b.h": "b"})

    def test_lost_or_cut_header_is_unpacked_again_from_the_verified_download(self):
        files = {"include/a.h": "aaa", "include/b.h": "b"}
        self.list_packages(("vendor-a", ["include"], self.downloads.add("vendor-a", files)))
        self.assertEqual(self.fetch("99.0").returncode, 0)
        (self.folder / "to" / "99.0" / "include" / "a.h").write_text("a")
        self.assertEqual(self.fetch("99.0").returncode, 0)
        self.assertEqual(self.fetched(), files)
        (self.folder / "to" / "99.0" / "include" / "b.h").unlink()
        self.assertEqual(self.fetch("99.0").returncode, 0)
        self.assertEqual(self.fetched(), files)

    def test_half_written_download_never_counts(self):
        checksum = self.index.add("vendor-a", {"include/a.h": "a"})
        self.list_packages(("vendor-a", ["include"], checksum))
        wheel = next(self.index.folder.glob("*.whl"))
        wheels = self.folder / "to" / "wheels"
        (wheels / "partial-killed").mkdir()
        (wheels / "partial-killed" / wheel.name).write_bytes(b"cut")
        (wheels / wheel.name).write_bytes(wheel.read_bytes()[:100])
        ran = self.fetch("99.0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.fetched(), {"include/a.h": "a"})
        self.assertEqual([path.name for path in wheels.iterdir()], [wheel.name])

    def test_newer_patch_takes_the_older_one_s_headers_away(self):
        old = self.downloads.add("vendor-a", {"include/old.h": "1", "include/both.h": "1"}, version="1.0")
        new = self.downloads.add("vendor-a", {"include/new.h": "2", "include/both.h": "2"}, version="2.0")
        for version, checksum in (("1.0", old), ("2.0", new)):
            self.list_releases({"99.0": {"packages": [("vendor-a", version, ["include"], checksum)]}})
            self.assertEqual(self.fetch("99.0").returncode, 0)
        self.assertEqual(self.fetched(), {"include/new.h": "2", "include/both.h": "2"})

    def test_releases_share_downloads(self):
        shared = ("vendor-a", "1.0", ["include"], self.index.add("vendor-a", {"include/a.h": "a"}))
        self.list_releases({"98.0": {"packages": [shared]}, "99.0": {"packages": [shared]}})
        self.assertEqual(self.fetch("98.0").returncode, 0)
        self.index.withdraw("vendor-a")
        ran = self.fetch("--all")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(self.fetched("99.0"), {"include/a.h": "a"})

    def test_index_that_does_not_answer_is_asked_once(self):
        self.list_packages(("vendor-a", ["include"], "0" * 64), ("vendor-b", ["include"], "0" * 64))
        # Nothing listens on port 1 of the loopback; pip tries once again so that its word for it is seen.
        ran = self.fetch("99.0", PIP_NO_INDEX="0", PIP_FIND_LINKS="", PIP_INDEX_URL="http://127.0.0.1:1/", PIP_RETRIES="1")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("vendor-a 1.0: the package index does not answer", ran.stderr)
        self.assertIn("vendor-b 1.0: not tried", ran.stderr)

    def test_package_cannot_write_outside_its_folder(self):
        self.list_packages(("vendor-a", ["include"], self.downloads.add("vendor-a", {"vendor/include/../out.h": "a",
                                                                                 "vendor/include/a.h": "a"})))
        self.assertEqual(self.fetch("99.0").returncode, 0)
        self.assertEqual([path.name for path in self.folder.rglob("out.h")], [])

    def test_without_a_release_it_says_what_there_is_and_downloads_nothing(self):
        package = ("vendor-a", "1.0", ["include"], self.downloads.add("vendor-a", {"include/a.h": "a"}))
        self.list_releases({"98.0": {"packages": [package]}, "99.0": {"packages": [package]}})
        self.assertEqual(self.fetch("98.0").returncode, 0)
        ran = self.fetch()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"CUDA 98\.0 +here\nCUDA 99\.0 +not fetched\n")
        self.assertEqual(self.fetched("99.0"), {})

    def test_unknown_release_is_named(self):
        self.list_packages()
        ran = self.fetch("12.9")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("unknown release 12.9", ran.stderr)

    def test_installed_toolkit_is_a_source(self):
        self.list_packages(("vendor-none", ["include"], "0" * 64))
        write_toolkit(self.folder / "toolkit", "99.0")
        ran = self.fetch("--from", str(self.folder / "toolkit"), "99.0")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(sorted(self.fetched()),
                         ["cupti/cupti_driver_cbid.h", "include/crt/host_defines.h", "include/cuda.h",
                          "include/cudaProfiler.h", "include/cudaTypedefs.h", "include/cuda_runtime_api.h",
                          "lib/libcudart.so.99"])
        self.assertEqual(self.fetch("99.0", "--oracles").returncode, 0)  # it counts as fetched

    def test_bare_folder_of_headers_is_a_source_for_a_release_that_is_not_listed(self):
        self.list_packages()
        write_toolkit(self.folder / "toolkit", "99.1")
        ran = self.fetch("--from", str(self.folder / "toolkit" / "include"), "99.1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("no libcudart", ran.stderr)
        self.assertIn("include/cuda.h", self.fetched("99.1"))

    def test_headers_of_another_release_are_refused_and_the_old_ones_stay(self):
        self.list_packages(("vendor-a", ["include"], self.downloads.add("vendor-a", {"include/a.h": "a"})))
        self.assertEqual(self.fetch("99.0").returncode, 0)
        write_toolkit(self.folder / "toolkit", "98.1")
        ran = self.fetch("--from", str(self.folder / "toolkit"), "99.0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("is that of CUDA 98.1, not 99.0", ran.stderr)
        self.assertEqual(self.fetched(), {"include/a.h": "a"})

    def test_incomplete_toolkit_is_refused_with_what_it_lacks(self):
        self.list_packages()
        write_toolkit(self.folder / "toolkit", "99.0")
        (self.folder / "toolkit" / "include" / "cudaProfiler.h").unlink()
        ran = self.fetch("--from", str(self.folder / "toolkit"), "99.0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("lacks cudaProfiler.h", ran.stderr)
        self.assertEqual(self.fetched(), {})


if __name__ == "__main__":
    unittest.main()
