"""`rota try`: one program alone, copies of it without rota and under rota, in one table."""
import json
import os
import re
import signal
import sys
import unittest

from harness import Case, PROGRAMS, ROTA, SHIMS


class Try(Case):
    def setUp(self):
        super().setUp()
        self.temporary = self.scratch / "tmp"
        self.temporary.mkdir()
        self.environment.update(TMPDIR=str(self.temporary), ROTA_SIM_TIME_SCALE="1", ROTA_SIM_CONTEXT_BYTES="16M")
        self.environment["LD_LIBRARY_PATH"] += f":{SHIMS / 'simgpu/nvml'}"

    def tried(self, *arguments, code=0):
        result = self.call(ROTA, "try", "--json", *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)

    def ways(self, said):
        return {way["name"]: way for way in said["ways"]}

    # ctest labels: unsanitized
    def test_copies_that_fit_are_compared_and_leave_nothing_behind(self):
        result = self.checked(ROTA, "try", "-n", "3", "--", PROGRAMS / "memhog", "--bytes", "32M", "--rounds", "5", "--think", "0.2")
        lines = result.stdout.splitlines()
        self.assertEqual(lines[3].split("  ")[-1].strip(), "3 under rota", result.stdout)
        self.assertRegex(result.stdout, r"finished +1 of 1 +3 of 3 +3 of 3\n")
        self.assertRegex(result.stdout, r"  relative to alone +1\.00 +\d+\.\d\d +\d+\.\d\d\n")
        self.assertRegex(result.stdout, r"waited, each copy +- +- +\d")
        # Each needs 32 MiB and a context.
        self.assertRegex(result.stdout, r"GPU memory in use +4\d MiB +\d+ MiB +\d+ MiB\n")
        self.assertRegex(result.stdout, r"GPU memory allocated +- +- +1\d\d MiB\n")
        self.assertNotIn("rounds", result.stdout.split("\n", 1)[1].replace("1 round ", ""), "what the copies print is not in the table")
        self.assertEqual(list(self.temporary.iterdir()), [])

    # ctest labels: unsanitized
    def test_copies_that_do_not_fit_fail_natively_and_all_end_under_rota(self):
        said = self.tried("--quantum", "100ms", "--", PROGRAMS / "memhog", "--share", "0.6", "--seconds", "2")
        ways = self.ways(said)
        self.assertEqual({name: (way["finished"], way["started"]) for name, way in ways.items()},
                         {"alone": (1, 1), "2 natively": (1, 2), "2 under rota": (2, 2)})
        [rounds] = ways["2 under rota"]["rounds"]
        self.assertGreater(rounds["allocated_bytes"], 256 << 20)
        self.assertGreater(rounds["waited_seconds"], 0)
        self.assertLessEqual(rounds["in_use_bytes"], 256 << 20)
        self.assertEqual([way["rounds"][0]["waited_seconds"] for way in (ways["alone"], ways["2 natively"])], [None, None])
        self.assertTrue(any("CUDA_ERROR_OUT_OF_MEMORY" in note for note in said["notes"]), said["notes"])
        kept = "".join(log.read_text() for log in (self.temporary / said["output"]).iterdir())
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", kept)
        self.assertEqual(said["others"], [])

    def test_without_nvml_memory_natively_is_unknown_and_that_is_said(self):
        self.environment["LD_LIBRARY_PATH"] = self.environment["LD_LIBRARY_PATH"].rsplit(":", 1)[0]
        said = self.tried("-n", "1", "--", PROGRAMS / "memhog", "--bytes", "32M", "--rounds", "5", "--think", "0.2")
        ways = self.ways(said)
        self.assertEqual(list(ways), ["alone", "1 under rota"])
        self.assertIsNone(ways["alone"]["rounds"][0]["in_use_bytes"])
        self.assertGreaterEqual(ways["1 under rota"]["rounds"][0]["allocated_bytes"], 32 << 20)
        self.assertTrue(any("GPU memory in use is unknown: no NVML" in note for note in said["notes"]), said["notes"])

    def test_rounds_are_all_there(self):
        said = self.tried("--rounds", "3", "--", PROGRAMS / "saxpy")
        self.assertEqual([len(way["rounds"]) for way in said["ways"]], [3, 3, 3])

    def test_natively_is_without_rota_also_inside_rota_run(self):
        # Prints whether rota's library is in the process, and the settings that it would use.
        program = "import os; print('librota' in open('/proc/self/maps').read(), os.environ.get('ROTA_SESSION') is not None, os.environ.get('ROTA_GPU_MEM_LIMIT'))"
        result = self.call(ROTA, "run", "--gpu-mem", "100M", "--", ROTA, "try", "--", sys.executable, "-c", program + "; exit(3)")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("alone and without rota the program failed with exit code 3: False False None", result.stderr)
        marker = self.scratch / "marker"
        result = self.call(ROTA, "run", "--", ROTA, "try", "-n", "1", "--", sys.executable, "-c",
                           program.replace("print(", f"print(file=open({str(marker)!r}, 'a'), *(") + ")")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split()[:2] for line in marker.read_text().splitlines()],
                         [["False", "False"], ["True", "True"]] * 2)

    def test_a_command_that_fails_alone_ends_it_with_its_exit_code(self):
        result = self.call(ROTA, "try", "--", "sh", "-c", "echo it is broken; exit 9")
        self.assertEqual((result.returncode, result.stdout), (9, ""))
        self.assertIn("alone and without rota the program failed with exit code 9: it is broken", result.stderr)
        [folder] = self.temporary.iterdir()
        self.assertIn(str(folder), result.stderr)
        self.assertNotIn("under rota", result.stderr)

    def test_a_command_that_fails_under_rota_alone_is_told_and_makes_the_exit_code_1(self):
        script = "case $LD_PRELOAD in *librota*) echo not with me; exit 4;; esac"
        said = self.tried("--", "sh", "-c", script, code=1)
        self.assertIn("alone under rota it failed with exit code 4: not with me", said["notes"])
        self.assertEqual([way["finished"] for way in said["ways"]], [1, 2, 0])

    def test_others_on_the_gpu_are_named(self):
        beside = self.start(PROGRAMS / "spinner", "--hold")
        self.assertEqual(beside.stdout.readline(), "ready\n")
        result = self.checked(ROTA, "try", "--", PROGRAMS / "memhog", "--bytes", "32M", "--rounds", "5", "--think", "0.1")
        self.assertIn(f"other programs used the GPU at the same time, so these figures mean little: spinner (pid {beside.pid})", result.stdout)
        self.assertEqual(self.finish(beside).returncode, 0)

    def test_bad_input_is_named_and_nothing_is_started(self):
        touched = self.scratch / "touched"
        for arguments, named, code in ((["-n", "0"], "'0' is not a number of copies", 125), (["-n", "two"], "'two'", 125),
                                       (["-n", "65"], "use 1 to 64", 125), (["--rounds", "0"], "'0' is not a number of rounds", 125),
                                       (["--memory", "some"], "some", 125), (["--gpu-mem", "x"], "'x' is not an amount", 125)):
            with self.subTest(arguments):
                result = self.call(ROTA, "try", *arguments, "--", "touch", touched)
                self.assertEqual((result.returncode, result.stdout), (code, ""))
                self.assertIn(named, result.stderr)
        for command, named, code in (([], "the program and its arguments", 125), (["no-such-command"], "no-such-command: command not found", 127),
                                     (["/etc/passwd"], "/etc/passwd: Permission denied", 126),
                                     ([ROTA, "run", "--", "touch", touched], "name the program itself", 125)):
            with self.subTest(command):
                result = self.call(ROTA, "try", "--", *command)
                self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
                self.assertIn(named, result.stderr)
        self.assertFalse(touched.exists())

    def test_ctrl_c_ends_everything_that_it_started(self):
        # Alone it ends at once; with others, each prints its own pid and a child's, and stays.
        script = f"""
cd {self.scratch}
n=$(ls -d run.* 2>/dev/null | wc -l); mkdir run.$$
[ $n -lt 3 ] && exit
setsid sleep 1000 & echo $! $$ >>pids
trap '' TERM; while :; do sleep 1000; done"""
        child = self.start(ROTA, "try", "--", "sh", "-c", script)
        pids = self.scratch / "pids"
        self.eventually(lambda: pids.exists() and len(pids.read_text().splitlines()) == 2, "both copies run")
        child.send_signal(signal.SIGINT)
        result = self.finish(child)
        self.assertEqual((result.returncode, result.stdout), (-signal.SIGINT, ""), result.stderr)
        self.assertIn("Interrupt", result.stderr)
        for pid in pids.read_text().split():
            self.assertFalse(os.path.exists(f"/proc/{pid}"), "it is still there")
        self.assertEqual(list(self.temporary.iterdir()), [])

    # ctest labels: unsanitized
    def test_it_works_on_simulated_gpus(self):
        for name in ("ROTA_REAL_LIBCUDA", "ROTA_SOCKET", "LD_LIBRARY_PATH"):
            self.environment.pop(name)
        result = self.checked(ROTA, "sim", "--gpu", "h200", "--memory", "1G", "--", ROTA, "try", "--", PROGRAMS / "memhog", "--bytes", "32M", "--rounds", "5", "--think", "0.1")
        self.assertRegex(result.stdout, r"NVIDIA H200, 1 round after a warm-up\n(.|\n)*finished +1 of 1 +2 of 2 +2 of 2\n")
        self.assertEqual(list(self.temporary.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
