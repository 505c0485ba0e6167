"""Programs whose memory cannot leave the GPU and does not fit together: allocations wait until others have freed memory or ended."""
import concurrent.futures
import json
import select
import sys
import unittest

from harness import Case, PATIENCE, ROTA, ROTAD, kill

# Allocates STEPS times MIB, says how many it got, the last answer and the time it took, and checks its memory once its standard input ends. With
# "pause" it waits for a line after the first, with "free" it frees all when told to.
GROWS = r"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
steps, mib = int(sys.argv[1]), int(sys.argv[2])
check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
addresses = []
begun = time.monotonic()
for step in range(steps):
    address = ctypes.c_uint64()
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20))
    if result != 0:
        break
    check(cuda.cuMemsetD32_v2(address, step, ctypes.c_size_t(mib << 18)))
    addresses.append(address)
    if "pause" in sys.argv and step == 0:
        print("one", flush=True)
        sys.stdin.readline()
print(len(addresses), result, round(time.monotonic() - begun, 3), flush=True)
for line in sys.stdin:
    if line == "free\n":
        for address in addresses:
            check(cuda.cuMemFree_v2(address))
        print("freed", flush=True)
for number, address in enumerate(addresses):
    last = ctypes.c_uint32()
    if "free" not in sys.argv:
        check(cuda.cuMemcpyDtoH_v2(ctypes.byref(last), ctypes.c_uint64(address.value + (mib << 20) - 4), ctypes.c_size_t(4)))
        assert last.value == number
"""


class MemoryWait(Case):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_MEMORY"] = "native"

    def grower(self, steps, mib, *arguments, run=(), **environment):
        return self.start(ROTA, "run", *run, "--", sys.executable, "-c", GROWS, steps, mib, *arguments, **environment)

    def said(self, child):
        """(allocations, result of the last one, seconds)"""
        line = child.stdout.readline().split()
        self.assertEqual(len(line), 3, child.stderr.read() if child.poll() is not None else line)
        return int(line[0]), int(line[1]), float(line[2])

    def awaits(self, child):
        """Whether an allocation of the child's waits for room."""
        return any(c["pid"] == child.pid and any(task["awaited_bytes"] for task in (c["use"] or {"gpus": {}})["gpus"].values()) for c in self.clients())

    def until_it_waits(self, child):
        self.eventually(lambda: self.awaits(child), lambda: f"its allocation waits for room\n{json.dumps(self.status(), indent=1)}")

    # ctest labels: unsanitized
    def test_three_programs_of_which_one_fits_end_well_one_after_the_other(self):
        self.start_daemon()
        children = [self.grower(1, 150) for _ in range(3)]
        self.eventually(lambda: sum(map(self.awaits, children)) == 2, "two wait for one")
        while children:
            ready, _, _ = select.select([child.stdout for child in children], [], [], PATIENCE)
            self.assertEqual(len(ready), 1)
            child = next(child for child in children if child.stdout is ready[0])
            self.assertEqual(self.said(child)[:2], (1, 0))
            self.assertEqual(self.finish(child).returncode, 0)
            children.remove(child)

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
        self.assertRegex(stderr, rf"rota: waiting for memory of others on GPU 0 that cannot be evicted: pid {holder.pid} .* 200 MiB; `rota status` says more")
        self.assertEqual(self.finish(holder).returncode, 0)
        daemon.terminate()
        self.assertRegex(self.finish(daemon).stderr, rf"pid {waiter.pid}.* was refused 100 MiB on GPU 0: the driver has no room, others have \d+ MiB that cannot leave, and it waited 2\.\d s")
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", log).stdout)

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
