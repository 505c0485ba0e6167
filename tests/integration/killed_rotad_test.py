"""The rotad that `rota run` has started is killed: a program that waits has another started, and nobody waits for ever. One that
was ended on purpose stays ended, and the programs say what helps."""
import os
import select
import shutil
import signal
import sys
import time
import unittest

from harness import Case, PATIENCE, PROGRAMS, ROTA, ROTAD, SHIMS
from swap_test import SCALE

# Uses all of its memory at the start and for each line that it reads, and says what it knows of children then.
IN_BURSTS = """
import ctypes, os, signal, sys
cuda, context, memory, bytes = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(150 << 20)
signals = []
signal.signal(signal.SIGCHLD, lambda number, frame: signals.append(number))
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), bytes) == 0
def burst():
    assert cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(7), bytes) == 0 and cuda.cuCtxSynchronize() == 0
    try:
        print(os.waitpid(-1, os.WNOHANG), signals, flush=True)
    except ChildProcessError:
        print("no child", signals, flush=True)
burst()
for line in sys.stdin:
    if line == "forget\\n":
        ctypes.CDLL(None).clearenv()
    if line == "mistake\\n":
        os.environ["ROTA_SOCKET"] = "/nowhere/rotad.sock"
    burst()
"""

# Allocates as many MiB as the first line says, says what came of it, and ends with its standard input.
ALLOCATES = """
import ctypes, sys
cuda, context, memory = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
print(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.stdin.readline()) << 20)), flush=True)
sys.stdin.read()
"""


