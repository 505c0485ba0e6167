"""A rotad that is stopped, by Ctrl-Z, a debugger or with its container, accepts connections and answers nothing; and one
that was killed leaves programs without turns until another starts."""
import os
import pathlib
import select
import signal
import unittest

from harness import Case, PATIENCE, PROGRAMS, ROTA, SHIMS, kill


class SilentRotad(Case):
    def stopped_daemon(self, *options):
        daemon = self.start_daemon(*options)
        daemon.send_signal(signal.SIGSTOP)
        stat = pathlib.Path(f"/proc/{daemon.pid}/stat")
        self.eventually(lambda: ") T " in stat.read_text(encoding="utf-8"), "it is stopped")
        return daemon

    def ready(self, program):
        """Waits until the program's first kernel has run, which must not take until rotad goes on."""
        self.assertTrue(select.select([program.stdout], [], [], PATIENCE)[0], "it still waits")
        self.assertEqual(program.stdout.readline().strip(), "ready")

    def runs_and_joins(self, daemon, program):
        """The program runs although rotad is stopped, says so once, and is its client when rotad goes on."""
        self.ready(program)
        daemon.send_signal(signal.SIGCONT)
        self.eventually(lambda: [client for client in self.clients() if client["pid"] == program.pid and client["holds"]],
                        "it takes turns")
        result = self.finish(program)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(f"`kill -CONT {daemon.pid}`", result.stderr)

    def test_a_program_that_rota_run_starts_beside_a_stopped_rotad_runs_and_joins_it_later(self):
        daemon = self.stopped_daemon()
        self.runs_and_joins(daemon, self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold"))

    def test_a_program_with_the_preload_alone_runs_and_joins_it_later(self):
        daemon = self.stopped_daemon()
        self.runs_and_joins(daemon, self.start(PROGRAMS / "spinner", "--hold", LD_PRELOAD=str(SHIMS / "librota.so")))

    def test_a_program_that_waits_is_told_and_goes_on_without_turns_until_rotad_does(self):
        daemon = self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--grace", "1000s")
        holder = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        self.ready(holder)
        self.eventually(lambda: [client for client in self.clients() if client["holds"]], "it holds the GPU")
        holder.send_signal(signal.SIGSTOP)  # otherwise it gives the GPU back if it has a pause
        waiter = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        self.eventually(lambda: [client for client in self.clients() if client["pid"] == waiter.pid and client["waits"]], "it waits")
        daemon.send_signal(signal.SIGSTOP)
        self.ready(waiter)
        daemon.send_signal(signal.SIGCONT)
        holder.send_signal(signal.SIGCONT)
        self.eventually(lambda: {client["pid"] for client in self.clients()} >= {holder.pid, waiter.pid}, "both are served")
        for program in holder, waiter:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"`kill -CONT {daemon.pid}` lets it go on", result.stderr)
        self.assertIn("until it answers this program does not take turns", result.stderr)
        self.assertNotIn("rotad is gone", result.stderr)

    def test_programs_whose_rotad_was_killed_move_over_to_the_one_that_the_next_program_starts(self):
        first = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        second = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        for program in first, second:
            self.ready(program)
        rotad = self.status()["daemon"]["pid"]
        os.kill(rotad, signal.SIGKILL)
        third = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        self.ready(third)
        programs = {first.pid, second.pid, third.pid}
        self.eventually(lambda: {client["pid"] for client in self.clients() if client["holds"] or client["waits"]} == programs,
                        "all take turns")
        self.assertNotEqual(self.status()["daemon"]["pid"], rotad)
        for program in first, second, third:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")

    def test_killing_a_stopped_rotad_lets_its_programs_find_the_next(self):
        daemon = self.stopped_daemon()
        program = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        self.ready(program)
        kill(daemon)
        self.start_daemon()
        self.eventually(lambda: [client for client in self.clients() if client["pid"] == program.pid], "the next one serves it")
        self.assertEqual(self.finish(program).returncode, 0)


if __name__ == "__main__":
    unittest.main()
