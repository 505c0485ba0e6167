"""Preloads of other tools together with rota's: each gets what it would have got, and nothing hangs or calls itself for ever."""
import sys
import unittest

from harness import Case, PROGRAMS, SHIMS

HOOKS = PROGRAMS / "hooks"
# As a framework does: the driver is opened by name, and asked for its functions by dlsym. Without a name: as a program that is linked with
# the driver, the first in the search order that has the function.
ASK = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1] or None)
context, address, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
results = [cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(bytes << 20)) for bytes in (8, 128)]
print(results, "librota-core" in open("/proc/self/maps").read())
"""
# Too slow for a busy machine to reach, and far less than the time that a test may take.
PATIENCE = 40


class Hooks(Case):
    hooks = ("cuda_functions", "dlopen_of_driver", "dlsym_by_dlvsym", "dlsym_by_table", "dlsym_opens_driver", "everything")

    def check(self, *preloads, expected="[0, 2] True\n", linked=True, **environment):
        programs = [([sys.executable, "-c", ASK, "libcuda.so.1"], expected), ([PROGRAMS / "saxpy"], None)]
        if linked:
            programs.append(([sys.executable, "-c", ASK, ""], expected))
        for number, (program, told) in enumerate(programs):
            with self.subTest(preloads=[preload.name for preload in preloads], program=number):
                result = self.call(*program, LD_PRELOAD=":".join(map(str, preloads)), ROTA_GPU_MEM_LIMIT="64M", timeout=PATIENCE, **environment)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                if told is not None:
                    self.assertEqual(result.stdout, told, result.stderr)
                else:
                    self.assertIn("ok", result.stdout)

    def of(self, name):
        return HOOKS / f"{name}.so"

    # ctest labels: unsanitized
    def test_each_hook_works_without_rota(self):
        for name in self.hooks:
            self.check(self.of(name), expected="[0, 0] False\n", linked=False)

    # ctest labels: unsanitized
    def test_a_hook_in_front_of_rota_sees_the_calls_and_rota_does_too(self):
        for name in self.hooks:
            log = self.scratch / f"{name}.log"
            self.check(self.of(name), SHIMS / "librota.so", HOOK_LOG=str(log))
            with self.subTest(hook=name):
                self.assertTrue(log.exists(), "the hook was never called")

    # ctest labels: unsanitized
    def test_a_hook_behind_rota_does_no_harm(self):
        for name in self.hooks:
            self.check(SHIMS / "librota.so", self.of(name))

    # ctest labels: unsanitized
    def test_two_hooks_around_rota_do_no_harm(self):
        # Those that get along with each other without rota.
        for one, other in (("cuda_functions", "dlopen_of_driver"), ("dlopen_of_driver", "cuda_functions"), ("cuda_functions", "dlsym_by_dlvsym"),
                           ("dlsym_by_dlvsym", "cuda_functions"), ("dlopen_of_driver", "dlsym_by_dlvsym")):
            self.check(self.of(one), SHIMS / "librota.so", self.of(other))

    # ctest labels: unsanitized
    def test_a_hook_that_calls_cuda_when_it_is_loaded_does_no_harm(self):
        for preloads in ((self.of("everything"), SHIMS / "librota.so"), (SHIMS / "librota.so", self.of("everything"))):
            self.check(*preloads, HOOK_CALLS_CUDA="1")

    # ctest labels: unsanitized
    def test_nvml_and_the_runtime_api_have_their_preloads_between_hooks_too(self):
        shims = [SHIMS / name for name in ("librota.so", "librota-cudart.so", "librota-nvml.so")]
        for name in self.hooks:
            self.check(self.of(name), *shims)
            self.check(*shims, self.of(name))


if __name__ == "__main__":
    unittest.main()
