"""What has to work on the driver of any CUDA version: registered once for each version that CMakeLists.txt lists.

Tests of other files that belong to this core carry the label `drivers` there.
"""
import unittest

from harness import Case, PROGRAMS, ROTA, kill


class Core(Case):
    # ctest labels: drivers
    def test_every_program_gives_the_same_under_rota_as_without(self):
        self.start_daemon()
        for command in (["saxpy"], ["capture"], ["forker"], ["threads"], ["allocfree", "--rounds", "20"],
                        ["memhog", "--managed", "--bytes", "300M", "--rounds", "2"]):
            with self.subTest(command=command):
                native = self.checked(PROGRAMS / command[0], *command[1:])
                shared = self.checked(ROTA, "run", "--", PROGRAMS / command[0], *command[1:])
                without_times = [line for line in shared.stdout.splitlines() if "seconds" not in line]
                self.assertEqual(without_times, [line for line in native.stdout.splitlines() if "seconds" not in line])

    # ctest labels: drivers
    def test_a_program_is_traced(self):
        folder = self.scratch / "trace"
        self.assertIn("ok", self.checked(ROTA, "trace", "--dir", folder, "--", PROGRAMS / "capture").stdout)
        listing = self.checked(ROTA, "trace", "show", "--lookups", folder).stdout
        # Looked up as with a driver of that age.
        instantiated = "cuGraphInstantiateWithFlags(" if self.driver_version() >= 11040 else "cuGraphInstantiate_v2("
        for call in ("cuLaunchKernel(", "cuStreamBeginCapture_v2(", "cuGraphLaunch(", instantiated):
            self.assertIn(call, listing)
        # Under rota the program does not find functions that the driver lacks either.
        self.assertEqual("cuGetProcAddress_v2(" in listing, self.driver_version() >= 12000)

    def overtaken(self, *options):
        """Whether a program gets the GPU while another one's kernel is still running."""
        self.start_daemon("--mode", "exclusive", "--quantum", "20ms")
        lingering = self.start(ROTA, "run", "--", PROGRAMS / "linger", *options)
        self.assertEqual(lingering.stdout.readline().strip(), "ready")
        successor = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--launches", "1")
        self.eventually(lambda: any(client["waits"] for client in self.clients()) or successor.poll() is not None,
                        "the second program asks for its turn")
        for _ in range(10):  # far longer than an idle holder keeps the GPU; not needed where nobody overtakes
            self.status()
        overtaken = successor.poll() is not None
        lingering.stdin.close()
        lingering.stdin = None
        self.assertIn("done", self.finish(lingering).stdout)
        self.assertEqual(self.finish(successor).returncode, 0)
        return overtaken

    # ctest labels: drivers
    def test_nobody_overtakes_a_kernel_on_a_non_blocking_stream(self):
        self.assertFalse(self.overtaken("--stream", "non-blocking"))

    # ctest labels: drivers
    def test_nobody_overtakes_a_kernel_on_a_threads_default_stream(self):
        self.assertFalse(self.overtaken("--stream", "per-thread"))

    # ctest labels: drivers
    def test_nobody_overtakes_a_kernel_whose_stream_is_destroyed(self):
        self.assertFalse(self.overtaken("--destroy"))


class Older(Case):
    """A driver without cuGetProcAddress, which came with CUDA 11.3."""

    driver = "11.2"

    def test_rota_says_what_driver_it_is(self):
        result = self.checked(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_LOG="info")
        self.assertIn(str(self.sim_driver), result.stderr)


class Newer(Case):
    """A driver newer than every release that rota covers, with functions that rota does not know."""

    driver = "14.0"

    def test_functions_that_rota_does_not_know_work_on_memory_that_it_does(self):
        self.start_daemon()
        self.assertEqual(self.checked(PROGRAMS / "future").stdout, "ok\n")
        result = self.checked(ROTA, "run", "--", PROGRAMS / "future", ROTA_LOG="info")
        self.assertEqual(result.stdout, "ok\n")
        self.assertIn("cuRotaSimFutureCall", result.stderr)  # said, since rota does not see such calls
        # New memory is in place before the program can use it in a call that does not wait for that.
        self.assertEqual(self.checked(ROTA, "run", "--memory", "swap", "--", PROGRAMS / "future").stdout, "ok\n")
        self.assertEqual(self.checked(ROTA, "run", "--", PROGRAMS / "future", "--version", "11070").stdout, "absent\n")


if __name__ == "__main__":
    unittest.main()
