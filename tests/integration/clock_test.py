"""The machine's clock is set a day forward and back, as by an administrator or NTP: turns, the log's order, what is left to the
next rotad, and metrics go by a clock that nobody sets. Debian's libfaketime does this to rotad only."""
import datetime
import json
import os
import pathlib
import re
import time
import unittest

from harness import PROGRAMS, ROTA, ROTAD
from metrics_test import Metrics, counters, value
from restarts_test import Turns

FAKETIME = next(iter(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
DAY = 86400


@unittest.skipIf(FAKETIME is None, "there is no libfaketime: install faketime")
@unittest.skipIf("asan" in os.environ.get("ROTA_BUILD", "") or "tsan" in os.environ.get("ROTA_BUILD", ""),
                 "a sanitizer has to be loaded first")
class SetClock(Metrics):
    def setUp(self):
        super().setUp()
        self.clock = self.scratch / "clock"
        self.number = 0
        self.set_clock(0)

    def set_clock(self, seconds):
        new = self.scratch / "clock.new"
        new.write_text(f"{seconds:+d}\n", encoding="utf-8")
        new.rename(self.clock)

    def rotad(self, *options):
        self.number += 1
        errors = (self.scratch / f"said{self.number}").open("w", encoding="utf-8")
        self.addCleanup(errors.close)
        daemon = self.start("sh", "-c", 'exec "$@" 2>"$0"', errors.name, ROTAD, "--socket", self.environment["ROTA_SOCKET"],
                            "--lock-directory", self.scratch / "locks", "--config", self.config, "--mode", "exclusive", "--quantum",
                            "50ms", "--log", "debug", "--event-log", self.scratch / f"events{self.number}", *options,
                            LD_PRELOAD=str(FAKETIME), FAKETIME_TIMESTAMP_FILE=str(self.clock), FAKETIME_NO_CACHE="1",
                            FAKETIME_DONT_FAKE_MONOTONIC="1", DONT_FAKE_MONOTONIC="1", TZ="UTC")
        self.eventually(lambda: self.status() is not None or daemon.poll() is not None, "rotad answers")
        self.assertIsNone(daemon.poll(), "rotad ended at once")
        return daemon

    def said(self, number):
        """What that rotad has logged: [(time, text)]."""
        lines = (self.scratch / f"said{number}").read_text(encoding="utf-8").splitlines()
        stamped = [re.fullmatch(r"(\S{19})\.\d+\+00:00 rotad: (.*)", line) for line in lines]
        self.assertTrue(all(stamped), lines)
        return [(datetime.datetime.fromisoformat(line[1]).timestamp(), line[2]) for line in stamped]

    def turns(self):
        """How long each program has held the GPU, by pid."""
        return {row["pid"]: row["use"]["held_ns"] for row in self.clients() if row["use"]}

    def both_go_on(self, what):
        before = self.eventually(lambda: len(turns := self.turns()) == 2 and turns, f"both are rotad's clients, {what}")
        self.eventually(lambda: all(self.turns().get(pid, 0) > held for pid, held in before.items()), f"both have turns {what}")

    # ctest labels: unsanitized
    def test_nothing_but_the_log_s_stamps_follows_the_clock(self):
        begun = time.monotonic()
        daemon = self.rotad()
        programs = [self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", "0.3", "--hold") for _ in range(2)]
        for program in programs:
            self.assertEqual(program.stdout.readline().strip(), "ready")
        self.eventually(lambda: len(self.turns()) == 2, "both are clients")
        self.both_go_on("before")
        seen = [self.scrape()]
        for offset in DAY, -DAY, 0:
            self.set_clock(offset)
            self.checked(ROTA, "control", "grace", f"{11 + len(seen)}s")  # a line of the log
            self.both_go_on(f"with the clock at {offset:+d} s")
            self.eventually(lambda: counters(self.scrape()) != counters(seen[-1]), "the figures go on")
            seen.append(self.scrape())
        passed = time.monotonic() - begun
        for before, after in zip(seen, seen[1:]):
            for key, number in counters(before).items():
                self.assertGreaterEqual(after[key], number, key)
        for name in "rota_held_seconds_total", "rota_waited_seconds_total":
            self.assertLess(value(seen[-1], name), 2 * passed, name)
        # The next one is started a day later by the clock, and a moment later by what passes.
        for offset in DAY, -DAY:
            daemon.terminate()
            self.assertEqual(self.finish(daemon).returncode, 0)
            self.set_clock(offset)
            daemon = self.rotad()
            self.both_go_on("after a restart")
        for program in programs:
            result = self.finish(program)
            self.assertEqual((result.returncode, json.loads(result.stdout)["wrong"]), (0, 0), result.stderr)
            self.assertNotIn("without turns", result.stderr)
        daemon.terminate()
        self.finish(daemon)
        for number in range(1, self.number + 1):
            events = self.scratch / f"events{number}"
            self.checked(ROTAD, "--replay", events)
            text = events.read_text(encoding="utf-8")
            self.assertEqual(Turns(text).problems, [])
            self.assertNotIn("revoked", text)
            said = [text for _, text in self.said(number)]
            self.assertNotIn("is ignored", "\n".join(said))
            if number > 1:
                self.assertTrue(any("waiting for 2 programs that held GPUs" in text for text in said), said)
        # That the clock was set for rotad is seen by its stamps.
        stamps = [at - time.time() for number in (1, 2, 3) for at, text in self.said(number) if "grace" in text or number > 1]
        for offset in DAY, -DAY, 0:
            self.assertTrue(any(abs(at - offset) < 300 for at in stamps), stamps)
        self.assertLess(abs(self.said(2)[0][0] - time.time() - DAY), 300)


if __name__ == "__main__":
    unittest.main()
