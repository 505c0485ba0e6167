"""Programs with swap memory, which is the default, that find a GPU full of memory that cannot be evicted, because it belongs to native programs or to programs that pin all of theirs. Their allocations wait as those of native programs do."""
import concurrent.futures
import unittest

from harness import ROTA, ROTAD
from memory_wait_case import WaitCase


class SwapWait(WaitCase):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_MEMORY"] = "swap"

    def native(self, mib, *arguments):
        holder = self.grower(1, mib, *arguments, ROTA_MEMORY="native")
        self.assertEqual(self.said(holder)[:2], (1, 0))
        return holder

    def waits(self, child):
        """It waits for its allocation; or, if that was granted before rotad knew that memory of another cannot be evicted, for its memory to be in place."""
        tasks = [task for c in self.clients() if c["pid"] == child.pid for task in (c["use"] or {"gpus": {}})["gpus"].values()]
        return any(task["awaited_bytes"] or task["lacks_bytes"] for task in tasks)

    def what_they_say(self, children):
        status = self.checked(ROTA, "status").stdout
        for child in children:
            child.kill()
        return "\n".join([status, *(str((child.pid, *child.communicate())) for child in children)])

    # ctest labels: unsanitized
    def test_of_three_programs_that_pin_all_their_memory_and_do_not_fit_together_all_end_well(self):
        self.start_daemon()
        for how in "plain", "async", "physical":
            children = [self.grower(1, 150, "pinned", how) for _ in range(3)]
            self.eventually(lambda: sum(map(self.waits, children)) == 2, lambda: f"two wait for one ({how}): {self.what_they_say(children)}")
            self.each_ends_well(children, how)

    # ctest labels: unsanitized
    def test_of_several_such_programs_that_begin_at_once_all_but_one_are_refused_after_memory_wait(self):
        self.start_daemon("--memory-wait", "200ms")
        for how in ("plain", "async") * 5:
            children = [self.grower(1, 130, "pinned", how) for _ in range(4)]
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                said = list(pool.map(self.said, children))
            self.assertEqual(sorted(each[:2] for each in said), [(0, 2)] * 3 + [(1, 0)], how)
            for child in children:
                self.assertEqual(self.finish(child).returncode, 0)

    # ctest labels: unsanitized
    def test_of_three_such_programs_that_grow_one_ends_well_at_least_and_none_hangs(self):
        self.start_daemon()
        children = [self.grower(20, 10, "pinned") for _ in range(3)]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            results = list(pool.map(self.finish, children))
        self.assertEqual([result.returncode for result in results], [0, 0, 0], results)
        self.assertIn("20", [result.stdout.split()[0] for result in results])

    # ctest labels: unsanitized
    def test_who_fills_the_gpu_alone_is_refused_at_once(self):
        self.start_daemon()
        for pinned in "", "pinned":
            with self.subTest(pinned=pinned):
                child = self.grower(1000, 10, pinned)
                count, result, seconds = self.said(child)
                self.assertEqual(result, 2)
                self.assertGreater(count, 18)
                self.assertLess(seconds, 10)
                self.assertNotIn("waiting for memory", self.finish(child).stderr)

    # ctest labels: unsanitized
    def test_memory_that_could_leave_waits_for_native_memory_too(self):
        self.start_daemon()
        for how in "plain", "async", "physical":
            with self.subTest(how=how):
                holder = self.native(150, "free")
                waiter = self.grower(1, 100, how)
                self.until_it_waits(waiter)
                self.assertRegex(self.checked(ROTA, "status").stdout, r"an allocation of 100 MiB has waited \d+\.\d s for others to free memory or end")
                holder.stdin.write("free\n")
                holder.stdin.flush()
                self.assertEqual(self.said(waiter)[:2], (1, 0))
                for child in (holder, waiter):
                    self.assertEqual(self.finish(child).returncode, 0)

    # ctest labels: unsanitized
    def test_it_is_refused_after_memory_wait_and_one_line_says_so(self):
        log = self.scratch / "events"
        daemon = self.start_daemon("--memory-wait", "2s", "--event-log", log)
        holder = self.native(150)
        waiter = self.grower(1, 100)
        self.until_it_waits(waiter)
        count, result, seconds = self.said(waiter)
        self.assertEqual((count, result), (0, 2))
        self.assertGreaterEqual(seconds, 2)
        stderr = self.finish(waiter).stderr
        self.assertRegex(stderr, rf"rota: waiting for memory of other programs on GPU 0 that cannot be evicted: pid {holder.pid} .* 150 MiB; `rota status` says more")
        self.assertRegex(stderr, r"GPU 0 is out of memory: of 256 MiB, .* 150 MiB cannot be evicted, .*; 100 MiB more were requested")
        self.assertEqual(self.finish(holder).returncode, 0)
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertRegex(said, rf"pid {waiter.pid}.* was refused 100 MiB on GPU 0: .*it waited 2\.\d s")
        self.assertLess(said.count("was refused memory"), 8)  # before it waits, and not with each attempt
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", log).stdout)

    # ctest labels: unsanitized
    def test_what_can_never_fit_is_refused_at_once(self):
        self.start_daemon()
        holder = self.native(50)
        child = self.grower(1, 240)
        count, result, seconds = self.said(child)
        self.assertEqual((count, result), (0, 2))
        self.assertLess(seconds, 10)
        for one in (child, holder):
            self.assertEqual(self.finish(one).returncode, 0)

    # ctest labels: unsanitized
    def test_native_and_swap_memory_that_wait_for_each_other_are_a_deadlock(self):
        self.start_daemon()
        native = self.grower(2, 70, "pause", ROTA_MEMORY="native")
        self.assertEqual(native.stdout.readline(), "one\n")
        swaps = self.grower(2, 110, "pause")
        self.assertEqual(swaps.stdout.readline(), "one\n")
        for child in (native, swaps):
            child.stdin.write("\n")
            child.stdin.flush()
        self.assertEqual(self.said(swaps)[:2], (1, 2))  # the younger
        self.assertEqual(self.finish(swaps).returncode, 0)
        self.assertEqual(self.said(native)[:2], (2, 0))
        self.assertEqual(self.finish(native).returncode, 0)

    # ctest labels: unsanitized
    def test_while_it_waits_its_memory_leaves_and_others_use_the_gpu(self):
        self.start_daemon()
        holder = self.native(80)
        waiter = self.grower(2, 90)
        self.until_it_waits(waiter)
        other = self.grower(1, 100)
        self.assertEqual(self.said(other)[:2], (1, 0))
        for child in (other, holder):
            self.assertEqual(self.finish(child).returncode, 0)
        self.assertEqual(self.said(waiter)[:2], (2, 0))
        self.assertEqual(self.finish(waiter).returncode, 0)


if __name__ == "__main__":
    unittest.main()
