"""Three programs in turns of a fixed order, where two fit: no more is evicted than the known order requires."""
import json
import pathlib
import sys
import unittest

from harness import PROGRAMS, ROTA, ROTAD, Case

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))
import swap_order

MIB = 2**20
CONTEXT = 16 * MIB  # of simgpu


class Least(unittest.TestCase):
    """swap_order.least(): what the measured bytes are compared with."""

    sizes = {"a": 100, "b": 100, "c": 100}

    def test_what_fits_needs_no_move(self):
        self.assertEqual(swap_order.least("abcabc", self.sizes, self.sizes, 300, 10), 0)

    def test_what_leaves_is_that_of_the_program_whose_turn_is_furthest(self):
        resident = {"a": 100, "b": 100, "c": 0}
        # c needs 100: b has just run and is last in line. Then a has all, and with b's turn it is a's 100, and so on.
        self.assertEqual(swap_order.least("cabcab", self.sizes, resident, 200, 10), 300)
        last = swap_order.least_recently_used("cabcab")
        self.assertEqual(swap_order.least("cabcab", self.sizes, resident, 200, 10, last), 600)

    def test_a_part_of_an_extent_needs_all_of_it(self):
        self.assertEqual(swap_order.least("c", self.sizes, {"a": 100, "b": 100, "c": 0}, 275, 10), 30)
        self.assertEqual(swap_order.least("c", self.sizes, {"a": 100, "b": 100, "c": 0}, 275, 64), 64)


class KnownOrder(Case):
    memory = "256M"

    # ctest labels: unsanitized
    def test_three_programs_where_two_fit_move_what_the_known_order_needs(self):
        events = self.scratch / "events"
        real = {"ROTA_SIM_TIME_SCALE": "1"}  # the log's times and the programs' are compared
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks", "--mode", "exclusive",
                            "--quantum", "100ms", "--event-log", events, **real)
        self.eventually(lambda: self.status() is not None, "rotad answers")
        programs = [self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "renewer", "--late", "--bytes", "88M", "--piece", "8M", "--hold",
                               "--seed", number + 1, ROTA_LOG="debug", **real) for number in range(3)]
        for each in programs:
            self.assertEqual(each.stdout.readline(), "context\n")
        capacity = 256 * MIB - 3 * CONTEXT
        for each in programs:
            each.stdin.write("\n")
            each.stdin.flush()
            self.assertEqual(each.stdout.readline(), "ready\n")
        before = self.status()["daemon"]["grants"]
        self.eventually(lambda: self.status()["daemon"]["grants"] >= before + 16, "the lease goes round")
        results = [self.finish(each) for each in programs]
        for each in results:
            self.assertEqual(each.returncode, 0, each.stderr[-2000:])
            self.assertEqual(json.loads(each.stdout.splitlines()[-1])["wrong"], 0)
        daemon.terminate()
        self.finish(daemon)
        compared = swap_order.compare(events.read_text(), [each.stderr for each in results], capacity, 8 * MIB)
        self.assertGreaterEqual(compared["grants"], 6, compared)
        self.assertGreater(compared["least"], 0, compared)
        self.assertLess(compared["of_the_least"], 1.1, compared)
        self.assertGreater(compared["least_recently_used"], 1.4 * compared["least"], compared)


if __name__ == "__main__":
    unittest.main()
