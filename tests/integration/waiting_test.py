"""A program that waits for its turn says so, and its trace says how long."""
import json
import os
import pwd
import subprocess
import unittest

from harness import Case, PROGRAMS, ROTA


class Waiting(Case):
    def hold(self, seconds="2.5"):
        """A program that keeps the GPU busy in one long turn."""
        holder = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--seconds", seconds)
        self.assertEqual(holder.stdout.readline().strip(), "ready")
        self.eventually(lambda: [client for client in self.clients() if client["holds"]], "it holds the GPU")
        return holder

    # ctest labels: unsanitized
    def test_who_waits_for_a_second_says_for_whom_and_only_once(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        holder = self.hold()
        silent = self.start(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_LOG="error")
        waiter = self.finish(self.start(ROTA, "run", "--", PROGRAMS / "saxpy"))
        user = pwd.getpwuid(os.getuid()).pw_name
        said = [line for line in waiter.stderr.splitlines() if line.startswith("rota: waiting")]
        self.assertEqual(said, [f"rota: waiting for GPU 0, held by pid {holder.pid} (spinner, {user}); `rota status` says more"], waiter.stderr)
        self.assertNotIn("waiting", self.finish(silent).stderr)

    def nobody(self, *command):
        """The command, as a user who is neither root nor this test's."""
        return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]

    # ctest labels: unsanitized
    def test_whose_programs_others_see_is_the_machines_to_say(self):
        if os.geteuid() != 0:
            self.skipTest("needs root to become somebody else")
        self.scratch.chmod(0o755)
        if subprocess.run(self.nobody("test", "-x", str(ROTA)), check=False).returncode != 0:
            self.skipTest("another user cannot reach the build folder")
        configuration = self.scratch / "rotad.toml"
        configuration.write_text('visibility = "own"\n[limits.user]\ngpu = "200M"\n')
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--config", configuration)
        holder = self.hold("4")
        theirs = self.scratch / "theirs"
        theirs.mkdir()
        os.chown(theirs, 65534, 65534)
        (self.scratch / "device").chmod(0o666)
        status = self.checked(*self.nobody(ROTA, "status"))
        self.assertIn("another user's program", status.stdout)
        for secret in str(holder.pid), "spinner", "root":
            self.assertNotIn(secret, status.stdout)
        [client] = json.loads(self.checked(*self.nobody(ROTA, "status", "--json")).stdout)["clients"]
        self.assertEqual((client["pid"], client["name"], client["user"]), (0, "another user's program", ""))
        self.assertIn("spinner", self.checked(ROTA, "status").stdout, "root sees all")
        waiter = self.finish(self.start(*self.nobody(ROTA, "run", "--", PROGRAMS / "saxpy"), ROTA_CACHE=str(theirs)))
        said = [line for line in waiter.stderr.splitlines() if line.startswith("rota: waiting")]
        self.assertEqual(said, ["rota: waiting for GPU 0, held by another user's program; `rota status` says more"], waiter.stderr)

    # ctest labels: unsanitized
    def test_waiting_is_not_booked_on_the_call(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s")
        self.hold()
        folder = self.scratch / "trace"
        traced = self.checked(ROTA, "trace", "--dir", folder, "--", PROGRAMS / "saxpy")
        calls = [call for call in json.loads(self.checked(ROTA, "trace", "show", "--json", folder).stdout) if call["waited_ns"]]
        self.assertEqual(len(calls), 1, calls)
        self.assertGreater(calls[0]["waited_ns"], 1_000_000_000)
        self.assertGreaterEqual(calls[0]["duration_ns"], calls[0]["waited_ns"])
        self.assertRegex(traced.stderr, r"waited \d+\.\d+ s for a turn in 1 call\n")
        row = next(line for line in traced.stderr.splitlines() if calls[0]["function"] in line)
        self.assertRegex(row.split(maxsplit=1)[1], r"^[\d.]+ [mun]?s .* s  " + calls[0]["function"], "total without what it waited")
        self.assertNotRegex(" ".join(row.split()[1:3]), r"^[\d.]+ s$")
        self.assertRegex(self.checked(ROTA, "trace", "show", folder).stdout, r"\(\d+\.\d+ s of it waiting for a turn\)")
        events = json.loads(self.checked(ROTA, "trace", "export", folder).stdout)["traceEvents"]
        [slice] = [event for event in events if event["name"] == "waiting for a turn"]
        self.assertEqual(round(slice["dur"] * 1000), calls[0]["waited_ns"])


if __name__ == "__main__":
    unittest.main()
