"""`rota ci`: tests of a real ctest as one session: who did what, admission, hangs, exit codes, and what cannot be done."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from harness import PROGRAMS, ROOT, ROTA, Case
from runners_test import GPU, python_with
from sim_case import program

CTEST = shutil.which("ctest")


@unittest.skipIf(CTEST is None, "there is no ctest here")
class Rig(Case):
    memory = "1G"

    def build(self, **tests):
        """A build folder with these tests: a command each."""
        folder = self.scratch / "build"
        folder.mkdir()
        lines = []
        for name, command in tests.items():
            words = " ".join(f'"{word}"' for word in command)
            lines.append(f'add_test({name} {words})')
        (folder / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return folder

    def rig(self, *options, jobs=8):
        """`rota ci` with a ctest of the build folder; the report as well."""
        report = self.scratch / "report.json"
        result = self.call(ROTA, "ci", "--json", report, *options, "--", CTEST, "--test-dir", self.scratch / "build", f"-j{jobs}")
        return result, json.loads(report.read_text(encoding="utf-8")) if report.exists() else None

    def named(self, report, name):
        found = [test for test in report["tests"] if test["name"] == name]
        self.assertEqual(len(found), 1, f"{name} among {[test['name'] for test in report['tests']]}")
        return found[0]

    def test_each_test_of_ctest_is_in_the_report_with_what_it_took(self):
        self.build(small=[PROGRAMS / "saxpy"], large=[PROGRAMS / "memhog", "--share", "0.5", "--rounds", "3"],
                   without=["/bin/true"], failing=["/bin/false"])
        result, report = self.rig("--report-dir", self.scratch / "kept", "--junit", self.scratch / "junit.xml", "--suggest")
        self.assertEqual(result.returncode, 8, result.stderr)  # ctest's own
        self.assertEqual({test["name"]: test["outcome"] for test in report["tests"]},
                         {"small": "passed", "large": "passed", "without": "passed", "failing": "failed"})
        large = self.named(report, "large")
        self.assertAlmostEqual(large["use"]["peak_bytes"], 0.5 * 2**30, delta=0.02 * 2**30)
        self.assertGreater(large["use"]["launches"], 0)
        self.assertEqual(self.named(report, "without")["use"]["calls"], 0)
        self.assertIn('set_tests_properties("large" PROPERTIES RESOURCE_GROUPS "gpu_mib:', result.stdout)
        self.assertTrue((self.scratch / "junit.xml").exists())
        for name in ("report.txt", "report.json", "junit.xml", "report.html", "session.json", "tests.json"):
            self.assertTrue((self.scratch / "kept" / name).exists(), name)
        again = self.call(ROTA, "report", self.scratch / "kept", "--fail-on", "peak>100M")
        self.assertEqual(again.returncode, 3, again.stderr)
        self.assertIn("peak: large", again.stdout)

    def test_tests_whose_needs_are_known_begin_when_they_fit(self):
        # Native memory stays on the GPU: three of these do not fit at once.
        known = self.scratch / "rota-ci.json"
        tests = {f"t{number}": [PROGRAMS / "memhog", "--share", "0.4", "--rounds", "40"] for number in range(6)}
        self.build(**tests)
        result, _ = self.rig("--memory", "native", "--baseline", known, "--update", known, jobs=1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(set(json.loads(known.read_text(encoding="utf-8"))["tests"]), set(tests))
        result, report = self.rig("--memory", "native", "--baseline", known)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertGreater(sum(test["use"]["waited_ns"] for test in report["tests"]), 0)

    def test_tests_that_share_a_gpu_have_no_more_gpu_time_than_passes(self):
        self.build(**{f"t{number}": [PROGRAMS / "spinner", "--seconds", "1.5", "--kernel-us", "20000"] for number in range(4)})
        self.environment["ROTA_SIM_TIME_SCALE"] = "1"  # kernels take their time
        result, report = self.rig("--mode", "concurrent")
        self.assertEqual(result.returncode, 0, result.stderr)
        passed = max(test["end_ns"] for test in report["tests"]) - min(test["begin_ns"] for test in report["tests"])
        self.assertGreater(report["total"]["gpu_ns"], 0)
        self.assertLessEqual(report["total"]["gpu_ns"], 1.02 * passed)

    def test_tests_whose_time_outs_ended_them_while_they_waited_are_named_with_the_remedy(self):
        folder = self.build(**{name: [PROGRAMS / "spinner", "--seconds", "100"] for name in ("one", "other")})
        with (folder / "CTestTestfile.cmake").open("a", encoding="utf-8") as tests:
            tests.write("set_tests_properties(one other PROPERTIES TIMEOUT 2)\n")
        result, report = self.rig("--mode", "exclusive")
        self.assertEqual(result.returncode, 8, result.stderr)
        self.assertEqual([test["outcome"] for test in report["tests"]], ["timeout", "timeout"])
        [note] = [note for note in report["notes"] if "own time-out" in note]
        self.assertRegex(note, r"(one|other) \(waited .* Give longer time-outs \(ctest: TIMEOUT")
        self.assertIn(note, result.stderr)

    def test_no_more_tests_are_started_than_their_time_outs_allow_by_the_baseline(self):
        folder = self.build(**{f"t{number}": [PROGRAMS / "saxpy"] for number in range(8)})
        known = self.scratch / "known.json"
        result, _ = self.rig("--update", known)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("at once and not", result.stderr)
        baseline = json.loads(known.read_text(encoding="utf-8"))
        baseline["tests"]["t3"].update(time_ns=10 * 10**9, gpu_ns=5 * 10**9, waited_ns=0)
        known.write_text(json.dumps(baseline), encoding="utf-8")
        result, _ = self.rig("--baseline", known)  # ctest's own time-out is 25 minutes
        self.assertNotIn("at once and not", result.stderr)
        with (folder / "CTestTestfile.cmake").open("a", encoding="utf-8") as tests:
            tests.write("set_tests_properties(t3 PROPERTIES TIMEOUT 30)\n")
        result, report = self.rig("--baseline", known)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ctest starts 4 tests at once and not 8: t3 has a time-out of 30 s, takes 10 s, 5 s of that on the GPU", result.stderr)
        self.assertEqual(report["job"]["command"][-1], "-j4")
        result, report = self.rig("--baseline", known, jobs=3)
        self.assertEqual(report["job"]["command"][-1], "-j3")

    def test_ctest_s_variable_is_limited_as_its_option_is(self):
        folder = self.build(**{f"t{number}": ["sh", "-c", "echo at $CTEST_PARALLEL_LEVEL"] for number in range(4)})
        with (folder / "CTestTestfile.cmake").open("a", encoding="utf-8") as tests:
            tests.write("set_tests_properties(t3 PROPERTIES TIMEOUT 30)\n")
        known = self.scratch / "known.json"
        known.write_text(json.dumps({"version": 1, "tests": {"t3": {"time_ns": 10 * 10**9, "gpu_ns": 5 * 10**9}}}), encoding="utf-8")
        command = (ROTA, "ci", "--baseline", known, "--", CTEST, "--test-dir", folder, "-V")
        result = self.call(*command, CTEST_PARALLEL_LEVEL="8")
        self.assertIn("ctest starts 4 tests at once and not 8: t3 has a time-out of 30 s", result.stderr)
        self.assertIn("at 4\n", result.stdout)
        self.assertNotIn("at once and not", self.call(*command, CTEST_PARALLEL_LEVEL="3").stderr)
        # Tests that are not selected do not count, and where that is not known the line says so.
        self.assertNotIn("at once and not", self.call(*command, "-E", "t3", CTEST_PARALLEL_LEVEL="8").stderr)
        self.assertNotIn("leaves out", result.stderr)
        self.assertIn("4 tests at once and not 8", self.call(*command, "-R", "t[23]", CTEST_PARALLEL_LEVEL="8").stderr)
        self.assertIn("Tests that the command leaves out may be among", self.call(*command, "-I", "1,2", CTEST_PARALLEL_LEVEL="8").stderr)

    @unittest.skipIf(shutil.which("cmake") is None or shutil.which("make") is None, "there is no CMake, or no make")
    def test_a_ctest_that_a_build_tool_starts_is_limited_too(self):
        tests = "\n".join(f'add_test(NAME t{number} COMMAND sh -c "echo at $CTEST_PARALLEL_LEVEL")' for number in range(4))
        (self.scratch / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.16)\nproject(some NONE)\nenable_testing()\n{tests}\n"
            "set_tests_properties(t3 PROPERTIES TIMEOUT 30)\n", encoding="utf-8")
        folder = self.scratch / "build"
        self.checked("cmake", "-S", self.scratch, "-B", folder, "-G", "Unix Makefiles")
        known = self.scratch / "known.json"
        known.write_text(json.dumps({"version": 1, "tests": {"t3": {"time_ns": 10 * 10**9, "gpu_ns": 5 * 10**9}}}), encoding="utf-8")
        rig = (ROTA, "ci", "--baseline", known, "--")
        for command in (("make", "-C", folder, "test", "ARGS=-V"), ("cmake", "--build", folder, "--target", "test", "--", "ARGS=-V")):
            result = self.checked(*rig, *command, CTEST_PARALLEL_LEVEL="8")
            self.assertIn("ctest starts 4 tests at once and not 8: t3 has a time-out of 30 s", result.stderr)
            self.assertIn("at 4\n", result.stdout)
        report = self.scratch / "report.json"
        self.checked(ROTA, "ci", "--json", report, "--baseline", known, "--", "make", "-C", folder, "test", "ARGS=-j8")
        self.assertEqual(json.loads(report.read_text(encoding="utf-8"))["job"]["command"][-1], "ARGS=-j8 -j4")

    def test_a_report_folder_beside_a_link_is_where_the_kernel_finds_it(self):
        (self.scratch / "far" / "away").mkdir(parents=True)
        (self.scratch / "link").symlink_to("far/away")
        self.checked(ROTA, "ci", "--report-dir", f"{self.scratch}/link/../rep", "--", "true")
        self.assertTrue((self.scratch / "far" / "rep" / "report.json").exists())
        self.assertFalse((self.scratch / "rep").exists())
        self.checked(ROTA, "run", "--report", f"{self.scratch}/link/../report.json", "--", "true")
        self.assertTrue((self.scratch / "far" / "report.json").exists())

    def test_a_test_that_comes_to_a_stop_is_placed_and_ended(self):
        # Its kernel runs until its standard input closes, which does not happen.
        fifo = self.scratch / "fifo"
        os.mkfifo(fifo)
        hold = os.open(fifo, os.O_RDWR)
        self.addCleanup(os.close, hold)
        self.build(hangs=["sh", "-c", f"exec {PROGRAMS}/linger --stream blocking < {fifo}"], passes=[PROGRAMS / "saxpy"])
        result, report = self.rig("--hang-after", "1s")
        self.assertEqual(result.returncode, 8, result.stderr)
        hangs = [finding for finding in report["findings"] if finding["kind"] == "hang"]
        self.assertEqual(len(hangs), 1, result.stderr)
        self.assertEqual(report["tests"][hangs[0]["test"]]["name"], "hangs")
        self.assertNotIn("hangs", hangs[0]["text"])  # the finding is the test's already
        self.assertIn("rota ci: hangs: hangs, linger", result.stderr)
        self.assertIn("not finished; the last launch was spin_until", hangs[0]["details"])
        self.assertEqual(self.named(report, "passes")["outcome"], "passed")

    def test_a_test_that_hangs_is_ended_where_listing_the_tests_takes_longer_than_a_test_waits_for_it(self):
        fifo, slow = self.scratch / "fifo", self.scratch / "slow"
        os.mkfifo(fifo)
        hold = os.open(fifo, os.O_RDWR)
        self.addCleanup(os.close, hold)
        folder = self.build(hangs=["sh", "-c", f"touch {slow} && {PROGRAMS}/linger --stream blocking < {fifo}; exit $?"])
        with (folder / "CTestTestfile.cmake").open("a", encoding="utf-8") as tests:
            tests.write(f"if(EXISTS {slow})\nfile(REMOVE {slow})\nexecute_process(COMMAND sleep 4)\nendif()\n")
        result, report = self.rig("--hang-after", "1s")
        self.assertEqual(result.returncode, 8, result.stderr)
        self.assertIn("rota ci: hangs: hangs, linger", result.stderr)
        self.assertEqual(self.named(report, "hangs")["outcome"], "failed")

    def test_a_test_that_went_on_once_another_had_been_ended_is_no_hang(self):
        # The second one's standard input closes with the first one's end; both hang when they are examined.
        fifos = [self.scratch / name for name in ("first", "second")]
        for fifo in fifos:
            os.mkfifo(fifo)
        hold = os.open(fifos[0], os.O_RDWR)
        self.addCleanup(os.close, hold)
        # The shells stay: two tests that become the same program, and end at once, could not be told apart.
        linger, ready = f"{PROGRAMS}/linger --stream blocking", self.scratch / "ready"
        self.build(first=["sh", "-c", f"{linger} < {fifos[0]} > {ready} 3> {fifos[1]}; exit $?"],
                   second=["sh", "-c", f"exec < {fifos[1]}; until grep -q ready {ready}; do sleep 0.01; done; {linger}; exit $?"])
        result, report = self.rig("--hang-after", "4s")
        self.assertEqual(result.returncode, 8, result.stderr)
        self.assertEqual(self.named(report, "second")["outcome"], "passed", result.stderr)
        self.assertEqual([finding["test"] for finding in report["findings"]],
                         [[test["name"] for test in report["tests"]].index("first")], result.stderr)

    def test_tests_with_a_clean_environment_are_reached_by_the_systems_preload(self):
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no mount namespaces here")
        self.build(clean=["env", "-i", PROGRAMS / "saxpy"])
        result, report = self.rig("--system-preload")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(self.named(report, "clean")["use"]["launches"], 1)
        self.assertFalse(os.path.exists("/etc/rota-session"))
        _, without = self.rig()
        self.assertEqual(without["processes"], [])

    def test_a_rig_that_is_told_to_end_still_reports(self):
        ready = self.scratch / "ready"
        self.build(runs=["sh", "-c", f"{PROGRAMS}/saxpy && touch {ready} && exec sleep 1000"])
        report = self.scratch / "report.json"
        # These options start every thread that a rig can have: while the main one is busy, a signal reaches any that does not block it.
        known = self.scratch / "known.json"
        known.write_text('{"version": 1, "tests": {"runs": {"peak_bytes": 1}}}', encoding="utf-8")
        rig = self.start(ROTA, "ci", "--json", report, "--baseline", known, "--hang-after", "60s", "--", CTEST, "--test-dir", self.scratch / "build")
        self.eventually(lambda: ready.exists(), "the test runs")
        others = [thread for thread in pathlib.Path(f"/proc/{rig.pid}/task").iterdir() if thread.name != str(rig.pid)]
        self.assertEqual(len(others), 4)
        for thread in others:
            [blocked] = [line.split()[1] for line in (thread / "status").read_text().splitlines() if line.startswith("SigBlk")]
            self.assertTrue(int(blocked, 16) >> (signal.SIGTERM - 1) & 1, thread)
        rig.send_signal(signal.SIGTERM)
        result = self.finish(rig)
        self.assertEqual(result.returncode, -signal.SIGTERM, result.stderr)
        told = json.loads(report.read_text(encoding="utf-8"))
        self.assertEqual(self.named(told, "runs")["use"]["launches"], 1)

    def test_after_the_rig_was_killed_the_report_still_knows_the_tests(self):
        ready = self.scratch / "ready"
        kept = self.scratch / "kept"
        known = self.scratch / "known.json"
        known.write_text('{"version": 1, "tests": {"runs": {"peak_bytes": 1}}}', encoding="utf-8")
        self.build(done=[PROGRAMS / "saxpy"],
                   runs=["sh", "-c", f"{PROGRAMS}/saxpy && echo $ROTA_ADMISSION > {ready}.new && mv {ready}.new {ready} && exec sleep 1000"])
        rig = self.start(ROTA, "ci", "--report-dir", kept, "--baseline", known, "--", CTEST, "--test-dir", self.scratch / "build", "-j1")
        self.eventually(ready.exists, "the last test runs")
        os.killpg(rig.pid, signal.SIGKILL)
        rig.wait()
        # The next rig removes what this one had in /tmp.
        left = pathlib.Path(ready.read_text(encoding="utf-8").strip())
        self.assertTrue(left.exists())
        self.checked(ROTA, "ci", "--report-dir", self.scratch / "next", "--", "true")
        self.assertFalse(left.parent.exists())
        self.assertFalse((kept / "tests.json").exists())

        def told():
            report = self.checked(ROTA, "report", kept, "--format", "json")
            return json.loads(report.stdout)
        self.assertEqual({test["name"]: (test["outcome"], test["use"]["launches"]) for test in told()["tests"]},
                         {"done": ("passed", 1), "runs": ("unknown", 1)})
        # On another machine, the ctest that the accounts name is not what ran.
        description = kept / "session.json"
        description.write_text(json.dumps(dict(json.loads(description.read_text(encoding="utf-8")), boot="another")), encoding="utf-8")
        elsewhere = told()
        self.assertEqual(elsewhere["tests"], [])
        self.assertTrue([problem for problem in elsewhere["problems"] if "the rota that ran this job was killed" in problem], elsewhere["problems"])

    def test_limits_on_files_and_folders_that_are_gone_cost_neither_the_report_nor_the_status(self):
        # A file of at most 8 KiB: the page is larger.
        self.build(fails=[PROGRAMS / "saxpy"])
        (self.scratch / "temporary").mkdir()
        report = self.scratch / "report"
        script = f"{CTEST} --test-dir {self.scratch}/build; rmdir {self.scratch}/temporary; exit 7"
        small = self.call("sh", "-c", f"ulimit -f 16; exec {ROTA} ci --report-dir {report} -- true")
        self.assertEqual(small.returncode, 125, small.stderr)
        self.assertIn("report.html: File too large", small.stderr)
        self.assertIn("0 processes called CUDA", self.checked(ROTA, "report", report).stdout)
        result = self.call(ROTA, "ci", "--report-dir", self.scratch / "without", "--", "sh", "-c", script, TMPDIR=str(self.scratch / "temporary"))
        self.assertEqual(result.returncode, 7, result.stderr)
        self.assertIn("1 test: 1 passed", result.stderr)
        gone = self.call(ROTA, "ci", "--report-dir", self.scratch / "gone", "--", "sh", "-c", f"rm -r {self.scratch}/gone; exit 7")
        self.assertEqual(gone.returncode, 7, gone.stderr)

    def test_a_listing_that_takes_long_is_the_rigs_and_not_left_running_by_the_command(self):
        slow, listing = self.scratch / "slow", self.scratch / "listing"
        folder = self.build(runs=["sh", "-c", f"touch {slow} && exec {PROGRAMS}/saxpy"])
        # The first listing, while the test runs, does not end.
        with (folder / "CTestTestfile.cmake").open("a", encoding="utf-8") as tests:
            tests.write(f'if(EXISTS {slow})\nfile(REMOVE {slow})\n'
                        f'execute_process(COMMAND sh -c "echo $$ > {listing} && exec sleep 1000")\nendif()\n')
        known = self.scratch / "known.json"
        known.write_text('{"version": 1, "tests": {"runs": {"peak_bytes": 1}}}', encoding="utf-8")
        result, report = self.rig("--baseline", known)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(report["left_running"], [], result.stderr)
        self.assertNotIn("still running", result.stderr)
        self.assertEqual(self.named(report, "runs")["use"]["launches"], 1)
        process = listing.read_text(encoding="utf-8").strip()
        self.eventually(lambda: not os.path.exists(f"/proc/{process}"), "the listing has ended with the rig")

    # ctest labels: unsanitized
    def test_the_exit_status_tells_findings_from_failures_of_the_rig(self):
        script = self.scratch / "frees.py"
        script.write_text(program("context()\n_, address = allocate(4096)\ncall('cuMemFree_v2', address)\n"
                                  "call('cuMemFree_v2', address)")[-1], encoding="utf-8")
        self.build(frees=[sys.executable, "-B", script])
        result, report = self.rig()
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual([finding["kind"] for finding in report["findings"]], ["freed-twice"])
        known = self.scratch / "known.json"
        known.write_text('{"version": 1, "tests": {"frees": {"peak_bytes": "12"}}}', encoding="utf-8")
        for options, said in ((("--fail-on", "peek>2"), "--fail-on"), (("--junit", "/nowhere/at/all.xml"), "there is no folder"),
                              (("--baseline", "/nowhere.json"), "cannot read the baseline"),
                              (("--fail-on", "peak>+10%"), "name one with --baseline"),
                              (("--junit", self.scratch / "build/../report.json"), "--junit and --json are the same file"),
                              (("--report-dir", self.scratch, "--html", self.scratch / "report.html"),
                               "--report-dir (report.json) and --json are the same file"),
                              (("--baseline", known, "--html", known), "--html and --baseline are the same file"),
                              (("--baseline", known), 'frees, peak_bytes: expected a whole number'),
                              (("--update", known), 'frees, peak_bytes: expected a whole number')):
            refused, _ = self.rig(*options)
            self.assertEqual(refused.returncode, 125, refused.stderr)
            self.assertIn(said, refused.stderr)
            self.assertIn("the command is not started", refused.stderr)
        wrong, _ = self.rig("--hang-after", "soon")
        self.assertEqual(wrong.returncode, 125)
        self.assertIn("'soon' is not a duration", wrong.stderr)
        missing = self.call(ROTA, "ci", "--", "no-such-command-here")
        self.assertEqual(missing.returncode, 127)


LEAKS = "import pytest\n" + GPU + """
def plain(size):
    address = ctypes.c_uint64()
    assert cuda().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    return lambda: cuda().cuMemFree_v2(address)

