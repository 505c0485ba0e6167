"""Two programs whose managed memory does not fit together: they thrash without rota, and take turns with it.

Each goes over 0.6 of the GPU's memory repeatedly. The measure is how many rounds per second both complete together,
compared with one program alone: run one after the other, two programs achieve exactly that. simgpu's time and rotad's
quantum are stretched, so that CPU time is negligible.
"""
import json
import time
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD

SCALE = "5"  # real seconds per modelled second
QUANTUM = "200ms"  # modelled: 1 s; a program alone takes longer than that


class Thrash(Case):
    def run_hogs(self, count, *command):
        """Runs this many programs at once: each one's final output, and the seconds from the first start to the last end."""
        began = time.monotonic()
        children = [self.start(*command, "--share", "0.6", ROTA_SIM_TIME_SCALE=SCALE) for _ in range(count)]
        said = []
        for child in children:
            result = self.finish(child)
            self.assertEqual(result.returncode, 0, result.stderr)
            said.append(json.loads(result.stdout.splitlines()[-1]))
            self.assertEqual(said[-1]["wrong"], 0)
        return said, time.monotonic() - began

    def rate(self, count, *command):
        """Rounds per second of all programs together, each measured while the others run too."""
        said, _ = self.run_hogs(count, *command, "--seconds", "5")
        return sum(one["rounds"] / one["seconds"] for one in said)

    # Times of a sanitized build are meaningless.
    # ctest labels: unsanitized
    def test_two_programs_that_do_not_fit_together_thrash_without_rota_and_not_with_it(self):
        hog = (PROGRAMS / "memhog", "--managed")
        without = self.rate(1, *hog) / self.rate(2, *hog)
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                            "--mode", "exclusive", "--quantum", QUANTUM, ROTA_SIM_TIME_SCALE=SCALE)
        self.eventually(lambda: self.status() is not None or daemon.poll() is not None, "rotad answers")
        # Measured from start to end, including waiting. They queue work ahead, as jobs do; otherwise a busy machine
        # makes them look idle.
        hog = (ROTA, "run", "--", PROGRAMS / "memhog", "--rounds", "3000", "--ahead", "100")
        (_, one), (_, both) = self.run_hogs(1, *hog), self.run_hogs(2, *hog)
        with_rota = both / (2 * one)
        grants = self.status()["daemon"]["grants"]
        print(f"two programs at once take {without:.1f} times as long as one after the other; with rota {with_rota:.2f} "
              f"times ({grants} grants)")
        self.assertGreaterEqual(without, 4)
        self.assertLess(with_rota, 2)
        self.assertGreater(grants, 4, "they took turns, more than once")


if __name__ == "__main__":
    unittest.main()
