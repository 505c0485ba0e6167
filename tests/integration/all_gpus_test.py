"""The machine's rotad has every GPU that NVML shows from its start on, whether or not a program has come."""
import unittest

from harness import PROGRAMS, ROTA, ROTAD, SHIMS
from users_case import UsersCase

NVML = SHIMS / "simgpu" / "nvml"


class AllGpus(UsersCase):
    memory = "1G"

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "2"
        self.checked(PROGRAMS / "saxpy")
        for file in (self.scratch / "sim").iterdir():
            file.chmod(0o666)
        self.libraries = self.scratch / "driver"
        self.libraries.mkdir()

    def install(self):
        (self.libraries / "libnvidia-ml.so.1").symlink_to(NVML / "libnvidia-ml.so.1")

    def machine(self):
        path = f"{self.libraries}:{self.environment['LD_LIBRARY_PATH']}"
        daemon = self.start(ROTAD, "--socket", self.machine_socket, LD_LIBRARY_PATH=path)
        self.eventually(lambda: self.machine_status() is not None or daemon.poll() is not None, "the machine's rotad answers")
        return daemon

    def locks(self):
        """Who has each GPU, as the lock files say."""
        return [file.read_text(encoding="utf-8").strip() for file in (self.scratch / "locks").glob("GPU-*.lock")]

    def has_all(self, daemon):
        return self.locks() == [f"rotad pid {daemon.pid} at {self.machine_socket}"] * 2

    # ctest labels: unsanitized
    def test_a_user_s_own_rotad_gets_no_gpu_although_no_program_has_come_to_the_machine_s(self):
        self.install()
        daemon = self.machine()
        self.eventually(lambda: self.has_all(daemon), lambda: f"it has both: {self.locks()}")
        # NVML is closed again, and status has no GPU of a program.
        self.assertEqual(self.machine_status()["gpus"], [])
        self.assertEqual(self.machine_status()["elsewhere"], [])
        user = self.users[0]
        self.start_own(user)
        result = self.call_as(user, "env", f"ROTA_SOCKET={self.own_socket(user)}", ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "20M", "--rounds", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the machine's, has it: unset ROTA_SOCKET", result.stderr)
        # A program that comes to it, and goes.
        program = self.program(user, share="0.1")
        self.eventually(lambda: self.served_by_machine(program), "it is served")
        program.kill()
        program.wait()
        self.eventually(lambda: self.machine_status()["gpus"] == [], "it has gone")
        self.assertTrue(self.has_all(daemon))
        again = self.program(user, share="0.1")
        self.eventually(lambda: self.served_by_machine(again), "and the next is served")
        # The driver can still be unloaded.
        again.kill()
        again.wait()
        said = self.checked(ROTA, "control", "nvml", "release", ROTA_SOCKET=self.machine_socket).stdout
        self.assertIn("NVML is closed", said)
        self.assertTrue(self.machine_status()["daemon"]["nvml_released"])
        self.assertTrue(self.has_all(daemon))
        # Nobody has them once it has ended.
        daemon.terminate()
        self.assertEqual(self.finish(daemon).returncode, 0)
        served = self.start_as(user, "env", f"ROTA_SOCKET={self.own_socket(user)}", ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "20M", "--hold")
        self.assertEqual(served.stdout.readline(), "ready\n")
        self.assertTrue(self.served_by_own(user, served))

    # ctest labels: unsanitized
    def test_it_takes_them_when_the_driver_comes_later_and_what_a_user_s_rotad_has_once_that_ends(self):
        user = self.users[0]
        own = self.start_own(user)
        held = self.start_as(user, "env", f"ROTA_SOCKET={self.own_socket(user)}", ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "20M", "--hold")
        self.assertEqual(held.stdout.readline(), "ready\n")
        daemon = self.machine()
        self.assertEqual(self.machine_status()["gpus"], [])
        self.install()
        mine = f"rotad pid {daemon.pid} at {self.machine_socket}"
        self.eventually(lambda: self.locks().count(mine) == 1, "it has the one that is free")
        self.assertTrue(self.served_by_own(user, held))
        own.terminate()
        own.wait()
        self.eventually(lambda: self.has_all(daemon), lambda: f"it has both: {self.locks()}")


if __name__ == "__main__":
    unittest.main()
