"""Attempts of one test: reruns of pytest-rerunfailures, and repetitions in the same process for ROTA_CI_REPEAT."""
import unittest

from pytest_session import Session

MIB = 1 << 20


class Repeated(Session):
    def growths(self):
        return [event["end"]["used_bytes"] // MIB for event in self.events() if event["event"] == "end"]

    def test_a_test_is_repeated_in_the_same_process_and_reported_once(self):
        self.write("""
kept = []
def test_leaks(): gpu.allocate(3)
def test_clean(): gpu.allocate(1); gpu.free(1)
""")
        said = self.run_tests("-v", ROTA_CI_REPEAT="3")
        self.assertIn("2 passed", said)
        self.assertEqual(said.count("test_leaks PASSED"), 1)
        self.assertEqual(self.ends(), [(name, attempt, "passed") for name in ("test_leaks", "test_clean") for attempt in (1, 2, 3)])
        self.assertEqual(self.growths(), [3, 6, 9, 9, 9, 9])

    def test_fixtures_of_functions_are_new_each_time_and_wider_ones_stay(self):
        self.write("""
made = []
@pytest.fixture(scope="module")
def of_module(): made.append("module"); yield; made.append("end of module")
@pytest.fixture(scope="class")
def of_class(): made.append("class"); yield; made.append("end of class")
@pytest.fixture
def of_function(): made.append("function"); yield; made.append("end of function")
class TestIt:
    def test_it(self, of_module, of_class, of_function):
        assert not hasattr(self, "seen")
        self.seen = True
def test_after(): assert made == ["module", "class", *["function", "end of function"] * 3, "end of class"]
""")
        self.run_tests(ROTA_CI_REPEAT="3")
        self.assertEqual(len(self.ends()), 6)

    def test_unittests_and_parameters_are_repeated_too(self):
        self.write("""
import unittest
class TestIt(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.times = []
    def setUp(self): self.times.append("setup"); self.new = not hasattr(self, "old"); self.old = True
    def test_it(self): assert self.new and len(self.times) <= 3
    @classmethod
    def tearDownClass(cls): assert len(cls.times) == 3
@pytest.mark.parametrize("value", [1, 2])
def test_value(value): pass
""")
        self.assertIn("3 passed", self.run_tests(ROTA_CI_REPEAT="3"))
        self.assertEqual(len(self.ends()), 9)

    def test_a_test_that_fails_at_its_second_time_fails_and_its_fixtures_are_torn_down(self):
        self.write("""
times, ended = [], []
@pytest.fixture(scope="class")
def of_class(): yield; ended.append("class")
class TestIt:
    def test_it(self, of_class): times.append(1); assert len(times) < 2
def test_after(): assert ended == ["class"]
""")
        said = self.run_tests(ROTA_CI_REPEAT="3", code=1)
        self.assertIn("1 failed, 1 passed", said)
        self.assertEqual(self.ends()[:2], [("TestIt::test_it", 1, "passed"), ("TestIt::test_it", 2, "failed")])
        self.assertEqual(len(self.ends()), 5)

    def test_what_a_cycle_keeps_alive_is_no_growth(self):
        self.write("""
import gc
gc.disable()
class Tensor:
    def __init__(self): gpu.allocate(2); self.me = self
    def __del__(self): gpu.free(2)
def test_it(): Tensor()
""")
        self.run_tests(ROTA_CI_REPEAT="3")
        self.assertEqual(self.growths(), [2, 0, 0])

    def test_a_skipped_test_is_not_repeated(self):
        self.write("""
def test_it(): pytest.skip("no")
""")
        self.run_tests(ROTA_CI_REPEAT="3")
        self.assertEqual(self.ends(), [("test_it", 1, "skipped")])

    def test_exitfirst_ends_the_session(self):
        self.write("""
def test_fails(): assert False
def test_never(): pass
""")
        self.run_tests("-x", ROTA_CI_REPEAT="2", code=1)
        self.assertEqual(self.ends(), [("test_fails", 1, "failed")])


class Rerun(Session):
    needs = ["pytest", "pytest_rerunfailures"]

    def test_reruns_are_attempts_with_their_own_numbers(self):
        self.write("""
times = []
def test_it():
    gpu.allocate(1)
    times.append(1)
    assert len(times) == 3
""")
        said = self.run_tests("--reruns", "3", "--junitxml=out.xml")
        self.assertIn("2 rerun", said)
        self.assertEqual(self.ends(), [("test_it", 1, "failed"), ("test_it", 2, "failed"), ("test_it", 3, "passed")])
        self.assertEqual([event["end"]["used_bytes"] for event in self.events()[1::2]], [MIB, 2 * MIB, 3 * MIB])


class RerunByWorkers(Session):
    needs = ["pytest", "pytest_rerunfailures", "xdist"]

    def test_reruns_by_workers_are_attempts(self):
        self.write("""
times = []
def test_it():
    times.append(1)
    assert len(times) == 2
""")
        self.run_tests("-n1", "--reruns", "2")
        self.assertEqual(self.ends(), [("test_it", 1, "failed"), ("test_it", 2, "passed")])


if __name__ == "__main__":
    unittest.main()