def managed(size):
    address = ctypes.c_uint64()
    assert cuda().cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(size), 1) == 0
    return lambda: cuda().cuMemFree_v2(address)

def ordered(size):
    address = ctypes.c_uint64()
    assert cuda().cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), None) == 0
    return lambda: cuda().cuMemFreeAsync(address, None)

class Descriptor(ctypes.Structure):
    _fields_ = [("width", ctypes.c_size_t), ("height", ctypes.c_size_t), ("format", ctypes.c_int), ("channels", ctypes.c_uint)]

def array(size):
    handle = ctypes.c_void_p()
    assert cuda().cuArrayCreate_v2(ctypes.byref(handle), ctypes.byref(Descriptor(size // 4, 0, 0x20, 1))) == 0
    return lambda: cuda().cuArrayDestroy(handle)

ROUTES = [plain, managed, ordered, array]

@pytest.mark.parametrize("number", range(30))
def test_leaks(number):
    ROUTES[number % 4](4096 * (1 + number % 7))

@pytest.mark.parametrize("number", range(30))
def test_clean(number):
    kept = [ROUTES[(number + more) % 4](4096 * (1 + more)) for more in range(4)]
    for free in kept:
        assert free() == 0
"""


class Repeats(Case):
    # ctest labels: unsanitized
    def test_thirty_planted_leaks_are_found_by_repeating_and_clean_tests_give_no_finding(self):
        python = python_with("pytest")
        test = self.scratch / "test_leaks.py"
        test.write_text(LEAKS, encoding="utf-8")
        self.environment["PYTHONPATH"] = str(ROOT / "tools/python")
        report = self.scratch / "report.json"
        result = self.call(ROTA, "ci", "--repeat", "3", "--json", report, "--", python, "-B", "-m", "pytest", "-q", "-p", "rota.pytest_plugin",
                           "-p", "no:cacheprovider", test)
        self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        found = json.loads(report.read_text(encoding="utf-8"))
        grown = {found["tests"][finding["test"]]["name"].rpartition("::")[2] for finding in found["findings"]}
        self.assertEqual({finding["kind"] for finding in found["findings"]}, {"growth"})
        self.assertEqual(grown, {f"test_leaks[{number}]" for number in range(30)})

    # ctest labels: unsanitized
    def test_a_test_that_ends_its_process_is_found_although_the_runner_says_that_all_is_well(self):
        python = python_with("pytest")
        self.environment["PYTHONPATH"] = str(ROOT / "tools/python")
        test = self.scratch / "test_ends.py"
        test.write_text("import os\n" + LEAKS.split("def managed")[0] + """
def test_passes(): plain(1 << 20)
def test_ends():
    plain(1 << 20)
    os._exit(0)
def test_without_cuda(): os._exit(0)
""", encoding="utf-8")
        for chosen in ("test_ends", "test_without_cuda"):
            report = self.scratch / f"{chosen}.json"
            result = self.call(ROTA, "ci", "--json", report, "--", python, "-m", "pytest", "-p", "rota.pytest_plugin", "-p", "no:cacheprovider",
                               "-q", "-k", f"passes or {chosen}", test)
            self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
            told = json.loads(report.read_text(encoding="utf-8"))
            [finding] = told["findings"]
            self.assertEqual((finding["kind"], told["tests"][finding["test"]]["name"].split("::")[-1]), ("died", chosen))
            self.assertIn("ended with 0 during the test", finding["text"])

    # ctest labels: unsanitized
    def test_a_test_that_pytest_timeouts_thread_method_ends_has_timed_out(self):
        python = python_with("pytest_timeout")
        self.environment["PYTHONPATH"] = str(ROOT / "tools/python")
        test = self.scratch / "test_slow.py"
        test.write_text("import time\n" + LEAKS.split("def managed")[0] + """
def test_passes(): plain(1 << 20)
def test_slow():
    plain(1 << 20)
    time.sleep(60)
""", encoding="utf-8")
        report = self.scratch / "report.json"
        result = self.call(ROTA, "ci", "--json", report, "--", python, "-m", "pytest", "-p", "rota.pytest_plugin", "-p", "no:cacheprovider", "-q",
                           "--timeout", "3", "--timeout-method", "thread", test)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        told = json.loads(report.read_text(encoding="utf-8"))
        outcomes = {test["name"].rpartition("::")[2]: test["outcome"] for test in told["tests"]}
        self.assertEqual((outcomes, told["findings"]), ({"test_passes": "passed", "test_slow": "timeout"}, []))

    def test_xdist_s_automatic_number_of_workers_is_limited_by_the_tests_that_are_selected(self):
        python = python_with("xdist")
        for name in ("long", "other"):
            (self.scratch / f"test_{name}.py").write_text(
                "import os, pathlib\ndef test_it(): pathlib.Path('workers').write_text(os.environ['PYTEST_XDIST_WORKER_COUNT'])\n", encoding="utf-8")
        known = self.scratch / "known.json"
        known.write_text(json.dumps({"version": 1, "tests": {"test_long.py::test_it": {"time_ns": 10 * 10**9, "gpu_ns": 10 * 10**9}}}),
                         encoding="utf-8")
        for files, workers in ((["test_long.py"], "2"), (["test_other.py"], "3"), ([], "2")):
            result = self.checked("env", "-C", self.scratch, ROTA, "ci", "--baseline", known, "--", python, "-B", "-m", "pytest", "-q", "-n", "auto",
                                  "-p", "no:cacheprovider", *files, PYTEST_TIMEOUT="30", PYTEST_XDIST_AUTO_NUM_WORKERS="3")
            self.assertEqual((self.scratch / "workers").read_text(encoding="utf-8"), workers)
            self.assertEqual("pytest starts 2 tests at once and not 3: test_long.py::test_it" in result.stderr, workers == "2", result.stderr)

    # ctest labels: unsanitized
    def test_tests_of_several_workers_begin_when_they_fit_and_idle_workers_are_in_nobodys_way(self):
        python = python_with("xdist")
        test = self.scratch / "test_memory.py"
        # Native memory of 100 MiB on a GPU of 256 MiB: two at a time.
        test.write_text(LEAKS.split("def managed")[0] + """
@pytest.mark.parametrize("number", range(8))
def test_large(number):
    assert plain(100 << 20)() == 0
""", encoding="utf-8")
        self.environment["PYTHONPATH"] = str(ROOT / "tools/python")
        known = self.scratch / "rota-ci.json"

        def run(workers, *options):
            return self.call(ROTA, "ci", "--memory", "native", *options, "--", python, "-B", "-m", "pytest", "-q", "-n", str(workers),
                             "-p", "rota.pytest_plugin", "-p", "no:cacheprovider", test)
        first = run(1, "--baseline", known, "--update", known)
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        second = run(5, "--baseline", known, "--hang-after", "20s")
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        self.assertIn("8 passed", second.stdout)
        self.assertNotIn("began although", second.stderr)


if __name__ == "__main__":
    unittest.main()
