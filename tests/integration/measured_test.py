"""What rotad measures through NVML, and the effects on `rota status`, on what programs see, and on limits. The NVML is
simgpu's, which reports its drivers' shared state; without it rotad believes the programs and assumes the rest."""
import os
import subprocess
import sys
import time

from harness import Case, PROGRAMS, ROOT, ROTA, ROTAD, SHIMS

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

# Until the context has been measured, free memory is everything except what rotad assumes for it.
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

# A second context stands for memory that no program has allocated.
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


# What a context had is there again as soon as it has ended: nobody has to wait for the next readings.
ENDS_ONE = BEGIN + r"""
kept = start()
ended = start()
eventually(lambda: told() == (20 * MIB, 100 * MIB))
assert allocate(60 * MIB) == 2
check(cuda.cuCtxDestroy_v2(ended))
check(cuda.cuCtxSetCurrent(kept))
check(allocate(56 * MIB))  # extents bring something with them
assert allocate(8 * MIB) == 2
"""


# A program without rota: a context and other memory.
BALLAST = BEGIN + r"""
start()
check(allocate(int(sys.argv[1]) * MIB))
hold()
"""

ENDS_CONTEXT = BEGIN + r"""
context = start()
print("ready", flush=True)
sys.stdin.readline()
check(cuda.cuCtxDestroy_v2(context))
hold()
"""


class Machine(Case):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_CONTEXT_BYTES"] = str(CONTEXT)

    def with_nvml(self):
        nvml = SHIMS / "simgpu/nvml"
        self.assertTrue((nvml / "libnvidia-ml.so.1").exists(), "build the target simgpu_nvml")
        self.environment["LD_LIBRARY_PATH"] += f":{nvml}"


class Measured(Machine):
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
    def test_gpus_have_nvidia_smis_numbers_whatever_a_program_sees_of_them(self):
        self.environment["ROTA_SIM_GPUS"] = "2"
        # By itself a program knows the order of what it sees; NVML knows the GPUs that it does not see.
        for measured, visible in (False, "1,0"), (True, "1"):
            with self.subTest(measured=measured):
                if measured:
                    self.end_children()
                    self.with_nvml()
                    self.environment["ROTA_SOCKET"] = str(self.scratch / "another.sock")
                    self.environment["ROTA_LOCK_DIRECTORY"] = str(self.scratch / "other-locks")
                self.environment["CUDA_VISIBLE_DEVICES"] = visible
                holder = self.hold("native")
                del self.environment["CUDA_VISIBLE_DEVICES"]
                gpu, _ = self.status_of(holder)
                self.assertEqual(gpu["index"], 1)
                self.assertRegex(self.checked(ROTA, "status").stdout, rf"\nGPU 1  .*{gpu['uuid']}\n")
                self.assertEqual(self.finish(holder).returncode, 0)

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
                # Native memory is the driver's own, and the driver knows the size of its contexts.
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
    def test_a_program_whose_context_has_ended_has_nothing_there(self):
        self.with_nvml()
        holder = self.start(ROTA, "run", "--", sys.executable, "-c", ENDS_CONTEXT)
        self.assertEqual(holder.stdout.readline(), "ready\n")
        self.eventually(lambda: self.status_of(holder)[1]["driver_bytes"] == CONTEXT, "the process is measured")
        holder.stdin.write("\n")
        holder.stdin.flush()
        self.assertEqual(holder.stdout.readline(), "ready\n")
        self.eventually(lambda: self.status_of(holder)[1]["driver_bytes"] == 0, "that it has ended is measured")
        self.assertLess(self.status_of(holder)[1]["context_bytes"], MIB)
        self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_a_limit_includes_what_is_measured(self):
        self.with_nvml()
        for mode in ("managed", "native"):
            with self.subTest(mode=mode):
                said = self.run_python(LIMITED, options=["--gpu-mem", "100M"], ROTA_MEMORY=mode).stderr
                self.assertRegex(said, r"may have 100 MiB on each GPU; 40 MiB are in use, 40 MiB by contexts and modules")

    # ctest labels: unsanitized
    def test_what_an_ended_context_had_under_a_limit_can_be_allocated_at_once(self):
        self.with_nvml()
        for mode in ("managed", "swap", "native"):
            with self.subTest(mode=mode):
                self.run_python(ENDS_ONE, options=["--gpu-mem", "100M"], ROTA_MEMORY=mode)

    # ctest labels: unsanitized
    def test_a_context_for_which_there_is_no_memory_is_made_once_others_have_left_the_gpu(self):
        # On the first request the driver has none.
        result = self.run_python(BEGIN + "start()\nprint(told()[1])", ROTA_LOG="info",
                                 ROTA_SIM_FAULTS="cuCtxCreate@1=CUDA_ERROR_OUT_OF_MEMORY")
        self.assertEqual(result.stdout, f"{256 * MIB}\n")
        self.assertIn("the other programs on it are evicting theirs", result.stderr)

    # ctest labels: unsanitized
    def test_streams_and_events_for_which_there_is_no_memory_are_made_once_others_have_left_the_gpu(self):
        for made in ("cuStreamCreate", "cuEventCreate"):
            with self.subTest(made):
                result = self.run_python(BEGIN + f"start()\nmade = ctypes.c_void_p()\nprint(cuda.{made}(ctypes.byref(made), 0))",
                                         ROTA_LOG="info", ROTA_SIM_FAULTS=f"{made}@1=CUDA_ERROR_OUT_OF_MEMORY")
                self.assertEqual(result.stdout, "0\n")
                self.assertIn("the other programs on it are evicting theirs", result.stderr)


