"""Twenty hostile clients of three users, who do at random whatever may hurt, next to honest programs with swap memory."""
import json
import os
import re
import signal
import sys
import threading
import time
import unittest

from harness import PROGRAMS, ROTA, Case

HERE = os.path.dirname(os.path.abspath(__file__))
USERS = 54321, 54322, 54323
# What a machine with users that do not trust each other should have (scheduler/ISOLATION.md).
CONFIG = """
visibility = "own"
[limits.user]
gpu = "200M"
[limits.users]
root = { gpu = "4G" }
"""


class HostileCrowd(Case):
    memory = "8G"

    def hog(self, *arguments):
        return self.start(ROTA, "run", "--gpu-mem", "1G", "--memory", "swap", "--", PROGRAMS / "memhog", *arguments)

    def rate(self, child):
        result = self.finish(child, 900)
        self.assertEqual(result.returncode, 0, result.stderr)
        said = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual(said["wrong"], 0)
        return said["rounds"] / said["seconds"]

    def beside_a_crowd(self, hostile, seconds):
        self.scratch.chmod(0o755)
        (self.scratch / "rotad.toml").write_text(CONFIG)
        daemon = self.start_daemon("--config", self.scratch / "rotad.toml", "--log", "info", "--quantum", "100ms",
                                   "--grace", "300ms")
        # As it comes: a full pipe would lose the last line.
        lines = []
        reader = threading.Thread(target=lambda: lines.append(daemon.stderr.read()), daemon=True)
        reader.start()
        first = self.hog("--bytes", "8M", "--rounds", "2", "--hold")
        self.assertTrue(first.stdout.readline().startswith("ready"))
        uuid = self.status()["gpus"][0]["uuid"].removeprefix("GPU-").replace("-", "")
        self.finish(first)
        alone = self.rate(self.hog("--bytes", "64M", "--seconds", "3"))
        crowd = [self.start(sys.executable, "-B", os.path.join(HERE, "hostile_client.py"), self.environment["ROTA_SOCKET"], uuid, seed,
                            USERS[seed % len(USERS)]) for seed in range(hostile)]
        until = time.monotonic() + seconds
        steady = self.hog("--bytes", "64M", "--seconds", seconds)
        programs = 0
        took = []
        while time.monotonic() < until:
            begun = time.monotonic()
            result = self.call(ROTA, "run", "--gpu-mem", "1G", "--memory", "swap", "--", PROGRAMS / "memhog", "--bytes", "32M",
                               "--rounds", "3", timeout=300)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn('"wrong":0', result.stdout)
            took.append(time.monotonic() - begun)
            programs += 1
        beside = self.rate(steady)
        # Three users have their turns in between, and never give back before they are overrun.
        self.assertLess(took[-1], 60)
        self.assertIsNone(daemon.poll(), "rotad has ended")
        for child in crowd:
            self.assertIsNone(child.poll(), "a hostile client has ended by itself")
            child.send_signal(signal.SIGKILL)
            said, errors = child.communicate()
            self.assertEqual(said, "", "names of another domain")
        self.eventually(lambda: not self.clients(), "the hostile clients are gone")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=60)
        reader.join(60)
        log = "".join(lines)
        self.assertEqual(daemon.returncode, 0, log)
        said = re.search(r"the most processor time that one thing took: (\d+) us \((.*)\)", log)
        longest = int(said.group(1))
        took.sort()
        print(f"{hostile} hostile clients: {programs} programs beside them, the slowest {took[-1]:.1f} s, half of them within "
              f"{took[len(took) // 2]:.2f} s; the steady one at {beside / alone:.2f} of its rate alone; rotad's loop was away for "
              f"{longest / 1000:.1f} ms at most ({said.group(2)})")
        return longest

    # ctest labels: unsanitized
    def test_honest_programs_have_their_memory_and_their_turns_beside_hostile_clients(self):
        self.beside_a_crowd(6, 10)

    # ctest labels: thorough unsanitized
    def test_honest_programs_have_their_memory_and_their_turns_beside_twenty_hostile_clients_for_ten_minutes(self):
        self.assertLessEqual(self.beside_a_crowd(20, 600), 20_000)


if __name__ == "__main__":
    unittest.main()
