"""What a rotad that is ended with SIGTERM leaves to the next one: places, shares and grants; by clients that speak the protocol
by hand, each in a process of its own."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from harness import Case, ROTAD, kill
from raw_client import RawClient
from users_case import may_be_other_users

GPU = b"books-of-rotad-0"
CLIENT = f"""
import sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from raw_client import GANG, GIVE_BACK, RawClient, USAGE, WANT, become
import select, struct
path, user = sys.argv[1], int(sys.argv[2])
if user:
    become(user)
client = None
lost = False
for line in sys.stdin:
    word = line.split()
    if word[0] == "connect":
        client = RawClient(path, timeout=20)
        client.hello(b"books", returns=lost)
        if len(word) > 1:
            client.send(GANG, struct.pack("<64sIB3x", word[1].encode(), int(word[2]), 1))
        client.add_gpu({GPU!r}, 1 << 30)
        client.socket.recv(1024)
    elif word[0] == "want":
        client.send(WANT, struct.pack("<QIIIIQ", 1, int(word[1]), 0, 0, 0, 1))
        client.send(USAGE)
    elif word[0] == "give_back":
        client.send(GIVE_BACK, struct.pack("<IIQ", client.grant(), 0, 1))
    elif word[0] == "lose":
        client.socket.close()
        lost = True
    print(client.grant() if word[0] == "grant" else "done", flush=True)
"""

# Program after program comes to the GPU, and stays.
NEWCOMERS = f"""
import os, sys, time
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
from raw_client import RawClient
while True:
    if os.fork() == 0:
        try:
            client = RawClient(sys.argv[1], timeout=20)
            client.hello(b"newcomer", returns=len(sys.argv) > 2)
            client.add_gpu({GPU!r}, 1 << 30)
            client.socket.recv(1024)
            print("one has come", flush=True)
            client.socket.recv(1024)
        finally:
            os._exit(0)
    time.sleep(0.02)
