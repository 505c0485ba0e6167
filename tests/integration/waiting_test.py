"""A program that waits for its turn says so, and its trace says how long."""
import json
import os
import pwd
import signal
import subprocess
import sys
import unittest

from harness import Case, PROGRAMS, ROTA, kill


# Allocates and writes so many MiB, and so many more once told to.
GROWS = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
for mib, last in zip(sys.argv[1:], (False, True)):
    size = ctypes.c_size_t(int(mib) << 20)
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), size) or cuda.cuMemsetD8_v2(address, 7, size) or cuda.cuCtxSynchronize()
    print(result if last else "ready", flush=True)
    sys.stdin.readline()
"""


class Waiting(Case):
    def hold(self):
        """A program that keeps its turn until it is killed: stopped while no program waits, it cannot give the turn back."""
        holder = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--seconds", "1000")
        self.assertEqual(holder.stdout.readline().strip(), "ready")
        self.eventually(lambda: [client for client in self.clients() if client["holds"]], "it holds the GPU")
        os.kill(holder.pid, signal.SIGSTOP)
        return holder

    def until_said(self, holder, waiter):
        """The waiter's output while it waits, and the rest once it need not wait any more."""
        first = waiter.stderr.readline()
        kill(holder)
        return first, self.finish(waiter)

    def until_waiting(self, child):
        self.eventually(lambda: [client for client in self.clients() if client["pid"] == child.pid and client["waits"]], "it waits")

    # ctest labels: unsanitized
    def test_an_allocation_that_waits_for_others_turns_says_so(self):
        # Both hold the GPU, since they fit; with what the one allocates then they do not, and the other cannot give its lease back.
        self.start_daemon("--quantum", "50ms")
        grows = self.start(ROTA, "run", "--", sys.executable, "-c", GROWS, 100, 100)
        self.assertEqual(grows.stdout.readline(), "ready\n")
        other = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "60M", "--hold")
        self.assertEqual(other.stdout.readline(), "ready\n")
        self.eventually(lambda: sum(client["holds"] for client in self.clients()) == 2, "both hold the GPU")
        os.kill(other.pid, signal.SIGSTOP)
        grows.stdin.write("\n")
        grows.stdin.flush()
        self.assertRegex(grows.stderr.readline(), rf"^rota: waiting for room for this program's memory on GPU 0, where others have theirs: pid {other.pid} \(memhog, .*\) \d+ MiB; "
                         rf"pid {other.pid} is stopped: `kill -CONT {other.pid}` lets it go on; `rota status` says more")
        kill(other)
        self.assertEqual(grows.stdout.readline(), "0\n")
        self.finish(grows)

    # ctest labels: unsanitized
    def test_who_waits_for_a_second_says_for_whom_and_only_once(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--grace", "1000s")
        holder = self.hold()
        silent = self.start(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_LOG="error")
        self.until_waiting(silent)
        said, after = self.until_said(holder, self.start(ROTA, "run", "--", PROGRAMS / "saxpy"))
        user = pwd.getpwuid(os.getuid()).pw_name
        self.assertEqual(said, f"rota: waiting for GPU 0, held by pid {holder.pid} (spinner, {user}); `rota status` says more\n")
        self.assertEqual((after.returncode, after.stderr), (0, ""))
        self.assertNotIn("waiting", self.finish(silent).stderr)

    # ctest labels: unsanitized
    def test_a_wait_that_a_kill_ends_is_in_the_report(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--grace", "1000s")
        holder = self.hold()
        kept = self.scratch / "kept"
        # rota sees the shell's end; that of its child, nobody but the shell.
        rig = self.start(ROTA, "run", "--report", f"{kept}/", "--", "sh", "-c", f"{PROGRAMS}/saxpy & echo $!; wait; exit 0")
        waiter = int(rig.stdout.readline())

        def waited():
            report = self.call(ROTA, "report", kept, "--format", "json")
            return json.loads(report.stdout)["total"]["waited_ns"] if report.returncode == 0 else 0
        self.eventually(lambda: waited() > 2.5e9, "it has waited for a while")
        os.kill(waiter, signal.SIGKILL)
        self.assertEqual(self.finish(rig).returncode, 0)
        # It says once a second that it lives.
        self.assertGreater(waited(), 1e9)
        kill(holder)

    def nobody(self, *command):
        """Runs the command as a user who is neither root nor the test's user."""
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
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--grace", "1000s", "--config", configuration)
        holder = self.hold()
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
        said, _ = self.until_said(holder, self.start(*self.nobody(ROTA, "run", "--", PROGRAMS / "saxpy"), ROTA_CACHE=str(theirs)))
        self.assertEqual(said, "rota: waiting for GPU 0, held by another user's program; `rota status` says more\n")

    # ctest labels: unsanitized
    def test_waiting_is_not_booked_on_the_call(self):
        self.start_daemon("--mode", "exclusive", "--quantum", "1000s", "--grace", "1000s")
        holder = self.hold()
        folder = self.scratch / "trace"
        child = self.start(ROTA, "trace", "--dir", folder, "--", PROGRAMS / "saxpy")
        self.eventually(lambda: [client for client in self.clients() if client["waits"] and client["since_ns"] >= 1_200_000_000], "it has waited")
        kill(holder)
        traced = self.finish(child)
        self.assertEqual(traced.returncode, 0, traced.stderr)
        calls = [call for call in json.loads(self.checked(ROTA, "trace", "show", "--json", folder).stdout) if call["waited_ns"]]
        # Nearly always one; on a busy machine a call between two turns may wait briefly.
        calls.sort(key=lambda call: -call["waited_ns"])
        self.assertGreater(sum(call["waited_ns"] for call in calls), 1_000_000_000, calls)
        for call in calls:
            self.assertGreaterEqual(call["duration_ns"], call["waited_ns"])
        self.assertRegex(traced.stderr, r"waited \d+\.\d+ s for a turn in \d+ calls?\n")
        row = next(line for line in traced.stderr.splitlines() if calls[0]["function"] in line)
        number, total, unit, *_ = row.split()
        factor = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1}[unit]
        of_function = [call for call in json.loads(self.checked(ROTA, "trace", "show", "--json", "--function", calls[0]["function"], folder).stdout)]
        own = sum(call["duration_ns"] - call["waited_ns"] for call in of_function)
        self.assertEqual(int(number), len(of_function))
        self.assertAlmostEqual(float(total) * factor, own, delta=factor, msg="the total is without what it waited")
        self.assertRegex(self.checked(ROTA, "trace", "show", folder).stdout, r"\(\d+\.\d+ \w+ of it waiting for a turn\)")
        events = json.loads(self.checked(ROTA, "trace", "export", folder).stdout)["traceEvents"]
        slices = [round(event["dur"] * 1000) for event in events if event["name"] == "waiting for a turn"]
        self.assertEqual(sorted(slices), sorted(call["waited_ns"] for call in calls if call["api"] == "driver"))


if __name__ == "__main__":
    unittest.main()
