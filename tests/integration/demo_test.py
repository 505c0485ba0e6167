"""`rota demo`: programs that share a GPU, the machine's or a simulated one, and its report."""
import json
import os
import pathlib
import signal
import subprocess
import unittest

from harness import Case, ROOT, ROTA, SHIMS
from sim_case import SimCase

PROGRAM = SHIMS / "rota-demo"


def processes_with(text):
    """Command lines of processes whose environment contains the text, which holds for all that a test starts."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            pass  # it has ended
    return [command for command in found if command]


class Demo(SimCase):
    """No GPU except those of `rota sim`: the configured driver does not exist."""

    def setUp(self):
        super().setUp()
        # Nobody can write there, not even root.
        self.environment.update(ROTA_REAL_LIBCUDA=str(self.scratch / "nowhere"), HOME="/proc/nobody", XDG_CACHE_HOME="/proc/nobody/cache")
        self.environment.pop("ROTA_CACHE", None)

    def left_nothing(self):
        self.assertEqual(list(self.temporary.iterdir()), [])
        self.assertEqual(processes_with(str(self.temporary)), [])

    # ctest labels: unsanitized
    def test_without_a_gpu_one_copy_fails_natively_and_both_end_under_rota_on_a_simulated_one(self):
        result = self.checked(ROTA, "demo")
        self.assertIn("No GPU works here: no CUDA driver: ", result.stdout)
        self.assertIn("On a simulated NVIDIA H200 of 256 MiB: 2 copies of one small CUDA program, each with 153 MiB", result.stdout)
        self.assertRegex(result.stdout, r"  natively +copy 1 +(right|out of memory) ")
        self.assertRegex(result.stdout, r"  under rota +copy 1 +right +\d+\.\d\d s +\d+\.\d\d s +\d+\.\d\d s +153 MiB\n +copy 2 +right ")
        self.assertIn("Natively 1 of 2 finished. What the GPU had left was not enough for the other one: cuMemAlloc of 153 MiB: CUDA_ERROR_OUT_OF_MEMORY.\n",
                      result.stdout)
        self.assertRegex(result.stdout, r"Under rota both finished within \d+\.\d\d s, with 306 MiB on a GPU of 256 MiB\.\n")
        self.assertRegex(result.stdout, r"rotad gave out \d+ turns, and each copy waited \d+\.\d\d s on average\.\n")
        self.assertTrue(result.stdout.endswith("\nnext: rota run -- your program; rota status; man rota\n"), result.stdout)
        self.assertEqual(result.stderr, "")
        self.left_nothing()

    # ctest labels: unsanitized
    def test_json_has_every_copy_and_what_was_seen(self):
        said = json.loads(self.checked(ROTA, "demo", "--sim", "-n", "3", "--json").stdout)
        self.assertEqual((said["as_expected"], said["simulated"], said["no_gpu"], said["problems"]), (True, True, None, []))
        self.assertEqual((said["copies"], said["gpu"]["bytes"]), (3, 256 << 20))
        self.assertGreater(3 * said["bytes_each"], 256 << 20)
        natively = [copy["result"] for copy in said["natively"]["copies"]]
        self.assertIn("out of memory", natively)
        self.assertEqual(set(natively) - {"right", "out of memory"}, set())
        self.assertEqual([copy["result"] for copy in said["under_rota"]["copies"]], ["right"] * 3)
        for copy in said["under_rota"]["copies"]:
            self.assertEqual(copy["words_compared"], said["bytes_each"] // 4)
            self.assertGreater(copy["held_seconds"], 0)
        self.assertGreater(sum(copy["waited_seconds"] for copy in said["under_rota"]["copies"]), 0)
        self.assertGreaterEqual(said["under_rota"]["turns"], 3)
        self.assertTrue(said["under_rota"]["own_rotad"])
        self.left_nothing()

    # ctest labels: unsanitized
    def test_the_gpu_that_is_there_is_used_and_little_of_it(self):
        self.environment.pop("ROTA_REAL_LIBCUDA")
        said = json.loads(self.sim("--gpu", "h100", "--", ROTA, "demo", "--json").stdout)
        self.assertEqual((said["as_expected"], said["simulated"], said["no_gpu"], said["problems"]), (True, False, None, []))
        self.assertIn("NVIDIA H100", said["gpu"]["name"])
        self.assertLessEqual(2 * said["bytes_each"], 2 << 30)
        for way in "natively", "under_rota":
            self.assertEqual([(copy["result"], copy["words_compared"]) for copy in said[way]["copies"]],
                             [("right", said["bytes_each"] // 4)] * 2)
        self.left_nothing()

    # ctest labels: unsanitized
    def test_copies_that_fail_are_named_and_make_the_exit_code_1(self):
        self.environment.pop("ROTA_REAL_LIBCUDA")
        result = self.sim("--fault", "cuMemcpyDtoH_v2@1=CUDA_ERROR_LAUNCH_FAILED", "--", ROTA, "demo")
        self.assertEqual(result.returncode, 1, result.stdout)
        for way in "natively", "under rota":
            for copy in 1, 2:
                self.assertIn(f"rota demo: not as expected: {way} copy {copy} failed with exit code 1: cuMemcpyDtoH: CUDA_ERROR_LAUNCH_FAILED\n", result.stderr)
        self.assertIn("`rota doctor`", result.stderr)
        self.assertNotIn("next:", result.stdout)

    def test_a_gpu_without_room_is_named(self):
        self.environment.pop("ROTA_REAL_LIBCUDA")
        result = self.sim("--memory", "22M", "--", ROTA, "demo", "-n", "8")
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertRegex(result.stderr, r"^rota demo: NVIDIA H200 has only \d+ MiB free: end what uses it ")

    # ctest labels: unsanitized
    def test_ctrl_c_ends_all_that_it_started_and_takes_its_files_away(self):
        for reached in "rota-demo-*/natively-2.log", "rota-demo-*/rotad.sock":
            with self.subTest(reached):
                child = self.start(ROTA, "demo", "--sim")
                self.eventually(lambda: list(self.temporary.glob(reached)), reached)
                os.killpg(child.pid, signal.SIGINT)  # as a terminal does
                result = self.finish(child)
                self.assertEqual(result.returncode, -signal.SIGINT, result.stderr)
                self.assertIn("rota demo: ended by signal 2 (Interrupt)\n", result.stderr)
                self.assertNotIn("next:", result.stdout)
                self.left_nothing()

    def test_its_rotad_hears_signals(self):
        child = self.start(ROTA, "demo", "--sim")
        socket = self.eventually(lambda: list(self.temporary.glob("rota-demo-*/rotad.sock")), "its rotad listens")[0]
        asked = json.loads(self.eventually(lambda: self.call(ROTA, "status", "--json", ROTA_SOCKET=str(socket)).stdout, "it answers"))
        status = pathlib.Path(f"/proc/{asked['daemon']['pid']}/status").read_text()
        blocked = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")), 16)
        self.assertEqual(blocked & 1 << signal.SIGTERM - 1, 0)
        os.killpg(child.pid, signal.SIGTERM)
        self.assertEqual(self.finish(child).returncode, -signal.SIGTERM)
        self.left_nothing()

    # ctest labels: unsanitized
    def test_who_reads_no_more_of_it_leaves_nothing_behind_either(self):
        # Only the machine's GPUs are hidden: the simulated one stays visible.
        script = f"{ROTA} demo --sim 2>{self.scratch}/said | head -n 1; cat {self.scratch}/said >&2"
        result = self.checked("bash", "-c", script, CUDA_VISIBLE_DEVICES="")
        self.assertEqual((result.stdout.count("\n"), result.stderr), (1, ""))
        self.assertIn("On a simulated NVIDIA H200", result.stdout)
        self.left_nothing()

    def test_bad_input_is_named(self):
        for arguments, named in ((["-n", "1"], "'1' is not a number of copies: use 2 to 8"), (["-n", "9"], "'9'"), (["-n", "two"], "'two'"),
                                 (["--gpu", "3"], "--gpu"), (["./program"], "./program")):
            with self.subTest(arguments):
                result = self.call(ROTA, "demo", *arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertIn(named, result.stderr)

    def test_it_works_where_tmpdir_is_missing(self):
        result = self.checked(ROTA, "demo", "--sim", TMPDIR=str(self.scratch / "missing"))
        self.assertIn("under rota", result.stdout)


class OnTheDriver(Case):
    """The test's simulated GPU of 256 MiB stands for the machine's own."""

    def setUp(self):
        super().setUp()
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()
        self.environment.update(TMPDIR=str(self.temporary), ROTA_SIM_CONTEXT_BYTES="4M")

    # ctest labels: drivers
    def test_a_rotad_that_serves_the_gpu_is_used_and_stays(self):
        daemon = self.start_daemon()
        said = json.loads(self.checked(ROTA, "demo", "--json").stdout)
        self.assertEqual((said["as_expected"], said["under_rota"]["own_rotad"]), (True, False), said)
        self.assertIsNone(daemon.poll())
        self.assertIsNotNone(self.status())
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_a_driver_that_finds_no_gpu_leads_to_a_simulated_one(self):
        said = json.loads(self.checked(ROTA, "demo", "--json", ROTA_SIM_FAULTS="cuInit@1=CUDA_ERROR_NO_DEVICE").stdout)
        self.assertEqual((said["simulated"], said["no_gpu"]), (True, "cuInit: CUDA_ERROR_NO_DEVICE"))

    def test_copies_that_rota_does_not_reach_are_not_called_shared(self):
        result = self.call(ROTA, "demo", ROTA_OFF="1")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("rota: ROTA_OFF is set: the program runs without rota", result.stdout)
        self.assertIn("not as expected: rotad saw 0 of 2 copies on the GPU", result.stderr)

    # ctest labels: unsanitized
    def test_a_kernel_that_computes_wrongly_is_found_out(self):
        source = self.scratch / "wrong.cpp"
        source.write_text("""#include "tools/simgpu/kernel.h"
