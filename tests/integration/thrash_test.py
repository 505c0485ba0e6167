"""Two programs whose managed memory does not fit together: they thrash without rota, and take turns with it.

Each goes over 0.6 of the GPU's memory again and again. What counts is how many rounds both together get done in a
second, against one program alone: one after the other, two programs get exactly that. simgpu's time is stretched, so
that computing on the CPU does not count, and rotad's quantum with it.
"""
import json
import time
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD

SCALE = "5"  # real seconds per modelled second
QUANTUM = "200ms"  # modelled: 1 s; a program alone takes longer than that


class Thrash(Case):
    def rate(self, count, rounds, *prefix, options=()):
        """So many programs at once, each of so many rounds: rounds per second, of all together, from the first start
        to the last end."""
        began = time.monotonic()
        children = [self.start(*prefix, PROGRAMS / "memhog", "--share", "0.6", "--rounds", rounds, "--ahead", "100",
                               *options, ROTA_SIM_TIME_SCALE=SCALE) for _ in range(count)]
        for child in children:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout.splitlines()[-1])["wrong"], 0)
        return count * rounds / (time.monotonic() - began)

    def test_two_programs_that_do_not_fit_together_thrash_without_rota_and_not_with_it(self):
        alone = self.rate(1, 2000, options=("--managed",))
        without = alone / self.rate(2, 25, options=("--managed",))
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                            "--mode", "exclusive", "--quantum", QUANTUM, ROTA_SIM_TIME_SCALE=SCALE)
        self.eventually(lambda: self.status() is not None or daemon.poll() is not None, "rotad answers")
        with_rota = self.rate(1, 2000, ROTA, "run", "--") / self.rate(2, 2000, ROTA, "run", "--")
        grants = self.status()["daemon"]["grants"]
        print(f"two programs at once take {without:.1f} times as long as one after the other; with rota {with_rota:.2f} "
              f"times ({grants} grants)")
        self.assertGreaterEqual(without, 4)
        self.assertLess(with_rota, 2)
        self.assertGreater(grants, 4, "they took turns, more than once")


if __name__ == "__main__":
    unittest.main()
