"""Reports of jobs: `rota run --report` with real processes, and what `rota report` makes of a session's files."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from harness import PATIENCE, Case, PROGRAMS, ROOT, ROTA
from sim_case import program

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class RunReport(Case):
    def report(self, target, *command, **environment):
        return self.call(ROTA, "run", "--report", target, "--", *command, TMPDIR=str(self.temporary()), **environment)

    def temporary(self):
        folder = self.scratch / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    def test_a_file_has_the_format_of_its_name_and_the_programs_status_is_returned(self):
        for name, begins in ("r.txt", "sh -c 'exit 7', ended with 7"), ("r.json", "{"), ("r.xml", "<?xml"), ("r.html", "<!doctype html>"):
            with self.subTest(name=name):
                result = self.report(self.scratch / name, "sh", "-c", "exit 7")
                self.assertEqual(result.returncode, 7, result.stderr)
                self.assertTrue((self.scratch / name).read_text().startswith(begins))
                self.assertNotIn("still running", result.stderr)
        self.assertEqual(json.loads((self.scratch / "r.json").read_text())["job"]["exit_code"], 7)
        self.assertEqual(list(self.temporary().iterdir()), [], "something was left behind")

    def test_a_folder_keeps_the_session(self):
        folder = self.scratch / "reports" / "first"
        self.assertEqual(self.call(ROTA, "run", "--report", f"{folder}/", "--name", "nightly", "--", "true").returncode, 0)
        self.assertLessEqual({"session.json", "report.txt", "report.json", "junit.xml", "report.html"}, {path.name for path in folder.iterdir()})
        session = json.loads((folder / "session.json").read_text())
        self.assertEqual((session["name"], session["command"], session["exit_code"]), ("nightly", ["true"], 0))
        self.assertLess(session["begin_ns"], session["end_ns"])
        self.assertIn("nightly", self.checked(ROTA, "report", folder).stdout)

    def test_an_earlier_report_is_replaced_and_anything_else_is_refused_and_stays(self):
        folder = self.scratch / "out"
        for command in ([ROTA, "run", "--report", f"{folder}/"], [ROTA, "ci", "--report-dir", folder]):
            for code in (3, 4):
                result = self.call(*command, "--", "sh", "-c", f"{PROGRAMS}/saxpy; exit {code}")
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertEqual(json.loads((folder / "report.json").read_text())["job"]["exit_code"], code)
                self.assertEqual(len(list(folder.rglob("*.account"))), 1)
        for target in ("r.html", "r.txt"):
            for _ in range(2):
                self.assertEqual(self.report(self.scratch / target, "true").returncode, 0)
        for place in ("notes.txt", "tests/test_mine.py", "processes/12-13", "mine/12-13.account", "session.json"):
            for target in (folder, self.scratch / "fresh"):
                with self.subTest(place=place, target=target.name):
                    mine = target / place
                    mine.parent.mkdir(parents=True, exist_ok=True)
                    before = mine.read_bytes() if mine.exists() else b""
                    mine.write_text("mine")
                    held = sorted(target.rglob("*"))
                    for command in ([ROTA, "run", "--report", f"{target}/"], [ROTA, "ci", "--report-dir", target]):
                        refused = self.call(*command, "--", "touch", self.scratch / "touched")
                        self.assertEqual(refused.returncode, 125, refused.stderr)
                        self.assertIn("is not of a report of rota's: nothing there was changed", refused.stderr)
                    self.assertEqual(sorted(target.rglob("*")), held)
                    self.assertEqual(mine.read_text(), "mine")
                    mine.unlink()
                    if mine.parent.name == "mine":
                        mine.parent.rmdir()
                    if before:
                        mine.write_bytes(before)
        self.assertFalse((self.scratch / "touched").exists())

    def test_what_only_looks_like_a_reports_files_stays(self):
        """In folders that hold no report, and copies beside one."""
        report = self.scratch / "report"
        self.assertEqual(self.call(ROTA, "ci", "--report-dir", report, "--", "true").returncode, 0)
        for place in ("new/stacks/2024-11-05.txt", "new/tests/2024-01.jsonl", "new/lost/1 precious thing", "report/junit.xml.1"):
            with self.subTest(place=place):
                mine = self.scratch / place
                mine.parent.mkdir(parents=True, exist_ok=True)
                mine.write_text("mine")
                refused = self.call(ROTA, "ci", "--report-dir", self.scratch / place.split("/")[0], "--", "true")
                self.assertEqual(refused.returncode, 125, refused.stderr)
                self.assertEqual(mine.read_text(), "mine")
                mine.unlink()
        fifo = self.scratch / "fifo"
        fifo.mkdir()
        os.mkfifo(fifo / "session.json")
        self.assertEqual(self.call(ROTA, "ci", "--report-dir", fifo, "--", "true").returncode, 125)

    def test_files_that_options_name_may_lie_in_the_reports_folder(self):
        folder = self.scratch / "out"
        self.checked(ROTA, "ci", "--report-dir", folder, "--", "true")
        for _ in range(2):
            result = self.call(ROTA, "ci", "--report-dir", folder, "--json", folder / "own.json", "--update", folder / "known.json", "--", "true")
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((folder / "known.json").exists())

    def test_the_report_of_a_job_that_still_runs_is_not_replaced(self):
        folder = self.scratch / "out"
        first = self.start(ROTA, "ci", "--report-dir", folder, "--", "sh", "-c", "echo ready; exec cat")
        self.assertEqual(first.stdout.readline(), "ready\n")
        refused = self.call(ROTA, "run", "--report", f"{folder}/", "--", "true")
        self.assertEqual(refused.returncode, 125)
        self.assertIn("another job that is still running", refused.stderr)
        first.communicate(timeout=PATIENCE)
        self.assertEqual(first.returncode, 0)
        self.assertEqual(json.loads((folder / "report.json").read_text())["job"]["exit_code"], 0)

    def test_a_report_that_cannot_be_written_is_said_before_the_job_starts(self):
        for target, why in (self.scratch / "nowhere" / "r.txt", "there is no folder"), (self.scratch / "r.csv", ".csv is no format of reports"):
            result = self.report(target, "touch", self.scratch / "touched")
            self.assertEqual(result.returncode, 125)
            self.assertIn(why, result.stderr)
            self.assertIn("the program is not started", result.stderr)
            self.assertFalse((self.scratch / "touched").exists())

    def test_a_report_that_can_no_longer_be_written_goes_to_stderr(self):
        target = self.scratch / "r.txt"
        result = self.report(target, "mkdir", target)
        self.assertEqual(result.returncode, 0)
        self.assertIn(f"cannot write {target}: Is a directory", result.stderr)
        self.assertIn("ended with 0", result.stderr)
        [kept] = self.temporary().iterdir()
        self.assertIn(f"rota report {kept}", result.stderr)
        self.assertIn("mkdir", self.checked(ROTA, "report", kept).stdout)

    def test_a_command_that_is_killed_has_its_report(self):
        target = self.scratch / "r.json"
        self.assertEqual(self.report(target, "sh", "-c", "kill -9 $$").returncode, -signal.SIGKILL)
        self.assertEqual(json.loads(target.read_text())["job"]["exit_code"], 137)

    def test_a_signal_to_rota_run_ends_the_command_and_then_comes_the_report(self):
        target = self.scratch / "r.json"
        child = self.start(ROTA, "run", "--report", target, "--", "sh", "-c", "echo ready; exec cat", TMPDIR=str(self.temporary()))
        self.assertEqual(child.stdout.readline(), "ready\n")
        child.send_signal(signal.SIGTERM)
        self.assertEqual(child.wait(PATIENCE), -signal.SIGTERM)  # its input is open until then, so cat does not end by itself
        self.assertEqual(json.loads(target.read_text())["job"]["exit_code"], 143)

    def test_processes_that_the_command_leaves_behind_are_named_and_not_waited_for(self):
        pipe = self.scratch / "pipe"
        os.mkfifo(pipe)
        target = self.scratch / "r.json"
        result = self.report(target, "sh", "-c", f"setsid cat {pipe} >/dev/null 2>&1 & exit 5")
        self.assertEqual(result.returncode, 5)
        # The shell that opens the pipe for cat waits for a writer.
        self.assertRegex(result.stderr, r"still running after the command: (cat|sh|setsid) \(pid \d+\)")
        [left] = json.loads(target.read_text())["left_running"]
        self.assertIn(left["name"], ("cat", "sh", "setsid"))
        with open(pipe, "wb"):
            pass

    def test_a_command_that_is_not_there_is_said(self):
        result = self.report(self.scratch / "r.json", "no-such-command")
        self.assertEqual(result.returncode, 127)
        self.assertIn("command not found", result.stderr)


class ProcessReport(Case):
    """Processes that call CUDA on a simulated GPU."""

    def report(self, *command):
        target = self.scratch / "session"
        result = self.call(ROTA, "run", "--report", f"{target}/", "--", *command)
        return result, json.loads((target / "report.json").read_text()), target

    def test_a_process_has_what_it_used(self):
        _, report, _ = self.report(PROGRAMS / "memhog", "--bytes", "64M", "--rounds", "3")
        [process] = report["processes"]
        use = process["use"]
        self.assertEqual(process["ending"], "ended with 0")
        self.assertLess(use["peak_bytes"] - (64 << 20), 1 << 20)
        self.assertGreaterEqual(use["peak_bytes"], 64 << 20)
        self.assertGreaterEqual(use["reserved_peak_bytes"], use["peak_bytes"])
        self.assertEqual(process["gpus"][0]["peak_bytes"], use["peak_bytes"])
        self.assertEqual(use["launches"], use["functions"]["cuLaunchKernel"])
        self.assertGreater(use["functions"]["cuMemAlloc"], 0)
        self.assertEqual(max(report["timeline"]["bytes"]), report["total"]["peak_bytes"])
        self.assertEqual([module["path"] for module in process["modules"]], [str(PROGRAMS / "memhog")])

    def test_what_a_killed_process_did_is_not_lost(self):
        inner = f"{PROGRAMS / 'memhog'} --bytes 64M --rounds 2 --hold"
        # The pipe stays open until the program says that it is ready; then it is killed by its parent.
        script = f"import signal, subprocess; child = subprocess.Popen({inner.split()!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline(); child.kill(); child.wait()"
        _, report, _ = self.report(sys.executable, "-c", script)
        [process] = report["processes"]
        self.assertEqual((process["end"], process["ending"]), ("killed", "ended by a signal or by _exit()"))
        self.assertGreaterEqual(process["use"]["peak_bytes"], 64 << 20)

    def test_a_process_of_another_user_that_cannot_write_its_account_is_named(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        self.scratch.chmod(0o755)
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        if subprocess.run([*nobody, "test", "-x", str(PROGRAMS / "saxpy")], check=False).returncode != 0:
            self.skipTest("another user cannot reach the build folder")
        (self.scratch / "theirs").mkdir()
        os.chown(self.scratch / "theirs", 65534, 65534)
        theirs = {"ROTA_SIM_STATE": str(self.scratch / "theirs/device")}  # a simulated GPU of their own
        for target in (f"{self.scratch}/kept/", self.scratch / "report.json"):
            result = self.call(ROTA, "run", "--report", target, "--", *nobody, PROGRAMS / "saxpy", **theirs)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("no report of this process", result.stderr)
            file = self.scratch / "kept/report.json" if target == f"{self.scratch}/kept/" else target
            report = json.loads(file.read_text(encoding="utf-8"))
            [problem] = report["problems"]
            self.assertRegex(problem, r"^process \d+ \(saxpy, user 65534\) called CUDA and has no account")

    def test_a_job_that_still_runs_can_be_looked_at(self):
        folder = self.scratch / "session"
        child = self.start(ROTA, "run", "--report", f"{folder}/", "--", PROGRAMS / "memhog", "--bytes", "8M", "--rounds", "1", "--hold")
        self.assertEqual(child.stdout.readline().strip(), "ready")
        report = json.loads(self.checked(ROTA, "report", folder, "--format", "json").stdout)
        self.assertIsNone(report["job"]["exit_code"])
        [process] = report["processes"]
        self.assertEqual((process["end"], process["ending"]), ("running", "still running"))
        self.assertGreaterEqual(process["use"]["peak_bytes"], 8 << 20)
        self.assertEqual(self.finish(child).returncode, 0)
        self.assertIn("ended with 0", self.checked(ROTA, "report", folder).stdout)

    def test_processes_of_a_session_within_another_one_are_in_both_reports(self):
        inner = self.scratch / "inner.json"
        kept = self.scratch / "kept"
        # At a second level the folder is kept, so its files cannot be on loan.
        result, report, _ = self.report(ROTA, "run", "--report", inner, "--", "sh", "-c",
                                        f"{PROGRAMS}/saxpy && {ROTA} run --report {kept}/ -- {PROGRAMS}/timer; {PROGRAMS}/saxpy")
        self.assertEqual(result.returncode, 0, result.stderr)
        names = lambda processes: sorted(process["command"][0].rsplit("/", 1)[-1] for process in processes)
        self.assertEqual(names(json.loads((kept / "report.json").read_text())["processes"]), ["timer"])
        self.assertEqual(names(json.loads(inner.read_text())["processes"]), ["saxpy", "saxpy", "timer"])
        self.assertEqual(names(report["processes"]), ["saxpy", "saxpy", "timer"])
        self.assertEqual(report["problems"], [])

    # ctest labels: unsanitized
    def test_how_processes_of_a_session_within_another_one_ended_is_in_both_reports(self):
        ends = lambda how: f"{sys.executable} -c \"import ctypes, os; ctypes.CDLL('libcuda.so.1').cuInit(0); {how}\""
        second = self.scratch / "second.json"
        third = f"{ROTA} run --report {self.scratch}/third/ -- {ends('os._exit(7)')}; exec {ends('os.kill(os.getpid(), 6)')}"
        _, report, _ = self.report(ROTA, "run", "--report", second, "--", "sh", "-c", third)
        for said in (report, json.loads(second.read_text())):
            self.assertEqual([(process.get("exit_code"), process.get("signal")) for process in said["processes"]], [(7, None), (None, 6)])
            self.assertEqual(said["problems"], [])
        # By sessions of an older rota there is none such; what is damaged is named.
        (self.scratch / "session" / "ends" / "1-2.json").write_text("[")
        self.assertIn("1-2.json: no list of how processes ended", self.call(ROTA, "report", self.scratch / "session").stdout)

    # ctest labels: unsanitized
    def test_accounts_of_ended_processes_take_the_room_that_they_need(self):
        _, report, folder = self.report("sh", "-c", f"{PROGRAMS}/saxpy; {PROGRAMS}/saxpy & {PROGRAMS}/timer; wait; "
                                        f"{sys.executable} -c \"import ctypes, os; ctypes.CDLL('libcuda.so.1').cuInit(0); os.kill(os.getpid(), 9)\"")
        self.assertEqual(len(report["processes"]), 4, report)
        for account in (folder / "processes").iterdir():
            info = account.stat()
            self.assertLess(info.st_blocks * 512, info.st_size / 2)

    def test_a_session_within_another_one_can_be_looked_at_from_outside_while_it_runs(self):
        outer, inner = self.scratch / "outer", self.scratch / "inner"
        child = self.start(ROTA, "run", "--report", f"{outer}/", "--", ROTA, "run", "--report", f"{inner}/", "--",
                           PROGRAMS / "memhog", "--bytes", "8M", "--rounds", "1", "--hold")
        self.assertEqual(child.stdout.readline().strip(), "ready")
        for folder in (outer, inner):
            report = json.loads(self.checked(ROTA, "report", folder, "--format", "json").stdout)
            self.assertEqual([process["end"] for process in report["processes"]], ["running"])
            self.assertGreaterEqual(report["total"]["peak_bytes"], 8 << 20)
        self.assertEqual(self.finish(child).returncode, 0)
        self.assertEqual(len(json.loads((outer / "report.json").read_text())["processes"]), 1)

    @unittest.skipIf(not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat("/tmp").st_dev, "one file system")
    def test_a_session_on_another_file_system_hands_its_processes_out_at_its_end(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
            _, report, _ = self.report(ROTA, "run", "--report", f"{other}/kept/", "--", PROGRAMS / "saxpy")
        self.assertEqual([process["use"]["launches"] for process in report["processes"]], [1])

    # ctest labels: unsanitized
    def test_what_belonged_to_a_destroyed_context_was_not_forgotten(self):
        made = """
