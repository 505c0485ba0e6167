"""The driver part of programs of several CUDA releases (build-releases) on the simulated GPU: the same natively and under
rota, and traced as each release has it. Their libcudart needs a real driver: tests/gpu/run. And what of the scripts for a
GPU can be tried here."""
import contextlib
import json
import os
import pathlib
import select
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE / "tables"), str(HERE.parent / "integration")]

import evidence
import release_checks
import samples
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


NVCC = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in -o) shift; out=$1;; *.cu) source=$1;; esac
  shift
done
grep -q unknown "$source" && echo "error: unknown" && exit 1
cp "$source" "$out" && chmod +x "$out"
"""
OF_SAMPLES = {
    "right": "exec {build}/tests/programs/memhog --bytes 8M --rounds 2",
    "waived": "exit 2",
    "broken": "unknown",
    "fails": "test -z \"$ROTA_GPU_MEM_LIMIT\" || echo it FAILED",
    "hungry": "test \"$ROTA_GPU_MEM_LIMIT\" != 1G || {{ echo out of memory; exit 1; }}",
    "windowed": "# include <GL/gl.h>",
}


class Samples(Case):
    memory = "1G"

    def test_samples_are_collected_built_run_natively_and_run_under_rota(self):
        (self.scratch / "examples/Common").mkdir(parents=True)
        for name, text in OF_SAMPLES.items():
            folder = self.scratch / "examples/Samples/0" / name
            folder.mkdir(parents=True)
            (folder / "Makefile").write_text(f"LIBRARIES :=\n{name}.o:{name}.cu\n{name}: {name}.o\n")
            (folder / f"{name}.cu").write_text(f"#!/bin/sh\n{text.format(build=BUILD)}\n")
        (self.scratch / "bin").mkdir()
        (self.scratch / "bin/nvcc").write_text(NVCC)
        (self.scratch / "bin/nvcc").chmod(0o755)
        script = [sys.executable, "-B", HERE / "samples.py", "--samples", self.scratch / "samples"]
        collected = self.call(*script, "--collect", self.scratch / "examples")
        self.assertIn("5 samples", collected.stdout, collected.stderr)
        result = self.call(*script, "--build", BUILD, "--out", self.scratch / "out", "--beside", "--size", "0.3", "--room", "0.5", "--budget", "120", "--jobs", "2",
                           timeout=150, ROTA_SIM_TIME_SCALE="1", PATH=f"{self.scratch / 'bin'}:{self.environment.get('PATH', os.environ['PATH'])}")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        found = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual((found["built"], found["not_built"], found["native_failed"]), (4, {"broken": "error: unknown"}, {"waived": 2}))
        self.assertEqual((found["native_passed"], found["rota_passed"], found["with_4g"], found["not_run"]), (3, 2, ["hungry"], []), found)
        self.assertEqual(found["failed"], {"fails": {"exit": 0, "said": "it FAILED\n"}})
        self.assertEqual((found["wrong"], [each["exit"] for each in found["checkers"]]), (0, [0, 0]))
        self.assertGreater(found["moved_out"], 0)

    def test_a_sample_that_does_not_end_is_ended_with_all_that_it_has_started(self):
        hangs = ["sh", "-c", "sleep 1000 & echo $!; wait"]
        code, _, said = samples.Runner(100).run(hangs, self.scratch, self.scratch / "log", 5)
        self.assertEqual(code, "late")
        with contextlib.suppress(ProcessLookupError):
            self.assertTrue(select.select([os.pidfd_open(int(said))], [], [], 30)[0], "it still runs")
        self.assertIsNone(samples.Runner(0.5).run(hangs, self.scratch, self.scratch / "log", 100), "the time was over for all")


if __name__ == "__main__":
    unittest.main()
