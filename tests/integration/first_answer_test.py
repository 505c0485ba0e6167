"""What a program is told is free, from its first question on: what its limit, its context and programs without rota leave. A program that takes exactly that gets it, in one allocation. The NVML is simgpu's, by which rotad measures contexts."""
import itertools
import json
import sys

from harness import ROTA, SHIMS, Case

MIB = 1 << 20
CONTEXT = 44 * MIB  # of GPUs of 512 MiB, where rotad would assume 32
LIMIT = 200 * MIB
ROUNDS = 4  # contexts of one program, each of which is a first question

BEGIN = r"""
import ctypes, json, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
MIB = 2**20
def check(result):
    assert result == 0, result
def start():
    check(cuda.cuInit(0))
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
def told():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value
def allocate(size):
    address = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)), address
def hold():
    print("ready", flush=True)
    sys.stdin.read()
"""

# Takes exactly what it is told is free, in one piece, with a context of its own each time. Prints what it was told.
TAKES = BEGIN + r"""
seen = []
for _ in range(int(sys.argv[1])):
    start()
    free, total = told()
    seen.append([free, total])
    result, address = allocate(free)
    assert result == 0, (result, free, total)
    left = told()[0]
    assert left <= 2 * MIB, (left, free, total)
    check(cuda.cuMemFree_v2(address))
    check(cuda.cuDevicePrimaryCtxReset(0))
    check(cuda.cuDevicePrimaryCtxRelease(0))
print(json.dumps(seen))
"""

HOLDS = BEGIN + r"""
start()
check(allocate(int(sys.argv[1]) * MIB)[0])
hold()
"""

# By NVML, before and after there is a context.
BY_NVML = BEGIN + r"""
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def asked():
    device, words = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    check(nvml.nvmlInit_v2())
    check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
    check(nvml.nvmlDeviceGetMemoryInfo(device, words))
    return list(words)
check(cuda.cuInit(0))
before = asked()
start()
seen = told()
print(json.dumps([before, asked(), seen]))
"""

MODES = "managed", "swap", "native"