using namespace rota::sim;
void wrong(Launch& launch, Pointer<unsigned> words, unsigned long count, unsigned long stride, unsigned steps) {
  unsigned* memory = words.range(launch, count);
  if (memory != nullptr) memory[5 * stride]++;  // all others, too, stay as they were
}
ROTA_SIM_KERNELS_BEGIN
ROTA_SIM_KERNEL("rota_demo_mix", wrong)
ROTA_SIM_KERNELS_END
""")
        library = self.scratch / "libwrong.so"
        subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-I", ROOT, source, "-o", library], check=True)
        work = [PROGRAM, "work", "--bytes", "1000000", "--words", "1000", "--steps", "3", "--launches", "2", "--start", "7"]
        self.assertIn('"checked":250000', self.checked(*work).stdout)
        result = self.call(*work, ROTA_SIM_KERNELS=str(library))
        self.assertEqual((result.returncode, result.stdout, result.stderr), (1, "", "1000 of 250000 words are wrong\n"))
        # However many launches are left, it makes none after its time, and compares what was made.
        said = json.loads(self.checked(*work[:-4], "--launches", "1000000000", "--start", "7", "--within", "20").stdout)
        self.assertEqual(said["checked"], 250000)
        self.assertLess(said["launches"], 1000000000)
        # One launch without steps is correct; a single corrupted word is detected.
        result = self.call(*work[:-6], "--steps", "0", "--launches", "1", "--start", "7", ROTA_SIM_KERNELS=str(library))
        self.assertEqual((result.returncode, result.stderr), (1, "1 of 250000 words are wrong\n"))


if __name__ == "__main__":
    unittest.main()
