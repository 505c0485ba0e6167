"""What rotad measures by NVML, and what follows: in `rota status`, in what programs are told, in limits. The NVML is
simgpu's, which tells what its drivers' books say; without it rotad believes the programs and assumes the rest."""
import os
import sys

from harness import Case, ROTA, SHIMS

MIB = 1 << 20
CONTEXT = 40 * MIB  # what a context takes of these tests' GPUs of 256 MiB; rotad would assume 16

BEGIN = r"""
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 2**20
def check(result):
    assert result == 0, result
def start():
    check(cuda.cuInit(0))
    context = ctypes.c_void_p()
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
    return context
def told():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value
def allocate(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
def eventually(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, told()
        time.sleep(0.01)
def hold():
    print("ready", flush=True)
    sys.stdin.read()
"""

HOLD = BEGIN + r"""
start()
check(allocate(60 * MIB))
hold()
"""

# Until the context has been measured, what is free is all but what rotad assumes of it.
FREE = BEGIN + r"""
start()
context = int(sys.argv[1])
eventually(lambda: told() == (256 * MIB - context, 256 * MIB))
check(allocate(60 * MIB))
assert told() == (196 * MIB - context, 256 * MIB), told()
assert allocate(196 * MIB - context + 1) == 2
check(allocate(196 * MIB - context))
assert told() == (0, 256 * MIB), told()
"""

# A second context is what nobody allocated.
GROWS = BEGIN + r"""
start()
eventually(lambda: told()[0] == 216 * MIB)
start()
eventually(lambda: told()[0] == 176 * MIB)
"""

LIMITED = BEGIN + r"""
start()
eventually(lambda: told() == (60 * MIB, 100 * MIB))
assert allocate(61 * MIB) == 2
check(allocate(60 * MIB))
assert told() == (0, 100 * MIB), told()
"""


class Measured(Case):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_CONTEXT_BYTES"] = str(CONTEXT)

    def with_nvml(self):
        nvml = SHIMS / "simgpu/nvml"
        self.assertTrue((nvml / "libnvidia-ml.so.1").exists(), "build the target simgpu_nvml")
        self.environment["LD_LIBRARY_PATH"] += f":{nvml}"

    def run_python(self, program, *arguments, options=(), **environment):
        return self.checked(ROTA, "run", *options, "--", sys.executable, "-c", program, *map(str, arguments), **environment)

    def hold(self, mode):
        holder = self.start(ROTA, "run", "--", sys.executable, "-c", HOLD, ROTA_MEMORY=mode)
        self.assertEqual(holder.stdout.readline(), "ready\n", mode)
        return holder

    def status_of(self, holder):
        status = self.status()
        [client] = [client for client in status["clients"] if client["pid"] == holder.pid]
        return status["gpus"][0], client

    # ctest labels: unsanitized
    def test_status_says_what_is_measured_and_what_is_reported(self):
        holder = self.hold("native")
        gpu, client = self.status_of(holder)
        self.assertEqual((gpu["source"], gpu["driver_used_bytes"]), ("reported", None))
        self.assertEqual((client["memory"][gpu["uuid"]]["source"], client["driver_bytes"]), ("reported", None))
        self.assertEqual(client["context_bytes"], 16 * MIB)
        self.assertRegex(self.checked(ROTA, "status").stdout, r"not measured(.|\n)*contexts and modules: 16 MiB assumed")

    # ctest labels: unsanitized
    def test_what_the_driver_counts_is_measured_for_each_process(self):
        self.with_nvml()
        for mode, driver in (("native", CONTEXT + 60 * MIB), ("managed", CONTEXT)):
            with self.subTest(mode=mode):
                holder = self.hold(mode)
                self.eventually(lambda: self.status_of(holder)[1]["driver_bytes"] == driver, "the process is measured")
                gpu, client = self.status_of(holder)
                self.assertEqual(client["context_bytes"], CONTEXT)
                self.assertEqual(client["memory"][gpu["uuid"]]["source"], "measured")
                self.assertEqual(gpu["source"], "measured")
                self.assertEqual(gpu["driver_used_bytes"] + gpu["driver_free_bytes"], 256 * MIB)
                self.assertGreaterEqual(gpu["driver_used_bytes"], driver)
                self.assertRegex(self.checked(ROTA, "status").stdout, r"in use and \d+ MiB free, measured(.|\n)*: 40 MiB measured")
                self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_what_is_free_is_what_contexts_and_allocations_leave(self):
        for mode in ("managed", "native"):
            with self.subTest(mode=mode, measured=False):
                # Native memory is the driver's own, which knows what its contexts take.
                self.run_python(FREE, 16 * MIB if mode == "managed" else CONTEXT, ROTA_MEMORY=mode)
        self.end_children()
        self.with_nvml()
        self.environment["ROTA_SOCKET"] = str(self.scratch / "another.sock")
        self.environment["ROTA_LOCK_DIRECTORY"] = str(self.scratch / "other-locks")
        for mode in ("managed", "native"):
            with self.subTest(mode=mode, measured=True):
                self.run_python(FREE, CONTEXT, ROTA_MEMORY=mode)

    # ctest labels: unsanitized
    def test_what_grows_beside_the_allocations_is_seen(self):
        self.with_nvml()
        self.run_python(GROWS, ROTA_MEMORY="managed")

    # ctest labels: unsanitized
    def test_a_limit_includes_what_is_measured(self):
        self.with_nvml()
        for mode in ("managed", "native"):
            with self.subTest(mode=mode):
                said = self.run_python(LIMITED, options=["--gpu-mem", "100M"], ROTA_MEMORY=mode).stderr
                self.assertRegex(said, r"may have 104857600 bytes on each GPU; 41943040 are in use, 41943040 by contexts and modules")

    # ctest labels: unsanitized
    def test_a_context_for_which_there_is_no_memory_is_made_once_others_have_left_the_gpu(self):
        # The first time that the driver is asked, it has none.
        result = self.run_python(BEGIN + "start()\nprint(told()[1])", ROTA_LOG="info",
                                 ROTA_SIM_FAULTS="cuCtxCreate@1=CUDA_ERROR_OUT_OF_MEMORY")
        self.assertEqual(result.stdout, f"{256 * MIB}\n")
        self.assertIn("the others that use it make room", result.stderr)
