"""What the pytest plugin writes of tests: begin, end, outcome and numbers, one after the other, at once, and when they are killed."""
import json
import re
import signal
import time
import unittest
import xml.etree.ElementTree as xml

from pytest_session import Session

MIB = 1 << 20


class Tests(Session):
    def test_each_test_has_a_begin_and_an_end_with_its_numbers(self):
        self.write("""
def test_nothing(): pass
def test_some():
    gpu.allocate(30); gpu.free(20); gpu.launch(2_000_000_000, 500_000_000)
def test_more():
    assert gpu.last_name() == "test_it.py::test_more"
    gpu.allocate(5); gpu.free(5)
""")
        self.run_tests()
        events = self.events()
        self.assertEqual([(event["event"], event["test"], event["attempt"]) for event in events],
                         [(what, f"test_it.py::test_{name}", 1) for name in ("nothing", "some", "more") for what in ("begin", "end")])
        self.assertEqual({event["runner"] for event in events[::2]}, {"pytest"})
        self.assertEqual([event["time_ns"] for event in events], sorted(event["time_ns"] for event in events))
        nothing, some, more = events[1::2]
        self.assertEqual((nothing["begin"], nothing["end"], nothing["outcome"]), (None, None, "passed"))
        self.assertIsNone(some["begin"])
        self.assertEqual((some["end"]["used_bytes"], some["end"]["peak_bytes"], some["end"]["launches"]), (10 * MIB, 30 * MIB, 1))
        self.assertEqual(more["begin"]["used_bytes"], 10 * MIB)
        self.assertEqual((more["end"]["used_bytes"], more["end"]["peak_bytes"]), (10 * MIB, 15 * MIB))

    def test_files_are_named_after_the_process_and_its_start(self):
        self.write("""
import os
def test_it():
    with open("/proc/self/stat") as stat:
        print("start", os.getpid(), stat.read().rpartition(")")[2].split()[19])
""")
        pid, start = re.search(r"start (\d+) (\d+)", self.run_tests("-s")).groups()
        self.assertEqual(list(self.lines()), [f"{pid}-{start}.jsonl"])
        self.assertEqual(self.events()[0]["pid"], int(pid))

    def test_junitxml_has_the_numbers_and_nothing_for_tests_without_a_gpu(self):
        self.write("""
def test_nothing(): pass
def test_some():
    gpu.allocate(30); gpu.free(20); gpu.launch(2_000_000_000, 500_000_000)
def test_fails():
    gpu.allocate(1)
    assert False
""")
        self.run_tests("--junitxml=out.xml", code=1)
        found = {case.get("name"): {each.get("name"): each.get("value") for each in case.iter("property")}
                 for case in xml.parse(self.folder / "out.xml").iter("testcase")}
        self.assertEqual(found["test_nothing"], {})
        self.assertEqual(found["test_some"], {
            "rota_peak_bytes": str(30 * MIB), "rota_base_bytes": "0", "rota_growth_bytes": str(10 * MIB), "rota_launches": "1",
            "rota_waited_seconds": "0.5", "rota_gpu_seconds": "2.0"})
        self.assertEqual(found["test_fails"]["rota_growth_bytes"], str(MIB))

    def test_the_outcome_combines_setup_call_and_teardown(self):
        self.write("""
@pytest.fixture
def broken(): raise ValueError("no setup")
@pytest.fixture
def breaking():
    yield
    raise ValueError("no teardown")
def test_passes(): pass
def test_fails(): assert 1 == 2
def test_skips(): pytest.skip("not here")
def test_no_setup(broken): pass
def test_no_teardown(breaking): pass
def test_fails_and_no_teardown(breaking): assert 3 == 4
@pytest.mark.xfail
def test_known(): assert False
""")
        self.run_tests(code=1)
        self.assertEqual([(name, outcome) for name, _, outcome in self.ends()], [
            ("test_passes", "passed"), ("test_fails", "failed"), ("test_skips", "skipped"), ("test_no_setup", "error"),
            ("test_no_teardown", "error"), ("test_fails_and_no_teardown", "failed"), ("test_known", "skipped")])
        messages = [event.get("message", "") for event in self.events()[1::2]]
        for message, expected in zip(messages, ["", "assert 1 == 2", "not here", "no setup", "no teardown", "assert 3 == 4"]):
            self.assertIn(expected, message)

    def test_memory_of_fixtures_is_given_back_before_the_end_is_measured(self):
        self.write("""
class Tensor:
    def __init__(self): gpu.allocate(8)
    def __del__(self): gpu.free(8)
@pytest.fixture
def tensor(): return Tensor()
def test_it(tensor): assert tensor
""")
        self.run_tests()
        end = self.events()[1]["end"]
        self.assertEqual((end["used_bytes"], end["peak_bytes"]), (0, 8 * MIB))

    def test_a_killed_test_leaves_its_begin(self):
        self.write("""
import os, signal
def test_before(): pass
def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
""")
        self.run_tests(code=-signal.SIGKILL)
        self.assertEqual([(event["event"], event["test"]) for event in self.events()][2:], [("begin", "test_it.py::test_killed")])

    def test_an_interrupted_test_is_an_error(self):
        self.write("""
def test_it(): raise KeyboardInterrupt
""")
        self.run_tests(code=2)
        self.assertEqual(self.ends(), [("test_it", 1, "error")])

    def test_a_forked_child_does_not_write_into_its_parents_file(self):
        self.write("""
import os
def test_it(request):
    child = os.fork()
    if child == 0:
        request.config.pluginmanager.getplugin("rota-recorder").begin(request.node)
        os._exit(0)
    os.waitpid(child, 0)
""")
        self.run_tests()
        self.assertEqual(sorted(len(events) for events in self.lines().values()), [1, 2])

    def test_an_inner_session_is_part_of_the_outer_ones_test(self):
        self.write("""
pytest_plugins = "pytester"
def test_outer(pytester):
    pytester.makepyfile("def test_inner(): pass")
    pytester.runpytest_inprocess("-p", "rota.pytest_plugin").assert_outcomes(passed=1)
""")
        self.run_tests()
        self.assertEqual([event["test"] for event in self.events()], ["test_it.py::test_outer"] * 2)

    def test_names_of_any_kind_are_written(self):
        self.write("""
@pytest.mark.parametrize("value", ["\\u00e9 \\\\ \\"", "a\\nb", "\\ud800"], ids=["\\u00e9 \\\\ \\"", "a\\tb", "x"])
def test_it(value): gpu.allocate(1)
""")
        self.run_tests()
        self.assertEqual(len(self.ends()), 3)

    def test_text_that_utf8_cannot_hold_is_written_with_escapes(self):
        self.write("""
@pytest.mark.parametrize("value", [1], ids=["\\udc80"])
def test_it(value): raise ValueError("lone \\udcff")
""")
        self.run_tests(code=1)
        for line in next((self.report / "tests").iterdir()).read_bytes().splitlines():
            json.loads(line)["test"].encode("utf-8")
        self.assertEqual(self.events()[1]["message"], "ValueError: lone \\udcff")

    def test_tests_that_clear_the_environment_do_not_fail_the_session(self):
        self.write("""
import os
def test_it(): os.environ.clear()
""")
        self.assertNotIn("Traceback", self.run_tests(ROTA_STACK_SIGNAL=str(signal.SIGRTMIN + 11)))

    def test_a_second_session_in_the_process_makes_further_attempts(self):
        self.write("def test_it(): pass\n")
        (self.folder / "twice.py").write_text("import pytest\nfor _ in range(2): pytest.main(['-p', 'rota.pytest_plugin', 'test_it.py'])\n",
                                              encoding="utf-8")
        self.run_program("twice.py")
        self.assertEqual([event["attempt"] for event in self.events()], [1, 1, 2, 2])


