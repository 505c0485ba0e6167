"""Ctrl-C in a program that waits for its turn: Python's handler sets a flag, which takes effect once the call has returned."""
import json
import pathlib
import re
import signal
import sys

from harness import Case, PROGRAMS, ROTA, ROTAD

WAITER = r"""
import ctypes, os, signal, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
address = ctypes.c_uint64()
size = int(sys.argv[1]) << 20
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
def submit():
    check(cuda.cuMemsetD32_v2(address, 7, ctypes.c_size_t(size // 4)))
"""
SUBMITS = WAITER + "submit()\n"
DEFAULT_ACTION = WAITER + "signal.signal(signal.SIGINT, signal.SIG_DFL)\nsubmit()\n"
# Once with its memory present, and again after it has been evicted.
SUBMITS_TWICE = WAITER + "submit()\nprint('ready', flush=True)\nsys.stdin.readline()\nsubmit()\n"
# Handlers run constantly in its only thread, as under a sampling profiler.
PROFILED = WAITER + r"""
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
while not os.path.exists(sys.argv[2]):
    submit()
    check(cuda.cuCtxSynchronize())  # or seconds of work would be queued, on a fast machine
signal.setitimer(signal.ITIMER_REAL, 0)
"""


class Interrupted(Case):
    def python(self, program, *arguments, size=1, options=(), **environment):
        return self.start(ROTA, "run", *options, "--", sys.executable, "-c", program, size, *arguments, **environment)

    def holder(self, *options):
        """It never pauses, so it keeps its lease until its quantum ends, after minutes. With threads and work for 160 ms ahead,
        since all of them may have to wait for a CPU."""
        holder = self.start(ROTA, "run", *options, "--", PROGRAMS / "spinner", "--hold", "--kernel-us", "20000", "--threads", "8",
                            ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(holder.stdout.readline(), "ready\n")
        return holder

    def is_waiting(self, child):
        return any(c["pid"] == child.pid and c["waits"] for c in self.clients())

    def where(self, child):
        """What a wait for a child's wait says if it never comes: where the child's threads are, and what rotad knows."""
        tasks = pathlib.Path(f"/proc/{child.pid}/task").glob("*")
        threads = [(task / "comm").read_text().strip() + " in " + (task / "wchan").read_text() for task in tasks]
        return f"it waits at the gate; exit status {child.poll()}, threads {threads}, {json.dumps(self.status(), indent=1)}"

    def waits(self, child):
        self.eventually(lambda: self.is_waiting(child), lambda: self.where(child))

    def waiter(self, program, *arguments, **options):
        """A child that was seen to wait at the gate; one that had its turn at once, since all of the holder's threads waited
        for a CPU, is started again."""
        for _ in range(5):
            child = self.python(program, *arguments, **options)
            self.eventually(lambda: self.is_waiting(child) or child.poll() is not None, lambda: self.where(child))
            if child.poll() is None:
                return child
            self.assertEqual(child.returncode, 0, child.stderr.read())
        self.fail("the holder's turn ends again and again")

    def ended_by_python(self, child):
        result = self.finish(child)
        self.assertIn("KeyboardInterrupt", result.stderr)
        self.assertEqual(result.returncode, -signal.SIGINT)
        return result.stderr

    # ctest labels: unsanitized
    def test_a_python_program_at_the_gate_ends_by_ctrl_c_and_the_holder_runs_on(self):
        options = ("--mode", "exclusive", "--quantum", "1000s")
        holder = self.holder(*options)
        for memory in ("managed", "native", "swap"):
            with self.subTest(memory=memory):
                waiter = self.waiter(SUBMITS, options=options, ROTA_MEMORY=memory)
                waiter.send_signal(signal.SIGINT)
                said = self.ended_by_python(waiter)
                self.assertNotIn("kill", said)
                self.eventually(lambda: [c["pid"] for c in self.clients() if c["holds"]] == [holder.pid], "the holder goes on")
        self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_a_program_without_a_handler_ends_at_once(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        holder = self.holder()
        waiter = self.waiter(DEFAULT_ACTION)
        waiter.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(waiter).returncode, -signal.SIGINT)
        self.assertEqual(self.status()["daemon"]["grants"], 1)
        self.assertEqual(self.finish(holder).returncode, 0)

    # ctest labels: unsanitized
    def test_who_cannot_have_its_memory_back_is_told_how_to_end(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        waiter = self.python(SUBMITS_TWICE, size=160, ROTA_MEMORY="swap")
        self.assertEqual(waiter.stdout.readline(), "ready\n")
        holder = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.6", "--hold", ROTA_MEMORY="swap",
                            ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(holder.stdout.readline(), "ready\n")  # for which the other's memory had to go
        holder.send_signal(signal.SIGSTOP)
        waiter.stdin.write("\n")
        waiter.stdin.flush()
        self.waits(waiter)
        waiter.send_signal(signal.SIGINT)
        said = next(line for line in iter(waiter.stderr.readline, "") if not line.startswith("rota: waiting"))
        self.assertRegex(said, rf"^rota: this program can react to the signal only after.*`kill -9 {waiter.pid}` ends it at once$")
        holder.send_signal(signal.SIGCONT)
        self.ended_by_python(waiter)
        result = self.finish(holder)
        self.assertEqual((result.returncode, '"wrong":0' in result.stdout), (0, True), result.stderr)

    # ctest labels: unsanitized
    def test_handlers_that_run_all_the_time_bring_one_short_turn_a_second(self):
        log = self.scratch / "events"
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--event-log", log)
        holder = self.holder()
        enough = self.scratch / "enough"
        profiled = self.python(PROFILED, enough)
        urgent = lambda: [int(time) for time in re.findall(r"^(\d+) want \d+ 1 0 urgent$", log.read_text(), re.MULTILINE)]
        self.eventually(lambda: len(urgent()) >= 3, lambda: f"it asks for a turn again and again\n{log.read_text()[-4000:]}")
        enough.touch()
        result = self.finish(profiled)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.finish(holder).returncode, 0)
        daemon.terminate()
        daemon.wait()
        times = urgent()
        # Less what rotad heard of one later than of the next.
        self.assertTrue(all(later - earlier >= 9 * 10**8 for earlier, later in zip(times, times[1:])), times)
        self.assertIn("all as recorded", self.checked(ROTAD, "--replay", log).stdout)
