"""`rota ci --gpus-per-test`: tests spread over the GPUs that the command sees, and free memory on each of them."""
import collections
import json
import shutil
import sys
import unittest

from harness import PROGRAMS, ROOT, ROTA, Case
from runners_test import python_with
from sim_case import program

CTEST = shutil.which("ctest")

# Prints how many GPUs it sees, and works on the first.
COUNT = """
assert call("cuInit", 0) == 0
count = ctypes.c_int()
assert call("cuDeviceGetCount", ctypes.byref(count)) == 0
print(f"sees {count.value}\\n", end="")  # in one piece, also where Python does not buffer: several print at once
"""
WORK = COUNT + "assert context() == 0\nassert allocate(1 << 20)[0] == 0\n"
# The same once as many of these have begun: one per process that is started.
TOGETHER = COUNT + """
import os, pathlib, time
folder, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
assert context() == 0
(folder / str(os.getpid())).touch()
until = time.monotonic() + 50
while len(list(folder.iterdir())) < number:
    assert time.monotonic() < until, "the others do not come"
    time.sleep(0.01)
"""

# Says that it is there, and waits for another one where both are to run at once.
INSIDE = """
import os, pathlib, time
folder, together = pathlib.Path(sys.argv[1]), sys.argv[2] == "together"
inside = folder / str(os.getpid())
inside.touch()
most = 0
until = time.monotonic() + (50 if together else 0.5)
while time.monotonic() < until and most < 2:
    most = max(most, len(list(folder.iterdir())))
    time.sleep(0.01)
if not together:
    inside.unlink()
assert most == (2 if together else 1), most
"""
LARGE = COUNT + "assert context() == 0\n" + INSIDE