class Nothing(Session):
    def test_without_a_report_nothing_is_loaded_and_nothing_written(self):
        self.write("""
import sys
def test_it(record_property): assert "rota.recorder" not in sys.modules and "rota.account" not in sys.modules
""")
        for value in (None, ""):
            self.run_tests(ROTA_REPORT=value, ROTA_CI_REPEAT="3", ROTA_STACK_SIGNAL="40")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["gpu.py", "test_it.py"])


class OwnErrors(Session):
    """Each becomes one line, and the tests go on as without the plugin."""

    def warned(self, text, **environment):
        said = self.run_tests("-Werror", **environment)
        self.assertIn("1 passed", said)
        found = [line for line in said.splitlines() if line.startswith("rota: ")]
        self.assertEqual(len(found), 1, said)
        self.assertRegex(found[0], f"^rota: the pytest plugin is switched off: .*{text}")

    def setUp(self):
        super().setUp()
        self.write("def test_it(): gpu.allocate(1)\n")

    def test_a_report_that_cannot_be_written(self):
        self.report.write_text("a file")
        self.warned("report", ROTA_REPORT=str(self.report))

    def test_numbers_that_are_none(self):
        self.warned("ROTA_CI_REPEAT is 'often'", ROTA_CI_REPEAT="often")
        self.warned("ROTA_STACK_SIGNAL is 'TERM'", ROTA_STACK_SIGNAL="TERM")

    def test_a_core_of_another_version(self):
        self.write("""
def test_it(): gpu.core.stand_in_answer(2)
""")
        self.warned("another version")
        self.assertEqual([(event["event"], event.get("outcome")) for event in self.events()], [("begin", None), ("end", "unknown")])

    def test_a_process_without_an_account_is_no_error(self):
        self.write("""
def test_it(): gpu.core.stand_in_answer(1)
""")
        self.assertNotIn("rota:", self.run_tests())
        self.assertIsNone(self.events()[1]["end"])


