"""For any bad input, rota names the problem and the remedy, and the program continues wherever it could have without rota."""
import os
import pathlib
import subprocess
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD, SHIMS, SIM_DRIVER


class BadInput(Case):
    def rota_lines(self, result):
        return [line for line in result.stderr.splitlines() if line.startswith("rota: ")]

    def test_without_a_driver_a_program_that_wants_a_gpu_is_told_there_is_none(self):
        environment = dict(ROTA_REAL_LIBCUDA="", LD_LIBRARY_PATH="")
        result = self.call(ROTA, "run", "--", PROGRAMS / "saxpy", **environment)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, "CUDA_ERROR_NO_DEVICE|\\(100\\)")
        self.assertGreaterEqual(result.returncode, 0, "died of a signal")

    def test_without_a_driver_a_program_without_cuda_runs(self):
        result = self.checked(ROTA, "run", "--", "/bin/echo", "hello", ROTA_REAL_LIBCUDA="", LD_LIBRARY_PATH="")
        self.assertEqual((result.stdout, result.stderr), ("hello\n", ""))

    def test_a_missing_real_driver_is_named(self):
        result = self.call(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_REAL_LIBCUDA=str(self.scratch / "none.so"))
        self.assertTrue(any("none.so" in line and "ROTA_REAL_LIBCUDA" in line for line in self.rota_lines(result)), result.stderr)
        self.assertGreater(result.returncode, 0, "died of a signal, or succeeded without a driver")

    def test_a_foreign_library_as_real_driver_is_named(self):
        foreign = next(pathlib.Path("/lib").rglob("libm.so.6"))
        result = self.call(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_REAL_LIBCUDA=str(foreign))
        self.assertTrue(any("libm" in line and "ROTA_REAL_LIBCUDA" in line for line in self.rota_lines(result)), result.stderr)
        self.assertGreater(result.returncode, 0)

    def test_rotas_own_library_as_real_driver_is_refused(self):
        result = self.call(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_REAL_LIBCUDA=str(SHIMS / "librota.so"))
        self.assertTrue(any("librota.so" in line for line in self.rota_lines(result)), result.stderr)
        self.assertGreater(result.returncode, 0)

    # ctest labels: unsanitized
    def test_preloaded_without_a_rotad_a_program_runs_as_without_rota(self):
        result = self.checked(PROGRAMS / "saxpy", LD_PRELOAD=str(SHIMS / "librota.so"))
        self.assertIn("ok", result.stdout)

    def test_a_command_that_does_not_exist_is_named_and_exits_127(self):
        result = self.call(ROTA, "run", "--", "no-such-command-anywhere")
        self.assertEqual(result.returncode, 127)
        self.assertIn("no-such-command-anywhere", result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)

    def test_a_socket_one_may_not_open_is_named_and_the_program_runs(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        self.scratch.chmod(0o755)
        self.start_daemon()
        pathlib.Path(self.environment["ROTA_SOCKET"]).chmod(0o600)
        (self.scratch / "device").unlink(missing_ok=True)
        state = self.scratch / "theirs"
        state.mkdir()
        os.chown(state, 65534, 65534)
        nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        # A checkout in a folder that other users may not enter cannot be tested this way.
        if subprocess.run([*nobody, "test", "-x", str(ROTA)], check=False).returncode != 0:
            self.skipTest("another user cannot reach the build folder")
        result = self.checked(*nobody, ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_SIM_STATE=str(state / "device"))
        self.assertIn("ok", result.stdout)
        self.assertTrue(any("rotad.sock" in line for line in self.rota_lines(result)), result.stderr)

    def test_a_second_daemon_for_the_same_socket_is_refused_and_says_who_has_it(self):
        daemon = self.start_daemon()
        second = self.call(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks")
        self.assertNotEqual(second.returncode, 0)
        self.assertIn(str(daemon.pid), second.stderr)

    def test_a_second_daemon_for_the_same_gpu_is_refused_and_says_who_has_it(self):
        daemon = self.start_daemon()
        first = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--seconds", "100")
        self.assertEqual(first.stdout.readline().strip(), "ready")
        other = self.scratch / "other.sock"
        second = self.start(ROTAD, "--socket", other, "--lock-directory", self.scratch / "locks")
        self.eventually(lambda: other.exists() or second.poll() is not None, "the second daemon answers or ends")
        result = self.checked(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_SOCKET=str(other))
        self.assertIn("ok", result.stdout)
        self.assertTrue(any(str(daemon.pid) in line for line in self.rota_lines(result)), result.stderr)

    def test_a_quantum_of_nothing_is_refused_by_name(self):
        for quantum in ("0", "-1s", "soon"):
            result = self.call(ROTAD, "--socket", self.scratch / "q.sock", "--quantum", quantum)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("quantum", result.stderr)

    def test_a_bad_setting_is_named_once_and_the_program_runs(self):
        result = self.checked(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_MEMORY="hologram")
        lines = [line for line in self.rota_lines(result) if "ROTA_MEMORY" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertIn("hologram", lines[0])
        self.assertIn("managed", lines[0])

    def test_a_full_disk_under_a_trace_is_said_once_and_the_program_runs(self):
        disk = self.scratch / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("cannot mount a small disk here")
        self.addCleanup(subprocess.run, ["umount", str(disk)], capture_output=True)
        result = self.call(ROTA, "trace", "--dir", disk / "trace", "--", PROGRAMS / "saxpy")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ok", result.stdout)
        self.assertTrue(any("trace" in line for line in self.rota_lines(result)), result.stderr)

    def test_status_without_a_rotad_says_so(self):
        result = self.call(ROTA, "status")
        self.assertEqual(result.returncode, 1)
        self.assertIn("rotad", result.stderr)


if __name__ == "__main__":
    unittest.main()
