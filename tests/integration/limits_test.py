"""Limits that programs share: of a session opened by `rota run`, of a user (in rotad.toml), and of the host's memory."""
import json
import os
import pathlib
import pwd
import re
import sys

from harness import PROGRAMS, ROTA, SHIMS, Case

MEMHOG = PROGRAMS / "memhog"
MIB = 1 << 20

# Runs in a session, which `rota run` without limits of its own does not leave: a program holds `first` MiB while others try `sizes` one after the other. Prints their exit codes.
TOGETHER = """
import os, subprocess, sys
rota, memhog, first, *sizes = sys.argv[1:]
os.environ.pop("LD_PRELOAD", None)  # sanitized programs want their runtime in front of it, as `rota run` puts it

def hog(size, *more):
    return [rota, "run", "--", memhog, "--bytes", size + "M", "--rounds", "1", *more]

holder = subprocess.Popen(hog(first, "--hold"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert holder.stdout.readline().startswith("ready"), "the first program did not get its memory"
print("codes", *(subprocess.call(hog(size), stdout=subprocess.DEVNULL) for size in sizes))
holder.communicate()
print("after", subprocess.call(hog(first), stdout=subprocess.DEVNULL))
"""


# The size of GPU 0 from cuDeviceTotalMem before and after a context exists, from cuMemGetInfo, and from NVML.
SIZE = """
import ctypes, json
cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
def check(result):
    assert result == 0, result
def size():
    bytes = ctypes.c_size_t()
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(bytes), 0))
    return bytes.value
check(cuda.cuInit(0))
before, context, free, total = size(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
device, words = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
check(nvml.nvmlInit_v2())
check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
check(nvml.nvmlDeviceGetMemoryInfo(device, words))
print(json.dumps([before, [size(), total.value], words[0]]))
"""