"""


class Books(Case):
    def setUp(self):
        super().setUp()
        self.socket = self.environment["ROTA_SOCKET"]
        self.books = pathlib.Path(self.socket + ".books")
        self.log = 0

    def rotad(self, *options, wrapped=()):
        """One in exclusive mode, where nobody has to yield before the test says so, with an event log of its own."""
        self.log += 1
        return self.start_daemon("--mode", "exclusive", "--grace", "1000s", "--event-log", self.scratch / f"events{self.log}",
                                 *options, wrapped=wrapped)

    def client(self, user=0):
        return self.start(sys.executable, "-c", CLIENT, self.socket, user)

    def tell(self, client, *words):
        client.stdin.write(" ".join(words) + "\n")
        client.stdin.flush()
        return client.stdout.readline().strip()

    def connect(self, *clients):
        for client in clients:
            self.assertEqual(self.tell(client, "connect"), "done")

    def want(self, *clients, running=False):
        for client in clients:
            self.tell(client, "want", "1" if running else "0")

    def has_it(self, client):
        return self.tell(client, "grant") != "0"

    def becomes_holder(self, client, what):
        self.eventually(lambda: self.has_it(client), what)

    def waits(self, *clients):
        pids = {client.pid for client in clients}
        self.eventually(lambda: {client["pid"] for client in self.clients() if client["waits"]} >= pids, "they wait")

    def replace(self, daemon, *options):
        """Another rotad in the place of this one, which is ended with SIGTERM; and what that one has left."""
        daemon.terminate()
        self.assertEqual(self.finish(daemon).returncode, 0)
        left = self.books.read_text(encoding="utf-8") if self.books.exists() else ""
        for path in self.books.parent.glob("*.books*"):
            self.assertEqual(path.stat().st_mode & 0o777, 0o600)
            self.assertEqual(path, self.books)
        return self.rotad(*options), left

    def one_holds_and_one_waits(self):
        """A rotad, and the two clients."""
        daemon = self.rotad()
        holder, waiter = self.client(), self.client()
        self.connect(holder, waiter)
        self.want(holder)
        self.becomes_holder(holder, "the first holds")
        self.want(waiter)
        self.waits(waiter)
        return daemon, holder, waiter

    def decisions(self):
        """Of the newest event log: what was granted to whom, by pid and in order."""
        pids, granted = {}, []
        for line in (self.scratch / f"events{self.log}").read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[0] == "#" and words[2] == "task":
                pids[words[3]] = int(words[7])
            elif words[:2] == [">", "granted"]:
                granted.append(pids[words[2]])
        return granted

    def replays(self):
        for number in range(1, self.log + 1):
            self.checked(ROTAD, "--replay", self.scratch / f"events{number}")

    # ctest labels: unsanitized
    def test_a_holder_keeps_its_gpu_and_a_waiter_that_comes_back_first_does_not_get_it(self):
        daemon, holder, waiter = self.one_holds_and_one_waits()
        daemon, left = self.replace(daemon)
        self.assertIn(f"task {holder.pid} ", left)
        self.assertFalse(self.books.exists(), "they were read, and are still there")
        self.connect(waiter)
        self.want(waiter)
        self.connect(holder)
        # It has not noticed its last grant, and so does not say that its work runs.
        self.want(holder)
        self.becomes_holder(holder, "it holds again")
        self.waits(waiter)
        self.tell(holder, "give_back")
        self.becomes_holder(waiter, "the other is next")
        daemon.terminate()
        self.finish(daemon)
        self.assertEqual(self.decisions(), [holder.pid, waiter.pid])
        self.replays()

    # ctest labels: unsanitized
    def test_those_that_wait_keep_their_places_whoever_comes_back_first(self):
        daemon = self.rotad("--quantum", "1000s")
        clients = [self.client() for _ in range(5)]
        self.connect(*clients)
        for client in clients:
            self.want(client)
            self.tell(client, "grant")
            self.eventually(lambda: any(row["pid"] == client.pid and (row["waits"] or row["holds"]) for row in self.clients()),
                            "it waits")
        daemon, _ = self.replace(daemon, "--quantum", "1000s")
        newcomer = self.client()
        self.connect(newcomer)
        self.want(newcomer)
        for client in reversed(clients):
            self.connect(client)
            self.want(client, running=client is clients[0])
        for client in [*clients, newcomer]:
            self.becomes_holder(client, "it is its turn")
            self.tell(client, "give_back")
        daemon.terminate()
        self.finish(daemon)
        self.assertEqual(self.decisions(), [client.pid for client in [*clients, newcomer]])
        self.replays()

    # ctest labels: unsanitized
    def test_what_is_left_of_a_gang_goes_on_without_waiting_for_those_that_had_ended(self):
        daemon = self.rotad()
        members = [self.client(), self.client()]
        for member in members:
            self.tell(member, "connect", "job", "2")
            self.want(member)
        for member in members:
            self.becomes_holder(member, "the gang holds")
        ended, left = members
        self.tell(left, "give_back")
        self.finish(ended)
        # Twice: a rotad that ends before the gang is back passes on what it knows.
        daemon, _ = self.replace(daemon)
        daemon, _ = self.replace(daemon)
        begun = time.monotonic()
        self.tell(left, "connect", "job", "2")
        self.want(left)
        self.becomes_holder(left, "it goes on")
        self.assertLess(time.monotonic() - begun, 30)  # a gang that has never been complete waits for 60 s
        daemon.terminate()
        self.finish(daemon)
        self.replays()

    # ctest labels: unsanitized
    def test_a_gang_that_held_its_gpu_has_it_again_as_a_whole(self):
        daemon = self.rotad()
        members, waiter = [self.client(), self.client()], self.client()
        for member in members:
            self.tell(member, "connect", "job", "2")
            self.want(member)
        for member in members:
            self.becomes_holder(member, "the gang holds")
        self.connect(waiter)
        self.want(waiter)
        self.waits(waiter)
        daemon, _ = self.replace(daemon)
        self.connect(waiter)
        self.want(waiter)
        for member in members:
            self.tell(member, "connect", "job", "2")
            self.want(member, running=True)
        for member in members:
            self.becomes_holder(member, "the gang holds again")
        self.assertFalse(self.has_it(waiter))
        for member in members:
            self.tell(member, "give_back")
        self.becomes_holder(waiter, "the other is next")
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertNotIn("did not give", said)
        text = (self.scratch / f"events{self.log}").read_text(encoding="utf-8")
        self.assertEqual(text.count("> granted"), 2, text)
        self.replays()

    def goes_first_that_has_had_less(self, users):
        """The client that has used less goes first, although the new rotad has only just heard of both and the other one asks first."""
        daemon = self.rotad()
        much, little, holder = (self.client(user) for user in users)
        self.connect(much, little, holder)
        self.want(much)
        self.becomes_holder(much, "the first holds")
        self.want(little, holder)
        self.waits(little, holder)
        def used():
            return next(row["use"]["held_ns"] for row in self.clients() if row["pid"] == much.pid)
        self.eventually(lambda: used() > 1e9, "it has had the GPU for a second while others waited")
        self.tell(much, "give_back")
        self.becomes_holder(little, "the second has it")
        self.tell(little, "give_back")
        self.becomes_holder(holder, "the third has it")
        daemon, _ = self.replace(daemon)
        self.connect(holder, much, little)
        self.want(holder, running=True)
        self.becomes_holder(holder, "it holds again")
        self.want(much)
        self.waits(much)
        self.want(little)
        self.waits(little)
        self.tell(holder, "give_back")
        self.becomes_holder(little, "the one that has had less is next")
        self.assertFalse(self.has_it(much))
        self.assertGreater(used(), 1e9)
        daemon.terminate()
        self.finish(daemon)
        self.replays()

    # ctest labels: unsanitized
    def test_a_program_that_has_had_more_than_another_is_not_its_equal_after_a_restart(self):
        self.goes_first_that_has_had_less((0, 0, 0))

    # ctest labels: unsanitized
    @unittest.skipIf(may_be_other_users(), str(may_be_other_users()))
    def test_a_user_who_has_had_more_than_another_is_not_the_equal_after_a_restart(self):
        self.scratch.chmod(0o755)
        self.goes_first_that_has_had_less((20001, 20002, 20003))

    # ctest labels: unsanitized
    def test_a_rotad_that_is_ended_before_all_have_come_back_leaves_those_to_the_next(self):
        daemon = self.rotad()
        holder, waiter, away = self.client(), self.client(), self.client()
        self.connect(holder, waiter, away)
        self.want(holder)
        self.becomes_holder(holder, "the first holds")
        for client in waiter, away:
            self.want(client)
            self.waits(client)
        daemon, _ = self.replace(daemon)
        # One has come to the GPU and not said yet that it holds it, one has said that it waits, and one has not come.
        self.connect(holder, waiter)
        self.want(waiter)
        daemon, left = self.replace(daemon)
        did = {int(line.split()[1]): line.split()[4] for line in left.splitlines() if line.startswith("task ")}
        self.assertEqual(did, {holder.pid: "held", waiter.pid: "waits", away.pid: "waits"}, left)
        self.connect(away, waiter, holder)
        self.want(away, waiter)
        self.want(holder, running=True)
        for client in holder, waiter, away:
            self.becomes_holder(client, "it is its turn")
            self.tell(client, "give_back")
        daemon.terminate()
        self.finish(daemon)
        self.assertEqual(self.decisions(), [holder.pid, waiter.pid, away.pid])
        self.replays()

    # ctest labels: unsanitized
    def test_one_that_died_meanwhile_is_not_waited_for(self):
        daemon, holder, waiter = self.one_holds_and_one_waits()
        daemon.send_signal(signal.SIGTERM)
        kill(holder)  # and it is a zombie, or nothing
        self.finish(daemon)
        daemon = self.rotad()
        self.connect(waiter)
        self.want(waiter)
        self.becomes_holder(waiter, "the other has it")
        daemon.terminate()
        self.finish(daemon)
        lines = (self.scratch / f"events{self.log}").read_text(encoding="utf-8").splitlines()
        joined = next(int(line.split()[0]) for line in lines if " join " in line)
        granted = next(int(lines[at - 1].split()[0]) for at, line in enumerate(lines) if line.startswith("> granted"))
        self.assertLess(granted - joined, 900e6, "it waited for the dead one's second")

    # ctest labels: unsanitized
    def test_one_that_does_not_come_back_is_waited_for_a_second_and_others_then_have_the_gpu(self):
        daemon, holder, waiter = self.one_holds_and_one_waits()
        daemon, _ = self.replace(daemon, "--log", "debug")
        self.connect(waiter)
        self.want(waiter)
        self.becomes_holder(waiter, "the other has it")
        daemon.terminate()
        said = self.finish(daemon).stderr
        self.assertIn(f"pid {holder.pid} has not come back", said)

    def ignored(self, *reasons):
        """A rotad that finds such a file serves as if there were none, says so in one line, and removes the file."""
        daemon = self.rotad("--log", "warn")
        self.assertFalse(self.books.exists() or self.books.is_symlink())
        client = self.client()
        self.connect(client)
        self.want(client)
        self.becomes_holder(client, "it has the GPU")
        kill(client)
        daemon.send_signal(signal.SIGINT)
        said = self.finish(daemon).stderr
        lines = [line for line in said.splitlines() if ".books is ignored" in line]
        self.assertEqual(len(lines), 1, said)
        for reason in reasons:
            self.assertIn(reason, lines[0])

    def written(self, text, mode=0o600):
        self.books.write_text(text, encoding="utf-8")
        self.books.chmod(mode)

    def test_books_that_are_broken_old_too_new_or_somebody_elses_are_ignored_with_a_line(self):
        daemon = self.rotad()
        holder = self.client()
        self.connect(holder)
        self.want(holder)
        self.becomes_holder(holder, "it holds")
        daemon.terminate()
        self.finish(daemon)
        kill(holder)
        sound = self.books.read_text(encoding="utf-8")
        lines = sound.splitlines(keepends=True)
        self.written("".join(lines[:-1]))
        self.ignored("it breaks off")
        self.written(sound.replace("task ", "task x", 1))
        self.ignored("line ")
        self.written(sound.replace("rota-books 1", "rota-books 2"))
        self.ignored("it has version '2', and this rotad reads version 1")
        self.written(sound.replace(lines[1], "boot 00000000-0000-0000-0000-000000000000\n"))
        self.ignored("before the machine was started")
        self.written(sound.replace(lines[2], "written 1\n"))
        self.ignored("more than 10 s ago")
        self.written(sound, 0o644)
        self.ignored("others can read or write it")
        self.written("\0\1\2" * 1000)
        self.ignored("not what a rotad writes")
        self.books.unlink(missing_ok=True)
        elsewhere = self.scratch / "elsewhere"
        elsewhere.write_text(sound, encoding="utf-8")
        self.books.symlink_to(elsewhere)
        self.ignored("cannot open it")
        self.assertEqual(elsewhere.read_text(encoding="utf-8"), sound)
        if os.geteuid() == 0:
            self.written(sound)
            os.chown(self.books, 20001, 20001)
            self.ignored("it belongs to user 20001")

    def test_a_rotad_that_is_told_to_stop_or_has_no_programs_leaves_none(self):
        daemon = self.rotad()
        daemon.terminate()
        self.finish(daemon)
        self.assertFalse(self.books.exists())
        daemon = self.rotad()
        client = self.client()
        self.connect(client)
        self.want(client)
        self.becomes_holder(client, "it holds")
        daemon.send_signal(signal.SIGINT)
        self.finish(daemon)
        self.assertFalse(self.books.exists())

    # ctest labels: unsanitized
    def test_after_a_kill_a_holder_that_comes_late_among_many_is_not_run_beside(self):
        daemon, holder, waiter = self.one_holds_and_one_waits()
        kill(daemon)
        for client in holder, waiter:
            self.tell(client, "lose")
        self.rotad()
        self.connect(waiter)
        self.want(waiter)
        # Programs come one after the other for longer than two seconds, and the holder is the last.
        begin = last = time.monotonic()
        gap, others = 0, []
        while time.monotonic() < begin + 3:
            others.append(RawClient(self.socket, timeout=20))
            self.assertTrue(others[-1].hello(b"another"))
            gap, last = max(gap, time.monotonic() - last), time.monotonic()
            time.sleep(0.02)
        self.connect(holder)
        self.want(holder, running=True)
        if gap > 0.2:
            self.skipTest(f"this machine was too busy: nothing came for {gap} s")
        self.becomes_holder(holder, "it has its GPU again")
        self.assertFalse(self.has_it(waiter))

    # ctest labels: unsanitized
    def test_after_a_kill_programs_that_began_later_do_not_keep_others_waiting(self):
        daemon, holder, waiter = self.one_holds_and_one_waits()
        for newcomers in [self.start(sys.executable, "-c", NEWCOMERS, self.socket) for _ in range(3)]:
            self.assertEqual(newcomers.stdout.readline(), "one has come\n")
        kill(daemon)
        kill(holder)
        self.tell(waiter, "lose")
        self.rotad()
        begin = time.monotonic()
        self.connect(waiter)
        self.want(waiter)
        while time.monotonic() < begin + 6 and not self.has_it(waiter):
            time.sleep(0.02)
        self.assertTrue(self.has_it(waiter), "programs that began later kept it waiting for 6 s")

    def one_that_sees_nobody(self):
        return self.rotad(wrapped=["unshare", "--map-root-user", "--pid", "--fork", "--kill-child"])

    def waits_beside_newcomers(self, *says):
        """For how long a program waits after a kill for a GPU whose holder has died, while others come: nobody's pid is visible."""
        if subprocess.run(["unshare", "--map-root-user", "--pid", "--fork", "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("no pid namespaces here")
        daemon = self.one_that_sees_nobody()
        holder, waiter = self.client(), self.client()
        self.connect(holder, waiter)
        self.want(holder)
        self.becomes_holder(holder, "it holds")
        for newcomers in [self.start(sys.executable, "-c", NEWCOMERS, self.socket, *says) for _ in range(3)]:
            self.assertEqual(newcomers.stdout.readline(), "one has come\n")
        kill(daemon)
        kill(holder)
        self.tell(waiter, "lose")
        self.eventually(lambda: self.status() is None, "rotad is gone")
        self.one_that_sees_nobody()
        begin = time.monotonic()
        self.connect(waiter)
        self.want(waiter)
        self.becomes_holder(waiter, "it holds")
        return time.monotonic() - begin

    # ctest labels: unsanitized
    def test_after_a_kill_programs_that_rotad_cannot_see_and_that_began_later_keep_nobody_waiting(self):
        self.assertLess(self.waits_beside_newcomers(), 6)

    # ctest labels: unsanitized
    def test_after_a_kill_programs_that_rotad_cannot_see_are_waited_for_if_they_say_that_they_return(self):
        self.assertGreater(self.waits_beside_newcomers("returns"), 2)

    def test_two_rotads_leave_each_its_own(self):
        first = self.rotad()
        second_socket = str(self.scratch / "second" / "rotad.sock")
        second = self.start(ROTAD, "--socket", second_socket, "--lock-directory", self.scratch / "locks2")
        self.eventually(lambda: pathlib.Path(second_socket).exists(), "the second listens")
        client = self.client()
        self.connect(client)
        self.want(client)
        self.becomes_holder(client, "it holds")
        for daemon in first, second:
            daemon.terminate()
            self.finish(daemon)
        self.assertIn(f"task {client.pid} ", self.books.read_text(encoding="utf-8"))
        self.assertFalse(pathlib.Path(second_socket + ".books").exists())


if __name__ == "__main__":
    unittest.main()
