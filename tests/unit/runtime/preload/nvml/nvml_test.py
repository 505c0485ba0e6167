"""Programs that ask NVML under librota-nvml.so, with a library of the tests' own (library.cpp) in the place of NVIDIA's.

Most tests start a Python program with LD_PRELOAD, which asks by ctypes as NVIDIA's Python binding does; where rota is built
for another processor than this machine's, only those that start probe.cpp.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

SHIMS = os.environ["ROTA_SHIM_DIRECTORY"]
BUILT = os.environ["ROTA_TEST_DIRECTORY"]
SOURCE = os.environ["ROTA_SOURCE_DIRECTORY"]
SHIM = os.path.join(SHIMS, "librota-nvml.so")
PROBE = os.path.join(BUILT, "nvml_probe")
CROSS = os.environ["ROTA_TEST_CROSS"] in ("TRUE", "ON", "1")

LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, INVALID_ARGUMENT, INSUFFICIENT_SIZE, VERSION_MISMATCH = 12, 13, 2, 7, 25
UNKNOWN_MEMORY = 2**64 - 1
GPU = "GPU-6ba7b810-9dad-11d1-80b4-00c04fd430c8"
OTHER_GPU = "GPU-00000000-0000-0000-0000-000000000001"
GPUS = f"{GPU}:1000000:400000,MIG-6ba7b810-9dad-11d1-80b4-00c04fd430c8:1000000:400000,{OTHER_GPU}:3000:2000"

# What every program below begins with.
BEGIN = r"""
import ctypes, json, os, struct, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def device(index=0):
    handle = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
    return handle
def memory(handle):
    words = (ctypes.c_uint64 * 3)()
    return [nvml.nvmlDeviceGetMemoryInfo(handle, words), *words]
def memory_v2(handle, version=0x02000028):
    words = (ctypes.c_uint64 * 5)(version)
    return [nvml.nvmlDeviceGetMemoryInfo_v2(handle, words), *words]
def processes(handle, name, words, room=3):
    count, entries = ctypes.c_uint(room), (ctypes.c_uint64 * (3 * words))()
    result = getattr(nvml, name)(handle, ctypes.byref(count), entries)
    return [result, count.value, *[list(entries[i * words:(i + 1) * words]) for i in range(3)]]
def details(handle, version=0x01000018, room=3):
    entries = (ctypes.c_uint64 * 12)()
    words = (ctypes.c_uint64 * 3)(version, room, ctypes.addressof(entries))
    return [nvml.nvmlDeviceGetRunningProcessDetailList(handle, words), words[1], *[list(entries[i * 4:i * 4 + 4]) for i in range(3)]]
def say(*values):
    print(json.dumps(values))
"""


def recorded():
    path = os.path.join(SOURCE, "tests", "data", "libnvidia-ml-580.159-exports.txt")
    with open(path, encoding="ascii") as lines:
        return {line.strip() for line in lines if line.strip()}


def by_hand():
    """The functions of the test's library that are not of the one pattern."""
    with open(os.path.join(os.path.dirname(__file__), "library.cpp"), encoding="ascii") as lines:
        return set(re.findall(r"(?m)^EXPORT .* (nvml\w+)\(", lines.read()))


class Preloaded(unittest.TestCase):
    def start(self, *command, library="recorded", shim=SHIM, said="", **variables):
        """Runs a command under the preload; what it prints."""
        environment = {"PATH": os.environ["PATH"], "TEST_NVML_GPUS": GPUS, "ROTA_SOCKET": "/nonexistent/rotad.sock"}
        if shim:
            environment["LD_PRELOAD"] = shim
        if library:
            environment["LD_LIBRARY_PATH"] = os.path.join(BUILT, library)
        environment.update(variables)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, said), done.stdout)
        return done.stdout


class Compiled(Preloaded):
    """What a program of the processor asks that rota is built for."""

    def call(self, *names):
        lines = self.start(PROBE, "call", *names).splitlines()
        self.assertEqual(lines, [f"{name} {answer} {answer}" for name in names for answer in [len(name) * 1000 + ord(name[-1])]])

    def test_every_function_reaches_the_real_one_with_its_arguments_at_the_first_call_and_later(self):
        names = sorted(recorded() - by_hand())
        self.assertGreater(len(names), 380)
        self.call(*names)

    def test_any_of_them_may_be_the_first(self):
        for name in ("nvmlInit", "nvmlSystemGetNVMLVersion", "nvmlVgpuTypeGetName"):
            self.call(name)

    def test_a_limit_is_seen_and_none_is_not(self):
        self.assertEqual(self.start(PROBE, "memory"), "1000000 400000 600000 1000000 10 400000 599990 5000\n")
        self.assertEqual(self.start(PROBE, "memory", ROTA_GPU_MEM_LIMIT="50000"), "50000 50000 0 50000 0 50000 0 0\n")


