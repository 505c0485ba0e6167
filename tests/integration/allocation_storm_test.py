"""Programs that allocate by every route from many threads keep their contents, and end with an empty ledger."""
import re

from harness import PROGRAMS, ROTA, Case


class AllocationStorm(Case):
    memory = "1G"

    def storm(self, memory, duration, *options, **environment):
        """The number of calls refused for lack of memory."""
        printed = self.checked(ROTA, "run", "--", PROGRAMS / "allocation_storm", "--for", duration, *options,
                               timeout=60 + 4 * duration, ROTA_MEMORY=memory, **environment).stdout
        calls, refused, left = map(int, re.fullmatch(
            r"ok (\d+) calls, \d+ a second, (\d+) refused, (-?\d+) bytes left\n", printed).groups())
        self.assertGreater(calls, 100, printed)
        # Under a limit, free memory is the limit minus what the ledger counts.
        self.assertEqual(left, 0, printed)
        return refused

    def test_every_route_at_once_leaves_nothing_on_the_books(self):
        for memory in "native", "managed":
            with self.subTest(memory=memory):
                self.assertEqual(self.storm(memory, 2, ROTA_GPU_MEM_LIMIT="900M"), 0)

    def test_every_route_at_once_at_the_limit_is_refused_in_order(self):
        for memory in "native", "managed":
            with self.subTest(memory=memory):
                self.assertGreater(self.storm(memory, 2, ROTA_GPU_MEM_LIMIT="24M"), 0)

    # ctest labels: thorough
    def test_a_minute_of_every_route_leaves_nothing_on_the_books(self):
        self.storm("native", 60, "--seed", "7", ROTA_GPU_MEM_LIMIT="900M")

    # ctest labels: thorough
    def test_a_minute_of_every_route_leaves_nothing_on_the_books_with_managed_memory(self):
        self.storm("managed", 60, "--seed", "7", ROTA_GPU_MEM_LIMIT="900M")
