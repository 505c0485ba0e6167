"""Programs whose work on the GPU waits for their own later calls, or for each other's, while they take short turns:
none hangs and none loses a result (tests/programs/dependent.cpp describes each)."""
import sys

from harness import Case, PROGRAMS, ROTA

# A thread waits at the gate holding the GIL, which is needed by a function that the GPU's work waits for.
HOLDS_THE_GIL = r"""
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
holding = ctypes.PyDLL("libcuda.so.1")  # its calls keep the GIL
def check(result):
    assert result == 0, result
check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
address = ctypes.c_uint64()
WORDS = 1 << 18
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 * WORDS)))
stream, other = ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuStreamCreate(ctypes.byref(stream), 0))
check(cuda.cuStreamCreate(ctypes.byref(other), 0))
seen = []
# ctypes takes the GIL for it, and releases it while it sleeps.
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: (time.sleep(0.06), seen.append(1)))
print("ready", flush=True)
check(cuda.cuLaunchHostFunc(stream, function, None))
until = time.monotonic() + 0.2  # a turn ends meanwhile, with the function under way
while time.monotonic() < until:
    check(holding.cuMemsetD32Async(address, 7, ctypes.c_size_t(WORDS), other))
check(cuda.cuStreamSynchronize(stream))
check(cuda.cuStreamSynchronize(other))
words = (ctypes.c_uint32 * WORDS)()
check(cuda.cuMemcpyDtoH_v2(words, address, ctypes.c_size_t(4 * WORDS)))
assert set(words) == {7} and seen == [1], seen
print("ok")
"""


class Dependent(Case):
    def together(self, *command, expected="ready\nok\n"):
        """One program for each kind of memory, all at once: while one runs, two wait."""
        children = [self.start(ROTA, "run", "--", *command, ROTA_MEMORY=memory, ROTA_SIM_TIME_SCALE="1")
                    for memory in ("managed", "native", "swap")]
        for child in children:
            result = self.finish(child)
            self.assertEqual((result.returncode, result.stdout), (0, expected), result.stderr)

    def exclusive(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "30ms", "--grace", "1000s")

    def measured(self):
        self.start_daemon("--quantum", "automatic", "--grace", "1000s")

    def case(self, name):
        for stream in ("blocking", "non-blocking", "per-thread"):
            with self.subTest(stream=stream):
                self.together(PROGRAMS / "dependent", name, "--stream", stream, "--rounds", "2")

    # ctest labels: unsanitized drivers
    def test_a_stream_waits_for_a_value_that_a_thread_at_the_gate_writes(self):
        self.exclusive()
        self.case("value")

    # ctest labels: unsanitized
    def test_a_stream_waits_for_a_value_in_measured_turns(self):
        self.measured()
        self.case("value")

    # ctest labels: unsanitized drivers
    def test_a_kernel_spins_for_a_second_one_that_stands_at_the_gate(self):
        self.exclusive()
        self.case("kernels")

    # ctest labels: unsanitized drivers
    def test_a_kernel_spins_for_a_second_one_in_measured_turns(self):
        self.measured()
        self.case("kernels")

    # ctest labels: unsanitized drivers
    def test_a_host_function_needs_a_lock_that_a_thread_at_the_gate_holds(self):
        self.exclusive()
        self.case("lock")

    # ctest labels: unsanitized
    def test_a_host_function_needs_a_lock_in_measured_turns(self):
        self.measured()
        self.case("lock")

    # ctest labels: unsanitized drivers
    def test_captures_of_all_modes_are_open_while_turns_end(self):
        self.exclusive()
        self.case("captures")

    # ctest labels: unsanitized
    def test_captures_of_all_modes_are_open_in_measured_turns(self):
        self.measured()
        self.case("captures")

    # ctest labels: unsanitized
    def test_two_processes_wait_for_each_others_events(self):
        # The user has asked for turns: each program continues when the other's lease has been revoked.
        self.start_daemon("--mode", "exclusive", "--quantum", "30ms", "--grace", "300ms")
        self.together(PROGRAMS / "dependent", "events", "--rounds", "2")

    # ctest labels: unsanitized
    def test_two_processes_wait_for_each_others_events_in_measured_turns(self):
        self.measured()
        self.case("events")

    # ctest labels: unsanitized drivers
    def test_a_python_thread_holds_the_gil_at_the_gate(self):
        self.exclusive()
        self.together(sys.executable, "-c", HOLDS_THE_GIL)

    # ctest labels: unsanitized
    def test_a_python_thread_holds_the_gil_in_measured_turns(self):
        self.measured()
        self.together(sys.executable, "-c", HOLDS_THE_GIL)
