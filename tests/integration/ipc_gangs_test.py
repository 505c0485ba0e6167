"""Two programs of different `rota run`s of which one opens memory of the other: they have their turns together."""
import time
import unittest

from harness import PROGRAMS, ROTA
from ipc_case import MIB, Ipc


class Gangs(Ipc):
    # ctest labels: unsanitized
    def test_a_kernel_that_waits_for_one_of_the_exporters_needs_no_turn_of_its_own_although_a_third_program_waits(self):
        exporter, importer = self.program(), self.program()
        address, handle = self.exported(exporter, 4 * MIB, 0)
        theirs = self.opened(importer, handle)
        self.eventually(lambda: [gang["programs"] for gang in self.status()["gangs"]] == [2], lambda: f"they are a gang: {self.status()['gangs']}")
        third = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.1", "--hold", "--ahead", "20",
                           ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(third.stdout.readline(), "ready\n")
        begun = time.monotonic()
        for _ in range(20):
            self.ask(importer, "run_until_stored", theirs)
            self.ask(exporter, "store", address, 1)
            self.assertEqual(self.ask(importer, "synchronize"), 0)
            self.ask(exporter, "fill", address, 4, 0)
        # Turn by turn each round takes two seconds, until rotad lets both run at once.
        self.assertLess(time.monotonic() - begun, 20)
        self.assertIn('"wrong":0', self.finish(third).stdout)
        self.ends_well(exporter, importer)


if __name__ == "__main__":
    unittest.main()
