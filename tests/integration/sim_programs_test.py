"""simgpu's messages to programs whose kernels or runtime it lacks, and the remedies."""
import json

from harness import PROGRAMS, ROTA
from sim_case import SimCase, program

PTX = """.version 7.0
.target sm_52
.address_size 64
.visible .entry _Z6missedPfi(.param .u64 data, .param .u32 count) { ret; }
"""

LAUNCH = """
context()
module, function, data = ctypes.c_void_p(), ctypes.c_void_p(), allocate(4096)[1]
assert call("cuModuleLoadData", ctypes.byref(module), open(sys.argv[1], "rb").read()) == 0
for name in b"_Z6missedPfi", b"_Z6missedPfi", b"_Z9not_theres":
    found = call("cuModuleGetFunction", ctypes.byref(function), module, name)
    print(found, flush=True)
    if found == 0:
        count = ctypes.c_int(4)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(data), ctypes.addressof(count))
        print(call("cuLaunchKernel", function, 1, 1, 1, 4, 1, 1, 0, None, arguments, None), call("cuCtxSynchronize"))
"""


class SimPrograms(SimCase):
    def setUp(self):
        super().setUp()
        self.ptx = self.scratch / "missed.ptx"
        self.ptx.write_bytes(PTX.encode() + b"\0")

    # ctest labels: unsanitized
    def test_a_kernel_without_a_host_function_is_named_once_with_the_remedy(self):
        result = self.sim("--", *program(LAUNCH), self.ptx)
        self.assertEqual(result.stdout.split(), ["500"] * 3, result.stderr)
        self.assertEqual(result.stderr.splitlines(), [
            "simgpu: kernel missed(float*, int) (_Z6missedPfi) has no host function: write one (include/rota/simgpu/kernel.h shows how) "
            "and name its library with `rota sim --kernels`, or let it do nothing with `rota sim --unregistered skip`"])

    # ctest labels: unsanitized
    def test_unknown_kernels_do_nothing_where_that_is_asked_for(self):
        result = self.sim("--unregistered", "skip", "--", *program(LAUNCH), self.ptx)
        self.assertEqual(result.stdout.splitlines(), ["0", "0 0", "0", "0 0", "500"], result.stderr)
        self.assertEqual(result.stderr.splitlines(), [
            "simgpu: kernel missed(float*, int) (_Z6missedPfi) has no host function: it does nothing, and takes as long as an empty kernel"])

    # ctest labels: unsanitized
    def test_what_is_skipped_takes_time(self):
        elapsed = self.asked(["--unregistered", "skip", "--virtual-clock"], """
context()
module, function, events = ctypes.c_void_p(), ctypes.c_void_p(), [ctypes.c_void_p(), ctypes.c_void_p()]
call("cuModuleLoadData", ctypes.byref(module), open("%s", "rb").read())
call("cuModuleGetFunction", ctypes.byref(function), module, b"_Z6missedPfi")
for event in events: call("cuEventCreate", ctypes.byref(event), 0)
call("cuEventRecord", events[0], None)
arguments = (ctypes.c_void_p * 2)()
for _ in range(1000): assert call("cuLaunchKernel", function, 1, 1, 1, 4, 1, 1, 0, None, arguments, None) == 0
call("cuEventRecord", events[1], None)
call("cuCtxSynchronize")
milliseconds = ctypes.c_float()
assert call("cuEventElapsedTime", ctypes.byref(milliseconds), *events) == 0
print(milliseconds.value)
""" % self.ptx)
        self.assertAlmostEqual(elapsed, 3.3, delta=0.5, msg="3.3 us each")

    # ctest labels: unsanitized
    def test_a_static_runtime_is_told_what_to_do(self):
        static = PROGRAMS / "vectoradd_static"
        if not static.exists():
            self.skipTest("no nvcc on this machine")
        result = self.sim("--", static)
        self.assertNotEqual(result.returncode, 0)
        said = [line for line in result.stderr.splitlines() if line.startswith("simgpu: ")]
        self.assertEqual(said, ["simgpu: NVIDIA's private tables were asked for, as a static CUDA runtime does: simgpu has none; "
                                "compile the program with `nvcc -cudart shared`"])
        doctor = self.call(ROTA, "sim", "--", ROTA, "doctor", "--json", "--", static)
        self.assertEqual(doctor.returncode, 1, doctor.stdout)
        [finding] = [finding for finding in json.loads(doctor.stdout)["findings"] if finding["id"] == "command.runtime"]
        self.assertEqual(finding["level"], "problem")
        self.assertIn("-cudart shared", finding["remedy"])
        shared = self.call(ROTA, "sim", "--", ROTA, "doctor", "--json", "--", PROGRAMS / "vectoradd_shared")
        self.assertEqual([finding for finding in json.loads(shared.stdout)["findings"] if finding["id"] == "command.runtime"], [])

    # ctest labels: unsanitized
    def test_cards_with_their_published_figures(self):
        ask = """
context()
name, total = ctypes.create_string_buffer(100), ctypes.c_size_t()
call("cuDeviceGetName", name, 100, 0)
call("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
def attribute(which):
    value = ctypes.c_int()
    assert call("cuDeviceGetAttribute", ctypes.byref(value), which, 0) == 0
    return value.value
# Multiprocessors, compute capability, bus width, L2 cache, threads per multiprocessor
print(json.dumps([name.value.decode(), total.value >> 30, *map(attribute, (16, 75, 76, 37, 38, 39))]))
"""
        for card, figures in {
            "h100": ["NVIDIA H100 80GB HBM3", 79, 132, 9, 0, 5120, 50 << 20, 2048],
            "l4": ["NVIDIA L4", 22, 58, 8, 9, 192, 48 << 20, 1536],
            "rtx4090": ["NVIDIA GeForce RTX 4090", 23, 128, 8, 9, 384, 72 << 20, 1536],
        }.items():
            with self.subTest(card=card):
                self.assertEqual(self.asked(["--gpu", card], ask), figures)
        count = "context()\ncount = ctypes.c_int()\ncall('cuDeviceGetCount', ctypes.byref(count))\nprint(count.value)"
        self.assertEqual(self.asked(["--gpu", "rtx4090x2"], count), 2)
