"""Two programs whose Unified Memory does not fit together, in turns: each evicts it before it gives the lease back."""
import re
import unittest

from harness import PROGRAMS, ROTA, ROTAD, Case

SCALE = "5"  # real seconds per modelled second: the turns end while the programs still work


class MoveOut(Case):
    def turns_of_two(self, **environment):
        """Checks that all results are right and returns both programs' stderr."""
        self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                   "--mode", "exclusive", "--quantum", "100ms", ROTA_SIM_TIME_SCALE=SCALE)
        self.eventually(lambda: self.status() is not None, "rotad answers")
        hog = (ROTA, "run", "--memory", "managed", "--", PROGRAMS / "memhog", "--share", "0.6", "--rounds", "1200", "--ahead", "50")
        children = [self.start(*hog, ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="debug", **environment) for _ in range(2)]
        results = [self.finish(child) for child in children]
        for result in results:
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            self.assertIn('"wrong":0', result.stdout)
        return "".join(result.stderr for result in results)

    def test_memory_leaves_before_the_lease_goes_and_comes_back_with_it(self):
        said = self.turns_of_two()
        moved = [int(number) for number in re.findall(r"rota: (\d+) bytes moved to the host", said)]
        # 0.6 of 256 MiB each: a fifth is too much, and what rotad takes for contexts; never all of it. Less while one of
        # them still allocates or already frees.
        self.assertTrue(any(40 << 20 <= bytes for bytes in moved), moved or said[-2000:])
        self.assertTrue(all(bytes < 150 << 20 for bytes in moved), moved)
        self.assertIn("memory back after", said)

    def test_a_program_that_is_told_not_to_leaves_it_to_the_driver(self):
        said = self.turns_of_two(ROTA_MOVE_OUT="0")
        self.assertNotIn("moved to the host", said)


if __name__ == "__main__":
    unittest.main()
