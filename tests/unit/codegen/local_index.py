"""A package index in a folder, with wheels that a test makes: no network."""

import hashlib
import os
import pathlib
import sys
import zipfile

sys.dont_write_bytecode = True
CUDA_HEADERS = pathlib.Path(__file__).resolve().parents[3] / "cuda_headers"

# The least that counts as a release's headers.
HEADERS = ["cudaTypedefs.h", "cuda_runtime_api.h", "crt/host_defines.h", "cudaProfiler.h"]


class LocalIndex:
    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir(parents=True)

    def environment(self):
        return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def add(self, name, files, version="1.0", tag="manylinux2014_x86_64"):
        """A wheel that pip accepts; returns its checksum."""
        stem = f"{name.replace('-', '_')}-{version}"
        path = self.folder / f"{stem}-py3-none-{tag}.whl"
        metadata = {f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                    f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\n"
                                               + "".join(f"Tag: py3-none-{one}\n" for one in tag.split(".")),
                    f"{stem}.dist-info/RECORD": ""}
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in {**files, **metadata}.items():
                archive.writestr(file, text)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def withdraw(self, name):
        for path in self.folder.glob(name.replace("-", "_") + "-*.whl"):
            path.unlink()


def cuda_h(release):
    major, minor = release.split(".")
    return f"#define CUDA_VERSION {int(major) * 1000 + int(minor) * 10}\n"


def write_toolkit(folder, release):
    """An installed toolkit, as far as anybody looks at it."""
    for name in HEADERS:
        (folder / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "include" / name).write_text(name)
    (folder / "include" / "cuda.h").write_text(cuda_h(release))
    (folder / "include" / "thrust").mkdir()
    (folder / "include" / "thrust" / "vector.h").write_text("not wanted")
    (folder / "lib64").mkdir()
    major = release.split(".")[0]
    (folder / "lib64" / f"libcudart.so.{release}.37").write_text("cudart")
    (folder / "lib64" / f"libcudart.so.{major}").symlink_to(f"libcudart.so.{release}.37")
    (folder / "extras" / "CUPTI" / "include").mkdir(parents=True)
    (folder / "extras" / "CUPTI" / "include" / "cupti_driver_cbid.h").write_text("cbid")
