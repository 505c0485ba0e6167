"""What programs with rota_test.h write of their tests."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[4]
BUILD = pathlib.Path(os.environ.get("ROTA_BUILD", ROOT / "build/release"))
MIB = 1 << 20


class Programs:
    program = None

    def setUp(self):
        self.path = BUILD / "tests/rota_test" / self.program
        if not self.path.exists():
            self.skipTest(self.missing)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rota-test-h-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.report = self.folder / "report"
        self.report.mkdir()

    def call(self, *words, code=0, **environment):
        """What it says on stderr."""
        variables = {"PATH": os.environ["PATH"], "ROTA_REPORT": str(self.report), **environment}
        done = subprocess.run([self.path, *words], env={name: value for name, value in variables.items() if value is not None},
                              cwd=self.folder, capture_output=True, check=False, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr.decode()

    def lines(self):
        return {path.name: [json.loads(line) for line in path.read_bytes().splitlines()]
                for path in sorted((self.report / "tests").glob("*.jsonl"))}

    def events(self):
        only, = self.lines().values()
        return only

    def ends(self):
        return [(event["test"], event["attempt"], event["outcome"]) for event in self.events() if event["event"] == "end"]

    def of(self, what, test):
        return next(event for event in self.events() if event["event"] == what and event["test"] == test)

    def check_some(self, name):
        """The test that takes memory, and launches."""
        end = self.of("end", name)
        self.assertEqual((end["end"]["peak_bytes"], end["end"]["used_bytes"], end["end"]["launches"]), (self.peak, self.growth, self.launches))
        self.assertEqual(end["end"]["busy_ns"], 2_000_000_000)


class Frameworks(Programs):
    def test_without_a_report_nothing_is_written(self):
        for value in (None, ""):
            self.call(*self.passing, ROTA_REPORT=value)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["report"])
        self.assertEqual(list(self.report.iterdir()), [])

    def test_outcomes_and_numbers(self):
        self.call(code=self.failed)
        self.assertEqual(self.ends(), self.outcomes)
        begins = [event for event in self.events() if event["event"] == "begin"]
        self.assertEqual({event["runner"] for event in begins}, {self.runner})
        self.check_some(self.some)
        for name, message in self.messages.items():
            self.assertIn(message, self.of("end", name)["message"])

    def test_a_killed_test_leaves_its_begin(self):
        self.call(*self.killed, code=-signal.SIGKILL)
        self.assertEqual([event["event"] for event in self.events()], ["begin"])


class GoogleTest(Frameworks, unittest.TestCase):
    program, missing, runner = "googletest_program", "there is no GoogleTest here (tools/dev setup installs it)", "googletest"
    passing, killed, failed, some = ["--gtest_filter=Gpu.Some"], ["--gtest_also_run_disabled_tests", "--gtest_filter=*Killed"], 1, "Gpu.Some"
    peak, growth, launches = 30 * MIB, 10 * MIB, 1
    outcomes = [("GpuDeathTest.Forks", 1, "passed"), ("Gpu.Nothing", 1, "passed"), ("Gpu.Some", 1, "passed"), ("Gpu.Fails", 1, "failed"),
                ("Gpu.Skips", 1, "skipped"), ("Few/Values.AreSome/0", 1, "passed"), ("Few/Values.AreSome/1", 1, "passed")]
    messages = {"Gpu.Fails": "one is not two", "Gpu.Skips": "not here"}

    def test_each_iteration_is_an_attempt(self):
        self.call("--gtest_repeat=3", "--gtest_filter=Gpu.Some")
        self.assertEqual(self.ends(), [("Gpu.Some", attempt, "passed") for attempt in (1, 2, 3)])
        self.assertEqual([event["end"]["used_bytes"] for event in self.events()[1::2]], [10 * MIB, 20 * MIB, 30 * MIB])

    def test_its_xml_has_the_numbers(self):
        self.call("--gtest_output=xml:out.xml", "--gtest_filter=Gpu.Some:Gpu.Nothing")
        found = {}
        for case in xml.parse(self.folder / "out.xml").iter("testcase"):  # as attributes before GoogleTest 1.8.1
            found[case.get("name")] = {each.get("name"): each.get("value") for each in case.iter("property")}
        self.assertEqual(found["Nothing"], {})
        self.assertEqual(found["Some"], {"rota_peak_bytes": str(30 * MIB), "rota_base_bytes": "0", "rota_growth_bytes": str(10 * MIB),
                                         "rota_launches": "1", "rota_waited_seconds": "0.5", "rota_gpu_seconds": "2"})

    def test_death_tests_of_both_styles_are_the_parents(self):
        for style in ("fast", "threadsafe"):
            self.call(f"--gtest_death_test_style={style}", "--gtest_filter=GpuDeathTest.*")
        self.assertEqual([[event["event"] for event in events] for events in self.lines().values()], [["begin", "end"]] * 2)


class Catch2(Frameworks, unittest.TestCase):
    program, missing, runner = "catch2_program", "not built", "catch2"
    passing, killed, failed, some = ["some"], ["killed"], 3, "some"
    peak, growth, launches = 40 * MIB, 20 * MIB, 2
    outcomes = [("nothing", 1, "passed"), ("some", 1, "passed"), ("fails: \"one\"", 1, "failed"), ("throws", 1, "failed"),
                ("fails, as known", 1, "passed")]
    messages = {"fails: \"one\"": "CHECK( 1 == 2 )", "throws": "five"}


class Catch2Version3(Catch2):
    program, missing = "catch2_v3_program", "there is no Catch2 v3 here (-DROTA_CATCH2_3=PREFIX says where one is installed)"
    failed = 42
    outcomes = [*Catch2.outcomes, ("skips", 1, "skipped")]


class Plain(Programs, unittest.TestCase):
    program, missing = "plain_program", "not built"

    def test_begin_and_end_with_numbers(self):
        self.call("allocate", "4", "begin", "a", "allocate", "2", "free", "2", "end", "a", "begin", "a", "end", "a")
        self.assertEqual(self.ends(), [("a", 1, "error"), ("a", 2, "error")])
        begin, end = self.events()[:2]
        self.assertEqual((begin["runner"], begin["event"], end["message"]), ("program", "begin", "a message"))
        self.assertEqual(begin["pid"], int(next(iter(self.lines())).partition("-")[0]))
        self.assertEqual((end["begin"]["used_bytes"], end["end"]["peak_bytes"], end["end"]["allocations"]), (4 * MIB, 6 * MIB, 2))
        self.assertLessEqual(begin["time_ns"], end["time_ns"])

    def test_files_are_named_after_the_process_and_its_start(self):
        with subprocess.Popen([self.path, "begin", "a", "kill"], env={"ROTA_REPORT": str(self.report)}) as child:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is there still, as a zombie
            start = pathlib.Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
        self.assertEqual(list(self.lines()), [f"{child.pid}-{start}.jsonl"])

    def test_any_bytes_may_be_a_name(self):
        names = [b'quote " backslash \\ tab \t line \n', "\u00e9 \u20ac \U0001f600".encode(), b"\xff \xc3", b"\xed\xa0\x80 \xc0\xaf \xf4\x90\x80\x80"]
        for name in names:
            self.call("begin", name)
        seen = sorted(event["test"] for events in self.lines().values() for event in events)
        whole = sorted([names[0].decode(), names[1].decode(), "\ufffd \ufffd", "\ufffd" * 3 + " \ufffd\ufffd " + "\ufffd" * 4])
        self.assertEqual(seen, whole)

    def test_a_forked_child_has_a_file_of_its_own_and_ends_no_test_of_its_parents(self):
        self.call("begin", "a", "fork", "end", "a", "begin", "b", "end", "b")
        events = sorted([[(event["event"], event["test"]) for event in events] for events in self.lines().values()])
        self.assertEqual(events, [[("begin", "a")], [("begin", "b"), ("end", "b")]])

    def test_an_end_without_a_begin_is_left_out(self):
        self.call("end", "a", "begin", "b", "end", "b", "end", "b")
        self.assertEqual(self.ends(), [("b", 1, "error")])

    def test_a_process_without_cuda_or_without_an_account_has_no_numbers(self):
        self.call("begin", "a", "end", "a", "allocate", "1", "answer", "1", "begin", "b", "end", "b")
        self.assertEqual([(event["begin"], event["end"]) for event in self.events()[1::2]], [(None, None)] * 2)

    def test_own_errors_are_one_line_and_end_the_recording(self):
        (self.report / "tests").write_text("a file")
        self.assertRegex(self.call("begin", "a", "end", "a", "begin", "b"), r"^rota: tests are not recorded: .*tests/.*: Not a directory\n$")
        (self.report / "tests").unlink()
        said = self.call("allocate", "1", "answer", "2", "begin", "a", "end", "a")
        self.assertRegex(said, re.compile(r"^rota: tests are not recorded: .*another version.*\n$"))


if __name__ == "__main__":
    unittest.main()