one, two = ctypes.c_void_p(), ctypes.c_void_p()
def fill():
    for _ in range(2):
        assert call("cuStreamCreate", ctypes.byref(one), 0) == call("cuEventCreate", ctypes.byref(two), 0) == 0
        assert allocate(1 << 20)[0] == 0
        assert call("cuMemAllocManaged", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20), 1) == 0
"""
        own = "handle = ctypes.c_void_p(); assert call('cuInit', 0) == call('cuCtxCreate_v2', ctypes.byref(handle), 0, 0) == 0\n"
        primary = "assert context() == 0\n"
        for begin, end in ((own, "call('cuCtxDestroy_v2', handle)"), (primary, "call('cuDevicePrimaryCtxRelease_v2', 0)"),
                           (primary, "call('cuDevicePrimaryCtxReset_v2', 0)")):
            for ends in (True, False):
                with self.subTest(end=end, ends=ends):
                    shutil.rmtree(self.scratch / "session", ignore_errors=True)
                    _, report, _ = self.report(*program(made + begin + f"fill()\nassert {end if ends else 0} == 0"))
                    [process] = report["processes"]
                    self.assertEqual(process["ending"], "ended with 0")
                    left = {each["kind"]: each["created"] - each["destroyed"] for each in process["objects"]}
                    left.pop("context", None)
                    self.assertEqual(left, {} if ends else {"stream": 2, "event": 2})
                    self.assertEqual(process["use"]["live_bytes"], 0 if ends else 4 << 20)

    # ctest labels: unsanitized
    def test_memory_of_one_process_after_the_others_is_not_added(self):
        first = program("assert context() == 0\n_, address = allocate(100 << 20)\nassert call('cuMemFree_v2', address) == 0\n"
                        "print(flush=True)\nsys.stdin.readline()")
        second = program("assert context() == 0\nsys.stdin.readline()\nassert allocate(100 << 20)[0] == 0\nprint(flush=True)")
        script = ("import subprocess, sys\n"
                  "def start(command):\n"
                  "    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
                  f"later, earlier = start({second!r}), start({first!r})\n"
                  # The earlier one lives on while the later one has its memory.
                  "for one, other in ((earlier, later), (later, earlier)):\n"
                  "    one.stdout.readline()\n"
                  "    other.stdin.write(b'\\n')\n"
                  "    other.stdin.flush()\n"
                  "assert earlier.wait() == later.wait() == 0")
        result, report, _ = self.report(sys.executable, "-c", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(report["processes"]), 2)
        self.assertLess(report["total"]["peak_at_most_bytes"], 110 << 20)
        self.assertGreaterEqual(report["total"]["peak_bytes"], 100 << 20)

    def test_an_allocation_that_is_refused_is_an_error_with_its_reason(self):
        result, report, target = self.report(PROGRAMS / "memhog", "--share", "1.5")
        self.assertNotEqual(result.returncode, 0)
        [process] = report["processes"]
        self.assertEqual(process["out_of_memory"], "too-large")
        self.assertIn({"function": "cuMemAlloc", "error": "CUDA_ERROR_OUT_OF_MEMORY", "calls": 1}, process["use"]["failures"])
        judged = self.call(ROTA, "report", target, "--fail-on", "errors:CUDA_ERROR_OUT_OF_MEMORY", "--format", "github")
        self.assertEqual(judged.returncode, 3)
        self.assertIn("cuMemAlloc returned CUDA_ERROR_OUT_OF_MEMORY", judged.stdout)

    # ctest labels: unsanitized
    def test_tests_within_a_process_have_what_each_took(self):
        _, report, _ = self.report(*program(f"""
