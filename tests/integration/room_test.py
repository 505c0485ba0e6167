"""Room is requested before it is taken: two holders whose memory does not fit are never on the GPU together, not even for a moment."""
import json
import subprocess
import unittest

from harness import Case, PROGRAMS, ROOT, ROTA, ROTAD, kill


class Room(Case):
    def start_daemon(self, *options):
        self.log = self.scratch / "events"
        return super().start_daemon("--event-log", self.log, *options)

    def events(self):
        return self.log.read_text().splitlines()

    def end_daemon(self, daemon):
        daemon.terminate()
        daemon.wait()
        again = self.checked(ROTAD, "--replay", self.log)
        self.assertIn("all as recorded", again.stdout)

    def check_promises(self):
        said = subprocess.run([ROOT / "tests/programs/promises", self.log], capture_output=True, text=True, check=False)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        return said.stdout

    def grow(self, *options, **environment):
        return self.start(ROTA, "run", "--", PROGRAMS / "memhog", *options, **environment)

    def check_right(self, child, rounds):
        result = self.finish(child)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        said = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual((said["wrong"], said["rounds"]), (0, rounds))

    def test_one_of_two_that_run_together_outgrows_the_gpu_in_the_middle_of_its_run(self):
        daemon = self.start_daemon("--mode", "automatic", "--quantum", "50ms")
        other = self.grow("--share", "0.4", "--hold")
        self.assertEqual(other.stdout.readline().strip(), "ready")
        grows = self.grow("--share", "0.3", "--rounds", "40", "--grow", "0.3")
        self.check_right(grows, 40)
        kill(other)
        self.end_daemon(daemon)
        self.assertIn("at most 2 held", self.check_promises())
        # It had to ask, and the other one released memory for it.
        self.assertTrue([line for line in self.events() if " ask " in line])

    def test_two_that_run_together_both_outgrow_the_gpu_at_once(self):
        daemon = self.start_daemon("--mode", "automatic", "--quantum", "30ms")
        both = [self.grow("--share", "0.3", "--rounds", "60", "--grow", "0.3", "--think", "0.002") for _ in range(2)]
        for child in both:
            self.check_right(child, 60)
        self.end_daemon(daemon)
        self.check_promises()

    def test_a_stopped_program_is_overrun_by_one_that_needs_its_room_and_status_says_so(self):
        daemon = self.start_daemon("--mode", "automatic", "--quantum", "30ms", "--grace", "200ms")
        stopped = self.grow("--share", "0.4", "--hold", ROTA_MEMORY="managed")  # the driver evicts its memory
        self.assertEqual(stopped.stdout.readline().strip(), "ready")
        stopped.send_signal(19)  # SIGSTOP
        self.check_right(self.grow("--share", "0.3", "--rounds", "10", "--grow", "0.3"), 10)
        overrun = [client["pid"] for client in self.clients() if client["overrun"]]
        self.assertEqual(overrun, [stopped.pid])
        self.assertIn("others run at the same time", self.checked(ROTA, "status").stdout)
        kill(stopped)
        self.end_daemon(daemon)
        self.check_promises()

    def test_one_that_waits_for_room_is_shown_and_runs_on_when_rotad_dies(self):
        daemon = self.start_daemon("--mode", "automatic", "--quantum", "1000s")
        busy = self.start(ROTA, "run", "--memory", "managed", "--", PROGRAMS / "memhog", "--share", "0.4", "--hold")
        self.assertEqual(busy.stdout.readline().strip(), "ready")
        busy.send_signal(19)  # SIGSTOP: else it gives its lease back whenever its GPU happens to be idle
        grows = self.grow("--share", "0.3", "--rounds", "10", "--grow", "0.3")
        self.eventually(lambda: [c for c in self.clients() if c["pid"] == grows.pid and c["asked_bytes"]], "it waits for room")
        kill(daemon)
        self.check_right(grows, 10)

    def test_a_program_that_a_full_gpu_refuses_says_who_has_memory_there(self):
        self.start_daemon("--memory-wait", "0")
        other = self.start(ROTA, "run", "--memory", "native", "--", PROGRAMS / "memhog", "--share", "0.7", "--hold")
        self.assertEqual(other.stdout.readline().strip(), "ready")
        result = self.call(ROTA, "run", "--memory", "native", "--", PROGRAMS / "memhog", "--share", "0.6", "--rounds", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, rf"rota: GPU 0 has no free memory for an allocation of this program; other programs have memory there: pid {other.pid} \(memhog, \S+\) \d+ MiB")


if __name__ == "__main__":
    unittest.main()
