"""GPUs that rotad has chosen for programs that do not use them yet (`rota run --gpus`): how many a user may have, what `rota status`
shows of them, and that a new rotad knows them."""
import pathlib
import re
import socket
import struct
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD, kill
from sim_case import program
from users_case import UsersCase

STAY, CHOOSE, REFUSED, CHOSEN = 7, 17, 103, 113
MOST = 256
# Says what it sees, then uses its GPU, says so, and stays.
SAYS = program("""
import os
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.readline()
assert context() == 0
print("came", flush=True)
sys.stdin.readline()
""")
# The same without using it; other users may not run this Python.
SHOWS = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line")


def choose(path, session, count=1, gpus=1):
    """The kind of rotad's answer, and its body."""
    candidates = b"".join(struct.pack("<16sII", bytes([number + 1]) * 16, 1000, 0) for number in range(gpus))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rotad:
        rotad.settimeout(60)
        rotad.connect(path)
        rotad.send(struct.pack("<IHH", 0x41544F52, 9, CHOOSE) + struct.pack("<II64s", count, gpus, session.encode()) + candidates)
        answer = rotad.recv(1024)
    return struct.unpack("<H", answer[6:8])[0], answer[8:]


class Reservations(Case):
    memory = "1G"

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "4"

    def sees(self):
        child = self.start(ROTA, "run", "--gpus", "1", "--", *SAYS)
        return child, child.stdout.readline().strip()

    def comes(self, child):
        child.stdin.write("\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), "came\n")

    def reserved(self):
        """By UUID: the pids for which it is reserved."""
        gpus = {}
        for each in self.status()["reservations"]:
            gpus.setdefault(each["uuid"], []).append(each["pid"])
        return gpus

    def test_one_user_holds_so_many_at_most_and_is_told_how_many(self):
        daemon = self.start_daemon()
        path = self.environment["ROTA_SOCKET"]
        for number in range(MOST // 16):
            self.assertEqual(choose(path, f"session {number}", 16, 16)[0], CHOSEN)
        kind, body = choose(path, "one more")
        self.assertEqual(kind, REFUSED)
        self.assertIn(b"256 GPUs are reserved for programs of this user that are about to start, and 256 is the most: wait until some", body)
        self.assertEqual(len(self.status()["reservations"]), MOST)
        # A program is started nevertheless.
        started = self.checked(ROTA, "run", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        self.assertRegex(started.stdout, "^GPU-")
        self.assertRegex(started.stderr, "rotad refuses: 256 GPUs are reserved .*: the GPU is chosen by what is in use now, and not reserved")
        # Who asks again for the same needs no more.
        self.assertEqual(choose(path, "session 3", 16, 16)[0], CHOSEN)
        self.assertIsNone(daemon.poll())

    # ctest labels: unsanitized
    def test_status_shows_by_whom_and_for_how_long_a_gpu_is_reserved_until_the_program_comes_or_ends(self):
        self.start_daemon()
        first, gpu = self.sees()
        second, other = self.sees()
        self.assertEqual(self.reserved(), {gpu: [first.pid], other: [second.pid]})
        [shown] = [each for each in self.status()["reservations"] if each["uuid"] == gpu]
        self.assertLessEqual(shown["left_ns"], 60_000_000_000)
        self.assertGreater(shown["left_ns"], 0)
        text = self.checked(ROTA, "status").stdout
        self.assertRegex(text, rf"(?s){gpu}\n(?:  [^\n]*\n)*  reserved for \d+ more seconds at most: pid {first.pid} of {re.escape(shown['user'])}\n")
        self.comes(first)
        self.assertEqual(self.reserved(), {other: [second.pid]})
        kill(second)
        self.eventually(lambda: self.reserved() == {}, "the second has ended")
        self.assertNotIn("reserved", self.checked(ROTA, "status").stdout)

    # ctest labels: unsanitized
    def test_a_new_rotad_knows_what_the_former_has_reserved_and_sees_programs_come_and_end(self):
        daemon = self.start_daemon()
        pair = [self.sees() for _ in range(3)]
        before = self.status()["reservations"]
        daemon.terminate()
        self.assertEqual(self.finish(daemon).returncode, 0)
        self.start_daemon()
        after = self.status()["reservations"]
        known = lambda all: sorted((each["uuid"], each["pid"], each["uid"]) for each in all)
        self.assertEqual(known(after), known(before))
        self.assertLessEqual(max(each["left_ns"] for each in after), max(each["left_ns"] for each in before))
        fourth, last = self.sees()
        self.assertEqual(len({last, *(gpu for _, gpu in pair)}), 4)
        (first, gpu), (second, _), (third, other) = pair
        self.comes(first)
        self.assertNotIn(gpu, self.reserved())
        kill(second)
        self.eventually(lambda: self.reserved() == {other: [third.pid], last: [fourth.pid]}, "the second has ended")

    def test_of_one_that_ended_meanwhile_a_new_rotad_knows_nothing(self):
        daemon = self.start_daemon()
        child, _ = self.sees()
        daemon.terminate()
        self.assertEqual(self.finish(daemon).returncode, 0)
        self.assertIn("chosen GPU-", pathlib.Path(self.environment["ROTA_SOCKET"] + ".books").read_text(encoding="utf-8"))
        kill(child)
        self.start_daemon()
        self.assertEqual(self.status()["reservations"], [])


class OfUsers(UsersCase):
    memory = "1G"

    def setUp(self):
        super().setUp()
        self.environment["ROTA_SIM_GPUS"] = "4"
        self.checked(PROGRAMS / "saxpy")
        for file in (self.scratch / "sim").iterdir():
            file.chmod(0o666)

    # ctest labels: unsanitized
    def test_programs_of_several_users_get_different_gpus_and_one_user_at_the_limit_is_not_the_other_s_limit(self):
        self.start_machine()
        seen = {}
        for user in self.users * 2:
            child = self.start_as(user, ROTA, "run", "--gpus", "1", "--", *SHOWS)
            gpu = child.stdout.readline().strip()
            seen.setdefault(gpu, []).append((child.pid, user))
        self.assertEqual(sorted(len(each) for each in seen.values()), [1, 1, 2, 2], seen)
        shown = {}
        for each in self.machine_status()["reservations"]:
            shown.setdefault(each["uuid"], []).append((each["pid"], each["uid"]))
        self.assertEqual(shown, seen)
        # Root fills its own share, and users still get theirs.
        for number in range(MOST // 16):
            self.assertEqual(choose(self.machine_socket, f"session {number}", 16, 16)[0], CHOSEN)
        self.assertEqual(choose(self.machine_socket, "one more")[0], REFUSED)
        child = self.start_as(self.users[0], ROTA, "run", "--gpus", "1", "--", *SHOWS)
        self.assertRegex(child.stdout.readline(), "^GPU-")
        self.assertIn(child.pid, [each["pid"] for each in self.machine_status()["reservations"]])

    # ctest labels: unsanitized
    def test_where_programs_of_others_are_not_to_be_seen_neither_are_their_reservations(self):
        configuration = self.scratch / "rotad.toml"
        configuration.write_text('visibility = "own"\n')
        self.start(ROTAD, "--socket", self.machine_socket, "--config", configuration)
        self.eventually(self.machine_status, "the machine's rotad answers")
        child = self.start_as(self.users[0], ROTA, "run", "--gpus", "1", "--", *SHOWS)
        gpu = child.stdout.readline().strip()
        [own] = self.status_of(self.users[0], self.machine_socket)["reservations"]
        self.assertEqual((own["uuid"], own["pid"], own["uid"]), (gpu, child.pid, self.users[0]))
        [hidden] = self.status_of(self.users[1], self.machine_socket)["reservations"]
        self.assertEqual((hidden["uuid"], hidden["pid"], hidden["user"]), (gpu, 0, None))
        text = self.finish(self.start_as(self.users[1], ROTA, "status", ROTA_SOCKET=self.machine_socket)).stdout
        self.assertIn("more seconds at most: another user's program\n", text)


if __name__ == "__main__":
    unittest.main()
