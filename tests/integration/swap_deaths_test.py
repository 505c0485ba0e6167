"""Programs, and rotad, killed in the middle of a move of swapped memory: no other program is harmed, and nothing is left behind. And programs that end by themselves, and use evicted memory while they do."""
import subprocess
import sys
import textwrap
import unittest

from harness import PROGRAMS, ROTA, kill
from swap_test import SCALE, Swapping

# One of the eight pieces of a program below takes half a second to be copied, so a test sees a move half done.
SLOW = "copies=250"


class Deaths(Swapping):
    def setUp(self):
        super().setUp()
        self.free_before = self.free_on_gpu()

    def free_on_gpu(self):
        """As the driver says to a program without rota, which has a context there."""
        asks = ("import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); context = ctypes.c_void_p(); "
                "free, total = ctypes.c_size_t(), ctypes.c_size_t(); "
                "assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0; "
                "assert cuda.cuCtxSetCurrent(context) == 0; "
                "assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0; print(free.value)")
        return int(subprocess.run([sys.executable, "-c", asks], env=self.environment, capture_output=True, text=True, check=True).stdout)

    def nothing_is_left(self):
        """Once all programs have ended: the GPU is as before, and rotad, if it lives, serves the next program."""
        self.assertEqual(self.free_on_gpu(), self.free_before)

    def next_is_served(self):
        self.eventually(lambda: self.clients() == [], "rotad knows that all have ended")
        said = self.checked(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.8", "--rounds", "3",
                            ROTA_SIM_TIME_SCALE=SCALE).stdout
        self.assertIn('"wrong":0', said)

    def resident(self, program):
        return next((client["resident_bytes"] for client in self.clients() if client["pid"] == program.pid), 0)

    def dies(self, program):
        """Kills it. Returns what it has said that nobody has read yet."""
        kill(program)
        return self.finish(program).stderr

    def two(self):
        """A program whose memory is all there, and moves slowly; how much that is; and one that has just begun and needs room for
        all of its memory at once."""
        slow, = self.hold(1, share="0.8", ROTA_SIM_FAULTS=SLOW)
        all_of_it = self.resident(slow)
        return slow, all_of_it, self.hog("--hold", "--ahead", "20", "--pieces", "1", share="0.8")

    def until(self, program, text):
        """Reads what it says up to a line with this."""
        self.assertTrue(any(text in line for line in program.stderr), f"it never says: {text}")

    def handed_over(self):
        return self.status()["gpus"][0]["handed_over_bytes"]

    # ctest labels: unsanitized
    def test_a_program_that_is_killed_while_its_memory_leaves(self):
        self.rotad()
        leaves, all_of_it, other = self.two()
        self.eventually(lambda: 0 < self.resident(leaves) < all_of_it, "a part of its memory has left")
        self.assertNotIn("moved out", self.dies(leaves), "its first move had not ended")
        self.assertEqual(other.stdout.readline(), "ready\n")
        self.right([other])
        self.nothing_is_left()
        self.next_is_served()

    # ctest labels: unsanitized
    def test_a_program_that_is_killed_while_its_memory_comes_back(self):
        self.rotad()
        comes, all_of_it, other = self.two()
        self.until(comes, "moved out")
        self.assertEqual(other.stdout.readline(), "ready\n")
        left = self.resident(comes)
        self.assertLess(left, all_of_it / 2)
        self.eventually(lambda: left < self.resident(comes) < all_of_it, "a part of its memory is back")
        self.assertNotIn("memory back", self.dies(comes), "its move had not ended")
        self.right([other])
        self.nothing_is_left()
        self.next_is_served()

    # ctest labels: unsanitized
    def test_both_programs_that_are_killed_while_one_makes_room_for_the_other(self):
        self.rotad()
        leaves, all_of_it, other = self.two()
        self.eventually(lambda: 0 < self.resident(leaves) < all_of_it and self.handed_over() > 0, "memory is handed over")
        self.dies(other)
        self.assertNotIn("moved out", self.dies(leaves), "its first move had not ended")
        self.nothing_is_left()
        self.next_is_served()

    # ctest labels: unsanitized
    def test_rotad_that_is_killed_while_one_program_makes_room_for_the_other(self):
        daemon = self.rotad()
        leaves, all_of_it, other = self.two()
        self.eventually(lambda: 0 < self.resident(leaves) < all_of_it and self.handed_over() > 0, "memory is handed over")
        kill(daemon)
        for program in (leaves, other):
            program.stdin.close()
            program.stdin = None
        self.right([leaves, other])
        self.nothing_is_left()
        self.rotad()
        self.next_is_served()