@unittest.skipIf(CTEST is None, "there is no ctest here")
class Spread(Case):
    memory = "1G"
    gpus = 2

    def setUp(self):
        super().setUp()
        self.environment.update(ROTA_SIM_GPUS=str(self.gpus))
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)
        self.folder = self.scratch / "build"
        self.folder.mkdir()
        self.report = None

    def script(self, name, body):
        path = self.scratch / f"{name}.py"
        path.write_text(program(body)[-1], encoding="utf-8")
        return [sys.executable, "-B", path]

    def build(self, **tests):
        lines = []
        for name, command in tests.items():
            words = " ".join(f'"{word}"' for word in command)
            lines.append(f"add_test({name} {words})")
        (self.folder / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def rig(self, *options, command=(), jobs=8, **environment):
        path = self.scratch / "report.json"
        command = command or (CTEST, "--test-dir", self.folder, f"-j{jobs}", "-V")
        result = self.call(ROTA, "ci", "--json", path, *options, "--", *command, **environment)
        self.report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return result

    def spread(self, *options, **more):
        result = self.rig(*options, **more)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def used(self):
        """By test, the GPUs that it used."""
        return {test["name"]: set(test["gpus"]) for test in self.report["tests"]}

    def all_gpus(self):
        out = self.checked(*program("""
assert call("cuInit", 0) == 0
count = ctypes.c_int()
call("cuDeviceGetCount", ctypes.byref(count))
names = []
for device in range(count.value):
    uuid = (ctypes.c_ubyte * 16)()
    assert call("cuDeviceGetUuid", uuid, device) == 0
    text = bytes(uuid).hex()
    names.append("GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])))
print(json.dumps(names))
"""), LD_PRELOAD="").stdout
        return json.loads(out)

    def evenly(self, gpus):
        self.environment["ROTA_SIM_GPUS"] = str(gpus)
        began = self.scratch / "began"
        began.mkdir()
        together = self.script("together", TOGETHER)
        self.build(**{f"t{number}": [*together, began, "8"] for number in range(8)})
        result = self.spread("--gpus-per-test", "1")
        self.assertEqual(result.stdout.count("sees 1\n"), 8, result.stdout)
        tests = collections.Counter(gpu for used in self.used().values() for gpu in used)
        self.assertEqual(sorted(tests.values()), [8 // gpus] * gpus)

    # ctest labels: unsanitized
    def test_tests_are_spread_evenly_over_two_gpus(self):
        self.evenly(2)

    # ctest labels: unsanitized
    def test_tests_are_spread_evenly_over_four_gpus(self):
        self.evenly(4)

    def test_tests_that_follow_each_other_are_spread_too_and_the_report_says_where_they_ran(self):
        self.build(**{f"t{number}": [PROGRAMS / "saxpy"] for number in range(4)})
        result = self.spread("--gpus-per-test", "1", jobs=1)
        tests = collections.Counter(gpu for used in self.used().values() for gpu in used)
        self.assertEqual(sorted(tests.values()), [2, 2])
        for name, used in self.used().items():
            self.assertIn(f"{name} {used.pop()[:12]}", result.stderr)

    def test_a_runner_above_the_rig_does_not_make_one_test_of_all(self):
        path = self.scratch / "report.json"
        saxpy = PROGRAMS / "saxpy"
        self.build(outer=[ROTA, "ci", "--gpus-per-test", "1", "--json", path, "--", "sh", "-c", f"{saxpy} && {saxpy}"])
        self.checked(CTEST, "--test-dir", self.folder, "--output-on-failure")
        report = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(report["tests"], [])
        self.assertEqual(len({gpu["uuid"] for process in report["processes"] for gpu in process["gpus"]}), 2)

    # ctest labels: unsanitized
    def test_a_test_sees_as_many_gpus_as_the_option_says_and_without_it_all(self):
        self.environment["ROTA_SIM_GPUS"] = "4"
        self.build(a=self.script("count", WORK))
        for options, seen in ((["--gpus-per-test", "1"], 1), (["--gpus-per-test", "3"], 3), ([], 4)):
            with self.subTest(options=options):
                self.assertIn(f"sees {seen}\n", self.spread(*options).stdout)

    # ctest labels: unsanitized
    def test_more_gpus_than_the_command_sees_are_refused_before_it_starts(self):
        touched = self.scratch / "touched"
        result = self.rig("--gpus-per-test", "3", command=("touch", touched))
        self.assertEqual(result.returncode, 125, result.stderr)
        self.assertIn("--gpus-per-test 3: the command sees 2 GPUs; use at most 2; the command is not started", result.stderr)
        result = self.rig("--gpus-per-test", "2", command=("touch", touched), CUDA_VISIBLE_DEVICES="1")
        self.assertIn("--gpus-per-test 2: the command sees 1 GPU; use 1", result.stderr)
        for wrong in ("0", "x"):
            self.assertEqual(self.rig("--gpus-per-test", wrong, command=("touch", touched)).returncode, 125)
        self.assertFalse(touched.exists())

    # ctest labels: unsanitized
    def test_gpus_are_chosen_among_those_that_the_command_sees(self):
        self.environment["ROTA_SIM_GPUS"] = "4"
        gpus = self.all_gpus()
        for visible in ("3,1", f"{gpus[3]},{gpus[1]}"):
            with self.subTest(visible=visible):
                began = self.scratch / f"began{len(visible)}"
                began.mkdir()
                together = self.script("together", TOGETHER)
                self.build(**{f"t{number}": [*together, began, "4"] for number in range(4)})
                self.spread("--gpus-per-test", "1", CUDA_VISIBLE_DEVICES=visible)
                tests = collections.Counter(gpu for used in self.used().values() for gpu in used)
                self.assertEqual(tests, {gpus[1]: 2, gpus[3]: 2})

    # ctest labels: unsanitized
    def test_a_test_that_names_its_gpus_itself_keeps_them(self):
        gpus = self.all_gpus()
        work = self.script("count", WORK)
        within = self.script("within", f"import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '{gpus[1]}'\n" + WORK)
        self.build(environment=["env", "CUDA_VISIBLE_DEVICES=1", *work], within=within, both=["env", "CUDA_VISIBLE_DEVICES=1,0", *work],
                   none=["env", "CUDA_VISIBLE_DEVICES=", *self.script("none", "assert call('cuInit', 0) == 100\nprint('sees no GPU')")])
        result = self.spread("--gpus-per-test", "1", jobs=1)
        self.assertEqual(self.used(), {"environment": {gpus[1]}, "within": {gpus[1]}, "both": {gpus[1]}, "none": set()})
        self.assertIn("sees 2\n", result.stdout)
        self.assertIn("sees no GPU", result.stdout)

    # ctest labels: unsanitized
    def test_all_processes_of_a_test_have_its_gpu(self):
        work = self.script("count", WORK)
        words = " ".join(str(word) for word in work)
        parent = self.script("parent", WORK + "import subprocess\nsubprocess.run(sys.orig_argv[:2] + [sys.argv[1]], check=True)\n")
        forks = self.script("forks", """
import os
for _ in range(2):
    if os.fork() == 0:
        break
else:
    for _ in range(2):
        assert os.wait()[1] == 0
""" + WORK)
        self.build(after=["sh", "-c", f"{words} && {words} && {words}"], beside=["sh", "-c", f"{words} & {words} & {words}; wait"],
                   child=[*parent, work[-1]], forks=forks, other=work, another=work)
        result = self.spread("--gpus-per-test", "1")
        self.assertEqual(result.stdout.count("sees 1\n"), 13, result.stdout)
        processes = {test["name"]: len(test["processes"]) for test in self.report["tests"]}
        self.assertEqual(processes, {"after": 3, "beside": 3, "child": 2, "forks": 3, "other": 1, "another": 1})
        for name, gpus in self.used().items():
            self.assertEqual(len(gpus), 1, f"{name}: {gpus}")

    # ctest labels: unsanitized
    def test_programs_without_a_runner_are_spread_and_their_children_stay_with_them(self):
        work = self.script("count", WORK)
        parent = self.script("parent", WORK + "import subprocess\nsubprocess.run(sys.orig_argv[:2] + [sys.argv[1]], check=True)\n")
        words = " ".join(str(word) for word in [*parent, work[-1]])
        self.spread("--gpus-per-test", "1", command=("sh", "-c", f"{words} && {words}"))
        gpus = {process["id"]: process["gpus"][0]["uuid"] for process in self.report["processes"]}
        children = [(gpus[process["parent"]], gpus[process["id"]]) for process in self.report["processes"] if process["parent"] in gpus]
        self.assertEqual(len(children), 2)
        self.assertEqual({pair for pair in children}, {(gpu, gpu) for gpu in self.all_gpus()})

    def known(self, **bytes_of):
        path = self.scratch / "known.json"
        tests = {name: {"peak_bytes": size} for name, size in bytes_of.items()}
        path.write_text(json.dumps({"version": 1, "tests": tests}), encoding="utf-8")
        return path

    # ctest labels: unsanitized
    def test_two_tests_of_most_of_a_gpu_run_at_once_on_two_gpus_and_one_after_the_other_on_one(self):
        known = self.known(a=644 << 20, b=644 << 20)
        for gpus, how in ((2, "together"), (1, "apart")):
            with self.subTest(gpus=gpus):
                folder = self.scratch / how
                folder.mkdir()
                test = self.script("large", LARGE)
                self.build(a=[*test, folder, how], b=[*test, folder, how])
                self.spread("--gpus-per-test", "1", "--baseline", known, ROTA_SIM_GPUS=str(gpus), ROTA_SIM_STATE=str(self.scratch / how) + ".state")

    # ctest labels: unsanitized
    def test_room_is_that_of_the_gpu_that_a_test_uses_also_without_the_option(self):
        known = self.known(a=644 << 20, b=644 << 20)
        test = self.script("large", LARGE)
        for gpus, how in (("01", "together"), ("00", "apart")):
            with self.subTest(gpus=gpus):
                folder = self.scratch / how
                folder.mkdir()
                self.build(**{name: ["env", f"CUDA_VISIBLE_DEVICES={gpu}", *test, folder, how] for name, gpu in zip("ab", gpus)})
                self.spread("--baseline", known)

    # ctest labels: unsanitized
    def test_a_test_of_several_gpus_sees_all_and_waits_for_the_one_that_it_uses(self):
        known = self.known(a=644 << 20, b=644 << 20)
        folder = self.scratch / "apart"
        folder.mkdir()
        test = self.script("large", LARGE)
        self.build(a=[*test, folder, "apart"], b=[*test, folder, "apart"])
        self.assertEqual(self.spread("--baseline", known).stdout.count("sees 2\n"), 2)

    # ctest labels: unsanitized
    def test_what_a_test_needs_of_each_of_its_gpus_is_known_from_the_last_time(self):
        known = self.scratch / "known.json"
        both = self.script("both", """
assert context() == 0
second = ctypes.c_void_p()
assert call("cuDevicePrimaryCtxRetain", ctypes.byref(second), 1) == 0 and call("cuCtxSetCurrent", second) == 0
assert allocate(644 << 20)[0] == 0
if len(sys.argv) == 1:
    sys.exit()
""" + INSIDE)
        self.build(a=both)
        self.spread("--memory", "native", "--baseline", known, "--update", known)
        baseline = json.loads(known.read_text(encoding="utf-8"))
        first, second = baseline["tests"]["a"]["gpu_peak_bytes"]
        self.assertLess(first, 400 << 20)
        self.assertGreaterEqual(second, 644 << 20)
        baseline["tests"]["b"] = {"peak_bytes": 600 << 20}
        known.write_text(json.dumps(baseline), encoding="utf-8")
        large = self.script("large", LARGE)
        for gpu, how in (("0", "together"), ("1", "apart")):
            with self.subTest(gpu=gpu):
                folder = self.scratch / how
                folder.mkdir()
                self.build(a=[*both, folder, how], b=["env", f"CUDA_VISIBLE_DEVICES={gpu}", *large, folder, how])
                self.spread("--memory", "native", "--baseline", known)

    # ctest labels: unsanitized
    def test_a_test_that_only_looks_at_the_gpus_does_not_wait_for_room(self):
        known = self.known(large=644 << 20, looks=644 << 20)
        await_file = """
import pathlib, time
def await_file(name):
    until = time.monotonic() + 45
    while not (pathlib.Path(sys.argv[1]) / name).exists():
        assert time.monotonic() < until, f"no {name}"
        time.sleep(0.01)
def touch(name):
    (pathlib.Path(sys.argv[1]) / name).touch()
"""
        large = self.script("large", await_file + "assert context() == 0\ntouch('inside')\nawait_file('looked')")
        looks = self.script("looks", await_file + "await_file('inside')" + COUNT + "touch('looked')")
        self.build(large=[*large, self.scratch], looks=[*looks, self.scratch])
        self.spread("--gpus-per-test", "1", "--baseline", known, ROTA_SIM_GPUS="1")

    # ctest labels: unsanitized
    def test_a_test_larger_than_any_gpu_runs_on_one(self):
        known = self.known(a=5 << 30)
        self.build(a=self.script("count", WORK))
        self.spread("--gpus-per-test", "1", "--baseline", known)
        self.assertEqual(len(self.used()["a"]), 1)

    # ctest labels: unsanitized
    def test_workers_of_pytest_have_a_gpu_each_which_python_sees_too(self):
        python = python_with("xdist")
        (self.scratch / "conftest.py").write_text("""
import ctypes
# The process that starts the workers uses CUDA itself.
ctypes.CDLL("libcuda.so.1").cuInit(0)
""", encoding="utf-8")
        test = self.scratch / "test_gpus.py"
        test.write_text("""
import ctypes, os, pathlib, subprocess, sys, time
import pytest
cuda = ctypes.CDLL("libcuda.so.1")

def uuid():
    text = (ctypes.c_ubyte * 16)()
    count, context = ctypes.c_int(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 1
    assert cuda.cuDeviceGetUuid(text, 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    return bytes(text).hex()

if __name__ == "__main__":
    print(uuid())

@pytest.mark.parametrize("number", range(4))
def test_gpu(number, request):
    own = uuid()
    # A test each, of four workers that are there at once.
    folder = pathlib.Path(__file__).parent / "workers"
    folder.mkdir(exist_ok=True)
    (folder / f"{os.getpid()} {own}").touch()
    until = time.monotonic() + 40
    while len(list(folder.iterdir())) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert os.environ["CUDA_VISIBLE_DEVICES"].replace("-", "")[3:] == own
    for environment in (None, dict(os.environ)):
        child = subprocess.run([sys.executable, "-B", __file__], env=environment, check=True, capture_output=True, text=True)
        assert child.stdout.strip() == own
""", encoding="utf-8")
        self.environment["PYTHONPATH"] = str(ROOT / "tools/python")
        self.spread("--gpus-per-test", "1", command=(python, "-B", "-m", "pytest", "-q", "-n", "4", "-p", "rota.pytest_plugin", "-p",
                                                     "no:cacheprovider", test))
        workers = [path.name.split()[1] for path in (self.scratch / "workers").iterdir()]
        self.assertEqual(sorted(collections.Counter(workers).values()), [2, 2])


if __name__ == "__main__":
    unittest.main()
