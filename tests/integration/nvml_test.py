"""NVML under `rota run`: programs with a limit get the same figures from CUDA and from NVML. The NVML is that of the
unit tests (tests/unit/runtime/preload/nvml/library.cpp), configured with simgpu's GPUs."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

from harness import BUILD, Case, ROTA, SHIMS

LIBRARIES = BUILD / "tests/nvml"
MIB = 2**20
ASSUMED = 16  # MiB of the GPU's 256, for a context that nobody measures

BEGIN = r"""
import ctypes, json, os, sys, uuid
nvml, cuda = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
MIB = 2**20
def asked(index):
    device, words = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, words) == 0
    words_v2 = (ctypes.c_uint64 * 5)(0x02000028)
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, words_v2) == 0
    # The second version reports the driver's reserved memory separately.
    assert [words_v2[1], words_v2[3], words_v2[2] + words_v2[4]] == list(words), (list(words), list(words_v2))
    count, entries = ctypes.c_uint(3), (ctypes.c_uint64 * 9)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), entries) == 0
    assert entries[0] == os.getpid() and list(entries[3:5]) == [os.getpid() + 1, 6000]
    return {"total": words[0], "free": words[1], "used": words[2], "process": entries[1]}
def check(result):
    assert result == 0, result
def start(device):
    # Creates a context on the GPU with this number in the program; returns the GPU's UUID.
    context, name = ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuDeviceGetUuid(name, device))
    return "GPU-" + str(uuid.UUID(bytes=bytes(name)))
