"""What fetch, new-release and verify-releases share: releases.toml, pip, checksums, and what of a wheel is kept.

Needs Python 3.11 and pip, or python3-venv to get a pip of its own.
"""

import contextlib
import fcntl
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent

# Wheels of several years carry the tags of their time. pip derives the oldest (2010, 1) from 2014 but none from 2_N, so all
# are named; the machine that fetches does not matter, hence the checksum is the same everywhere.
PLATFORMS = ["manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 46))]

LIBCUDART = re.compile(r"libcudart\.so\.\d+(\.0)?")  # the SONAME: libcudart.so.13, libcudart.so.11.0


class Failed(Exception):
    """What could not be done, in one line."""


class Unreachable(Failed):
    """The package index does not answer: asking it for the next package would only take another minute."""


def version_key(release):
    return tuple(int(part) for part in release.split("."))


def load_releases(path):
    """The entries of releases.toml by release, oldest first."""
    with open(path, "rb") as file:
        entries = tomllib.load(file).get("release", [])
    return {entry["release"]: entry for entry in sorted(entries, key=lambda entry: version_key(entry["release"]))}


def package_line(package):
    gives = ", ".join(f'"{part}"' for part in package["gives"])
    return (f'  {{ name = "{package["name"]}", version = "{package["version"]}", gives = [{gives}], '
            f'sha256 = "{package["sha256"]}" }},\n')


def release_entry(entry):
    """One entry as text of releases.toml."""
    lists = [f"{key} = [\n" + "".join(package_line(package) for package in entry[key]) + "]\n"
             for key in ("packages", "oracles") if entry.get(key)]
    return f'[[release]]\nrelease = "{entry["release"]}"\n' + "".join(lists)


def wanted_packages(release):
    """What a release takes from the index: (list in releases.toml, package, what of it is kept)."""
    major = version_key(release)[0]
    suffix = f"-cu{major}" if major < 13 else ""
    return [("packages", f"nvidia-cuda-runtime{suffix}", ["include", "lib"]),
            ("packages", f"nvidia-cuda-nvcc{suffix}" if suffix else "nvidia-cuda-crt", ["crt"]),
            ("packages", f"nvidia-cuda-profiler-api{suffix}", ["include"]),
            ("oracles", f"nvidia-cuda-cupti{suffix}", ["cupti"])]


# CUPTI began to number these only with CUDA 13: what nvcc's output calls, and the door to the private tables.
LONG_UNNUMBERED = re.compile(r"__cuda\w+|cudaGetExportTable")
CUPTI_GAP = re.compile(r"CUDA [\d.]+: CUPTI does not know (\w+)")


def explain_gaps(entry, problems):
    """What remains of rota-codegen's problems without the gaps in CUPTI's lists that are explained in releases.toml."""
    explained = set(entry.get("unnumbered", []))
    gaps = {match[1] for match in map(CUPTI_GAP.match, problems) if match}
    remaining = []
    for problem in problems:
        gap = CUPTI_GAP.match(problem)
        if not gap or not (gap[1] in explained or LONG_UNNUMBERED.fullmatch(gap[1])):
            remaining.append(problem)
    if all(CUPTI_GAP.match(problem) for problem in problems):  # else the lists may not have been looked at
        remaining += [f"CUDA {entry['release']}: CUPTI does know {name}: take it out of unnumbered in releases.toml"
                      for name in sorted(explained - gaps)]
    return remaining


def has_pip(python):
    probe = subprocess.run([python, "-c", "import pip"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return probe.returncode == 0


def find_pip(folder):
    """A Python that has pip: this one, or one of a virtual environment that is made for it."""
    if has_pip(sys.executable):
        return sys.executable
    environment = folder / ".venv"
    python = environment / "bin" / "python3"
    if not python.exists() or not has_pip(str(python)):
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], capture_output=True, text=True)
        if made.returncode != 0:
            raise Failed("neither pip nor venv works here: install python3-pip or python3-venv")
    return str(python)


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def why_pip_failed(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    retried = [line for line in lines if "Retrying (" in line]
    if retried:
        cause = retried[-1].rsplit("': ", 1)[-1] if "': " in retried[-1] else retried[-1]
        return Unreachable(f"the package index does not answer ({cause})")
    other = re.search(r"Expected sha256 (\w+)\s+Got\s+(\w+)", text)
    if other:
        return Failed(f"its checksum is {other[2]}, not {other[1]} as releases.toml says")
    errors = [line for line in lines if line.startswith("ERROR:")]
    return Failed((errors or lines or ["pip gave no reason"])[0].removeprefix("ERROR: "))


@contextlib.contextmanager
def sole_user(folder):
    """Two fetches into one folder would disturb each other: the second waits. Also sweeps up after one that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in [*folder.glob("partial-*"), *folder.glob("wheels/partial-*")]:
            shutil.rmtree(left_over, ignore_errors=True)
        yield


class Index:
    """The package index as pip sees it, and the downloads so far."""

    def __init__(self, destination):
        self.destination = destination
        self.wheels = destination / "wheels"
        self.python = None
        self.answers = True

    def newest(self, name, version, sha256=None):
        """The newest wheel whose version matches, for example 13.0.96 or 13.0.*; it is in the folder once it is complete.

        Some versions are there twice, with other platform tags: the checksum tells pip which one is meant.
        """
        if not self.answers:
            raise Unreachable("not tried, because the package index does not answer")
        self.python = self.python or find_pip(self.destination)
        self.wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="partial-", dir=self.wheels) as temporary:
            platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
            requirement = pathlib.Path(temporary) / "requirement"
            requirement.write_text(f"{name}=={version}" + (f" --hash=sha256:{sha256}" if sha256 else ""))
            # --no-deps because releases.toml is complete.
            command = [self.python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                       "--only-binary", ":all:", *platforms, "--dest", temporary, "--requirement", str(requirement)]
            ran = subprocess.run(command, capture_output=True, text=True)
            found = list(pathlib.Path(temporary).glob("*.whl"))
            if ran.returncode != 0 or not found:
                problem = why_pip_failed(ran.stderr)
                self.answers = not isinstance(problem, Unreachable)
                raise problem
            return pathlib.Path(shutil.move(found[0], self.wheels / found[0].name))

    def download(self, package):
        """The verified wheel of one package; an earlier one is used again if its checksum is right."""
        stem = package["name"].replace("-", "_") + "-" + package["version"] + "-"
        for wheel in self.wheels.glob(stem + "*.whl"):
            if sha256_of(wheel) == package["sha256"]:
                return wheel
            wheel.unlink()
        return self.newest(package["name"], package["version"], package["sha256"])


def place(member, gives):
    """Where a file of a wheel belongs below fetched/<release>, or None if it is not wanted."""
    parts = pathlib.PurePosixPath(member).parts
    if ".." in parts or parts[-1] == "__init__.py":
        return None
    for top in ("include", "lib"):
        if top not in parts[:-1]:
            continue
        inner = parts[parts.index(top) + 1:]
        if top == "include" and ("include" in gives or ("crt" in gives and inner[0] == "crt")):
            return pathlib.PurePosixPath("include", *inner)
        if top == "include" and "cupti" in gives:
            return pathlib.PurePosixPath("cupti", *inner)
        if top == "lib" and "lib" in gives and LIBCUDART.fullmatch(inner[-1]):
            return pathlib.PurePosixPath("lib", inner[-1])
    return None