class FirstAnswer(Case):
    memory = "512M"

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_CONTEXT_BYTES"] = str(CONTEXT)
        nvml = SHIMS / "simgpu/nvml"
        self.assertTrue((nvml / "libnvidia-ml.so.1").exists(), "build the target simgpu_nvml")
        self.environment["LD_LIBRARY_PATH"] += f":{nvml}"

    def told(self, command, rounds=ROUNDS, **environment):
        """What a program that takes all that is free was told each time; fails if it did not get it."""
        result = self.call(*command, sys.executable, "-c", TAKES, rounds, **environment)
        self.assertEqual(result.returncode, 0, f"{command}: {result.stderr}")
        return [tuple(each) for each in json.loads(result.stdout)]

    def check_free(self, mode, free, exact):
        """Extents bring something with them, and are of 2 MiB."""
        self.assertLessEqual(free, exact)
        self.assertGreaterEqual(free, exact - (4 * MIB if mode == "swap" else 0))

    def holder(self, command, mib, **environment):
        program = self.start(*command, sys.executable, "-c", HOLDS, mib, **environment)
        self.assertEqual(program.stdout.readline(), "ready\n", program.poll())
        return program

    def configured(self, text):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text(text)
        self.start_daemon("--config", configuration)

    # ctest labels: unsanitized
    def test_all_that_is_free_can_be_had_in_one_piece_under_every_limit(self):
        for mode, limit in itertools.product(MODES, ("none", "session", "process")):
            with self.subTest(mode=mode, limit=limit):
                options = ["--gpu-mem", str(LIMIT)] if limit == "session" else []
                environment = {"ROTA_GPU_MEM_LIMIT": str(LIMIT)} if limit == "process" else {}
                most = LIMIT if limit != "none" else 512 * MIB
                for free, total in self.told([ROTA, "run", "--memory", mode, *options, "--"], **environment):
                    self.check_free(mode, free, most - CONTEXT)
                    self.assertEqual(total, most)

    # ctest labels: unsanitized
    def test_the_limits_of_rotads_configuration_count_from_the_first_answer_on(self):
        for table in "process", "session", "user":
            self.end_children()
            self.environment["ROTA_SOCKET"] = str(self.scratch / f"{table}.sock")
            self.environment["ROTA_LOCK_DIRECTORY"] = str(self.scratch / f"locks-{table}")
            self.configured(f"[limits.{table}]\ngpu = '{LIMIT}'\n")
            for mode in MODES:
                with self.subTest(table=table, mode=mode):
                    for free, total in self.told([ROTA, "run", "--memory", mode, "--"]):
                        self.check_free(mode, free, LIMIT - CONTEXT)
                        self.assertEqual(total, LIMIT)

    # ctest labels: unsanitized
    def test_what_is_told_where_nothing_measures_contexts_can_be_had_under_every_limit(self):
        # What is assumed for a context is left out of what is free, whoever has set the limit.
        self.environment["LD_LIBRARY_PATH"] = self.environment["LD_LIBRARY_PATH"].rpartition(":")[0]
        assumed = 32 * MIB
        for source in ("ROTA_GPU_MEM_LIMIT", "--gpu-mem", "process", "session", "user"):
            self.end_children()
            self.environment["ROTA_SOCKET"] = str(self.scratch / f"{source}.sock")
            self.environment["ROTA_LOCK_DIRECTORY"] = str(self.scratch / f"locks-{source}")
            self.configured(f"[limits.{source}]\ngpu = '{LIMIT}'\n" if source.islower() and source.isalpha() else "")
            options = ["--gpu-mem", str(LIMIT)] if source == "--gpu-mem" else []
            environment = {source: str(LIMIT)} if source.isupper() else {}
            for mode in MODES:
                with self.subTest(source=source, mode=mode):
                    for free, total in self.told([ROTA, "run", "--memory", mode, *options, "--"], **environment):
                        self.check_free(mode, free, LIMIT - assumed)
                        self.assertEqual(total, LIMIT)

    # ctest labels: unsanitized
    def test_the_lower_of_two_limits_counts_from_the_first_answer_on(self):
        self.configured(f"[limits.user]\ngpu = '{LIMIT + 100 * MIB}'\n")
        for mode, (own, session) in itertools.product(MODES, ((LIMIT, LIMIT + 50 * MIB), (LIMIT + 50 * MIB, LIMIT), (LIMIT + 200 * MIB, 0))):
            most = min(own, session or own, LIMIT + 100 * MIB)
            with self.subTest(mode=mode, own=own, session=session):
                options = ["--gpu-mem", str(session)] if session else []
                for free, total in self.told([ROTA, "run", "--memory", mode, *options, "--"], ROTA_GPU_MEM_LIMIT=str(own)):
                    self.check_free(mode, free, most - CONTEXT)
                    self.assertEqual(total, most)

    # ctest labels: unsanitized
    def test_what_others_of_a_session_have_is_not_free(self):
        # Both are in the session that the shell is in; their contexts count, too.
        program = f"""
import subprocess, sys
holder = subprocess.Popen([sys.executable, "-c", sys.argv[1], "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert holder.stdout.readline() == "ready\\n"
print(subprocess.run([sys.executable, "-c", sys.argv[2], "{ROUNDS}"], stdout=subprocess.PIPE, text=True, check=True).stdout)
holder.communicate()
"""
        for mode in MODES:
            with self.subTest(mode=mode):
                result = self.checked(ROTA, "run", "--memory", mode, "--gpu-mem", str(LIMIT), "--", sys.executable, "-c", program, HOLDS, TAKES)
                for free, total in json.loads(result.stdout):
                    # rotad grants in steps of a 64th of the GPU: the other may have a little more than it has taken.
                    self.check_free(mode, free, LIMIT - 2 * CONTEXT - 60 * MIB if free > LIMIT - 2 * CONTEXT - 64 * MIB else
                                    LIMIT - 2 * CONTEXT - 64 * MIB)
                    self.assertEqual(total, LIMIT)

    # ctest labels: unsanitized
    def test_what_programs_without_rota_have_is_not_free(self):
        self.holder([], 150)
        for mode, limit in itertools.product(MODES, (None, 400 * MIB)):
            with self.subTest(mode=mode, limit=limit):
                options = ["--gpu-mem", str(limit)] if limit else []
                for free, _ in self.told([ROTA, "run", "--memory", mode, *options, "--"]):
                    self.check_free(mode, free, 512 * MIB - 150 * MIB - 2 * CONTEXT)

    # ctest labels: unsanitized
    def test_what_programs_under_rota_have_is_free_as_far_as_it_can_leave(self):
        for mode, stays in ("managed", "managed"), ("swap", "swap"), ("managed", "native"), ("swap", "native"):
            with self.subTest(mode=mode, other=stays):
                other = self.holder([ROTA, "run", "--memory", stays, "--"], 150)
                fixed = 150 * MIB if stays == "native" else 0
                for free, _ in self.told([ROTA, "run", "--memory", mode, "--"], 1):
                    self.assertLessEqual(free, 512 * MIB - 2 * CONTEXT - fixed)
                    self.assertGreaterEqual(free, 512 * MIB - 2 * CONTEXT - fixed - 16 * MIB)
                self.assertEqual(self.finish(other).returncode, 0)

    # ctest labels: unsanitized
    def test_without_a_rotad_free_is_what_the_limit_and_the_driver_leave(self):
        self.environment["LD_PRELOAD"] = str(SHIMS / "librota.so")
        assumed = 32 * MIB
        ballast = self.holder([], 150, LD_PRELOAD="")
        for mode, limit in itertools.product((*MODES, ""), (None, LIMIT, 400 * MIB)):
            with self.subTest(mode=mode, limit=limit):
                environment = {"ROTA_GPU_MEM_LIMIT": str(limit)} if limit else {}
                for free, _ in self.told([], ROTA_MEMORY=mode, **environment):
                    self.assertLessEqual(free, 512 * MIB - 150 * MIB - 2 * CONTEXT)
                    self.assertLessEqual(free, (limit or 512 * MIB) - assumed)
                    self.assertGreaterEqual(free, min(512 * MIB - 150 * MIB - 2 * CONTEXT, (limit or 512 * MIB) - assumed) - 4 * MIB)
        self.assertEqual(self.finish(ballast).returncode, 0)

    # ctest labels: unsanitized
    def test_nvml_says_the_same_under_a_limit(self):
        for mode, source in itertools.product(MODES, ("--gpu-mem", "ROTA_GPU_MEM_LIMIT")):
            with self.subTest(mode=mode, source=source):
                options = ["--gpu-mem", str(LIMIT)] if source == "--gpu-mem" else []
                environment = {source: str(LIMIT)} if source.isupper() else {}
                result = self.checked(ROTA, "run", "--memory", mode, *options, "--", sys.executable, "-c", BY_NVML, **environment)
                (before, after, cuda) = json.loads(result.stdout)
                self.assertEqual(before, [LIMIT, LIMIT, 0])
                self.check_free(mode, cuda[0], LIMIT - CONTEXT)
                self.assertEqual(after, [LIMIT, cuda[0], LIMIT - cuda[0]])

    # ctest labels: unsanitized
    def test_nvml_leaves_out_what_programs_without_rota_have_before_there_is_a_context(self):
        self.holder([], 250)
        for others in (None, [ROTA, "run", "--memory", "managed", "--"]):
            if others:
                self.holder(others, 40)
            for mode in MODES:
                with self.subTest(mode=mode, others=others):
                    result = self.checked(ROTA, "run", "--memory", mode, "--gpu-mem", str(LIMIT), "--", sys.executable, "-c", BY_NVML)
                    before, after, cuda = json.loads(result.stdout)
                    self.assertLessEqual(before[1], 512 * MIB - 250 * MIB - (1 + bool(others)) * CONTEXT)
                    self.assertLessEqual(after[1], cuda[0])
                    self.assertLessEqual(cuda[0], 512 * MIB - 250 * MIB - (2 + bool(others)) * CONTEXT)

    # ctest labels: unsanitized
    def test_a_rotad_that_is_stopped_is_waited_for_once_and_no_more_is_said_than_is_known(self):
        daemon = self.start_daemon()
        program = BEGIN + r"""
import os, signal
start()
os.kill(int(sys.argv[1]), signal.SIGSTOP)
begun = time.monotonic()
first = told()
between = time.monotonic()
others = [told() for _ in range(20)]
print(json.dumps([between - begun, time.monotonic() - between, first, max(others)]))
os.kill(int(sys.argv[1]), signal.SIGCONT)
"""
        result = self.checked(ROTA, "run", "--memory", "native", "--gpu-mem", str(LIMIT), "--", sys.executable, "-c", program, daemon.pid)
        first, later, told, most = json.loads(result.stdout)
        self.assertLess(later, 20 * 0.2, "each answer waited")
        self.assertLessEqual(told[0], LIMIT - 32 * MIB)  # what is assumed for a context that nobody has measured
        self.assertLessEqual(most[0], LIMIT - 32 * MIB)