import os, time
sys.path.insert(0, {str(ROOT / 'tools/python')!r})
from rota.account import Account, BEGINS, ENDS
account, lines = Account(), []
def run(name, size):
    line = dict(test=name, runner="by hand", attempt=1, time_ns=time.time_ns(), begin=account.mark(BEGINS, name))
    lines.append(dict(line, event="begin"))
    context(); allocate(size)
    lines.append(dict(line, event="end", outcome="passed", time_ns=time.time_ns(), end=account.mark(ENDS, name)))
run("first", 1 << 20)
run("second", 2 << 20)
start = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
with open(f"{{os.environ['ROTA_REPORT']}}/tests/{{os.getpid()}}-{{start}}.jsonl", "w") as file:
    file.writelines(json.dumps(line) + "\\n" for line in lines)
"""))
        first, second = sorted(report["tests"], key=lambda test: test["begin_ns"])
        self.assertEqual((first["base_bytes"], first["growth_bytes"], first["use"]["peak_bytes"]), (0, 1 << 20, 1 << 20))
        self.assertEqual((second["base_bytes"], second["growth_bytes"], second["use"]["peak_bytes"]), (1 << 20, 2 << 20, 3 << 20))
        self.assertGreater(second["use"]["calls"], 0)
        self.assertTrue(report["processes"][0]["hosts_tests"])

    # ctest labels: unsanitized
    def test_memory_that_is_freed_twice_is_found(self):
        result, report, target = self.report(*program("context()\n_, address = allocate(4096)\n_, kept = allocate(8192)\n"
                                                      "call('cuMemFree_v2', address)\ncall('cuMemFree_v2', address)"))
        self.assertEqual(result.returncode, 0, result.stderr)
        [finding] = report["findings"]
        self.assertEqual(finding["kind"], "freed-twice")
        self.assertIn("cuMemFree was called", finding["text"])
        self.assertIn("1 process called CUDA, 1 finding", result.stderr)
        judged = self.call(ROTA, "report", target, "--fail-on", "live")
        self.assertEqual(judged.returncode, 3)
        self.assertIn("not freed at exit: 8.0 KiB", judged.stdout)


class SessionReport(Case):
    def setUp(self):
        super().setUp()
        self.folder = self.scratch / "session"
        self.checked(PROGRAMS / "report_sample", self.folder)

    def report(self, *options):
        return self.call(ROTA, "report", self.folder, *options)

    def test_findings_give_3_and_every_format_has_them(self):
        for form in "text", "json", "junit", "html", "github":
            with self.subTest(form=form):
                result = self.report("--format", form)
                self.assertEqual(result.returncode, 3, result.stderr)
                self.assertIn("had freed already", result.stdout)
                self.assertIn("memory in use grows with each repeat: 128 MiB, then 256 MiB, then 384 MiB", result.stdout)

    def test_junit_is_xml_that_counts_what_it_holds(self):
        output = self.scratch / "out.xml"
        self.report("-o", output)
        suites = xml.etree.ElementTree.parse(output).getroot()
        cases = suites.findall("./testsuite/testcase")
        for name, element in ("tests", None), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped"):
            self.assertEqual(int(suites.get(name)), sum(element is None or case.find(element) is not None for case in cases), name)
        [odd] = [case for case in cases if case.get("name").startswith("odd")]
        self.assertEqual(odd.get("name"), "odd </script><b>&\"'\\x01]]> \u20ac name")
        self.assertEqual({each.get("name"): each.get("value") for each in odd.iter("property")}["rota.errors"], "1")

    def test_a_session_without_findings_ends_as_its_job(self):
        shutil.rmtree(self.folder / "processes")
        (self.folder / "processes").mkdir()
        shutil.rmtree(self.folder / "tests")
        self.assertEqual(self.report().returncode, 8)

    def test_rules_compare_with_a_baseline_that_was_written_before(self):
        baseline = self.scratch / "rota-ci.json"
        self.report("--update", baseline)
        written = baseline.read_text()
        self.assertNotIn("sort_keys", written)  # failed
        self.report("--update", baseline)
        self.assertEqual(baseline.read_text(), written)
        content = json.loads(written)
        self.assertEqual(list(content["tests"]), sorted(content["tests"]))
        content["tests"]["softmax"]["peak_bytes"] //= 2
        content["tests"]["softmax"]["functions"]["cuMemAlloc"] = 1
        baseline.write_text(json.dumps(content))
        output = self.scratch / "out.json"
        result = self.report("--baseline", baseline, "--fail-on", "peak>+10%,calls:cuMemAlloc>+20%,errors", "-o", output)
        self.assertEqual(result.returncode, 3)
        report = json.loads(output.read_text())
        found = sorted((finding["kind"], report["tests"][finding["test"]]["name"]) for finding in report["findings"] if finding["test"] is not None)
        self.assertEqual([each for each in found if each[0] in ("peak", "calls", "errors")],
                         [("calls", "softmax"), ("errors", "sort_keys"), ("peak", "softmax")])
        self.assertIn("the baseline does not know", result.stderr)
        self.assertIn("sort_keys", result.stderr)

    def test_what_is_live_at_exit_fails_only_by_the_rule_and_not_where_it_is_expected(self):
        self.assertNotIn("not freed at exit", self.report("--format", "github").stdout)
        self.assertIn("not freed at exit: 96 MiB of libspmv.so", self.report("--fail-on", "live").stdout)
        self.assertNotIn("of libc10_cuda.so,", self.report("--fail-on", "live", "--format", "github").stdout)
        patterns = self.scratch / "suppressions"
        patterns.write_text("*/libspmv.so  # its workspace\n")
        text = self.report("--fail-on", "live", "--suppress", patterns).stdout
        self.assertNotIn("not freed at exit: 96 MiB", text)
        self.assertIn("(expected: its workspace)", text)

    def test_mistakes_are_named_with_125(self):
        missing = self.scratch / "none.json"
        for options, why in ((["--fail-on", "peek>1"], "'peek' is not measured: use peak,"), (["--fail-on", "peak>+10%"], "name one with --baseline"),
                             (["--baseline", missing], "--update"), (["--suppress", missing], "cannot read the suppressions"),
                             (["--format", "yaml"], "yaml"), (["-o", self.scratch / "no" / "file.txt"], "cannot write"),
                             (["-o", self.scratch / "out.pdf"], ".pdf is no format of reports")):
            with self.subTest(options=options):
                result = self.report(*options)
                self.assertEqual(result.returncode, 125)
                self.assertIn(why, result.stderr)
        result = self.call(ROTA, "report", self.scratch)
        self.assertEqual(result.returncode, 125)
        self.assertIn("it is no session", result.stderr)

    def browse(self, script):
        """The page's elements after a script that acts as its reader would."""
        if CHROMIUM is None:
            self.skipTest("there is no chromium")
        page = self.scratch / "page.html"
        self.report("-o", page)
        page.write_text(page.read_text().replace("</body>", f"<script>{script}</script></body>"))
        result = subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.scratch / 'browser'}",
                                 "--virtual-time-budget=5000", "--dump-dom", f"file://{page}"], capture_output=True, text=True, timeout=120,
                                env=dict(os.environ, HOME=str(self.scratch)), check=True)
        return result.stdout.split('<script type="application/json"')[0]

    # ctest labels: unsanitized
    def test_the_page_works_in_a_browser(self):
        names = "[...document.querySelectorAll('tbody tr.row')].map(row => row.cells[0].textContent)"
        click = "document.querySelector('button[data-column=%s]').click();"
        page = self.browse(f"const seen = {{}}; seen.peak = {names}; {click % 'name'} seen.name = {names}; {click % 'name'} seen.back = {names};"
                           f"[...document.querySelectorAll('tbody tr.row')].find(row => row.cells[0].textContent === 'sort_keys').click();"
                           "seen.bars = document.querySelectorAll('svg .bar').length; seen.details = document.getElementById('details').textContent;"
                           "document.title = JSON.stringify(seen);")
        title = xml.etree.ElementTree.fromstring("<t>" + page.split("<title>")[1].split("</title>")[0] + "</t>").text
        seen = json.loads(title)
        self.assertEqual(len(seen["peak"]), 19)
        self.assertEqual(seen["bars"], 19)
        self.assertIn(seen["peak"][0], ("fft_c2c", "reduce_sum"))
        self.assertEqual(seen["name"], list(reversed(seen["back"])))
        self.assertEqual(seen["name"][:2], ["4190300 compile-server --daemon", "allreduce"])
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", seen["details"])
        self.assertIn("out of memory: full", seen["details"])
        self.assertIn("odd </script><b>&\"'\x01]]> \u20ac name", seen["peak"])


if __name__ == "__main__":
    unittest.main()
