"""The wheel, as users get it: installed into a fresh environment without an index, tried, and uninstalled.

ROTA_PACKAGE is a folder with the wheel and the tarball, ROTA_BUILD the build folder.
"""
import csv
import hashlib
import base64
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["ROTA_BUILD"])
PACKAGE = pathlib.Path(os.environ["ROTA_PACKAGE"])
KEPT = ("share/man/", "share/rota/status.schema.json")  # what the wheel has of share


def the(pattern):
    found = list(PACKAGE.glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"there is not one {pattern} in {PACKAGE}: {found}")
    return found[0]


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if "__pycache__" not in path.parts}


class Content(unittest.TestCase):
    def setUp(self):
        self.path = the("*.whl")
        self.wheel = zipfile.ZipFile(self.path)
        self.addCleanup(self.wheel.close)
        self.version = self.path.name.split("-")[1]

    def text(self, name):
        return self.wheel.read(f"rota-{self.version}.dist-info/{name}").decode()

    def test_its_name_its_tags_and_the_programs_have_one_version(self):
        self.assertEqual(self.path.name, f"rota-{self.version}-py3-none-manylinux_2_28_x86_64.whl")
        self.assertIn("\nTag: py3-none-manylinux_2_28_x86_64\n", self.text("WHEEL"))
        self.assertIn(f"\nVersion: {self.version}\n", self.text("METADATA"))
        cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
        self.assertIn(f"\nCMAKE_PROJECT_VERSION:STATIC={self.version}\n", cache)

    def test_its_record_is_right(self):
        rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(self.text("RECORD")))}
        self.assertEqual(sorted(rows), sorted(self.wheel.namelist()))
        for name, (digest, size) in rows.items():
            if name.endswith(".dist-info/RECORD"):
                continue
            content = self.wheel.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, size), (f"sha256={expected}", str(len(content))), name)

    def test_what_it_has_in_common_with_the_tarball_is_the_same(self):
        with tarfile.open(the("*.tar.gz")) as tarball:
            packed = {member.name.partition("/")[2]: member for member in tarball.getmembers() if member.isfile()}
            content = {name: tarball.extractfile(member).read() for name, member in packed.items() if name.startswith(KEPT) or not name.startswith("share/")}
        for name, expected in content.items():
            place = f"scripts/{name[4:]}" if name.startswith("bin/") else f"data/{name}"
            self.assertEqual(self.wheel.read(f"rota-{self.version}.data/{place}"), expected, name)
        own = [name for name in self.wheel.namelist() if ".data/" in name]
        self.assertEqual(len(own), len(content))
        self.assertIn("include/rota/rota_test.h", content)
        self.assertIn("share/rota/status.schema.json", content)
        self.assertTrue({"share/man/man1/rota.1", "share/man/man5/rotad.toml.5", "share/man/man8/rotad.8"} <= set(content))
        self.assertIn("`share/man/` of its prefix", self.text("METADATA"))

    def test_the_same_build_gives_the_same_bytes(self):
        with tempfile.TemporaryDirectory(prefix="rota-wheel-") as folder:
            done = subprocess.run([ROOT / "tools/package/wheel", BUILD, folder], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(pathlib.Path(done.stdout.strip()).read_bytes(), self.path.read_bytes())


class Installed(unittest.TestCase):
    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="rota-wheel-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.python = next((each for each in (sys.executable, "/usr/bin/python3") if self.has(each)), None)
        if self.python is None:
            self.skipTest("no Python here has pip and pytest (tools/dev setup installs them)")
        self.environment = self.scratch / "environment"
        # The packages of the machine, for pytest; no pip of its own, which would need Debian's python3-venv.
        self.checked(self.python, "-m", "venv", "--without-pip", "--system-site-packages", self.environment)
        self.before = files(self.environment)
        self.pip("install", "--no-index", "--no-deps", the("*.whl"))

    @staticmethod
    def has(python):
        return shutil.which(python) and subprocess.run([python, "-c", "import pip, pytest, venv"], capture_output=True, check=False).returncode == 0

    def checked(self, *command, **options):
        """The environment of the command is the machine's, less rota and Python settings, with the installed commands in its PATH."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("ROTA_", "PYTHON", "PIP_", "LD_"))}
        variables.update(PATH=f"{self.scratch}/environment/bin:{variables['PATH']}", HOME=str(self.scratch), XDG_RUNTIME_DIR=str(self.scratch),
                         XDG_CACHE_HOME=str(self.scratch / "cache"), PYTHONDONTWRITEBYTECODE="1", PIP_DISABLE_PIP_VERSION_CHECK="1",
                         **options.pop("variables", {}))
        done = subprocess.run([str(word) for word in command], env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=200, check=False, cwd=self.scratch)
        self.assertEqual(done.returncode, options.get("code", 0), f"{command}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def pip(self, *words):
        return self.checked(self.python, "-m", "pip", "--python", self.environment / "bin/python", *words)

    def test_its_commands_run_and_find_what_they_load(self):
        version = the("*.whl").name.split("-")[1]
        self.assertIn(version, self.checked("rota", "--version"))
        self.assertIn(version, self.checked("rotad", "--version"))
        self.assertIn("All of their memory held what it must", self.checked("rota", "sim", "--memory", "1G", "--", "rota", "demo"))
        shutil.copy(BUILD / "tests/programs/memhog", self.scratch)
        self.assertIn('"wrong":0', self.checked("rota", "sim", "--memory", "1G", "--", "rota", "run", "--", self.scratch / "memhog", "--share",
                                                "0.5").replace(" ", ""))

    def test_pytest_finds_the_plugin_by_its_entry_point(self):
        (self.scratch / "test_it.py").write_text("def test_it(): pass\n", encoding="utf-8")
        said = self.checked(self.environment / "bin/python", "-m", "pytest", "-p", "no:cacheprovider", "test_it.py",
                            variables={"ROTA_REPORT": str(self.scratch / "report")})
        self.assertIn("1 passed", said)
        written, = (self.scratch / "report/tests").glob("*.jsonl")
        self.assertEqual(len(written.read_text(encoding="ascii").splitlines()), 2)

    def test_the_header_is_there_for_the_compiler(self):
        program = self.scratch / "program.cpp"
        program.write_text('#include <rota/rota_test.h>\nint main() { rota::test::begin("x"); }\n', encoding="utf-8")
        self.checked("g++", "-std=c++14", f"-I{self.environment}/include", program, "-o", self.scratch / "program", "-ldl")

    def test_uninstalling_leaves_nothing(self):
        self.assertNotEqual(files(self.environment), self.before)
        self.pip("uninstall", "--yes", "rota")
        # pip leaves folders that have no files of their own.
        self.assertLessEqual(files(self.environment) - self.before, {"share", "share/man", "share/rota"})
        self.assertLessEqual(self.before, files(self.environment))

    def test_man_finds_its_pages_where_its_commands_are_in_the_path(self):
        pages = self.environment / "share/man"
        self.assertIn(".TH", (pages / "man1/rota.1").read_text(encoding="utf-8"))
        if shutil.which("man"):
            for section, page in ("1", "rota"), ("8", "rotad"), ("5", "rotad.toml"):
                self.assertEqual(self.checked("man", "-w", section, page).strip(), str(pages / f"man{section}/{page}.{section}"))


if __name__ == "__main__":
    unittest.main()
