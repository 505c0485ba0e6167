"""What `rota status` says about how programs share a GPU, and why."""
import fcntl
import os
import termios
import unittest

from harness import Case, PROGRAMS, ROTA
from sim_case import program


FREES_IN_ORDER = program("""
assert context() == 0
stream, blocks = ctypes.c_void_p(), [ctypes.c_uint64() for _ in range(20)]
assert call("cuStreamCreate", ctypes.byref(stream), 1) == 0
assert all(call("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(4 << 20), stream) == 0 for block in blocks)
assert all(call("cuMemFreeAsync", block, stream) == 0 for block in blocks)
assert call("cuStreamSynchronize", stream) == 0
print("ready", flush=True)
sys.stdin.readline()
""")


class Why(Case):
    memory = "1G"

    def busy(self, *options):
        child = self.start(ROTA, "run", *options, "--", PROGRAMS / "spinner", "--hold", "--kernel-us", "2000", ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(child.stdout.readline().strip(), "ready")
        return child

    # ctest labels: unsanitized
    def test_measured_turns_are_told_with_what_a_hand_over_costs_and_how_busy_each_program_is(self):
        both = [self.busy("--quantum", "automatic"), self.busy()]
        pids = {child.pid for child in both}

        def settled():
            status = self.status()
            uses = [use for client in status["clients"] for use in (client["use"] or {"gpus": {}})["gpus"].values()]
            known = len(uses) == 2 and all(use["busy"] and use["calls_per_second"] for use in uses)
            # On a machine that is busy with other work they may look idle.
            return status if known and status["gpus"][0]["sharing"]["reason"] in ("trial", "few contend") else None

        status = self.eventually(settled, "it is settled how they share the GPU")
        sharing = status["gpus"][0]["sharing"]
        self.assertEqual(sharing["active"], 2)
        self.assertGreater(sharing["turn_ns"], 0)
        self.assertGreater(sharing["switch_ns"], 0)
        self.assertEqual(sharing["trial"] is None, sharing["reason"] == "few contend", sharing)
        if sharing["trial"] is not None:
            self.assertEqual(sharing["candidate"] == "in turns", sharing["trial"] < 1, sharing)
        self.assertEqual({client["pid"] for client in status["clients"]}, pids)
        for client in status["clients"]:
            [use] = client["use"]["gpus"].values()
            self.assertGreater(use["busy"], 0)
            self.assertLessEqual(use["busy"], 1)
            self.assertGreater(use["calls_per_second"], 1)
            self.assertGreater(client["use"]["held_ns"], 0)
            self.assertGreater(client["use"]["waited_ns"], 0)  # first everybody takes turns

        text = self.checked(ROTA, "status").stdout
        self.assertRegex(text, r"2 programs active: .*; a hand-over costs [\d.e-]+ ms")
        for pid in pids:
            self.assertRegex(text, rf"pid {pid} .*\n +keeps the GPU busy \d+% of its own time, [\d.]+ calls/s alone, has waited [\d.]+ s")

    # ctest labels: unsanitized
    def test_what_nobody_has_measured_is_told_as_unknown(self):
        both = [self.busy("--quantum", "2s"), self.busy()]
        status = self.status()
        self.assertEqual((status["gpus"][0]["sharing"]["candidate"], status["gpus"][0]["sharing"]["reason"]), ("all at once", "fits"))
        self.assertIsNone(status["gpus"][0]["sharing"]["trial"])
        for client in status["clients"]:
            [use] = client["use"]["gpus"].values()
            self.assertIsNone(use["busy"])
            self.assertIsNone(use["calls_per_second"])
        self.assertIn("all at once: their memory fits, and the quantum is fixed", self.checked(ROTA, "status").stdout)
        self.checked(ROTA, "control", "mode", "exclusive")
        sharing = self.status()["gpus"][0]["sharing"]
        self.assertEqual((sharing["candidate"], sharing["reason"]), ("in turns", "mode"))
        self.assertIn("in turns, each of 2 s: rotad is in exclusive mode", self.checked(ROTA, "status").stdout)
        for child in both:
            self.assertEqual(self.finish(child).returncode, 0)


class Idle(Case):
    # ctest labels: unsanitized
    def test_what_a_program_has_freed_in_the_order_of_a_stream_before_it_paused_is_not_shown_as_its_own(self):
        for memory in ("swap", "managed"):
            child = self.start(ROTA, "run", "--memory", memory, "--", *FREES_IN_ORDER)
            self.assertEqual(child.stdout.readline(), "ready\n")

            def has():
                [client] = [client for client in self.clients() if client["pid"] == child.pid]
                return client["bytes"]

            self.eventually(lambda: has() < 20 << 20, f"{memory}: nothing that was freed is shown")
            child.stdin.close()
            child.stdin = None
            self.assertEqual(self.finish(child).returncode, 0)


class Log(Case):
    def test_a_rotad_whose_log_nobody_reads_serves_and_says_later_that_lines_are_missing(self):
        daemon = self.start_daemon("--log", "debug")
        pipe = daemon.stderr.fileno()
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(pipe, False)
        run = lambda: self.checked(ROTA, "run", "--", PROGRAMS / "memhog", "--rounds", "3")
        unread = lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")

        def full():
            before = unread()
            run()
            return unread() == before > 0

        self.eventually(full, "nothing more fits into the pipe")
        self.assertIsNotNone(self.status())
        log = []

        def missing():
            try:
                log.append(os.read(pipe, 4096).decode())
            except BlockingIOError:
                run()
            return "lines are missing here" in "".join(log)

        self.eventually(missing, "it says that lines are missing")


if __name__ == "__main__":
    unittest.main()