class Stacks(Session):
    def stack(self, text):
        self.write(text)
        session = self.start("-s", ROTA_STACK_SIGNAL=str(signal.SIGRTMIN + 6))
        self.addCleanup(session.communicate)
        self.addCleanup(session.kill)
        while "in the loop" not in session.stdout.readline():
            self.assertIsNone(session.poll())
        session.send_signal(signal.SIGRTMIN + 6)
        file = self.report / "stacks" / f"{session.pid}.txt"
        deadline = time.monotonic() + 30
        while "test_it.py" not in file.read_text(encoding="utf-8") and time.monotonic() < deadline:
            time.sleep(0.01)
        (self.folder / "go").touch()
        out, errors = session.communicate(timeout=60)
        self.assertEqual(session.returncode, 0, out + errors)
        return file.read_text(encoding="utf-8")

    def test_the_signal_writes_the_stacks_of_all_threads_and_ends_nothing(self):
        written = self.stack("""
import pathlib, threading, time
def helper(say):
    say()
    while not pathlib.Path("go").exists(): time.sleep(0.01)
def test_it():
    inside = threading.Event()
    threading.Thread(target=helper, args=[inside.set], daemon=True).start()
    inside.wait()
    helper(lambda: print("in the loop", flush=True))
""")
        self.assertIn("in test_it", written)
        self.assertEqual(written.count("in helper"), 2, written)

    def test_a_handler_that_was_there_before_is_called_as_well(self):
        (self.folder / "conftest.py").write_text("""
import signal, pathlib
signal.signal(signal.SIGRTMIN + 6, lambda *_: pathlib.Path("handled").touch())
""", encoding="utf-8")
        self.stack("""
import pathlib, time
def test_it():
    print("in the loop", flush=True)
    while not (pathlib.Path("handled").exists() and pathlib.Path("go").exists()): time.sleep(0.01)
""")