class Limits(Case):
    def together(self, options, first, *sizes, **environment):
        """The exit codes of programs of these sizes (MiB) alongside the first one, and their output."""
        result = self.checked(ROTA, "run", *options, "--", sys.executable, "-c", TOGETHER, ROTA, MEMHOG, first, *sizes,
                              **environment)
        words = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
        self.assertEqual(words["after"], "0", "what a program had is not there after its end")
        return [int(code) for code in words["codes"].split()], result.stderr

    def test_all_that_a_session_starts_share_its_limit(self):
        codes, said = self.together(["--gpu-mem", "100M"], 60, 60, 30)
        self.assertNotEqual(codes[0], 0)
        self.assertEqual(codes[1], 0, said)
        self.assertRegex(said, r"GPU 0 is out of memory: session \w+ may have 100 MiB on each GPU; \d+ MiB are in use.* \d+ MiB more "
                               r"were requested: raise `rota run --gpu-mem`")

    def test_in_a_slurm_job_a_refusal_names_what_to_ask_slurm_for(self):
        _, said = self.together([], 60, 60, 30, ROTA_SESSION=f"slurm-4711.0,gpu={100 << 20}")
        self.assertRegex(said, r"session \S+ may have 100 MiB on each GPU; .* were requested: ask Slurm for more: `--gres=shard:N`")
        self.assertNotIn("--gpu-mem", said)
        # The task's own limit, as tools/guides/examples/task-prolog sets it.
        result = self.call(ROTA, "run", "--", MEMHOG, "--bytes", "200M", "--rounds", "1", ROTA_SESSION=f"slurm-4711.0,gpu={100 << 20}",
                           ROTA_GPU_MEM_LIMIT=str(100 << 20))
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("of the 100 MiB that the Slurm job's shards allow: ask Slurm for more: `--gres=shard:N`, or let", result.stderr)

    def test_native_memory_has_the_same_limit(self):
        codes, said = self.together(["--gpu-mem", "100M"], 60, 60, 30, ROTA_MEMORY="native")
        self.assertNotEqual(codes[0], 0)
        self.assertEqual(codes[1], 0, said)

    def test_a_limit_that_cannot_be_read_starts_nothing(self):
        touched = self.scratch / "touched"
        for text in "foo", "0", "-1", "8 G":
            for command in ["run"], ["trace", "--dir", self.scratch / "trace"]:
                with self.subTest(text=text, command=command):
                    result = self.call(ROTA, *command, "--", "touch", touched, ROTA_GPU_MEM_LIMIT=text)
                    self.assertEqual(result.returncode, 125)
                    self.assertEqual(result.stderr.splitlines()[0], f"rota: ROTA_GPU_MEM_LIMIT is '{text}', which is not a size: use bytes with an "
                                                                    "optional K, M, G or T, as in 8G, or unset it; the program is not started")
            option = self.call(ROTA, "run", "--gpu-mem", text, "--", "touch", touched)
            self.assertEqual(option.returncode, 125)
            self.assertIn(f"--gpu-mem: '{text}' is not an amount of memory", option.stderr)
        self.assertFalse(touched.exists())

    # ctest labels: unsanitized
    def test_a_limit_that_cannot_be_read_does_not_fail_open_in_a_preload(self):
        for text in "foo", "0", "-1":
            for memory in "native", "managed", "swap":
                with self.subTest(text=text, memory=memory):
                    result = self.call(MEMHOG, "--bytes", "1M", "--rounds", "1", LD_PRELOAD=str(SHIMS / "librota.so"),
                                       ROTA_GPU_MEM_LIMIT=text, ROTA_MEMORY=memory, ROTA_LOG="error")
                    self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", result.stderr)
                    self.assertEqual([line for line in result.stderr.splitlines() if line.startswith("rota: ")], [
                        f"rota: ROTA_GPU_MEM_LIMIT is '{text}', which is not a size: every allocation of GPU memory is refused; use bytes with an optional K, M, G "
                        "or T, as in 8G, or unset it"])

    # ctest labels: unsanitized
    def test_the_first_refusal_says_which_limit_what_is_in_use_and_what_was_asked_for(self):
        result = self.call(MEMHOG, "--bytes", "48M", "--rounds", "1", LD_PRELOAD=str(SHIMS / "librota.so"), ROTA_GPU_MEM_LIMIT="32mb",
                           ROTA_MEMORY="native")
        said = [line for line in result.stderr.splitlines() if line.startswith("rota: ")]
        self.assertEqual(len(said), 1, result.stderr)
        self.assertRegex(said[0], r"^rota: \d+ MiB on GPU 0 refused: this process has \d+ (MiB|KiB|bytes) of the 32 MiB that ROTA_GPU_MEM_LIMIT ")
        self.assertEqual(result.returncode, 2)

    def test_another_session_has_a_limit_of_its_own(self):
        holder = self.start(ROTA, "run", "--gpu-mem", "100M", "--", MEMHOG, "--bytes", "90M", "--rounds", "1", "--hold")
        self.assertTrue(holder.stdout.readline().startswith("ready"))
        self.checked(ROTA, "run", "--gpu-mem", "100M", "--", MEMHOG, "--bytes", "90M", "--rounds", "1")

    def test_a_session_within_a_session_has_both_limits(self):
        inner = [ROTA, "run", "--gpu-mem", "150M", "--", MEMHOG, "--rounds", "1"]
        self.checked(ROTA, "run", "--gpu-mem", "100M", "--", *inner, "--bytes", "90M")
        result = self.call(ROTA, "run", "--gpu-mem", "100M", "--", *inner, "--bytes", "120M")
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", result.stderr)

    def test_status_shows_who_is_limited_to_what(self):
        holder = self.start(ROTA, "run", "--gpu-mem", "100M", "--", MEMHOG, "--bytes", "90M", "--rounds", "1", "--hold")
        self.assertTrue(holder.stdout.readline().startswith("ready"))
        limits = json.loads(self.checked(ROTA, "status", "--json").stdout)["limits"]
        session = next(limit for limit in limits if limit["of"].startswith("session "))
        self.assertEqual(session["gpu_limit_bytes"], 100 * MIB)
        self.assertGreaterEqual(session["gpu_bytes"], 90 * MIB)
        self.assertIsNone(session["host_limit_bytes"])
        self.assertRegex(self.checked(ROTA, "status").stdout, r"session \w+, 1 program: +\d+ MiB of 100 MiB on each GPU")

    def test_what_may_lie_in_the_hosts_memory_is_limited(self):
        # A GPU of 256 MiB with two contexts of 16 MiB: 224 MiB fit, 20 MiB more may have to be in host memory.
        codes, said = self.together(["--memory", "managed", "--host-mem", "20M"], 150, 120, 80)
        self.assertNotEqual(codes[0], 0)
        self.assertEqual(codes[1], 0, said)
        self.assertIn("of GPU memory in host memory", said)

    def test_a_user_has_the_limit_that_rotads_configuration_sets(self):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text("[limits.user]\ngpu = '100M'\n")
        self.start_daemon("--config", configuration)
        holder = self.start(ROTA, "run", "--", MEMHOG, "--bytes", "60M", "--rounds", "1", "--hold")
        self.assertTrue(holder.stdout.readline().startswith("ready"))
        result = self.call(ROTA, "run", "--", MEMHOG, "--bytes", "60M", "--rounds", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"out of memory: user " + re.escape(pwd.getpwuid(os.getuid()).pw_name) + r" may have 100 MiB on each GPU; .*: raise gpu in limits.user of rotad.toml")
        self.checked(ROTA, "run", "--", MEMHOG, "--bytes", "30M", "--rounds", "1")

    # ctest labels: unsanitized
    def test_a_limit_of_rotads_configuration_is_the_size_of_the_gpu_for_cuda_and_nvml(self):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text("[limits.process]\ngpu = '100M'\n")
        self.start_daemon("--config", configuration)
        # NVML is rota's if the program has its own limit; a larger limit changes nothing.
        self.environment["LD_LIBRARY_PATH"] += f":{SHIMS / 'simgpu/nvml'}"
        for own in ("", "1G"):
            with self.subTest(own=own):
                result = self.checked(ROTA, "run", "--", sys.executable, "-c", SIZE, ROTA_GPU_MEM_LIMIT=own)
                size, sizes, nvml = json.loads(result.stdout)
                self.assertEqual((size, sizes), (100 * MIB, [100 * MIB, 100 * MIB]))
                self.assertEqual(nvml, 100 * MIB if own else 256 * MIB)

    def remove(self, cgroup):
        self.end_children()

        def removed():
            try:
                cgroup.rmdir()
            except OSError:
                return False  # what has been killed takes a moment to go
            return True
        self.eventually(removed, "the cgroup is empty")

    def cgroup(self, limit):
        """A separate cgroup with a memory limit in bytes; skips the test if none can be created."""
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = pathlib.Path("/sys/fs/cgroup/memory" if controllers else "/sys/fs/cgroup")
            made = root / path.lstrip("/") / f"rota-limits-{os.getpid()}"
            try:
                made.mkdir()
                self.addCleanup(self.remove, made)
                (made / ("memory.limit_in_bytes" if controllers else "memory.max")).write_text(str(limit))
                return made
            except OSError:
                continue
        self.skipTest("no cgroup with a limit on memory can be made here")

    def test_what_programs_are_promised_fits_the_memory_of_their_container(self):
        # Neither has used any of it yet when the second is refused: later the kernel would have to kill one.
        container = self.cgroup(400 * MIB)
        hog = ["sh", "-c", f"echo $$ > {container}/cgroup.procs && exec \"$@\"", "-", ROTA, "run", "--oversubscribe", "--", MEMHOG,
               "--rounds", "1", "--hold", "--untouched", "--bytes"]
        self.start_daemon()
        holder = self.start(*hog, "400M")
        self.assertTrue(holder.stdout.readline().startswith("ready"), "the first program was refused")
        result = self.call(*hog, "300M")
        self.assertGreater(result.returncode, 0)
        self.assertRegex(result.stderr, r"out of memory: cgroup \S*rota-limits-\d+ may have \d+ MiB of GPU memory in host memory, too little for "
                                        r"\d+ MiB more on this GPU: free memory in it, or let programs need less")
        small = self.start(*hog, "20M")
        self.assertTrue(small.stdout.readline().startswith("ready"))
        for program in (holder, small):
            self.assertEqual(self.finish(program).returncode, 0)

    def test_an_amount_that_is_none_is_refused_before_the_program_starts(self):
        for option in ("--gpu-mem", "--host-mem"):
            result = self.call(ROTA, "run", option, "lots", "--", "true")
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("'lots' is not an amount of memory", result.stderr)
