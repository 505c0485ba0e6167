"""A program that waits is shown in `rota status` as one, with what it waits for."""
import signal
import sys
import unittest

from harness import Case, PROGRAMS, ROTA, kill
from users_case import UsersCase

MIB = 1 << 20

# Makes a context, allocates so many MiB and writes them; keeps them until its standard input ends.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(int(sys.argv[1]) << 20)
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), size) == 0 and cuda.cuMemsetD8_v2(address, 7, size) == 0
print("ready", flush=True)
sys.stdin.read()
"""


class Shown(Case):
    def on_gpu(self, program, status=None):
        """What status says of the program, and of it on its GPU."""
        for client in (status or self.status())["clients"]:
            if client["pid"] == program.pid and client["use"]:
                return client, next(iter(client["use"]["gpus"].values()))
        return {}, {}

    def line_of(self, program, **environment):
        return next(line for line in self.checked(ROTA, "status", **environment).stdout.splitlines() if f" pid {program.pid} " in line)

    def ready(self, *programs):
        for program in programs:
            self.assertEqual(program.stdout.readline(), "ready\n")


class Waits(Shown):
    def program(self, mib, *options, **environment):
        return self.start(ROTA, "run", *options, "--", sys.executable, "-c", PROGRAM, mib, **environment)

    # ctest labels: unsanitized
    def test_a_context_that_waits_for_room(self):
        self.environment["ROTA_SIM_CONTEXT_BYTES"] = str(40 * MIB)
        self.start_daemon()
        holder = self.program(190, ROTA_MEMORY="native")
        self.ready(holder)
        waiter = self.program(1)
        self.eventually(lambda: self.on_gpu(waiter)[1].get("awaited_bytes"), "it waits")
        self.assertEqual(self.on_gpu(waiter)[1]["awaited"], "context")
        self.assertRegex(self.line_of(waiter), r", a context has waited \d+\.\d s for others to free memory or end")
        self.finish(holder)
        self.ready(waiter)
        self.assertIsNone(self.on_gpu(waiter)[1]["awaited"])
        self.finish(waiter)

    # ctest labels: unsanitized
    def test_a_member_that_waits_for_the_rest_of_its_gang(self):
        self.start_daemon()
        first = self.program(10, "--gang", "train:2")
        self.eventually(lambda: self.on_gpu(first)[0].get("waits"), lambda: f"it waits\n{self.status()}")
        program, there = self.on_gpu(first)
        self.assertEqual((there["waits"], there["waits_for_gang"], there["holds"]), (True, True, False))
        self.assertGreater(program["since_ns"], 0)
        self.assertRegex(self.line_of(first), r"^  waits .*, waits for 1 of the 2 programs of its gang, which has not come yet")
        self.assertIn("0 hold it, 1 waits", self.checked(ROTA, "status").stdout)
        self.assertRegex(first.stderr.readline(), r"^rota: waiting for 1 of the 2 programs of gang train, which has not come yet")
        second = self.program(10, "--gang", "train:2")
        self.ready(first, second)
        for member in first, second:
            self.assertFalse(self.on_gpu(member)[1]["waits_for_gang"])
        for member in first, second:
            self.finish(member)


class Handover(UsersCase, Shown):
    def hog(self, user, size, *options):
        return self.start_as(user, ROTA, "run", "--memory", "native", "--", PROGRAMS / "memhog", "--bytes", size, "--pieces", 1, "--hold", *options)

    # ctest labels: unsanitized
    def test_who_comes_while_a_gpu_changes_its_rotad_and_a_program_of_the_other_one_does_not_come_yet(self):
        first, second = self.users[:2]
        mover = self.hog(first, "170M", "--think", 1000)
        self.ready(mover)
        # Another one takes the turn from it: a stopped program that has it would keep the GPU from the machine's rotad.
        self.assertEqual(self.call_as(first, ROTA, "control", "mode", "exclusive").returncode, 0)
        other = self.hog(first, "1M", "--think", 1000)
        self.ready(other)
        self.eventually(lambda: not self.on_gpu(mover, self.own_status(first))[0]["holds"], "it has given the GPU back")
        mover.send_signal(signal.SIGSTOP)
        self.start_machine()
        waiter = self.hog(second, "100M")
        self.eventually(lambda: self.on_gpu(waiter, self.machine_status())[1].get("awaited_bytes"), lambda: f"it waits\n{self.machine_status()}")
        there = self.on_gpu(waiter, self.machine_status())[1]
        self.assertEqual((there["awaited"], there["awaits_another_rotads"]), ("allocation", True))
        self.assertRegex(self.line_of(waiter, ROTA_SOCKET=self.machine_socket),
                         r", an allocation of 100 MiB has waited \d+\.\d s for the programs that come over from another rotad")
        kill(mover)
        self.ready(waiter)
        kill(other)
        self.assertEqual(self.finish(waiter).returncode, 0)


if __name__ == "__main__":
    unittest.main()
