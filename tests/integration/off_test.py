"""ROTA_OFF=1: rota is loaded and does nothing."""
import sys
import unittest

from harness import Case, PROGRAMS, ROTA, SHIMS

# Which libraries are mapped after a call, and what the driver reports about its memory.
ASK = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, address, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(32 << 20))
managed = ctypes.c_uint()
cuda.cuPointerGetAttribute(ctypes.byref(managed), 8, address)
print(result, total.value >> 20, managed.value, "librota-core" in open("/proc/self/maps").read())
"""


class Off(Case):
    everything = dict(ROTA_GPU_MEM_LIMIT="16M", ROTA_MEMORY="managed", ROTA_WAIT="1", ROTA_LOG="debug")

    # ctest labels: unsanitized
    def test_a_preload_passes_everything_through_whatever_else_is_set(self):
        preload = ":".join(str(SHIMS / name) for name in ("librota.so", "librota-cudart.so", "librota-nvml.so"))
        program = [sys.executable, "-c", ASK]
        environment = dict(self.everything, LD_PRELOAD=preload, ROTA_TRACE=str(self.scratch / "trace"))
        result = self.checked(*program, ROTA_OFF="1", **environment)
        self.assertEqual((result.stdout, result.stderr), ("0 256 0 False\n", ""))
        self.assertFalse((self.scratch / "trace").exists())
        limited = self.call(*program, ROTA_OFF="0", **dict(environment, ROTA_WAIT="0"))
        self.assertEqual(limited.stdout.split()[0], "2", "with 0 it is on, and the limit holds")
        self.assertTrue((self.scratch / "trace").exists())

    # ctest labels: unsanitized
    def test_the_runtime_api_passes_through_too(self):
        program = PROGRAMS / "vectoradd_shared"
        if not program.exists():
            self.skipTest("no nvcc on this machine")
        preload = ":".join(str(SHIMS / name) for name in ("librota.so", "librota-cudart.so"))
        native = self.checked(program)
        result = self.checked(program, LD_PRELOAD=preload, ROTA_OFF="1", ROTA_TRACE=str(self.scratch / "trace"), **self.everything)
        self.assertEqual((result.stdout, result.stderr), (native.stdout, ""))
        self.assertFalse((self.scratch / "trace").exists())

    def test_rota_run_starts_the_program_and_says_that_it_is_off(self):
        result = self.checked(ROTA, "run", "--gpu-mem", "1M", "--", PROGRAMS / "saxpy", ROTA_OFF="1")
        self.assertIn("ok", result.stdout)
        self.assertEqual(result.stderr, "rota: ROTA_OFF is set: the program runs without rota; unset it for turns, limits and traces\n")
        self.assertFalse((self.scratch / "rotad.sock").exists(), "a rotad was started for nothing")

    def test_doctor_does_not_call_it_fine(self):
        result = self.call(ROTA, "doctor", ROTA_OFF="1")
        self.assertIn("ROTA_OFF is set", result.stdout)


if __name__ == "__main__":
    unittest.main()
