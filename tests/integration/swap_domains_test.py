"""A hostile program that keeps mappings of its own memory behind rota's back, in a trust domain with another and out of it."""
import json
import os
import shutil
import subprocess
import unittest

from harness import PROGRAMS, ROTA
from swap_test import SCALE, Swapping

NOBODY = 65534


class Domains(Swapping):
    def seen_by_a_keeper(self, *prefix, trust="user"):
        """What it sees of the memory of a program that takes turns with it. `prefix`: how it is started."""
        daemon = self.rotad(trust=trust)
        keeper = self.start(*prefix, ROTA, "run", "--memory", "swap", "--", PROGRAMS / "keeper", "--share", "0.6", "--pieces", "8",
                            "--keep", "3", ROTA_SIM_TIME_SCALE=SCALE, ROTA_LOG="debug")
        line = keeper.stdout.readline()
        self.assertEqual(line, "ready\n", "" if line else self.finish(keeper).stderr[-3000:])
        hog, = self.hold(1)
        self.switches(8, "the lease goes to and fro")
        keeper.stdin.close()
        keeper.stdin = None
        result = self.finish(keeper)
        self.right([hog])
        self.assertEqual(result.returncode, 0, result.stderr[-2000:])
        self.assertRegex(result.stderr, "GPU 0: [1-9][0-9]* of [0-9]+ bytes moved out")
        said = json.loads(result.stdout.splitlines()[-1])
        self.assertGreater(said["looks_while_away"], 8, said)
        daemon.terminate()
        self.assertEqual(self.finish(daemon).returncode, 0)
        return said["foreign"]

    def is_seen_by_a_keeper(self, *prefix, trust="user"):
        """Several are tried: on simgpu memory on its way from one program to another is free to both, so on a busy machine
        it can be lost on the way, and what a keeper keeps is then nobody else's any more."""
        return any(self.seen_by_a_keeper(*prefix, trust=trust) > 0 for _ in range(5))

    def permitted(self, *prefix):
        if shutil.which(prefix[0]) is None or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"this machine does not permit `{' '.join(prefix)}`")
        return prefix

    def test_within_a_domain_it_sees_what_the_other_program_writes(self):
        """So the tests below do look."""
        self.assertTrue(self.is_seen_by_a_keeper())

    def test_where_nobody_is_trusted_it_sees_nothing(self):
        self.assertEqual(self.seen_by_a_keeper(trust="none"), 0)

    def test_in_a_user_namespace_of_its_own_it_sees_nothing(self):
        self.assertEqual(self.seen_by_a_keeper(*self.permitted("unshare", "--user")), 0)

    def test_from_a_user_namespace_of_its_own_it_sees_all_where_all_programs_trust_one_another(self):
        self.assertTrue(self.is_seen_by_a_keeper(*self.permitted("unshare", "--user"), trust="machine"))

    def as_another_user(self):
        """For a machine that two users share: its files and rotad's socket are open to both."""
        prefix = self.permitted("setpriv", f"--reuid={NOBODY}", "--clear-groups")
        self.scratch.chmod(0o777)
        return prefix

    def test_as_another_user_it_sees_nothing(self):
        self.assertEqual(self.seen_by_a_keeper(*self.as_another_user()), 0)


if __name__ == "__main__":
    unittest.main()