class KilledRotad(Case):
    rota = ROTA

    def hogs(self):
        """Two programs that work until their standard input closes and do not fit together; both have had their memory there."""
        programs = [self.start(self.rota, "run", "--memory", "swap", "--mode", "exclusive", "--quantum", "50ms", "--", PROGRAMS / "memhog",
                               "--share", "0.6", "--hold", "--ahead", "20", ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="info")
                    for _ in range(2)]
        for program in programs:
            self.assertEqual(program.stdout.readline(), "ready\n")
        self.heard = ""
        return programs

    def until(self, programs, text):
        """Reads what they say until one has said this."""
        outputs = [program.stderr.fileno() for program in programs]
        deadline = time.monotonic() + PATIENCE
        while text not in self.heard and time.monotonic() < deadline:
            for output in select.select(outputs, [], [], 1)[0]:
                self.heard += os.read(output, 65536).decode()
        self.assertIn(text, self.heard)

    def kill_rotad(self):
        pid = self.status()["daemon"]["pid"]
        os.kill(pid, signal.SIGKILL)
        return pid

    def waits_for_room(self):
        """Two programs with native memory: one that has most of the GPU, and one whose allocation waits until that ends."""
        programs = []
        for bytes in 200, 100:  # MiB
            program = self.start(self.rota, "run", "--memory", "native", "--", sys.executable, "-c", ALLOCATES)
            programs.append(program)
            self.assertEqual(program.stdout.readline(), "ready\n")
            program.stdin.write(f"{bytes}\n")
            program.stdin.flush()
            if bytes == 200:
                self.assertEqual(program.stdout.readline(), "0\n")
        self.eventually(lambda: self.awaits(programs[1]), "the allocation waits")
        return programs

    def awaits(self, program):
        uses = [client["use"] or {"gpus": {}} for client in self.clients() if client["pid"] == program.pid]
        return any(task["awaited_bytes"] for use in uses for task in use["gpus"].values())

    def ends(self, program):
        result = self.finish(program)
        self.assertEqual(result.returncode, 0, result.stderr)

    def switches(self):
        before = self.status()["daemon"]["grants"]
        self.eventually(lambda: self.status()["daemon"]["grants"] >= before + 4, "the lease goes to and fro")

    def right(self, programs):
        for program in programs:  # the memory of one may be out until the other ends
            program.stdin.close()
            program.stdin = None
        for program in programs:
            result = self.finish(program)
            self.heard += result.stderr
            self.assertEqual(result.returncode, 0, self.heard)
            self.assertIn('"wrong":0', result.stdout)

    # ctest labels: unsanitized
    def test_a_program_whose_memory_is_out_has_another_started_as_the_one_that_was_killed(self):
        programs = self.hogs()
        killed = self.kill_rotad()
        daemon = self.eventually(self.status, "another rotad answers")["daemon"]
        self.assertNotEqual(daemon["pid"], killed)
        self.assertEqual((daemon["mode"], daemon["quantum_ns"]), ("exclusive", 50_000_000))
        self.eventually(lambda: {client["pid"] for client in self.clients()} == {program.pid for program in programs}, "both are back")
        self.switches()
        self.right(programs)
        self.assertNotIn("without turns", self.heard)

    # ctest labels: unsanitized
    def test_a_program_goes_on_beside_one_that_idles_on_all_of_the_gpu_and_sees_no_child(self):
        programs = []
        for _ in range(2):  # the second takes the place of the first
            programs.append(self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", IN_BURSTS))
            self.assertEqual(programs[-1].stdout.readline(), "no child []\n")
        killed = self.kill_rotad()
        for program in programs:
            program.stdin.write("another\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "no child []\n")
        self.assertNotEqual(self.status()["daemon"]["pid"], killed)
        for program in programs:
            self.assertEqual(self.finish(program).returncode, 0)

    # ctest labels: unsanitized
    def test_a_program_that_waits_for_its_turn_has_another_started(self):
        programs = [self.start(ROTA, "run", "--mode", "exclusive", "--quantum", "1000s", "--", PROGRAMS / "spinner", "--hold")
                    for _ in range(2)]
        waits = self.eventually(lambda: [client["pid"] for client in self.clients() if client["waits"]], "one waits")
        killed = self.kill_rotad()
        self.assertNotEqual(self.eventually(self.status, "another rotad answers")["daemon"]["pid"], killed)
        self.eventually(lambda: [client["pid"] for client in self.clients() if client["waits"]] == waits, "the same waits")
        for program in programs:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("without turns", result.stderr)

    # ctest labels: unsanitized
    def test_a_program_whose_allocation_waits_for_room_has_another_started(self):
        holds, waits = self.waits_for_room()
        killed = self.kill_rotad()
        self.assertNotEqual(self.eventually(self.status, "another rotad answers")["daemon"]["pid"], killed)
        self.eventually(lambda: self.awaits(waits), "the allocation waits there")
        self.ends(holds)
        self.assertEqual(waits.stdout.readline(), "0\n")
        self.ends(waits)

    # ctest labels: unsanitized
    def test_an_allocation_that_waits_gets_what_has_become_free_without_any_rotad(self):
        self.start_daemon()  # nobody starts this one again
        holds, waits = self.waits_for_room()
        self.kill_rotad()
        self.ends(holds)
        self.assertEqual(waits.stdout.readline(), "0\n")
        self.assertIsNone(self.status())
        self.ends(waits)

    # ctest labels: unsanitized
    def test_an_allocation_that_waits_gets_what_has_become_free_before_the_next_rotad_came(self):
        self.start_daemon()
        holds, waits = self.waits_for_room()
        self.kill_rotad()
        self.ends(holds)
        self.start_daemon()
        self.assertEqual(waits.stdout.readline(), "0\n")
        self.ends(waits)

    # ctest labels: unsanitized
    def test_programs_whose_environment_has_changed_since_find_the_next_at_the_same_place(self):
        programs = []
        for change in "forget", "mistake":
            programs.append(self.start(ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", IN_BURSTS))
            self.assertEqual(programs[-1].stdout.readline(), "no child []\n")
            programs[-1].stdin.write(change + "\n")
            programs[-1].stdin.flush()
            self.assertEqual(programs[-1].stdout.readline(), "no child []\n")
        self.kill_rotad()
        for program in programs:
            program.stdin.write("another\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "no child []\n")
        self.eventually(lambda: {client["pid"] for client in self.clients()} == {program.pid for program in programs}, "both are back")
        for program in programs:
            self.ends(program)

    # ctest labels: unsanitized
    def test_one_that_was_stopped_on_purpose_stays_ended_and_the_next_that_is_started_goes_on(self):
        programs = self.hogs()
        self.checked(ROTA, "control", "stop")
        self.until(programs, "once all of its memory is on the GPU; `rota run` starts another rotad")
        self.assertIsNone(self.status())
        self.checked(ROTA, "run", "--mode", "exclusive", "--quantum", "50ms", "--", "true")
        self.switches()
        self.right(programs)
        self.assertNotIn("starting another", self.heard)

    # ctest labels: unsanitized
    def test_where_none_can_be_started_a_line_says_why(self):
        (self.scratch / "bin").mkdir()
        for command in ROTA, ROTAD:
            shutil.copy2(command, self.scratch / "bin")
        shutil.copytree(SHIMS, self.scratch / "lib/rota", ignore=shutil.ignore_patterns("simgpu"))
        self.rota = self.scratch / "bin/rota"
        programs = self.hogs()
        self.rota.unlink()
        self.kill_rotad()
        self.until(programs, f"no rotad could be started in place of the one at {self.environment['ROTA_SOCKET']}: "
                             f"{self.rota}: it cannot be executed")
        self.until(programs, f"GPU; no other rotad could be started ({self.rota}: it cannot be executed)")
        self.right(programs)

    # ctest labels: unsanitized
    def test_one_that_rota_run_has_not_started_is_left_to_whoever_did(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "50ms")
        programs = self.hogs()
        daemon.kill()
        self.until(programs, f"GPU; whoever runs the rotad at {self.environment['ROTA_SOCKET']} has to start it again")
        self.assertIsNone(self.status())
        self.right(programs)


if __name__ == "__main__":
    unittest.main()
