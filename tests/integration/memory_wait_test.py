"""Programs whose memory cannot be evicted and does not fit together: allocations wait until others have freed memory or ended."""
import concurrent.futures
import json
import sys
import unittest

from harness import ROTA, ROTAD, kill
from memory_wait_case import GROWS, WaitCase


class MemoryWait(WaitCase):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_MEMORY"] = "native"

    # ctest labels: unsanitized
    def test_three_programs_of_which_one_fits_end_well_one_after_the_other(self):
        self.start_daemon()
        children = [self.grower(1, 150) for _ in range(3)]
        self.eventually(lambda: sum(map(self.awaits, children)) == 2, "two wait for one")
        self.each_ends_well(children)

    # ctest labels: unsanitized
    def test_of_three_programs_that_grow_one_ends_well_at_least_and_none_hangs(self):
        self.start_daemon()
        children = [self.grower(20, 10) for _ in range(3)]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            results = list(pool.map(self.finish, children))
        self.assertEqual([result.returncode for result in results], [0, 0, 0], results)
        self.assertIn("20", [result.stdout.split()[0] for result in results])

    # ctest labels: unsanitized
    def test_who_fills_the_gpu_alone_is_refused_at_once(self):
        self.start_daemon()
        child = self.grower(1000, 10)
        count, result, seconds = self.said(child)
        self.assertEqual(result, 2)
        self.assertGreater(count, 20)
        self.assertLess(seconds, 30)
        self.finish(child)

    # ctest labels: unsanitized
    def test_an_allocation_is_refused_after_memory_wait_and_the_next_one_at_once(self):
        log = self.scratch / "events"
        daemon = self.start_daemon("--memory-wait", "2s", "--event-log", log)
        holder = self.grower(1, 200)
        self.said(holder)
        waiter = self.grower(1, 100)
        self.until_it_waits(waiter)
        shown = self.checked(ROTA, "status").stdout
        self.assertRegex(shown, r"an allocation of 100 MiB has waited \d+\.\d s for others to free memory or end")
        count, result, seconds = self.said(waiter)
        self.assertEqual((count, result), (0, 2))
        self.assertGreaterEqual(seconds, 2)
        stderr = self.finish(waiter).stderr
        self.assertRegex(stderr, rf"rota: waiting for memory of other programs on GPU 0 that cannot be evicted: pid {holder.pid} .* 200 MiB; `rota status` says more")
        self.assertEqual(self.finish(holder).returncode, 0)
        daemon.terminate()
        self.assertRegex(self.finish(daemon).stderr, rf"pid {waiter.pid}.* was refused 100 MiB on GPU 0: the driver has no memory left, others have \d+ MiB that cannot be evicted, and it waited 2\.\d s")
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", log).stdout)

    # ctest labels: unsanitized
    def test_a_program_that_has_changed_its_environment_still_says_who_has_the_memory(self):
        self.start_daemon("--memory-wait", "2s")
        holder = self.grower(1, 200)
        self.said(holder)
        stderr = self.finish(self.grower(1, 100, "moved")).stderr
        self.assertRegex(stderr, rf"waiting for memory of other programs on GPU 0 that cannot be evicted: pid {holder.pid} .* 200 MiB")
        self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_the_wait_is_in_a_report_and_is_no_hang(self):
        self.start_daemon("--memory-wait", "3s")
        holder = self.grower(1, 200)
        self.said(holder)
        folder = self.scratch / "report"
        waiter = self.start(ROTA, "ci", "--hang-after", "1s", "--report-dir", folder, "--", sys.executable, "-c", GROWS, 1, 100)
        self.assertEqual(self.said(waiter)[:2], (0, 2))
        self.assertEqual(self.finish(waiter).returncode, 0)
        self.assertGreater(json.loads((folder / "report.json").read_text())["total"]["waited_ns"], 2_500_000_000)
        self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_without_memory_wait_it_is_as_natively(self):
        self.start_daemon("--memory-wait", "0")
        holder = self.grower(1, 200)
        self.said(holder)
        waiter = self.grower(1, 100)
        count, result, seconds = self.said(waiter)
        self.assertEqual((count, result), (0, 2))
        for child in (holder, waiter):
            self.assertNotIn("waiting for memory", self.finish(child).stderr)

    # ctest labels: unsanitized
    def test_it_goes_on_when_another_frees_memory_or_is_killed(self):
        self.start_daemon()
        for how in "free", "kill":
            with self.subTest(how=how):
                holder = self.grower(1, 200, "free")
                self.said(holder)
                waiter = self.grower(1, 100)
                self.until_it_waits(waiter)
                if how == "free":
                    holder.stdin.write("free\n")
                    holder.stdin.flush()
                    self.assertEqual(holder.stdout.readline(), "freed\n")
                else:
                    kill(holder)
                self.assertEqual(self.said(waiter)[:2], (1, 0))
                self.assertEqual(self.finish(waiter).returncode, 0)
                self.finish(holder)

    # ctest labels: unsanitized
    def test_what_waits_is_in_nobodys_way(self):
        self.start_daemon()
        holder = self.grower(1, 120)
        self.said(holder)
        waiter = self.grower(1, 130)
        self.until_it_waits(waiter)
        swaps = self.grower(1, 20, ROTA_MEMORY="swap")
        self.assertEqual(self.said(swaps)[:2], (1, 0))
        for child in (swaps, holder):
            self.assertEqual(self.finish(child).returncode, 0)
        self.assertEqual(self.said(waiter)[:2], (1, 0))
        self.assertEqual(self.finish(waiter).returncode, 0)

    # ctest labels: unsanitized
    def test_native_memory_waits_until_a_program_with_swap_memory_ends(self):
        self.start_daemon()
        swaps = self.grower(1, 150, ROTA_MEMORY="swap")
        self.assertEqual(self.said(swaps)[:2], (1, 0))
        waiter = self.grower(1, 130)
        self.until_it_waits(waiter)
        self.assertEqual(self.finish(swaps).returncode, 0)
        self.assertEqual(self.said(waiter)[:2], (1, 0))
        self.assertNotIn("out of memory", self.finish(waiter).stderr)

    # ctest labels: unsanitized
    def test_beside_an_idle_program_with_swap_memory_native_memory_is_refused_after_memory_wait(self):
        self.start_daemon("--memory-wait", "1s")
        swaps = self.grower(1, 150, ROTA_MEMORY="swap")
        self.assertEqual(self.said(swaps)[:2], (1, 0))
        waiter = self.grower(1, 130)
        count, result, seconds = self.said(waiter)
        self.assertEqual((count, result), (0, 2))
        self.assertGreaterEqual(seconds, 1)
        self.assertRegex(self.finish(waiter).stderr, r"GPU 0 is out of memory: of 256 MiB, .* one program needs 15\d MiB at once; 130 MiB more were requested")
        self.assertEqual(self.finish(swaps).returncode, 0)

    # ctest labels: unsanitized
    def test_it_waits_on_while_rotad_is_replaced(self):
        daemon = self.start_daemon()
        holder = self.grower(1, 200)
        self.said(holder)
        waiter = self.grower(1, 100)
        self.until_it_waits(waiter)
        kill(daemon)
        daemon.wait()
        self.start_daemon()
        self.until_it_waits(waiter)
        self.assertEqual(self.finish(holder).returncode, 0)
        self.assertEqual(self.said(waiter)[:2], (1, 0))
        self.assertEqual(self.finish(waiter).returncode, 0)

    # ctest labels: unsanitized
    def test_of_two_that_wait_for_each_other_the_younger_is_refused_and_the_older_has_its_memory(self):
        self.start_daemon()
        children = []
        for _ in range(2):
            children.append(self.grower(2, 100, "pause"))
            self.assertEqual(children[-1].stdout.readline(), "one\n")
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        older, younger = children
        self.assertEqual(self.said(younger)[:2], (1, 2))
        self.assertEqual(self.finish(younger).returncode, 0)
        self.assertEqual(self.said(older)[:2], (2, 0))
        self.assertEqual(self.finish(older).returncode, 0)


if __name__ == "__main__":
    unittest.main()
