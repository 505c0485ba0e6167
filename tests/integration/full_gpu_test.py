"""A context, module or library that meets a full GPU while other programs' memory can be evicted: it waits for that, whatever the driver answers. A context also waits for memory that cannot be evicted. simgpu answers what ROTA_SIM_FAULTS says where there is no memory (NAME@full) or at a call
(NAME@1)."""
import sys

from harness import ROTA
from memory_wait_case import WaitCase

MIB = 1 << 20
CONTEXT = 40 * MIB
UNAVAILABLE, OUT_OF_MEMORY = 46, 2

BEGIN = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 2**20
handle = ctypes.c_void_p()
def check(result):
    assert result == 0, result
def start():
    check(cuda.cuInit(0))
    result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0)
    return result or cuda.cuCtxSetCurrent(handle)
"""

HOLDS = BEGIN + r"""
check(start())
address = ctypes.c_uint64()
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]) * MIB)))
check(cuda.cuMemsetD8_v2(address, 7, ctypes.c_size_t(int(sys.argv[1]) * MIB)))
check(cuda.cuCtxSynchronize())
print("ready", flush=True)
sys.stdin.read()
"""

# Prints what making a context was answered.
CONTEXTS = BEGIN + r"""
check(cuda.cuInit(0))
if sys.argv[1] == "primary":
    print(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0))
else:
    print(cuda.cuCtxCreate_v2(ctypes.byref(handle), 0, 0))
"""

# The same of calls with a context.
CALLS = BEGIN + r"""
check(start())
made, image = ctypes.c_void_p(), b"\x7fELF"
nothing = [None, None, 0, None, None, 0]
graph = ctypes.c_void_p()
check(cuda.cuGraphCreate(ctypes.byref(graph), 0))
calls = {
    "cuModuleLoadData": lambda: cuda.cuModuleLoadData(ctypes.byref(made), image),
    "cuLibraryLoadData": lambda: cuda.cuLibraryLoadData(ctypes.byref(made), image, *nothing),
    "cuCtxSetLimit": lambda: cuda.cuCtxSetLimit(0, ctypes.c_size_t(4096)),
    "cuGraphInstantiateWithFlags": lambda: cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, ctypes.c_ulonglong(0)),
    "cuStreamCreate": lambda: cuda.cuStreamCreate(ctypes.byref(made), 0),
}
print(calls[sys.argv[1]]())
"""


class FullGpu(WaitCase):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_CONTEXT_BYTES"] = str(CONTEXT)

    def fill(self, memory):
        """A program that leaves less than a context of the GPU."""
        holder = self.start(ROTA, "run", "--memory", memory, "--", sys.executable, "-c", HOLDS, "190")
        self.assertEqual(holder.stdout.readline(), "ready\n", memory)
        return holder

    def asked(self, program, how, faults="", memory="swap", **environment):
        result = self.checked(ROTA, "run", "--memory", memory, "--", sys.executable, "-c", program, how, ROTA_SIM_FAULTS=faults, ROTA_LOG="info",
                              **environment)
        return int(result.stdout), result.stderr

    # ctest labels: unsanitized
    def test_a_context_waits_for_others_to_leave_whatever_a_full_gpu_answers(self):
        for how, name in ("primary", "cuDevicePrimaryCtxRetain"), ("created", "cuCtxCreate"):
            for error in UNAVAILABLE, OUT_OF_MEMORY:
                with self.subTest(how=how, error=error):
                    holder = self.fill("swap")
                    result, said = self.asked(CONTEXTS, how, f"{name}@full={error}")
                    self.assertEqual(result, 0, said)
                    self.assertIn("the other programs on it are evicting theirs", said)
                    self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_a_context_waits_until_memory_that_cannot_leave_is_freed(self):
        for how, memory in ("primary", "swap"), ("created", "native"):
            with self.subTest(how=how, memory=memory):
                holder = self.fill("native")
                program = self.start(ROTA, "run", "--memory", memory, "--", sys.executable, "-c", CONTEXTS, how)
                self.until_it_waits(program)
                self.assertEqual(self.finish(holder).returncode, 0)
                result = self.finish(program)
                self.assertEqual(result.stdout, "0\n", result.stderr)

    # ctest labels: unsanitized
    def test_where_nobody_can_make_room_the_drivers_error_is_the_answer(self):
        self.start_daemon("--memory-wait", "1s")
        holder = self.fill("native")
        for error in UNAVAILABLE, OUT_OF_MEMORY:
            with self.subTest(error=error):
                self.assertEqual(self.asked(CONTEXTS, "primary", f"cuDevicePrimaryCtxRetain@full={error}")[0], error)
        self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_in_an_exclusive_compute_mode_an_unavailable_gpu_is_told_at_once(self):
        for mode in 2, 3:
            with self.subTest(mode=mode):
                profile = self.scratch / f"mode-{mode}.toml"
                profile.write_text(f"base = 'h200'\n[device.attributes]\ncompute_mode = {mode}\n")
                # Only the first call: another one would succeed.
                result, said = self.asked(CONTEXTS, "primary", f"cuDevicePrimaryCtxRetain@1={UNAVAILABLE}", ROTA_SIM_PROFILE=str(profile),
                                          ROTA_SIM_STATE=str(self.scratch / f"device-{mode}"))
                self.assertEqual(result, UNAVAILABLE)
                self.assertNotIn("making room", said)

    # ctest labels: unsanitized
    def test_modules_libraries_and_graphs_wait_for_room_whatever_the_driver_answers(self):
        for name in "cuModuleLoadData", "cuLibraryLoadData", "cuCtxSetLimit", "cuGraphInstantiateWithFlags", "cuStreamCreate":
            for error in UNAVAILABLE, OUT_OF_MEMORY:
                with self.subTest(name=name, error=error):
                    result, said = self.asked(CALLS, name, f"{name}@1={error}")
                    self.assertEqual(result, 0, said)
                    self.assertIn("the other programs on it are evicting theirs", said)
