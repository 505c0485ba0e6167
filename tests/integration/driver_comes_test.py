"""A rotad that is there before the machine's driver: what it shows then, and once there is one."""
import json
import unittest

from harness import Case, PROGRAMS, ROTA, SHIMS


class DriverComes(Case):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "2"
        self.driver_folder = self.scratch / "driver"
        self.driver_folder.mkdir()
        self.environment["LD_LIBRARY_PATH"] = f"{self.driver_folder}:{self.environment['LD_LIBRARY_PATH']}"

    def install(self):
        (self.driver_folder / "libnvidia-ml.so.1").symlink_to(SHIMS / "simgpu/nvml/libnvidia-ml.so.1")

    def shown(self):
        return [gpu["index"] for gpu in json.loads(self.checked(ROTA, "status", "--json").stdout)["machine_gpus"]]

    # ctest labels: unsanitized
    def test_every_gpu_is_shown_before_any_program_of_rotads_ran_also_where_the_driver_comes_later(self):
        self.checked(PROGRAMS / "spinner", "--seconds", "0")  # without rota: the simulated machine is there from now on
        self.start_daemon()
        self.assertEqual(self.shown(), [])
        self.assertIn("no program uses a GPU", self.checked(ROTA, "status").stdout)
        self.install()
        self.assertEqual(self.shown(), [0, 1])
        text = self.checked(ROTA, "status").stdout
        self.assertEqual(text.count("no program uses it under this rotad"), 2, text)

    # ctest labels: unsanitized
    def test_a_rotad_that_was_there_first_measures_once_a_program_comes_and_not_while_nvml_is_released(self):
        self.start_daemon()
        self.install()
        program = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.2", "--hold")
        self.assertEqual(program.stdout.readline().strip(), "ready")

        def source():
            [client] = self.clients()
            return {memory["source"] for memory in client["memory"].values()}
        self.eventually(lambda: source() == {"measured"}, "its memory is measured")
        self.assertIn("NVML is closed", self.checked(ROTA, "control", "nvml", "release").stdout)
        self.assertNotEqual(source(), {"measured"})
        self.assertIn("NVML is released", self.checked(ROTA, "status").stdout)
        self.assertTrue(self.status()["daemon"]["nvml_released"])
        other = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.2", "--hold")
        self.assertEqual(other.stdout.readline().strip(), "ready")
        self.assertFalse(self.status()["daemon"]["nvml_released"])
        self.assertNotIn("NVML is released", self.checked(ROTA, "status").stdout)
        for child in program, other:
            self.assertEqual(self.finish(child).returncode, 0)
        wrong = self.call(ROTA, "control", "nvml", "off")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("'off' is neither release nor use", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
