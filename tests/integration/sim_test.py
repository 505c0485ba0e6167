"""`rota sim`: a machine of simulated GPUs for one command, and faults on demand."""
import json
import os
import pathlib
import shutil
import signal

from harness import PROGRAMS, ROTA, SHIMS
from sim_case import SimCase, program


class RotaSim(SimCase):
    # ctest labels: unsanitized
    def test_the_machine_is_as_asked_for(self):
        facts = self.asked(["--gpu", "a100x2", "--memory", "3G", "--driver", "12.4"], """
context()
count, version, total, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(100)
call("cuDeviceGetCount", ctypes.byref(count))
call("cuDriverGetVersion", ctypes.byref(version))
call("cuDeviceTotalMem_v2", ctypes.byref(total), 1)
call("cuDeviceGetName", name, 100, 1)
print(json.dumps([count.value, version.value, total.value, name.value.decode(), hasattr(cuda, "cuCtxRecordEvent"), hasattr(cuda, "cuGreenCtxCreate")]))
""")
        self.assertEqual(facts[:3], [2, 12040, 3 << 30])
        self.assertIn("A100", facts[3])
        self.assertEqual(facts[4:], [False, True], "12.4 has green contexts, and cuCtxRecordEvent came with 12.5")

    # ctest labels: unsanitized
    def test_without_options_it_is_one_h200_with_all_its_memory(self):
        name, total = self.asked([], """
context()
total, name = ctypes.c_size_t(), ctypes.create_string_buffer(100)
call("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
call("cuDeviceGetName", name, 100, 0)
print(json.dumps([name.value.decode(), total.value]))
""")
        self.assertIn("H200", name)
        self.assertGreater(total, 130 << 30)

    def test_the_programs_exit_status_is_its_own(self):
        self.assertEqual(self.sim("--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(self.sim("--", "sh", "-c", "kill -TERM $$").returncode, -signal.SIGTERM)
        missing = self.sim("--", "no-such-program")
        self.assertEqual(missing.returncode, 127)
        self.assertIn("no-such-program: command not found", missing.stderr)

    def test_it_is_the_real_driver_of_rota_run(self):
        result = self.sim("--memory", "256M", "--", ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.6", "--rounds", "2", "--managed")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["wrong"], 0)

    # ctest labels: unsanitized
    def test_nvml_tells_of_the_machine_programs_and_rotad_alike(self):
        # As nvidia-smi would query it.
        ask = """
import os
assert context() == 0
nvml, device, uuid, words, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.create_string_buffer(96), (ctypes.c_uint64 * 3)(), ctypes.c_uint()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(count.value - 1, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, words) == 0
print(json.dumps([count.value, words[0]]), flush=True)
"""
        for driver in [], ["--driver", "12.4"]:
            self.assertEqual(self.asked(["--gpu", "h200x2", "--memory", "256M", *driver], ask), [2, 256 << 20])
        measured = """
import subprocess, time
assert context() == 0
until = time.monotonic() + 60
while True:
    gpus = json.loads(subprocess.run([sys.argv[1], "status", "--json"], check=True, capture_output=True, text=True).stdout)["gpus"]
    # None until rotad knows of the context.
    if gpus and gpus[0]["source"] == "measured": break
    assert time.monotonic() < until, gpus
[gpu] = gpus
print(json.dumps(gpu["driver_used_bytes"] + gpu["driver_free_bytes"]))
"""
        result = self.sim("--memory", "256M", "--", ROTA, "run", "--", *program(measured), ROTA)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout), 256 << 20)

    # ctest labels: unsanitized
    def test_commands_that_name_one_state_share_a_machine(self):
        options = ["sim", "--memory", "256M", "--state", str(self.scratch / "machine"), "--"]
        holder = self.start(ROTA, *options, *program("""
import os
context()
print(allocate(200 << 20)[0], os.getpid(), flush=True)
sys.stdin.read()
"""))
        result, process = map(int, holder.stdout.readline().split())
        self.assertEqual(result, 0)
        refused = self.call(ROTA, *options, *program("context()\nprint(allocate(100 << 20)[0])"))
        self.assertEqual(refused.stdout.strip(), "2", refused.stderr)
        # When killed, it leaves nothing behind: its bytes are free for the next one.
        os.kill(process, signal.SIGKILL)
        self.assertEqual(self.finish(holder).returncode, -signal.SIGKILL)
        again = self.call(ROTA, *options, *program("context()\nprint(allocate(100 << 20)[0])"))
        self.assertEqual(again.stdout.strip(), "0", again.stderr)

    # ctest labels: unsanitized
    def test_a_process_killed_in_mid_copy_leaves_nothing_behind(self):
        options = ["--memory", "256M", "--state", str(self.scratch / "machine"), "--"]
        copying = self.start(ROTA, "sim", "--fault", "copies=100000", *options, *program("""
import os
context()
result, device = allocate(200 << 20)
host = ctypes.c_void_p()
call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(64 << 20), 0)
print(call("cuMemcpyHtoDAsync_v2", device, host, ctypes.c_size_t(64 << 20), None), call("cuStreamQuery", None), os.getpid(), flush=True)
call("cuCtxSynchronize")
"""))
        queued, running, process = map(int, copying.stdout.readline().split())
        self.assertEqual((queued, running), (0, 600), "the copy is under way")
        os.kill(process, signal.SIGKILL)
        self.assertEqual(self.finish(copying).returncode, -signal.SIGKILL)
        # Its memory is free, and the copy engine, booked for two minutes, takes the next copy at once.
        after = self.call(ROTA, "sim", *options, *program("""
context()
result, device = allocate(200 << 20)
word = ctypes.c_uint(7)
print(result, call("cuMemcpyHtoD_v2", device, ctypes.byref(word), ctypes.c_size_t(4)))
"""))
        self.assertEqual(after.stdout.split(), ["0", "0"], after.stderr)

    # ctest labels: unsanitized
    def test_the_call_that_a_fault_names_fails_and_no_other(self):
        results = self.asked(["--fault", "cuMemAlloc@2=CUDA_ERROR_OUT_OF_MEMORY", "--fault", "cuMemAlloc@4+=999"], """
context()
print(json.dumps([allocate(4096)[0] for _ in range(5)]))
""")
        self.assertEqual(results, [0, 2, 0, 999, 999])

    # ctest labels: unsanitized
    def test_a_sticky_fault_stays_with_the_context(self):
        results = self.asked(["--fault", "cuMemsetD8@1=sticky:CUDA_ERROR_ILLEGAL_ADDRESS"], """
context()
address = allocate(4096)[1]
print(json.dumps([call("cuMemsetD8_v2", address, 0, ctypes.c_size_t(16)), call("cuCtxSynchronize"), allocate(4096)[0]]))
""")
        self.assertEqual(results, [0, 700, 700])

    # ctest labels: unsanitized
    def test_a_gpu_that_falls_off_the_bus_is_lost_to_every_process(self):
        options = ["sim", "--memory", "256M", "--state", str(self.scratch / "machine"), "--"]
        witness = self.start(ROTA, *options, *program("""
print(context(), flush=True)
sys.stdin.readline()
print(call("cuCtxSynchronize"), context(), flush=True)
"""))
        self.assertEqual(witness.stdout.readline().strip(), "0")
        culprit = self.call(ROTA, "sim", "--fault", "cuCtxSynchronize@1=lost", *options[1:],
                            *program("context()\nprint(call('cuCtxSynchronize'), call('cuCtxSynchronize'))"))
        self.assertEqual(culprit.stdout.strip(), "0 999", culprit.stderr)
        witness.stdin.write("\n")
        witness.stdin.flush()
        self.assertEqual(witness.stdout.readline().split()[0], "999")
        self.finish(witness)
        # No process uses the machine any more: the next one finds it repaired.
        self.assertEqual(self.call(ROTA, *options, *program("print(context())")).stdout.strip(), "0")

    # ctest labels: unsanitized
    def test_slow_copies_take_so_much_longer(self):
        def milliseconds(*options):
            return self.asked(["--virtual-clock", *options], """
context()
events = [ctypes.c_void_p(), ctypes.c_void_p()]
for event in events: call("cuEventCreate", ctypes.byref(event), 0)
host = ctypes.c_void_p()
call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(64 << 20), 0)
result, device = allocate(64 << 20)
call("cuEventRecord", events[0], None)
call("cuMemcpyHtoDAsync_v2", device, host, ctypes.c_size_t(64 << 20), None)
call("cuEventRecord", events[1], None)
call("cuCtxSynchronize")
elapsed = ctypes.c_float()
assert call("cuEventElapsedTime", ctypes.byref(elapsed), events[0], events[1]) == 0
print(elapsed.value)
""")
        self.assertAlmostEqual(milliseconds("--fault", "copies=4") / milliseconds(), 4, delta=0.1)

    # ctest labels: unsanitized
    def test_what_is_not_simulated_is_named_at_the_end(self):
        result = self.sim("--", *program("""
context()
state = ctypes.c_void_p()
for _ in range(3): assert call("cuLinkCreate_v2", 0, None, None, ctypes.byref(state)) == 801
"""))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("cuLinkCreate_v2 (3 times)", result.stderr)

    def test_bad_input_names_what_is_wrong_and_starts_nothing(self):
        text = self.scratch / "text.so"
        text.write_text("no library")
        for options, named in {
            ("--kernels", str(text)): "text.so",
            ("--kernels", str(SHIMS / "simgpu/libcudart.so.13")): "registers no kernels",
            ("--gpu", "h200x9"): "h200x9",
            ("--gpu", "h300"): "there is no card 'h300': use h200, ",
            ("--gpu", "2"): "h200x2",
            ("--gpu", ""): "--gpu",
            ("--memory", "much"): "much",
            ("--driver", "3.2"): "3.2",
            ("--fault", "cuNothing@1=2"): "cuNothing",
            ("--fault", "cuMemAlloc@0=2"): "cuMemAlloc@0",
            ("--fault", "cuMemAlloc@1=CUDA_ERROR_NONE"): "CUDA_ERROR_NONE",
            ("--fault", "copies=0.5"): "copies=0.5",
            ("--time-scale", "fast"): "fast",
            ("--time-scale", "0.0001"): "--time-scale: '0.0001' is not a time scale: use 0, or a number from 0.001 to 1000000",
            ("--time-scale", "1e-9"): "1e-9",
            ("--time-scale", "nan"): "nan",
            ("--profile", str(self.scratch / "nothing.toml")): "nothing.toml",
        }.items():
            with self.subTest(options=options):
                self.refused(named, *options)

    def test_a_relative_path_in_a_folder_that_is_gone_is_named(self):
        gone = self.scratch / "gone"
        for option, path in ("--state", "x"), ("--kernels", "../mk.so"), ("--profile", "../p1.toml"):
            with self.subTest(option=option):
                shutil.copy(SHIMS / "simgpu/libsimkernels.so", self.scratch / "mk.so")
                (self.scratch / "p1.toml").write_text('base = "t4"')
                gone.mkdir()
                result = self.call("sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', gone, ROTA, "sim", option, path, "--", "true")
                self.assertEqual(result.returncode, 125, result.stderr)
                self.assertIn(path, result.stderr)
                self.assertEqual(list(self.temporary.iterdir()), [])

    # ctest labels: unsanitized
    def test_a_path_that_a_list_would_split_is_used_all_the_same(self):
        for name in "a:b", "a;b", "a b":
            with self.subTest(name=name):
                self.temporary = self.scratch / name
                self.temporary.mkdir()
                self.environment["TMPDIR"] = str(self.temporary)
                kernels = self.scratch / f"kernels {name}"
                kernels.mkdir()
                shutil.copy(SHIMS / "simgpu/libsimkernels.so", kernels / "mk.so")
                version = self.asked(["--driver", "12.4", "--kernels", str(kernels / "mk.so")], """
version = ctypes.c_int()
call("cuDriverGetVersion", ctypes.byref(version))
print(version.value)
""")
                self.assertEqual(version, 12040)

    def test_a_state_that_cannot_be_used_is_named_and_left_alone(self):
        text = self.scratch / "text"
        text.write_text("no state at all, and somebody's")
        fifo = self.scratch / "fifo"
        os.mkfifo(fifo)
        for path in "", "/nonexistent/x", self.scratch, "/dev/null", fifo, text, self.scratch / ("x" * 300):
            with self.subTest(path=path):
                result = self.refused("--state", "--state", path)
                self.assertNotIn("remove", result.stderr)
        self.assertEqual(text.read_text(), "no state at all, and somebody's")
        text.write_text("")
        self.assertEqual(self.sim("--state", text, "--", "true").returncode, 0)

    # ctest labels: unsanitized
    def test_a_state_of_another_version_is_named(self):
        state = self.scratch / "machine"
        use = [ROTA, "sim", "--state", state, "--", *program("print(context())")]
        for _ in range(2):
            self.assertEqual(self.checked(*use).stdout.strip(), "0")
        with open(state, "r+b") as file:
            file.seek(8)  # the version, behind eight bytes of magic
            file.write(b"\xff\xff")
        self.refused("another version", "--state", state)

    # ctest labels: unsanitized
    def test_variables_that_say_otherwise_do_not_reach_the_machine(self):
        result = self.sim("--", *program("print(context())"), ROTA_SIM_MUTATIONS="no-such", ROTA_SIM_FAULTS="no-such", ROTA_SIM_GPUS="0")
        self.assertEqual(result.stdout.strip(), "0", result.stderr)
        self.assertEqual(result.stderr, "")
        self.refused("ROTA_SIM_KERNELS: ", ROTA_SIM_KERNELS=str(self.scratch / "nothing.so"))

    # ctest labels: unsanitized
    def test_a_profile_of_ones_own_is_used(self):
        profile = self.scratch / "card.toml"
        shipped = pathlib.Path(__file__).resolve().parents[2] / "tools/simgpu/profiles/t4.toml"
        profile.write_text(shipped.read_text().replace("Tesla T4", "Card of Mine"))
        name = self.asked(["--profile", str(profile)], """
context()
name = ctypes.create_string_buffer(100)
call("cuDeviceGetName", name, 100, 0)
print(json.dumps(name.value.decode()))
""")
        self.assertEqual(name, "Card of Mine")
