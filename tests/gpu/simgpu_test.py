"""The driver part of programs of several CUDA releases (build-releases) on the simulated GPU: the same natively and under
rota, and traced as each release has it. Their libcudart needs a real driver: tests/gpu/run. And what of the scripts for a
GPU can be tried here."""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE / "tables"), str(HERE.parent / "integration")]

import evidence
import release_checks
from bench import Bench, Skip
from harness import BUILD, Case


class Programs(Case):
    def of_release(self, release):
        bench = Bench(BUILD, self.scratch, releases=BUILD / "tests/releases" / release)
        bench.environment = self.environment
        try:
            release_checks.driver_part(bench, release)
        except Skip as missing:
            self.skipTest(f"no {missing}")

    def test_a_program_of_cuda_11_8(self):
        self.of_release("11.8")

    def test_a_program_of_cuda_12_4(self):
        self.of_release("12.4")

    def test_a_program_of_cuda_13_0(self):
        self.of_release("13.0")


SAMPLE = """
import ctypes, sys
import parts
from parts import part

cuda, calls = ctypes.CDLL("libcuda.so.1"), []

def word():
    if not calls:
        context, block = ctypes.c_void_p(), ctypes.c_uint64()
        assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(24 << 20)) == 0
        assert cuda.cuMemsetD32_v2(block, 7, ctypes.c_size_t(6 << 20)) == 0
        # What rota says of a table: simgpu has none.
        print("rota: cuGetExportTable: known table a094798c-2e74-2e74-93f2-0800200c0a66 of 56 bytes for /x/libcudart.so.13.0.96", file=sys.stderr)
        calls.append(block)
    calls.append(None)
    found = ctypes.c_uint()
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(found), calls[0], ctypes.c_size_t(4)) == 0
    return found.value

@part("steady")
def steady():
    return word()

@part("steady")
def unable():
    raise RuntimeError("not here")

@part("drifting")
def drifting():
    return word() + (len(calls) > 3)

parts.main()
"""


class Tables(Case):
    memory = "1G"

    def test_programs_are_moved_out_and_a_number_that_changes_is_noticed(self):
        (self.scratch / "use_sample.py").write_text(SAMPLE)
        result = self.call(sys.executable, "-B", HERE / "swap_tables.py", "--build", BUILD, "--libraries", self.scratch, "--evidence", self.scratch,
                           "--hog", "0.4", "--weight", "0.1", "--slack", "0.06", "--seconds", "3", timeout=120, PYTHONPATH=str(HERE / "libraries"),
                           LD_LIBRARY_PATH=f"{self.environment['LD_LIBRARY_PATH']}:{self.sim_driver.parent / 'nvml'}", ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        found = evidence.files(self.scratch)[0]
        steady, drifting = (found["programs"][f"sample/{name}"] for name in ("steady", "drifting"))
        self.assertGreater(steady["moves_out"], 0)
        self.assertEqual((steady["wrong"], list(steady["unable"])), (0, ["unable"]))
        self.assertGreater(steady["exact"], 0)
        self.assertGreater(drifting["wrong"], 0)
        self.assertEqual(drifting["wrong_parts"][0], ["drifting", 8.0, 7.0])
        table, = found["tables"]
        self.assertEqual((table["bytes"], table["asked_by"], set(table["programs"])), ([56], ["libcudart.so.13"], {"sample/steady", "sample/drifting"}))


if __name__ == "__main__":
    unittest.main()
