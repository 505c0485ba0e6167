"""The folder of a simulated machine is gone after any end of it."""
import contextlib
import os
import signal
import time
import unittest

from harness import PROGRAMS, ROTA
from sim_case import SimCase


class Folder(SimCase):
    def machine(self, name):
        """A machine whose program waits, and that program's process."""
        file = self.scratch / name
        child = self.start(ROTA, "sim", "--", PROGRAMS / "mirror", file, "waits")
        self.eventually(lambda: file.exists() and "ready" in file.read_text(), "its program runs")
        self.assertEqual(len(self.folders()), 1)
        return child, int(file.read_text().split("ready ")[1].split()[0])

    def folders(self):
        return list(self.temporary.iterdir())

    # ctest labels: unsanitized
    def test_it_goes_with_whatever_ends_the_command(self):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGSEGV,
                       signal.SIGRTMIN, signal.SIGKILL):
            for whom in ("machine", "program", "group"):
                if (number, whom) == (signal.SIGKILL, "group"):
                    continue  # below
                with self.subTest(number=number, whom=whom):
                    child, program = self.machine(f"{number}-{whom}")
                    {"machine": lambda: os.kill(child.pid, number), "program": lambda: os.kill(program, number),
                     "group": lambda: os.killpg(child.pid, number)}[whom]()
                    self.assertEqual(self.finish(child).returncode, -number)
                    # If a machine is killed, its keeper removes the folder once the program has ended.
                    self.eventually(lambda: not self.folders(), "the folder is gone")

    # ctest labels: unsanitized
    def test_it_goes_whenever_the_signal_comes(self):
        for step in range(20):
            for number in (signal.SIGTERM, signal.SIGKILL):
                child = self.start(ROTA, "sim", "--", "sleep", "1000")
                time.sleep(step / 400)  # another moment each time: nothing depends on which
                os.kill(child.pid, number)
                self.assertEqual(self.finish(child).returncode, -number)
        # The next machine removes the folders of machines that were killed before they had keepers, half-made ones only if they are not
        # new.
        def is_tidy():
            for folder in self.folders():
                with contextlib.suppress(FileNotFoundError):  # a keeper is about to remove it
                    os.utime(folder, (0, 0))
            self.call(ROTA, "sim", "--", "true")
            return not self.folders()
        self.eventually(is_tidy, "the folders are gone")

    # ctest labels: unsanitized
    def test_where_all_of_a_job_is_killed_the_next_machine_removes_it(self):
        living, _ = self.machine("living")
        [kept] = self.folders()
        killed = self.start(ROTA, "sim", "--", "sh", "-c", "echo ready; exec sleep 1000")
        self.assertEqual(killed.stdout.readline(), "ready\n")
        os.killpg(killed.pid, signal.SIGKILL)
        self.finish(killed)
        self.assertEqual(len(self.folders()), 2)
        self.call(ROTA, "sim", "--", "true")
        self.assertEqual(self.folders(), [kept], "that of a machine that runs stays")
        os.kill(living.pid, signal.SIGTERM)
        self.finish(living)
        self.assertEqual(self.folders(), [])


if __name__ == "__main__":
    unittest.main()