def allocate(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address
def told():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return {"total": total.value, "free": free.value}
"""

# What both report, before and after each step. NVML has only this GPU, of 256 MiB.
STEPS = BEGIN + r"""
os.environ["TEST_NVML_GPUS"] = start(0) + ":%d:%d" % (256 * MIB, 250 * MIB)
steps = [(told(), asked(0))]
result, address = allocate(10 * MIB)
check(result)
steps.append((told(), asked(0)))
check(cuda.cuMemFree_v2(address))
steps.append((told(), asked(0)))
print(json.dumps(steps))
"""

TWO_GPUS = BEGIN + r"""
os.environ["TEST_NVML_GPUS"] = ",".join(text + ":%d:%d" % (256 * MIB, 250 * MIB) for text in sys.argv[1:])
before = [asked(0), asked(1)]
start(int(os.environ["TEST_DEVICE"]))
check(allocate(10 * MIB)[0])
print(json.dumps([before, [asked(0), asked(1)]]))
"""

UUIDS = BEGIN + "print(start(0), start(1))"

EXPORTS = r"""
import ctypes, json, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
found = [name for name in json.loads(sys.argv[1]) if hasattr(nvml, name)]
print(json.dumps(found))
"""


class Nvml(Case):
    def setUp(self):
        super().setUp()
        self.path = self.environment["LD_LIBRARY_PATH"]
        self.library("recorded")

    def library(self, variant):
        self.environment["LD_LIBRARY_PATH"] = f"{LIBRARIES / variant}:{self.path}"

    def run_python(self, program, *arguments, **environment):
        result = self.checked(ROTA, "run", "--", sys.executable, "-c", program, *arguments, **environment)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def seen(self, total, used, context=0):
        used_in_all = used + context
        return {"total": total * MIB, "free": (total - used_in_all) * MIB, "used": used_in_all * MIB, "process": used * MIB}

    # ctest labels: unsanitized
    def test_cuda_and_nvml_say_the_same_of_a_limited_programs_memory(self):
        for mode in ("managed", "native"):
            with self.subTest(mode=mode):
                steps = json.loads(self.run_python(STEPS, ROTA_GPU_MEM_LIMIT="64M", ROTA_MEMORY=mode))
                self.assertEqual([nvml for _, nvml in steps], [self.seen(64, used, ASSUMED) for used in (0, 10, 0)])
                for cuda, nvml in steps:
                    self.assertEqual(cuda, {"total": nvml["total"], "free": nvml["free"]})

    # ctest labels: unsanitized
    def test_a_traced_program_hears_the_same(self):
        folder = self.scratch / "trace"
        result = self.checked(ROTA, "trace", "--dir", folder, "--", sys.executable, "-c", STEPS, ROTA_GPU_MEM_LIMIT="64M")
        self.assertEqual(json.loads(result.stdout)[1][1], self.seen(64, 10, ASSUMED))

    # ctest labels: unsanitized
    def test_without_a_limit_nvml_answers_as_without_rota(self):
        # It receives no calls besides the program's.
        steps = json.loads(self.run_python(STEPS, TEST_NVML_TELL="1"))
        driver = {"total": 256 * MIB, "free": 250 * MIB, "used": 6 * MIB, "process": 5000}
        self.assertEqual([nvml for _, nvml in steps], [driver] * 3)

    # ctest labels: unsanitized
    def test_a_gpu_is_known_by_its_uuid_however_the_program_counts(self):
        self.environment.update(ROTA_SIM_GPUS="2", ROTA_GPU_MEM_LIMIT="64M")
        uuids = self.run_python(UUIDS).split()
        nothing, some = self.seen(64, 0), self.seen(64, 10, ASSUMED)
        for device, visible, after in (("0", "0,1", [some, nothing]), ("1", "0,1", [nothing, some]),
                                       ("0", "1,0", [nothing, some]), ("0", "1", [nothing, some])):
            with self.subTest(device=device, visible=visible):
                out = self.run_python(TWO_GPUS, *uuids, TEST_DEVICE=device, CUDA_VISIBLE_DEVICES=visible)
                self.assertEqual(json.loads(out), [[nothing, nothing], after])

    # ctest labels: unsanitized
    def test_a_program_finds_the_functions_that_its_library_has_and_no_others(self):
        names = sorted(line for line in exports(SHIMS / "librota-nvml.so") if line.startswith("nvml")) + ["nvmlDeviceFromTheFuture"]
        for variant in ("recorded", "older", "newer"):
            with self.subTest(variant=variant):
                self.library(variant)
                out = self.run_python(EXPORTS, json.dumps(names), ROTA_GPU_MEM_LIMIT="64M")
                self.assertEqual(set(json.loads(out)), {name for name in exports(LIBRARIES / variant / "libnvidia-ml.so.1") if name in names})

    # ctest labels: unsanitized
    def test_a_function_that_rota_does_not_know_is_called_and_the_limit_holds(self):
        self.library("newer")
        program = STEPS.replace("print(", "assert [nvml.nvmlDeviceFromTheFuture(41) for _ in range(2)] == [42, 42]\nprint(")
        steps = json.loads(self.run_python(program, ROTA_GPU_MEM_LIMIT="64M"))
        self.assertEqual(steps[1][1], self.seen(64, 10, ASSUMED))

    def preloads(self, limit="64M", **environment):
        result = self.checked(ROTA, "run", "--", "printenv", "LD_PRELOAD", ROTA_GPU_MEM_LIMIT=limit, **environment)
        return [os.path.basename(path) for path in result.stdout.strip().split(":")], result.stderr

    # ctest labels: unsanitized
    def test_where_new_functions_cannot_be_shown_nvml_stays_as_it_is(self):
        self.library("newer")
        nowhere = self.scratch / "file"
        nowhere.write_text("")
        names, errors = self.preloads(ROTA_CACHE=str(nowhere), ROTA_LOG="info")
        self.assertEqual(names, ["librota.so"])
        self.assertIn("NVML is not preloaded", errors)
        self.assertEqual(self.preloads(), (["librota.so", "librota-nvml.so"], ""))

    # ctest labels: unsanitized
    def test_without_a_limit_nothing_is_preloaded_in_front_of_nvml(self):
        self.assertEqual(self.preloads(limit="")[0], ["librota.so"])
        self.assertEqual(self.preloads()[0], ["librota.so", "librota-nvml.so"])

    # ctest labels: unsanitized
    def test_without_a_library_to_stand_in_front_of_nothing_is_preloaded(self):
        # Programs take a different path if there is no NVML.
        self.assertEqual(self.preloads()[0], ["librota.so", "librota-nvml.so"])
        if any(pathlib.Path(folder, "libnvidia-ml.so.1").exists() for folder in
               ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/local/nvidia/lib64")):
            self.skipTest("this machine has NVIDIA's own NVML")
        self.library("nothing")
        self.assertEqual(self.preloads()[0], ["librota.so"])


def exports(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines()}


if __name__ == "__main__":
    unittest.main()
