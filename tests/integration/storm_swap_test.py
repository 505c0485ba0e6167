"""Sixteen threads each of two programs allocate, launch kernels and free while the programs are swapped as fast as it goes."""
import re
import unittest

from harness import PROGRAMS, ROTA, Case


class StormWhileSwapped(Case):
    memory = "256M"

    def storms(self, seconds, *options):
        # Each holds 150 MiB, and less than 240 are there for both.
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms", *options)
        storms = [self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "allocation_storm", "--for", str(seconds), "--launch", "--held", "150M",
                             "--seed", str(number), ROTA_LOG="debug") for number in (1, 2)]
        for storm in storms:
            result = self.finish(storm, timeout=60 + 6 * seconds)
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            self.assertRegex(result.stdout, r"^ok \d+ calls, \d+ a second, \d+ refused, -?\d+ bytes left, [1-9]\d* launches\n$")
            moved = [int(found) for found in re.findall(r"GPU 0: (\d+) of \d+ bytes moved out", result.stderr)]
            self.assertGreaterEqual(sum(bytes > 0 for bytes in moved), 2, result.stdout)
            self.assertGreater(sum(moved), 60 * 2**20)

    # ctest labels: unsanitized
    def test_what_sixteen_threads_write_by_every_route_is_there_however_often_it_was_swapped(self):
        self.storms(4)

    # ctest labels: unsanitized
    def test_the_same_where_nothing_is_handed_over(self):
        self.storms(4, "--trust", "none")

    # ctest labels: thorough unsanitized
    def test_a_minute_of_sixteen_threads_that_are_swapped_all_the_time(self):
        self.storms(60)


if __name__ == "__main__":
    unittest.main()
