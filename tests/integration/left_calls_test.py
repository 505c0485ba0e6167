"""Calls that a thread leaves by siglongjmp while they wait, as watchdogs do: the program goes on."""
import signal

from harness import PROGRAMS, ROTA, SHIMS, Case

JUMPS = PROGRAMS / "jumps"


class LeftCalls(Case):
    def left(self, child):
        print(file=child.stdin, flush=True)
        self.assertEqual(child.stdout.readline(), "left\n")

    def goes_on(self, child):
        self.assertEqual(child.stdout.readline(), "went on\n")
        self.assertEqual(self.finish(child).returncode, 0)

    # ctest labels: unsanitized
    def test_the_first_calls_of_a_program_are_left_while_rotad_is_stopped(self):
        daemon = self.start_daemon()
        for call in ("total", "context"):
            for limit in ((), ("--gpu-mem", "100M")):
                with self.subTest(call=call, limit=limit):
                    child = self.start(ROTA, "run", *limit, "--", JUMPS, "--call", call, "--after-ms", "50")
                    self.assertEqual(child.stdout.readline(), "ready\n")
                    daemon.send_signal(signal.SIGSTOP)
                    self.left(child)
                    daemon.send_signal(signal.SIGCONT)
                    self.goes_on(child)

    # ctest labels: unsanitized
    def test_a_program_that_waits_for_a_rotad_leaves_that_and_is_served_by_the_one_that_comes(self):
        child = self.start(JUMPS, "--after-ms", "300", ROTA_WAIT="1", LD_PRELOAD=str(SHIMS / "librota.so"))
        self.assertEqual(child.stdout.readline(), "ready\n")
        self.left(child)
        self.start_daemon()
        self.goes_on(child)
