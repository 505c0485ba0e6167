"""A folder with tests of pytest's, and a session that runs them with the plugin, as its entry point would have it loaded."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUILD = pathlib.Path(os.environ.get("ROTA_BUILD", ROOT / "build/release"))
CORE = BUILD / "tests/stand_in/librota-core.so"

# What the tests do with the GPU. The name of the core is the real one's, so the plugin finds it as it finds that.
GPU = f"""
import ctypes, functools

class Gpu:
    @functools.cached_property
    def core(self):
        return ctypes.CDLL({str(CORE)!r})
    def allocate(self, megabytes): self.core.stand_in_allocate(ctypes.c_uint64(megabytes << 20))
    def free(self, megabytes): self.core.stand_in_free(ctypes.c_uint64(megabytes << 20))
    def launch(self, busy_ns=0, waited_ns=0): self.core.stand_in_launch(ctypes.c_uint64(busy_ns), ctypes.c_uint64(waited_ns))
    def last_name(self):
        self.core.stand_in_last_name.restype = ctypes.c_char_p
        return self.core.stand_in_last_name().decode()

gpu = Gpu()
"""


def pythons():
    """This one, or the system's, whose packages `tools/dev setup` installs; ROTA_TEST_PYTHON names another."""
    return [python for python in (os.environ.get("ROTA_TEST_PYTHON"), sys.executable, "/usr/bin/python3") if python]


def python_with(*modules):
    check = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))"
    for python in pythons():
        if shutil.which(python) and subprocess.run([python, "-c", check, *modules], check=False).returncode == 0:
            return python
    raise unittest.SkipTest(f"no Python here has {' and '.join(modules)} (tools/dev setup installs them)")


class Session(unittest.TestCase):
    needs = ["pytest"]

    def setUp(self):
        self.python = python_with(*self.needs)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rota-pytest-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.report = self.folder / "report"
        (self.folder / "gpu.py").write_text(GPU, encoding="utf-8")

    def write(self, text, name="test_it.py"):
        (self.folder / name).write_text("from gpu import gpu\nimport pytest\n" + text, encoding="utf-8")

    def start(self, *options, **environment):
        return self.start_python("-m", "pytest", "-p", "rota.pytest_plugin", "-p", "no:cacheprovider", *options, **environment)

    def start_python(self, *arguments, **environment):
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'tools/python'}:{self.folder}", "ROTA_REPORT": str(self.report),
                     "PYTHONDONTWRITEBYTECODE": "1", **environment}
        return subprocess.Popen([self.python, *arguments],
                                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                env={name: value for name, value in variables.items() if value is not None})

    def run_tests(self, *options, code=0, **environment):
        return self.ended(self.start(*options, **environment), code)

    def run_program(self, name, code=0):
        return self.ended(self.start_python(name), code)

    def ended(self, session, code):
        out, errors = session.communicate(timeout=60)
        self.assertEqual(session.returncode, code, out + errors)
        return out + errors

    def lines(self):
        """All events by file; a line that is cut off is an error."""
        return {path.name: [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
                for path in sorted((self.report / "tests").glob("*.jsonl"))}

    def events(self):
        only, = self.lines().values()
        return only

    def ends(self):
        """(test, attempt, outcome), in order."""
        return [(event["test"].partition("::")[2], event["attempt"], event["outcome"]) for event in self.events() if event["event"] == "end"]