class Workers(Session):
    needs = ["pytest", "xdist"]

    def test_each_worker_writes_its_own_tests_and_junitxml_has_the_numbers(self):
        self.write("""
@pytest.mark.parametrize("number", range(8))
def test_it(number):
    gpu.allocate(number + 1)
""")
        self.run_tests("-n2", "--junitxml=out.xml")
        ends = [event["test"] for events in self.lines().values() for event in events if event["event"] == "end"]
        self.assertEqual(sorted(ends), sorted(f"test_it.py::test_it[{number}]" for number in range(8)))
        self.assertIn(len(self.lines()), (1, 2))
        growth = [each.get("value") for each in xml.parse(self.folder / "out.xml").iter("property") if each.get("name") == "rota_growth_bytes"]
        self.assertEqual(sorted(map(int, growth)), [number * MIB for number in range(1, 9)])

    def test_a_worker_that_is_killed_leaves_the_begin_of_its_test(self):
        self.write("""
import os, signal
def test_one(): pass
def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_two(): pass
""")
        self.run_tests("-n1", code=1)
        events = [event for events in self.lines().values() for event in events]
        begun = {event["test"] for event in events if event["event"] == "begin"}
        ended = {event["test"] for event in events if event["event"] == "end"}
        self.assertEqual(begun - ended, {"test_it.py::test_killed"})
        self.assertEqual(len(begun), 3)


class TimeOuts(Session):
    """With pytest-timeout."""
    needs = ["pytest", "pytest_timeout"]

    def test_the_limit_of_a_method_that_ends_the_process_is_written_and_no_other(self):
        self.write("""
import time
def test_quick(): pass
@pytest.mark.timeout(0)
def test_without(): pass
@pytest.mark.timeout(50, func_only=True)
def test_only_the_function(): pass
@pytest.mark.timeout(0.5)
def test_slow(): time.sleep(60)
""")
        for number, plain in enumerate((["--timeout", "0", "-k", "quick or without"], ["--timeout", "30", "--timeout-method", "signal", "-k", "quick or without"])):
            self.report = self.folder / f"report {number}"
            self.run_tests(*plain)
            self.assertEqual({event["event"] for event in self.events()}, {"begin", "end"}, plain)
        self.report = self.folder / "report"
        self.run_tests("--timeout", "30", "--timeout-method", "thread", code=1)
        limits = [(event["test"].partition("::")[2], event["seconds"]) for event in self.events() if event["event"] == "limit"]
        self.assertEqual(limits, [("test_quick", 30), ("test_only_the_function", 50), ("test_slow", 0.5)])
        self.assertEqual(self.ends(), [("test_quick", 1, "passed"), ("test_without", 1, "passed"), ("test_only_the_function", 1, "passed")])

    def test_what_a_test_waits_for_before_it_begins_does_not_count_against_its_time_out(self):
        self.write("""
gpu.core.stand_in_wait(ctypes.c_uint32(1500))
def test_one(): pass
def test_two(): pass
def test_slow():
    import time
    time.sleep(60)
""".replace("gpu.core", "import ctypes; gpu.core"))
        said = self.run_tests("--timeout", "1", "--timeout-method", "signal", code=1)
        self.assertIn("Timeout >1.0s", said)
        self.assertEqual(self.ends(), [("test_one", 1, "passed"), ("test_two", 1, "passed"), ("test_slow", 1, "failed")])
        self.assertGreaterEqual(self.events()[1]["time_ns"] - self.events()[0]["time_ns"], 1_500_000_000)
        # Where only the function has a time-out, and under repeats, each attempt begins once.
        self.report = self.folder / "again"
        self.run_tests("--timeout", "5", "-o", "timeout_func_only=true", "-k", "one", ROTA_CI_REPEAT="2")
        self.assertEqual(self.ends(), [("test_one", 1, "passed"), ("test_one", 2, "passed")])
        self.report = self.folder / "whole"
        self.run_tests("--timeout", "30", "-k", "one", ROTA_CI_REPEAT="2")
        self.assertEqual(self.ends(), [("test_one", 1, "passed"), ("test_one", 2, "passed")])


if __name__ == "__main__":
    unittest.main()
