"""Allocations of several threads, and of several programs with threads that do not wait, of memory that cannot be evicted."""
import json
import re
import signal
import sys
import unittest

from harness import ROTA, ROTAD, Case, kill
from ipc_case import MIB, SERVES

OUT_OF_MEMORY = 2

# Has 100 MiB and asks for 100 more. Another thread, which has not used the GPU before, computes until the file is there, and frees the first then.
COMPUTES = r"""
import ctypes, os, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
check(cuda.cuInit(0))
context, size = ctypes.c_void_p(), ctypes.c_size_t(100 << 20)
first, second = ctypes.c_uint64(), ctypes.c_uint64()
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
check(cuda.cuMemAlloc_v2(ctypes.byref(first), size))
def free_first():
    while not os.path.exists(sys.argv[1]):
        pass
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemFree_v2(first))
thread = threading.Thread(target=free_first)
thread.start()
print("ready", flush=True)
sys.stdin.readline()
print(cuda.cuMemAlloc_v2(ctypes.byref(second), size), flush=True)
thread.join()
"""


class MemoryWaitThreads(Case):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_MEMORY"] = "native"

    def program(self, *options):
        program = self.start(ROTA, "run", *options, "--", sys.executable, "-c", SERVES)
        self.ask(program, "range_of", self.ask(program, "allocate", 4096))  # rotad knows it: it is older than the next one
        return program

    def tell(self, program, *what):
        program.stdin.write(json.dumps(what) + "\n")
        program.stdin.flush()

    def answer(self, program):
        line = program.stdout.readline()
        if not line:
            self.fail(f"it has ended: {self.finish(program).stderr[-3000:]}")
        return json.loads(line)

    def ask(self, program, *what):
        self.tell(program, *what)
        return self.answer(program)

    def has(self, program, mib):
        address = self.ask(program, "allocate", mib * MIB)
        self.ask(program, "fill", address, mib * MIB, 1)
        return address

    def asks(self, program, key, mib):
        """In a thread of its own."""
        self.ask(program, "begin", key, "try_to_allocate", mib * MIB)

    def result(self, program, key):
        (result, _), seconds = self.ask(program, "end", key)
        return result, seconds

    def tasks(self, program):
        return [task for client in self.clients() if client["pid"] == program.pid for task in (client["use"] or {"gpus": {}})["gpus"].values()]

    def until_it_waits(self, program, mib):
        self.eventually(lambda: any(task["awaited_bytes"] == mib * MIB for task in self.tasks(program)), lambda: f"it waits\n{self.tasks(program)}")

    def ends_well(self, *programs):
        for program in programs:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])

    # ctest labels: unsanitized
    def test_a_program_of_which_one_thread_waits_and_another_frees_memory_is_in_no_deadlock(self):
        self.start_daemon()
        older, younger = self.program(), self.program()
        self.has(older, 100)
        held = self.has(younger, 100)
        self.asks(younger, 0, 100)
        self.until_it_waits(younger, 100)
        self.asks(older, 0, 100)
        self.until_it_waits(older, 100)
        # Both wait for each other's memory for a while, but not with all their threads.
        self.assertFalse(self.ask(younger, "has_ended", 0))
        self.assertEqual(self.ask(younger, "free", held), 0)
        self.assertEqual(self.result(older, 0)[0], 0)
        self.assertFalse(self.ask(younger, "has_ended", 0))
        self.ends_well(older)
        self.assertEqual(self.result(younger, 0)[0], 0)
        self.ends_well(younger)

    # ctest labels: unsanitized
    def test_a_thread_that_runs_may_free_memory_although_it_has_not_used_the_gpu_before(self):
        self.start_daemon()
        frees = self.scratch / "frees"
        older = self.program()
        self.has(older, 100)
        younger = self.start(ROTA, "run", "--", sys.executable, "-c", COMPUTES, frees)
        self.assertEqual(younger.stdout.readline(), "ready\n")
        self.tell(older, "try_to_allocate", 100 * MIB)
        younger.stdin.write("\n")
        younger.stdin.flush()
        for program in older, younger:
            self.until_it_waits(program, 100)
        frees.touch()
        self.assertEqual(self.answer(older)[0], 0)
        self.ends_well(older)
        self.assertEqual(younger.stdout.readline(), "0\n")
        self.ends_well(younger)

    # ctest labels: unsanitized
    def test_if_the_other_threads_do_nothing_after_all_the_younger_is_refused_before_the_older_gives_up(self):
        self.start_daemon("--memory-wait", "20s")
        older, younger = self.program(), self.program()
        for program in older, younger:
            self.has(program, 100)
        for program in older, younger:
            self.asks(program, 0, 100)
        result, seconds = self.result(younger, 0)
        self.assertEqual(result, OUT_OF_MEMORY)
        self.assertGreater(seconds, 10)
        self.ends_well(younger)
        self.assertEqual(self.result(older, 0)[0], 0)
        self.ends_well(older)

    # ctest labels: unsanitized
    def test_a_third_that_frees_and_takes_a_little_all_the_time_hides_no_deadlock(self):
        self.start_daemon()
        older, younger, third = self.program(), self.program(), self.program()
        for program in older, younger:
            self.has(program, 100)
        for program in older, younger:
            self.tell(program, "seconds_of", "try_to_allocate", 100 * MIB)
        for _ in range(1000):
            self.ask(third, "free", self.has(third, 4))
            if self.tasks(younger) and not self.tasks(younger)[0]["awaited_bytes"]:
                break
        (result, _), seconds = self.answer(younger)
        self.assertEqual(result, OUT_OF_MEMORY)
        self.assertLess(seconds, 30)
        self.ends_well(younger, third)
        self.assertEqual(self.answer(older)[0][0], 0)
        self.ends_well(older)

    # ctest labels: unsanitized
    def test_threads_of_a_program_are_judged_one_by_one_by_what_is_really_there(self):
        self.start_daemon()
        holder, program = self.program(), self.program()
        self.has(holder, 60)
        self.ask(program, "begin_together", 8, "try_to_allocate", 65 * MIB)  # two of them fit next to the holder, and three once it has ended
        self.until_it_waits(program, 65)
        self.eventually(lambda: sum(self.ask(program, "has_ended", key) for key in range(8)) == 2, "two have their memory")
        self.ends_well(holder)
        self.assertEqual(sorted(self.result(program, key)[0] for key in range(8)), [0] * 3 + [OUT_OF_MEMORY] * 5)
        self.ends_well(program)

    # ctest labels: unsanitized
    def test_what_waits_counts_nowhere(self):
        daemon = self.start_daemon("--memory-wait", "10s")
        holder = self.program()
        self.has(holder, 200)
        waiters = [self.program("--gpu-mem", "220M") for _ in range(3)]
        for waiter in waiters:
            self.tell(waiter, "try_to_allocate", 100 * MIB)
        for waiter in waiters:
            self.until_it_waits(waiter, 100)
        seen = []

        def counts_nowhere():
            status = self.status()
            waits = sum(gpu["awaited_bytes"] != 0 for client in status["clients"] for gpu in client["use"]["gpus"].values())
            in_use = [account["gpu_bytes"] for account in status["limits"] if account["gpu_limit_bytes"] == 220 * MIB]
            seen.append((waits, in_use))
            return waits == len(in_use) == 3 and max(in_use) < 50 * MIB

        self.eventually(counts_nowhere, lambda: f"what waits is in use nowhere: {seen[-1]}")
        for waiter in waiters:
            self.assertEqual(self.answer(waiter)[0], OUT_OF_MEMORY)
        self.ends_well(*waiters, holder)
        daemon.terminate()
        log = self.finish(daemon).stderr
        for waiter in waiters:
            self.assertRegex(log, rf"pid {waiter.pid}.* was refused 100 MiB on GPU 0: the driver has no memory left, others have 200 MiB that cannot be evicted")

    # ctest labels: unsanitized
    def test_each_wait_says_its_lines_and_for_its_own_gpu(self):
        self.environment["ROTA_SIM_GPUS"] = "2"
        self.start_daemon("--memory-wait", "2s")
        holders, freed = [self.program() for _ in range(2)], []
        for gpu, holder in enumerate(holders):
            for mib in 190, 10:
                result, address = self.ask(holder, "try_to_allocate_on", gpu, mib * MIB)
                self.assertEqual(result, 0)
            freed.append(address)
        waiter = self.program()
        for _ in range(2):
            for gpu in 0, 1:
                self.ask(waiter, "begin", gpu, "try_to_allocate_on", gpu, 100 * MIB)
            for gpu in 0, 1:
                self.assertEqual(self.result(waiter, gpu)[0], OUT_OF_MEMORY)
            while freed:  # or nothing would wait again
                self.assertEqual(self.ask(holders[len(freed) - 1], "free", freed.pop()), 0)
        stderr = self.finish(waiter).stderr
        for gpu, holder in enumerate(holders):
            line = rf"waiting for memory of other programs on GPU {gpu} that cannot be evicted: pid {holder.pid} "
            self.assertEqual(len(re.findall(line, stderr)), 2, stderr)

    # ctest labels: unsanitized
    def test_the_wait_of_a_program_that_is_stopped_is_in_status(self):
        self.start_daemon()
        holder, waiter = self.program(), self.program()
        held = self.has(holder, 200)
        self.tell(waiter, "try_to_allocate", 100 * MIB)
        self.until_it_waits(waiter, 100)
        waiter.send_signal(signal.SIGSTOP)
        self.assertEqual(self.ask(holder, "free", held), 0)  # rotad says that it may try again
        for _ in range(20):
            self.until_it_waits(waiter, 100)
        waiter.send_signal(signal.SIGCONT)
        self.assertEqual(self.answer(waiter)[0], 0)
        self.eventually(lambda: not any(task["awaited_bytes"] for task in self.tasks(waiter)), "it waits no more")
        self.ends_well(waiter, holder)

    # ctest labels: unsanitized
    def test_with_another_rotad_the_older_is_still_the_older(self):
        daemon = self.start_daemon()
        older, younger = self.program(), self.program()
        for program in older, younger:
            self.has(program, 100)
        older.send_signal(signal.SIGSTOP)
        kill(daemon)
        self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks")
        self.eventually(lambda: [client["pid"] for client in self.clients()] == [younger.pid], "the younger is there first")
        older.send_signal(signal.SIGCONT)
        self.eventually(lambda: len(self.clients()) == 2, "both are there")
        for program in older, younger:
            self.tell(program, "try_to_allocate", 100 * MIB)
        self.assertEqual(self.answer(younger)[0], OUT_OF_MEMORY)
        self.ends_well(younger)
        self.assertEqual(self.answer(older)[0], 0)
        self.ends_well(older)


if __name__ == "__main__":
    unittest.main()
