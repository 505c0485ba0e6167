"""rotad is ended with SIGTERM again and again under programs that share a GPU, and another takes its place each time: the programs'
results are right, no two hold the GPU at once, and the program that held it has it again first."""
import json
import random
import time
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD

WAITS_FOR_A_HOLDER = 950_000_000  # nanoseconds: a little less than rotad does (scheduler/server/returning.cpp)


class Turns:
    """What an event log says of who held the only GPU."""

    def __init__(self, text):
        self.holders = []  # by pid
        self.problems = []
        self.first_grant = None  # pid, time
        self.wanted = {}  # pid: the time at which it first wanted
        self.began = None
        pids, now = {}, 0
        for line in text.splitlines():
            words = line.split()
            if words[0] == "#":
                if words[2] == "task":
                    pids[words[3]] = int(words[7])
            elif words[0].isdigit():
                now = int(words[0])
                self.began = self.began or now
                if words[1] == "want" and words[3] != "0":
                    self.wanted.setdefault(pids[words[2]], now)
            elif words[1] == "granted":
                pid = pids[words[2]]
                self.first_grant = self.first_grant or (pid, now)
                if self.holders:
                    self.problems.append(f"{line} at {now} while {self.holders} held it")
                self.holders.append(pid)
            elif words[1] in ("ended", "revoked") and pids[words[2]] in self.holders:
                self.holders.remove(pids[words[2]])


class Restarts(Case):
    programs = 6

    def one(self, number):
        daemon = self.start(ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks", "--mode",
                            "exclusive", "--quantum", "50ms", "--event-log", self.scratch / f"events{number}")
        self.eventually(lambda: self.status() is not None or daemon.poll() is not None, "rotad answers")
        self.assertIsNone(daemon.poll(), "rotad ended at once")
        return daemon

    def restart(self, times, seed):
        choose = random.Random(seed)
        daemon = self.one(0)
        programs = [self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.3", "--hold") for _ in range(self.programs)]
        for program in programs:
            self.assertEqual(program.stdout.readline().strip(), "ready")
        for number in range(1, times + 1):
            time.sleep(choose.random() * 0.3)  # some moment
            daemon.terminate()
            self.assertEqual(self.finish(daemon).returncode, 0)
            if choose.random() < 0.3:
                time.sleep(choose.random() * 0.5)  # it is away for some time
            daemon = self.one(number)
        pids = {program.pid for program in programs}
        self.eventually(lambda: {row["pid"] for row in self.clients() if row["gpus"]} >= pids, "all are served")
        for program in programs:
            result = self.finish(program)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["wrong"], 0)
            self.assertNotIn("without turns", result.stderr)
        daemon.terminate()
        self.finish(daemon)
        self.look_at_logs(times)

    def look_at_logs(self, times):
        held = []
        kept = 0
        for number in range(times + 1):
            log = self.scratch / f"events{number}"
            self.checked(ROTAD, "--replay", log)
            text = log.read_text(encoding="utf-8")
            turns = Turns(text)
            self.assertEqual(turns.problems, [], f"{held} held it before\n{text}")
            if held and turns.first_grant is not None:
                pid, at = turns.first_grant
                if pid in held:
                    kept += 1
                else:
                    self.assertGreater(at - turns.began, WAITS_FOR_A_HOLDER, f"{log}: {pid} had the GPU before {held}")
            held = turns.holders
        self.assertGreater(kept, times / 3, "holders have not come back")

    # ctest labels: unsanitized
    def test_programs_take_turns_over_six_restarts(self):
        self.restart(6, 1)

    # ctest labels: thorough unsanitized
    def test_programs_take_turns_over_fifty_restarts(self):
        self.restart(50, 2)


if __name__ == "__main__":
    unittest.main()
