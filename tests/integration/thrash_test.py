"""Two programs whose managed memory does not fit together: they thrash without rota, and take turns with it.

Each goes over 0.6 of the GPU's memory again and again; what counts is how many rounds both together get done in a
second, against one program alone (two programs one after the other get exactly that). simgpu's time is stretched, so
that computing on the CPU does not count, and rotad's quantum with it.
"""
import json
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD

SCALE = 5  # real seconds per modelled second
SECONDS = 6  # real
QUANTUM = "200ms"  # modelled: 1 s


class Thrash(Case):
    def hogs(self, count, *prefix, options=()):
        """So many programs at once; rounds per second of all together."""
        children = [self.start(*prefix, PROGRAMS / "memhog", "--share", "0.6", "--seconds", SECONDS, *options,
                               ROTA_SIM_TIME_SCALE=str(SCALE)) for _ in range(count)]
        rate = 0
        for child in children:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)
            said = json.loads(result.stdout.splitlines()[-1])
            self.assertEqual(said["wrong"], 0)
            rate += said["rounds"] / said["seconds"]
        return rate

    def slowdowns(self):
        """How many times longer two programs at once take than one after the other: without rota, and with it."""
        alone = self.hogs(1, options=("--managed",))
        without = self.hogs(2, options=("--managed",))
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory",
                            self.scratch / "locks", "--mode", "automatic", "--quantum", QUANTUM,
                            ROTA_SIM_TIME_SCALE=str(SCALE))
        self.eventually(lambda: self.status() is not None or daemon.poll() is not None, "rotad answers")
        own = self.hogs(1, ROTA, "run", "--")
        shared = self.hogs(2, ROTA, "run", "--")
        return alone / without, own / shared, alone / own

    def test_two_programs_that_do_not_fit_together_thrash_without_rota_and_not_with_it(self):
        without, with_rota, _ = self.slowdowns()
        print(f"two programs at once take {without:.1f} times as long as one after the other; with rota {with_rota:.2f} times")
        self.assertGreaterEqual(without, 4)
        self.assertLess(with_rota, 2)

if __name__ == "__main__":
    unittest.main()
