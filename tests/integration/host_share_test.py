"""Programs that swap within a limit on the host's memory: they never have more of it together, counted from outside, and lose nothing."""
import json
import pathlib
import sys
import time
import unittest

from harness import PROGRAMS, ROTA
from swap_test import SCALE, Swapping

MIB = 1 << 20
# Two programs of 154 MiB and two contexts of 16 on a GPU of 256: 84 MiB have to be on the host, and one extent more to change places; what is booked is
# rounded up. Both together would keep copies of 308 there.
LIMIT = 170 * MIB

# Two programs in the session of the one that runs this.
PAIR = """
import os, subprocess, sys
os.environ.pop("LD_PRELOAD", None)  # sanitized programs want their runtime in front of it, as `rota run` puts it
pair = [subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True) for _ in range(2)]
print("started", *(each.pid for each in pair), flush=True)
print("ended", *(each.communicate()[0].strip() for each in pair), *(each.returncode for each in pair))
"""


def pool_bytes(pid):
    """What a program has in mappings that are in no core dump and in no child: those that rota copies GPU memory to."""
    bytes = size = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Rss:":
            size = int(words[1]) << 10
        elif words[0] == "VmFlags:" and "dd" in words and "dc" in words:
            bytes += size
    return bytes


class HostShare(Swapping):
    grace = "1s"

    def watched(self, pids, condition):
        """The most that the programs had together at any look until the condition held."""
        most = 0
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end, "the programs do not go on")
            # Together at one moment: what one has taken while the others were read, another may have given back before.
            all = [pool_bytes(pid) for pid in pids]
            if all == [pool_bytes(pid) for pid in pids]:
                most = max(most, sum(all))
        return most

    def test_two_programs_change_places_within_the_machines_budget_and_lose_nothing(self):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text(f"[limits]\nhost_memory = '{LIMIT // MIB}M'\n")
        self.rotad("--config", configuration, quantum="100ms")
        hogs = self.hold(2)
        before = self.grants()
        most = self.watched([hog.pid for hog in hogs], lambda: self.grants() >= before + 8)
        self.assertGreater(most, 40 * MIB)  # something was counted
        self.assertLessEqual(most, LIMIT)
        for said in self.right(hogs):
            self.assertRegex(said, r"GPU 0: \d+ of \d+ bytes moved out")

    def test_two_programs_of_a_session_change_places_within_its_limit_and_lose_nothing(self):
        self.rotad(quantum="100ms")
        session = self.start(ROTA, "run", "--host-mem", f"{LIMIT // MIB}M", "--", sys.executable, "-c", PAIR, ROTA, "run", "--memory", "swap", "--",
                             PROGRAMS / "memhog", "--share", "0.6", "--hold", "--ahead", "20", ROTA_SIM_TIME_SCALE=SCALE)
        pids = [int(word) for word in session.stdout.readline().split()[1:]]
        self.assertEqual(len(pids), 2)
        other = self.hog("--hold", "--ahead", "20", share="0.02")  # which has no limit, and nothing to do with theirs
        most = self.watched(pids, lambda: self.grants() >= 16)
        result = self.finish(session)
        self.right([other])
        self.assertEqual(result.stdout.count('"wrong":0'), 2, result.stdout + result.stderr)
        self.assertGreater(most, 40 * MIB)
        self.assertLessEqual(most, LIMIT)

    def test_status_says_how_much_programs_have_on_the_host(self):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text(f"[limits]\nhost_memory = '{LIMIT // MIB}M'\n")
        self.rotad("--config", configuration, quantum="100ms")
        hogs = self.hold(2)
        self.switches(2, "the lease goes to and fro")
        host = next(limit for limit in json.loads(self.checked(ROTA, "status", "--json").stdout)["limits"] if limit["of"] == "the host")
        self.assertLessEqual(host["host_bytes"], LIMIT)
        self.assertGreater(host["host_swap_bytes"], 0)
        self.assertLessEqual(host["host_swap_bytes"], LIMIT)
        self.assertLessEqual(host["host_spare_bytes"], host["host_swap_bytes"])
        self.right(hogs)

if __name__ == "__main__":
    unittest.main()
