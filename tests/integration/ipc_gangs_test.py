"""Two programs of different `rota run`s of which one opens memory of the other: they have their turns together."""
import signal
import threading
import time
import unittest

from harness import PROGRAMS, ROTA, ROTAD, kill
from ipc_case import MIB, Ipc

GRACE, LONG_GRACE = 2, 10  # seconds
ROUNDS = 6


class Linked(Ipc):
    def gangs(self):
        return [gang["programs"] for gang in self.status()["gangs"]]

    def are_a_gang(self):
        self.eventually(lambda: self.gangs() == [2], lambda: f"they are a gang: {self.status()['gangs']}")

    def third(self, *options):
        program = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.1", "--hold", "--ahead", "20", *options,
                             ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(program.stdout.readline(), "ready\n")
        return program


class Gangs(Linked):
    options = ("--grace", f"{GRACE}s")

    # ctest labels: unsanitized
    def test_a_kernel_that_waits_for_one_of_the_exporters_needs_no_turn_of_its_own_although_a_third_program_waits(self):
        exporter, importer = self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 0)
        theirs = self.opened(importer, handle)
        self.are_a_gang()
        third = self.third()
        begun = time.monotonic()
        for _ in range(20):
            self.ask(importer, "run_until_stored", theirs)
            self.ask(exporter, "store", address, 1)
            self.assertEqual(self.ask(importer, "synchronize"), 0)
            self.ask(exporter, "fill", address, 4, 0)
        # Turn by turn each round takes as long as the grace period, until rotad lets both run at once.
        self.assertLess(time.monotonic() - begun, 20)
        self.assertIn('"wrong":0', self.finish(third).stdout)
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_programs_are_a_gang_only_while_memory_is_open(self):
        exporter, importer = self.program(), self.program()
        handles = [self.exported(exporter, 4 * MIB, 0)[1] for _ in range(2)]
        for _ in range(2):
            theirs = [self.opened(importer, handle) for handle in handles]
            self.are_a_gang()
            self.assertEqual(self.ask(importer, "close", theirs[0]), 0)
            self.assertTrue(self.ask(importer, "is_readable", theirs[1]))
            self.assertEqual(self.gangs(), [2])
            self.assertEqual(self.ask(importer, "close", theirs[1]), 0)
            self.eventually(lambda: 2 not in self.gangs(), lambda: f"they are none: {self.status()['gangs']}")
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_under_a_new_rotad_they_are_a_gang_again_until_the_memory_is_closed(self):
        exporter, importer = self.program(), self.program()
        _, handle = self.exported(exporter, 4 * MIB, 0)
        theirs = self.opened(importer, handle)
        for _ in range(3):
            self.are_a_gang()
            kill(self.daemon)
            self.daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks")
            self.eventually(lambda: self.status() is not None, "rotad answers")
        self.are_a_gang()
        self.assertEqual(self.ask(importer, "close", theirs), 0)
        self.eventually(lambda: 2 not in self.gangs(), lambda: f"they are none: {self.status()['gangs']}")
        self.ends_well(exporter, importer)

    # ctest labels: unsanitized
    def test_an_exporter_that_is_stopped_without_work_takes_the_gpu_from_others_once_at_most(self):
        exporter, importer, other = self.program(), self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 0)
        theirs = self.opened(importer, handle)
        self.are_a_gang()
        own = self.ask(other, "allocate", 4 * MIB)
        exporter.send_signal(signal.SIGSTOP)
        self.addCleanup(exporter.send_signal, signal.SIGCONT)
        begun = time.monotonic()
        for _ in range(8):
            self.ask(importer, "fill", theirs, 4 * MIB, 3)
            self.ask(other, "fill", own, 4 * MIB, 4)
        self.assertLess(time.monotonic() - begun, 2 * GRACE)
        # It is a member again as soon as it says something.
        exporter.send_signal(signal.SIGCONT)
        self.assertTrue(self.ask(exporter, "all_are", address, 4 * MIB, 3))
        begun = time.monotonic()
        for _ in range(4):
            self.ask(importer, "run_until_stored", theirs)
            self.ask(exporter, "store", address, 0x03030301)
            self.assertEqual(self.ask(importer, "synchronize"), 0)
            self.ask(exporter, "fill", address, 4, 0)
            self.ask(other, "fill", own, 4 * MIB, 4)
        self.assertLess(time.monotonic() - begun, 2 * GRACE)
        self.ends_well(exporter, importer, other)


class Apart(Linked):
    """A grace period is longer than a round takes on a busy machine."""

    options = ("--grace", f"{LONG_GRACE}s")

    # ctest labels: unsanitized
    def test_programs_whose_memory_does_not_fit_together_take_their_turns_by_themselves_once_they_are_linked(self):
        exporter, importer = self.program(), self.program()
        handle = self.exported(exporter, 4 * MIB, 0)[1]
        third = self.third()
        ended = threading.Event()
        def works(program, rounds, address):
            for _ in range(rounds):
                self.ask(program, "fill", address, 120 * MIB, 1)
        def exports():
            address = self.ask(exporter, "allocate", 120 * MIB)
            while not ended.is_set():
                works(exporter, 1, address)
        other = threading.Thread(target=exports)
        other.start()
        try:
            address = self.ask(importer, "allocate", 120 * MIB)
            works(importer, ROUNDS, address)
            self.opened(importer, handle)
            begun = time.monotonic()
            works(importer, ROUNDS, address)
            self.assertLess(time.monotonic() - begun, ROUNDS / 2 * LONG_GRACE)
            self.assertEqual([gang["apart"] for gang in self.status()["gangs"]], [True])
        finally:
            ended.set()
            other.join()
        self.assertIn('"wrong":0', self.finish(third).stdout)
        self.ends_well(exporter, importer)


if __name__ == "__main__":
    unittest.main()
