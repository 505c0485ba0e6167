"""What the integration tests share: a scratch folder, a simulated GPU, a private rotad, and children that are always ended.

Every test gets its own simulated device, socket and lock folder, so that tests run in any order and in parallel.

The driver is simgpu's as built, or one that poses as the CUDA version in ROTA_TEST_DRIVER (a class may fix its own).
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ROTA_BUILD", ROOT / "build/release"))
ROTA = BUILD / "bin/rota"
ROTAD = BUILD / "bin/rotad"
SHIMS = BUILD / "lib/rota"
SIM_DRIVER = SHIMS / "simgpu/libcuda.so.1"
PROGRAMS = BUILD / "tests/programs"
POSED_DRIVERS = BUILD / "tests/drivers"
PATIENCE = 60  # seconds until a wait counts as a failure


class Case(unittest.TestCase):
    """One test with a simulated GPU of 256 MiB."""

    memory = "256M"
    driver = os.environ.get("ROTA_TEST_DRIVER")  # a CUDA version such as "12.4"; None: simgpu as built, which says 13.0

    def setUp(self):
        self.sim_driver = POSED_DRIVERS / self.driver / "libcuda.so.1" if self.driver else SIM_DRIVER
        if not self.sim_driver.exists():
            self.fail(f"there is no {self.sim_driver}: build the target simgpu_drivers")
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="rota-test-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)
        self.children = []
        self.addCleanup(self.end_children)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ROTA_")}
        self.environment.pop("LD_PRELOAD", None)
        self.environment.update(
            ROTA_SIM_STATE=str(self.scratch / "device"), ROTA_SIM_MEMORY=self.memory, ROTA_SIM_TIME_SCALE="0",
            ROTA_SIM_KERNELS=str(SHIMS / "simgpu/libsimkernels.so"), ROTA_CHECK_REACHED="1", ROTA_REAL_LIBCUDA=str(self.sim_driver),
            ROTA_SOCKET=str(self.scratch / "rotad.sock"), ROTA_LOCK_DIRECTORY=str(self.scratch / "locks"),
            ROTA_CACHE=str(self.scratch / "cache"),
            LD_LIBRARY_PATH=f"{self.sim_driver.parent}:{SHIMS / 'simgpu'}",
            # Programs are sanitized in the sanitizer builds; restrictions of the sandbox must not fail a test.
            ASAN_OPTIONS="detect_leaks=0:abort_on_error=0:malloc_context_size=2")

    def end_children(self):
        for child in self.children:
            try:  # the child and what it forked: a grandchild would keep the pipes open
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.communicate()
        subprocess.run(["pkill", "-KILL", "-f", str(self.scratch)], check=False)

    def driver_version(self):
        """The version of this test's driver in CUDA's form: 12040 for 12.4."""
        major, minor = (self.driver or "13.0").split(".")
        return 1000 * int(major) + 10 * int(minor)

    def start(self, *command, **environment):
        """A child whose standard input stays open: programs with --hold continue until it closes."""
        child = subprocess.Popen([str(part) for part in command], env=dict(self.environment, **environment),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.children.append(child)
        return child

    def finish(self, child, timeout=PATIENCE):
        out, err = child.communicate(timeout=timeout)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def call(self, *command, timeout=PATIENCE, **environment):
        return self.finish(self.start(*command, **environment), timeout)

    def checked(self, *command, **options):
        result = self.call(*command, **options)
        self.assertEqual(result.returncode, 0, f"{command}: {result.stdout}\n{result.stderr}")
        return result

    def start_daemon(self, *options, wrapped=()):
        """A rotad on this test's socket, started by the command `wrapped`, if any; returns once it answers."""
        daemon = self.start(*wrapped, ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks",
                            *options)
        self.eventually(lambda: self.status() is not None or daemon.poll() is not None, "rotad answers")
        self.assertIsNone(daemon.poll(), "rotad ended at once")
        return daemon

    def status(self):
        """The output of `rota status --json`, or None if no rotad answers."""
        result = self.call(ROTA, "status", "--json")
        return json.loads(result.stdout) if result.returncode == 0 else None

    def eventually(self, condition, what):
        """Polls until the condition holds; a timeout is a failure, never a pass. `what`: what is said then, or a function that says it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.01)
        self.fail(f"never came true: {what() if callable(what) else what}")

    def clients(self):
        status = self.status()
        return status["clients"] if status else []


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    unittest.main()
