"""Contexts that a program resets, or destroys and makes again, while its memory is evicted or restored: the driver gives their handles, and those of what was in them, to the next contexts, of which rota touches nothing; and memory that outlives contexts keeps its contents."""
import json
import sys
import textwrap
import unittest

from harness import ROTA
from swap_deaths_test import SLOW
from swap_test import SCALE, Swapping

# Half of its memory is from the default pool, which outlives contexts.
PROGRAM = textwrap.dedent("""
    import ctypes, json, sys, threading
    cuda, word = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong
    size, pieces = 20 << 20, 2
    def ok(result):
        assert result == 0, result
    def make(name, *arguments):
        value = ctypes.c_void_p()
        ok(getattr(cuda, name)(ctypes.byref(value), *arguments))
        return value
    def context():
        if sys.argv[1] == "reset":
            value = make("cuDevicePrimaryCtxRetain", 0)
            ok(cuda.cuCtxSetCurrent(value))
            return value
        return make("cuCtxCreate_v2", 0, 0)
    def end(context):
        ok(cuda.cuDevicePrimaryCtxReset_v2(0) if sys.argv[1] == "reset" else cuda.cuCtxDestroy_v2(context))
    def plain(number):
        address = make("cuMemAlloc_v2", word(size))
        ok(cuda.cuMemsetD8_v2(address, number, word(size)))
        return address
    def pooled(number):
        address = make("cuMemAllocAsync", word(size), None)
        ok(cuda.cuMemsetD8Async(address, number, word(size), None))
        return address
    def differs(address, number):
        into = (ctypes.c_ubyte * size)()
        ok(cuda.cuMemcpyDtoH_v2(into, address, word(size)))
        return bytes(into) != bytes([number]) * size
    ok(cuda.cuInit(0))
    handle = first = context()
    lasting = [pooled(1 + number) for number in range(pieces)]
    ending = [plain(101 + number) for number in range(pieces)]
    ok(cuda.cuCtxSynchronize())
    print("ready", flush=True)
    again = 0
    def want():
        # Waits for a turn, and by then its context may have ended.
        cuda.cuCtxSetCurrent(first)
        cuda.cuMemsetD8_v2(lasting[0], 1, word(size))
    wants = threading.Thread(target=want)
    for line in sys.stdin:
        if line == "end\\n":
            break
        if line == "want\\n":
            wants.start()
            continue
        # The driver gives out the first one's handle again sooner or later. Whatever has the old handles must stay as it is.
        for tries in range(1000):
            end(handle)
            handle = context()
            if handle.value == first.value:
                again += 1
                break
        streams = [make("cuStreamCreate", 1) for _ in range(16)]
        events = [make("cuEventCreate", 2) for _ in range(32)]
        print("again", flush=True)
    if wants.ident:
        wants.join()
    ending = [plain(51 + number) for number in range(pieces)]
    for event in events:
        ok(cuda.cuEventRecord(event, streams[0]))
        ok(cuda.cuEventSynchronize(event))
        ok(cuda.cuEventDestroy_v2(event))
    for stream in streams:
        ok(cuda.cuStreamSynchronize(stream))
        ok(cuda.cuStreamDestroy_v2(stream))
    wrong = sum(differs(address, 1 + number) for number, address in enumerate(lasting))
    wrong += sum(differs(address, 51 + number) for number, address in enumerate(ending))
    ok(cuda.cuCtxSynchronize())
    print(json.dumps({"wrong": wrong, "again": again}))
""")


class Resets(Swapping):
    grace = "10s"  # memory that moves so slowly is no reason to revoke a turn: rotad would not ask for it for a while

    def resident(self, program):
        return next((client["resident_bytes"] for client in self.clients() if client["pid"] == program.pid), 0)

    def tell(self, program, line):
        program.stdin.write(line + "\n")
        program.stdin.flush()

    def begun(self, how):
        """A program whose memory is all there, and moves slowly; how much that is; and one that has just begun and needs all of its memory
        on the GPU at once."""
        self.rotad()
        program = self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", PROGRAM, how, ROTA_SIM_TIME_SCALE=SCALE,
                             ROTA_LOG="debug", ROTA_SIM_FAULTS=SLOW)
        line = program.stdout.readline()
        self.assertEqual(line, "ready\n", line or self.finish(program).stderr[-2000:])
        return program, self.resident(program), self.hog("--hold", "--ahead", "20", "--pieces", "1", share="0.8")

    def ends(self, program, other):
        """Ends the other one first: otherwise memory would move at each turn."""
        self.right([other])
        self.tell(program, "end")
        result = self.finish(program)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        said = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual(said["wrong"], 0)
        self.assertNotIn("cannot be moved", result.stderr, "nothing has failed: a context has ended")
        return said, result.stderr

    def leaves(self, how):
        program, all_of_it, other = self.begun(how)
        self.eventually(lambda: 0 < self.resident(program) < all_of_it, "a part of its memory is evicted")
        self.tell(program, how)
        self.assertEqual(program.stdout.readline(), "again\n")
        self.assertEqual(other.stdout.readline(), "ready\n")
        said, stderr = self.ends(program, other)
        self.assertGreater(stderr.count("moved out"), 1, "the move ended with the context, and went on in the next one")
        return said

    # ctest labels: unsanitized
    def test_a_program_that_resets_its_gpu_while_its_memory_leaves(self):
        self.assertEqual(self.leaves("reset")["again"], 1)

    # ctest labels: unsanitized
    def test_a_program_that_destroys_its_context_and_makes_one_while_its_memory_leaves(self):
        self.assertEqual(self.leaves("destroy")["again"], 1)

    # ctest labels: unsanitized
    def test_a_program_that_resets_its_gpu_while_its_memory_comes_back(self):
        program, all_of_it, other = self.begun("reset")
        self.eventually(lambda: self.resident(program) < all_of_it / 2, "most of its memory is evicted")
        self.assertEqual(other.stdout.readline(), "ready\n")
        left = self.resident(program)
        self.tell(program, "want")
        self.eventually(lambda: left < self.resident(program), "its memory has room on the GPU, and is copied there")
        self.tell(program, "reset")
        self.assertEqual(program.stdout.readline(), "again\n")
        self.assertEqual(self.ends(program, other)[0]["again"], 1)


if __name__ == "__main__":
    unittest.main()