@unittest.skipIf(CROSS, "this machine's Python is for another processor")
class Asked(Preloaded):
    def ask(self, program, *arguments, **options):
        return json.loads(self.start(sys.executable, "-c", BEGIN + textwrap.dedent(program), *arguments, **options))


class Thunks(Asked):
    def test_many_threads_may_make_the_first_call_at_once(self):
        got, = self.ask("""
            import threading
            ready, results = threading.Barrier(16), []
            def call():
                ready.wait()
                results.append(memory(ctypes.c_void_p(4096))[0])
            threads = [threading.Thread(target=call) for _ in range(16)]
            [thread.start() for thread in threads], [thread.join() for thread in threads]
            say(results)
        """)
        self.assertEqual(got, [0] * 16)

    def test_the_words_for_an_error_are_the_librarys(self):
        got, = self.ask("nvml.nvmlErrorString.restype = ctypes.c_char_p; say(nvml.nvmlErrorString(4242).decode())")
        self.assertEqual(got, "the library's own words")

    def test_a_function_that_the_library_lacks_answers_so(self):
        got = self.ask("say(nvml.nvmlDeviceIsMigDeviceHandle(None, None), memory_v2(device())[0], memory(device()))", library="older")
        self.assertEqual(got, [FUNCTION_NOT_FOUND, FUNCTION_NOT_FOUND, [0, 1000000, 400000, 600000]])

    def test_without_a_library_every_function_answers_so_and_an_error_has_words(self):
        got, = self.ask("""
            nvml.nvmlErrorString.restype = ctypes.c_char_p
            say([getattr(nvml, name)() for name in json.loads(sys.argv[1])] + [nvml.nvmlErrorString(12).decode()])
        """, json.dumps(sorted(recorded() - {"nvmlErrorString"})), library=None)
        *results, words = got
        if not all(result == LIBRARY_NOT_FOUND for result in results) and shutil.which("nvidia-smi"):
            self.skipTest("this machine has NVIDIA's own NVML")
        self.assertEqual(results, [LIBRARY_NOT_FOUND] * 403)
        self.assertIn("not found", words)

    def test_it_never_takes_a_copy_of_itself_for_the_library(self):
        with tempfile.TemporaryDirectory(prefix="rota-nvml-") as folder:
            shutil.copy(SHIM, os.path.join(folder, "libnvidia-ml.so.1"))
            path = f"{folder}:{os.path.join(BUILT, 'recorded')}"
            self.assertEqual(self.ask("say(memory(device()))", LD_LIBRARY_PATH=path), [[0, 1000000, 400000, 600000]])

    def test_a_library_that_is_no_nvml_is_passed_over(self):
        with tempfile.TemporaryDirectory(prefix="rota-nvml-") as folder:
            shutil.copy(os.path.join(SHIMS, "librota-core.so"), os.path.join(folder, "libnvidia-ml.so.1"))
            path = f"{folder}:{os.path.join(BUILT, 'recorded')}"
            self.assertEqual(self.ask("say(memory(device()))", LD_LIBRARY_PATH=path), [[0, 1000000, 400000, 600000]])


class Unlimited(Asked):
    def test_without_a_limit_all_is_as_without_rota_and_the_core_is_not_loaded(self):
        program = """
            own = os.getpid()
            lists = [processes(device(), "nvmlDeviceGet" + kind + "RunningProcesses" + suffix, words)
                     for kind in ("Compute", "Graphics", "MPSCompute") for suffix, words in (("", 2), ("_v2", 3), ("_v3", 3))]
            for entry in [entry for answer in lists + [details(device())] for entry in answer[2:]]:
                entry[0] -= own
            say(memory(device()), memory(device(2)), memory_v2(device()), memory_v2(device(), 7), lists, details(device(), 7)[0],
                "librota-core" in open("/proc/self/maps").read())
        """
        without = self.ask(program, shim=None)
        self.assertEqual(self.ask(program), without)
        self.assertEqual(without[0], [0, 1000000, 400000, 600000])
        self.assertEqual(self.ask(program, ROTA_GPU_MEM_LIMIT=""), without)