class Exits(Swapping):
    def exits(self, *when):
        """What the exit handlers of a program said of its memory, which is out when it begins to exit, beside another one that
        works."""
        self.rotad()
        exits = self.start(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "results_at_exit", "--share", "0.6", *when,
                           ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="debug")
        self.assertEqual(exits.stdout.readline(), "ready\n")
        other, = self.hold(1)
        for line in exits.stderr:
            if "moved out" in line:
                break
        result = self.finish(exits)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertIn("memory back", result.stderr)
        self.right([other])
        return result.stdout

    def test_handlers_that_run_before_rotas_own_wait_for_their_turn_and_find_memory_as_it_was(self):
        self.assertRegex(self.exits("--when", "before"), r"^before: \d+ words, 0 wrong\n$")

    def test_handlers_that_run_after_rotas_own_wait_for_their_turn_and_find_memory_as_it_was(self):
        self.assertRegex(self.exits("--when", "after"), r"^after: \d+ words, 0 wrong\n$")

    def test_handlers_of_both_kinds_find_memory_as_it_was(self):
        self.assertRegex(self.exits(), r"^before: \d+ words, 0 wrong\nafter: \d+ words, 0 wrong\n$")


class Lost(Swapping):
    # ctest labels: unsanitized
    def test_a_program_whose_memory_is_lost_gets_the_same_error_from_every_call_until_it_ends_and_can_free(self):
        self.rotad()
        other, = self.hold(1, share="0.7")
        program = textwrap.dedent("""
            import ctypes, sys
            cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
            def make(name):
                value = ctypes.c_void_p()
                return value, ctypes.byref(value)
            size, host = 100 << 20, ctypes.create_string_buffer(64)
            context, to_context = make("context")
            stream, to_stream = make("stream")
            graph, to_graph = make("graph")
            executable, to_executable = make("executable")
            event, to_event = make("event")
            module, to_module = make("module")
            kernel, to_kernel = make("kernel")
            data, second, late = word(), word(), word()
            for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(to_context, 0), cuda.cuCtxSetCurrent(context),
                           cuda.cuStreamCreate(to_stream, 1), cuda.cuEventCreate(to_event, 0),
                           cuda.cuModuleLoadData(to_module, b".version 8.0 .target sm_80 .address_size 64 .visible .entry _Z4spinym() { ret; }"),
                           cuda.cuModuleGetFunction(to_kernel, module, b"_Z4spinym"),
                           cuda.cuMemAlloc_v2(ctypes.byref(data), word(size)),
                           cuda.cuMemAlloc_v2(ctypes.byref(second), word(size // 2)),
                           cuda.cuMemsetD8_v2(data, 7, word(size)), cuda.cuMemsetD8_v2(second, 8, word(size // 2)),
                           cuda.cuStreamBeginCapture_v2(stream, 0), cuda.cuMemsetD8Async(data, 9, word(64), stream),
                           cuda.cuStreamEndCapture(stream, to_graph),
                           cuda.cuGraphInstantiateWithFlags(to_executable, graph, word(0)), cuda.cuCtxSynchronize()):
                assert result == 0, result
            print("ready", flush=True)
            while (first := cuda.cuMemsetD8Async(data, 9, word(64), stream)) == 0:
                assert cuda.cuStreamSynchronize(stream) in (0, 400)
            print("first", first)
            calls = {
                "set": lambda: cuda.cuMemsetD32_v2(second, 1, word(4)),
                "copy to the host": lambda: cuda.cuMemcpyDtoH_v2(host, data, word(64)),
                "copy from the host": lambda: cuda.cuMemcpyHtoDAsync_v2(second, host, word(64), stream),
                "copy": lambda: cuda.cuMemcpyDtoD_v2(second, data, word(64)),
                "launch": lambda: cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None),
                "graph": lambda: cuda.cuGraphLaunch(executable, stream),
                "capture": lambda: cuda.cuStreamBeginCapture_v2(stream, 0),
            }
            for again in range(3):
                for name, call in calls.items():
                    print(name, call())
            for name, address in (("free", data), ("free the other", second)):
                print(name, cuda.cuMemFree_v2(address))
            for name, call in calls.items():
                print(name, call())
        """)
        lost = self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", program, ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="debug",
                          ROTA_SIM_FAULTS="cuMemcpyHtoDAsync@1+=CUDA_ERROR_INVALID_HANDLE", ROTA_SIM_UNREGISTERED="skip")
        result = self.finish(lost)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        answers = [line.rsplit(" ", 1) for line in result.stdout.splitlines()[1:]]
        self.assertEqual(len(answers), 1 + 3 * 7 + 2 + 7)
        for name, answer in answers:
            self.assertEqual(answer, "0" if name.startswith("free") else "400", f"{name}: {result.stdout}")
        self.assertEqual(result.stderr.count("this program's memory cannot be restored"), 1, result.stderr[-2000:])
        self.right([other])


if __name__ == "__main__":
    unittest.main()