class Outside(Machine):
    """Alongside programs that use the GPU without rota. Of 512 MiB two programs of 160 MiB each, with contexts of 40, have enough,
    but not beside a ballast of 100 with a context of its own."""
    memory = "512M"
    SCALE = "2"  # real seconds per modelled second: turns end while the programs still work

    def setUp(self):
        super().setUp()
        self.with_nvml()
        self.log = self.scratch / "events"

    def rotad(self):
        self.daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks", "--quantum", "50ms",
                   "--grace", "2s", "--event-log", self.log, ROTA_SIM_TIME_SCALE=self.SCALE)
        self.eventually(lambda: self.status() is not None, "rotad answers")

    def ballast(self):
        ballast = self.start(sys.executable, "-c", BALLAST, "100", ROTA_SIM_TIME_SCALE=self.SCALE)
        self.assertEqual(ballast.stdout.readline(), "ready\n")
        return ballast

    def hogs(self, mode, *options):
        hogs = [self.start(ROTA, "run", "--memory", mode, *options, "--", PROGRAMS / "memhog", "--bytes", "160M", "--hold", "--ahead", "20",
                           ROTA_SIM_TIME_SCALE=self.SCALE) for _ in range(2)]
        for hog in hogs:
            self.assertEqual(hog.stdout.readline(), "ready\n")
        return hogs

    def right(self, hogs):
        for hog in hogs:
            result = self.finish(hog)
            self.assertEqual(result.returncode, 0, result.stderr[-2000:])
            self.assertIn('"wrong":0', result.stdout)

    def take_turns(self):
        grants = self.status()["daemon"]["grants"]
        self.eventually(lambda: self.status()["daemon"]["grants"] >= grants + 6, "they take turns")

    def run_together(self):
        def both_hold():
            return [client["holds"] for client in self.clients()] == [True, True]
        # Checked for longer than a turn: neither program is about to lose the GPU.
        self.eventually(lambda: both_hold() and self.grants_stay(), "they run together")

    def grants_stay(self):
        grants = self.status()["daemon"]["grants"]
        until = time.monotonic() + 1  # four turns
        while time.monotonic() < until:
            if self.status()["daemon"]["grants"] != grants:
                return False
        return True

    def end_ballast(self, ballast):
        self.assertEqual(self.finish(ballast).returncode, 0)

    def never_too_much(self):
        """From rotad's log; stops rotad."""
        self.daemon.terminate()
        self.daemon.wait()
        said = subprocess.run([ROOT / "tests/programs/promises", self.log], capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", self.log).stdout)

    # ctest labels: unsanitized
    def test_members_of_a_gang_that_do_not_fit_beside_others_take_turns_by_themselves(self):
        self.rotad()
        ballast = self.ballast()
        hogs = self.hogs("swap", "--gang", "job")
        self.take_turns()
        self.right(hogs)
        self.end_ballast(ballast)
        self.daemon.terminate()
        self.assertIn("does not fit there", self.finish(self.daemon).stderr)

    # ctest labels: unsanitized
    def test_two_that_do_not_fit_beside_others_take_turns_from_the_first_on_and_go_together_when_those_have_gone(self):
        for mode in ("managed", "swap"):
            with self.subTest(mode=mode):
                self.rotad()
                ballast = self.ballast()
                hogs = self.hogs(mode)
                self.take_turns()
                self.assertEqual(self.status()["gpus"][0]["outside_bytes"], 140 * MIB)
                self.assertIn("140 MiB by other programs", self.checked(ROTA, "status").stdout)
                self.end_ballast(ballast)
                self.run_together()
                self.right(hogs)
                self.never_too_much()

    # ctest labels: unsanitized
    def test_two_that_run_together_take_turns_once_another_program_has_come_beside_them(self):
        self.rotad()
        hogs = self.hogs("managed")
        self.run_together()
        ballast = self.ballast()
        self.take_turns()
        self.end_ballast(ballast)
        self.run_together()
        self.right(hogs)
        self.never_too_much()