class Limited(Asked):
    """A program that does not call CUDA itself, as nvidia-smi and monitors."""

    def ask(self, program, *arguments, limit="50000", **options):
        return super().ask(program, *arguments, ROTA_GPU_MEM_LIMIT=limit, **options)

    def test_the_limit_is_the_gpu_of_a_program_that_has_nothing_there(self):
        self.assertEqual(self.ask("say(memory(device()), memory_v2(device()))"),
                         [[0, 50000, 50000, 0], [0, 0x02000028, 50000, 0, 50000, 0]])

    def test_a_gpu_smaller_than_the_limit_keeps_its_size(self):
        # Others have 1000 of it, and no rotad has them make room.
        self.assertEqual(self.ask("say(memory(device(2)))"), [[0, 3000, 2000, 1000]])

    def test_where_nobody_makes_room_no_more_is_free_than_others_leave(self):
        for mode in ("native", "managed"):
            self.assertEqual(self.ask("say(memory(device()))", limit="500000", ROTA_MEMORY=mode), [[0, 500000, 400000, 100000]])

    def test_a_version_that_the_library_refuses_is_refused_in_its_words(self):
        self.assertEqual(self.ask("say(memory_v2(device(), 1), details(device(), 1)[0])"),
                         [[VERSION_MISMATCH, 1, 0, 0, 0, 0], VERSION_MISMATCH])

    def test_a_struct_of_a_version_that_rota_does_not_know_is_left_as_the_library_filled_it(self):
        got, own = self.ask("say([memory_v2(device(), 0x03000028), details(device(), 0x02000018)], os.getpid())", library="newer")
        self.assertEqual(got[0], [0, 0x03000028, 1000000, 10, 400000, 599990])
        self.assertEqual(got[1][2], [own, 5000, 77, 77])

    def test_null_pointers_and_bad_handles_are_the_librarys_to_refuse(self):
        got = self.ask("""
            nothing = ctypes.c_void_p(0)
            lists = [getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{suffix}")(device(), nothing, nothing)
                     for kind in ("Compute", "Graphics", "MPSCompute") for suffix in ("", "_v2", "_v3")]
            say(nvml.nvmlDeviceGetMemoryInfo(device(), nothing), nvml.nvmlDeviceGetMemoryInfo_v2(device(), nothing),
                nvml.nvmlDeviceGetRunningProcessDetailList(device(), nothing), memory(nothing)[0], *lists)
        """)
        self.assertEqual(got, [INVALID_ARGUMENT] * 13)

    def test_mig_instances_and_gpus_that_are_split_into_them_are_left_alone(self):
        self.assertEqual(self.ask("say(memory(device(1)))"), [[0, 1000000, 400000, 600000]])
        self.assertEqual(self.ask("say(memory(device(0)))", TEST_NVML_SPLIT="1"), [[0, 1000000, 400000, 600000]])

    def test_a_library_without_mig_has_the_limit_too(self):
        self.assertEqual(self.ask("say(memory(device()))", library="older"), [[0, 50000, 50000, 0]])

    def test_of_the_processes_only_this_ones_memory_is_rotas_figure(self):
        for kind in ("Compute", "Graphics", "MPSCompute"):
            for suffix, words in (("", 2), ("_v2", 3), ("_v3", 3)):
                with self.subTest(kind=kind, suffix=suffix):
                    name = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
                    got, own = self.ask(f'say(processes(device(), "{name}", {words}), os.getpid())')
                    rest = [77] * (words - 2)
                    self.assertEqual(got, [0, 3, [own, 0, *rest], [own + 1, 6000, *rest], [own, UNKNOWN_MEMORY, *rest]])

    def test_so_it_is_in_the_list_of_details(self):
        got, own = self.ask("say(details(device()), os.getpid())")
        self.assertEqual(got, [0, 3, [own, 0, 77, 77], [own + 1, 6000, 77, 77], [own, UNKNOWN_MEMORY, 77, 77]])

    def test_a_list_without_room_is_answered_by_the_number_of_processes(self):
        got = self.ask("""say(processes(device(), "nvmlDeviceGetComputeRunningProcesses_v3", 3, room=0)[:2], details(device(), room=0)[:2])""")
        self.assertEqual(got, [[INSUFFICIENT_SIZE, 3]] * 2)

    def without_core(self, folder, why):
        """What is known of the GPU then; the one line says that the limit is not shown."""
        core = os.path.join(os.path.realpath(folder), "librota-core.so")
        said = f"rota: {core} cannot be loaded, so NVML shows the whole GPU: {core}: {why}; install rota again (rota doctor says more)\n"
        return self.ask("say(memory(device()), memory(device()))", shim=os.path.join(folder, "librota-nvml.so"), said=said)

    def test_without_the_core_which_enforces_it_there_is_no_limit(self):
        with tempfile.TemporaryDirectory(prefix="rota-nvml-") as folder:
            shutil.copy(SHIM, folder)
            self.assertEqual(self.without_core(folder, "cannot open shared object file: No such file or directory"),
                             [[0, 1000000, 400000, 600000]] * 2)

    def test_a_core_that_cannot_be_loaded_is_as_good_as_none(self):
        with tempfile.TemporaryDirectory(prefix="rota-nvml-") as folder:
            shutil.copy(SHIM, folder)
            with open(os.path.join(folder, "librota-core.so"), "w", encoding="ascii") as broken:
                broken.write("no library")
            self.assertEqual(self.without_core(folder, "file too short"), [[0, 1000000, 400000, 600000]] * 2)


if __name__ == "__main__":
    unittest.main()
