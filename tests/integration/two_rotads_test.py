"""Two rotads of one machine: who has the GPU, who is told what, and how programs move from one to the other."""
import json
import os
import shutil
import signal
import subprocess
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD, kill
from users_case import UsersCase


class Pair(Case):
    """Two daemons of one user at two sockets, with the same locks."""

    def setUp(self):
        super().setUp()
        self.second = dict(ROTA_SOCKET=str(self.scratch / "second" / "rotad.sock"))

    def start_second(self, *options):
        daemon = self.start(ROTAD, "--socket", self.second["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks", *options)
        self.eventually(lambda: self.second_status() is not None or daemon.poll() is not None, "the second rotad answers")
        self.assertIsNone(daemon.poll(), "it ended at once")
        return daemon

    def second_status(self):
        result = self.call(ROTA, "status", "--json", **self.second)
        return json.loads(result.stdout) if result.returncode == 0 else None

    def hog(self, share="0.6", **environment):
        """A program with memory that it uses again and again, until it is killed."""
        child = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--share", share, "--seconds", "1000", **environment)
        return child

    def served(self, status, child):
        return bool(status) and any(client["pid"] == child.pid and client["gpus"] for client in status["clients"])

    def mode_of(self, status, child):
        for client in (status or {}).get("clients", []):
            if client["pid"] == child.pid and client["gpus"]:
                return client["memory"][client["gpus"][0]]["mode"]
        return None


class TwoRotads(Pair):
    def test_a_program_whose_rotad_lacks_the_gpu_has_native_memory_and_takes_turns_once_it_can(self):
        self.start_daemon()
        self.start_second()
        first = self.hog("0.3")
        self.eventually(lambda: self.served(self.status(), first), "the first program is served")
        other = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold", **self.second)
        self.assertEqual(other.stdout.readline().strip(), "ready")
        self.assertIn("no turns on GPU 0 for now, and its memory stays there", other.stderr.readline())
        self.assertFalse(self.served(self.second_status(), other))
        # Its status names the rotad that has the GPU, and never says that nothing runs.
        elsewhere = self.second_status()["elsewhere"]
        self.assertEqual([holder["socket"] for holder in elsewhere], [self.environment["ROTA_SOCKET"]])
        text = self.call(ROTA, "status", **self.second).stdout
        self.assertIn("is another rotad's", text)
        self.assertNotIn("no program uses a GPU", text)
        kill(first)
        self.eventually(lambda: self.served(self.second_status(), other), "the other takes turns")
        self.assertEqual(self.finish(other).returncode, 0)

    def test_memory_is_native_while_another_rotad_has_the_gpu_and_as_the_mode_says_afterwards(self):
        self.start_daemon()
        self.start_second()
        first = self.hog("0.3")
        self.eventually(lambda: self.served(self.status(), first), "the first program is served")
        second = self.hog("0.3", **self.second)
        second.stderr.readline()  # that there are no turns for now
        kill(first)
        self.eventually(lambda: self.served(self.second_status(), second), "the second program is served")
        self.assertIsNone(second.poll())
        third = self.hog("0.2", **self.second)
        self.eventually(lambda: self.mode_of(self.second_status(), third) == "swap", "new memory is swapped")
        client = [each for each in self.second_status()["clients"] if each["pid"] == second.pid][0]
        self.assertGreater(client["bytes"], 0)  # what it had is counted

    def test_a_lock_that_becomes_free_is_taken_at_once_when_its_rotad_is_killed(self):
        first_rotad = self.start_daemon()
        self.start_second()
        first = self.hog("0.3")
        self.eventually(lambda: self.served(self.status(), first), "the first program is served")
        second = self.hog("0.3", **self.second)
        second.stderr.readline()
        kill(first_rotad)
        self.eventually(lambda: self.served(self.second_status(), second), "the second rotad has the GPU")

    def test_with_rota_wait_a_program_waits_for_a_rotad_that_serves_its_gpu(self):
        self.start_daemon()
        self.start_second()
        first = self.hog("0.3")
        self.eventually(lambda: self.served(self.status(), first), "the first program is served")
        waiter = self.start(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_WAIT="1", **self.second)
        self.assertIn("no turns on GPU 0: rotad pid", waiter.stderr.readline())
        self.assertIn("waiting for a rotad that serves the GPU (ROTA_WAIT=1): rotad pid", waiter.stderr.readline())
        self.assertIsNone(waiter.poll())
        kill(first)
        self.assertEqual(self.finish(waiter).returncode, 0)


def other_network(*command):
    """The command in a network namespace of its own, where no lock's name is seen."""
    return ["unshare", "--map-root-user", "--net", *command]


class Unseen(Pair):
    """Holders of a GPU's lock that do not say who they are."""

    gpu = None

    def setUp(self):
        super().setUp()
        self.locks = self.scratch / "locks"

    def holder(self):
        """A rotad with the GPU, and its program."""
        daemon = self.start_daemon()
        program = self.hog("0.3")
        self.eventually(lambda: self.served(self.status(), program), "the program is served")
        self.gpu = self.status()["gpus"][0]["uuid"]
        return daemon

    def told(self, *words, wrapped=lambda *command: command):
        """What status and doctor say of the GPU to a user of the second socket."""
        status = self.call(*wrapped(ROTA, "status"), **self.second)
        line = next((line for line in (status.stdout + status.stderr).splitlines() if self.gpu in line), "")
        doctor = json.loads(self.call(*wrapped(ROTA, "doctor", "--json"), **self.second).stdout)
        finding = next((each for each in doctor["findings"] if each["id"] == "rotad.elsewhere"), {"text": "", "remedy": "", "values": {"gpu": ""}})
        self.assertEqual(finding["values"]["gpu"], self.gpu)
        for word in words:
            self.assertIn(word, line)
            self.assertIn(word, finding["text"] + finding["remedy"])

    def test_a_stopped_rotad_of_another_socket_is_named_and_how_it_goes_on(self):
        daemon = self.holder()
        daemon.send_signal(signal.SIGSTOP)
        words = (f"pid {daemon.pid} ", "is stopped", f"kill -CONT {daemon.pid}")
        self.told(*words)
        self.start_second()
        waiter = self.hog("0.3", **self.second)
        waiter.stderr.readline()
        self.told(*words)
        self.assertNotIn("no program uses a GPU", self.call(ROTA, "status", **self.second).stdout)

    # ctest labels: unsanitized
    def test_a_rotad_of_another_network_namespace_is_known_by_its_lock_file(self):
        if subprocess.run(other_network("true"), capture_output=True, check=False).returncode != 0:
            self.skipTest("no network namespaces here")
        daemon = self.holder()
        self.told(f"pid {daemon.pid} ", "another network namespace", "rotad --socket", wrapped=other_network)
        # The same through that rotad's own socket, which it can be asked at: nothing is wrong.
        status = self.call(*other_network(ROTA, "status"))
        self.assertEqual((status.returncode, status.stdout.count(self.gpu)), (0, 1))
        doctor = json.loads(self.call(*other_network(ROTA, "doctor", "--json")).stdout)
        self.assertNotIn("rotad.elsewhere", [finding["id"] for finding in doctor["findings"]])

    # ctest labels: unsanitized
    def test_a_rotad_of_another_network_namespace_is_known_by_its_name_there_where_no_file_is_locked(self):
        if subprocess.run(other_network("true"), capture_output=True, check=False).returncode != 0:
            self.skipTest("no network namespaces here")
        daemon = self.holder()
        # As if the other one had a lock folder of its own. It is stopped, since it would lock this file.
        daemon.send_signal(signal.SIGSTOP)
        shutil.rmtree(self.locks)
        self.locks.mkdir()
        (self.locks / f"{self.gpu}.lock").touch()
        words = ("another network namespace", "no lock file here", "rotad --socket")
        self.told(*words, wrapped=other_network)
        if os.geteuid() == 0:  # root sees the descriptors of other tests' rotads, and so knows which one it is
            self.told(f"pid {daemon.pid} ", *words, wrapped=lambda *command: ["unshare", "--net", *command])

    def test_a_lock_file_that_is_no_rotads_is_named_with_whoever_has_it(self):
        daemon = self.holder()
        self.locks.mkdir(exist_ok=True)
        end = self.call(ROTA, "control", "stop")
        self.assertEqual(end.returncode, 0)
        self.finish(daemon)
        path = self.locks / f"{self.gpu}.lock"
        path.touch()
        script = "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print('locked', flush=True); time.sleep(1000)"
        other = self.start("python3", "-c", script, path)
        self.assertEqual(other.stdout.readline().strip(), "locked")
        self.told(f"pid {other.pid} ", f"has locked {path}, and is no rotad")

    def test_a_lock_folder_that_is_removed_is_made_again(self):
        self.holder()
        shutil.rmtree(self.locks)
        self.eventually(lambda: (self.locks / f"{self.gpu}.lock").exists(), "the lock is there again")
        for child in self.children[1:]:
            if child.poll() is None:
                kill(child)
        self.eventually(lambda: self.status()["gpus"] == [], "nobody uses the GPU")
        shutil.rmtree(self.locks)
        program = self.hog("0.3")
        self.eventually(lambda: self.served(self.status(), program), "the next program is served")

    def test_doctor_tells_of_a_lock_file_that_cannot_be_made_again(self):
        self.holder()
        shutil.rmtree(self.locks)
        self.locks.write_text("in the way", encoding="utf-8")
        doctor = json.loads(self.call(ROTA, "doctor", "--json").stdout)
        finding = next(each for each in doctor["findings"] if each["id"] == "rotad.locks")
        self.assertIn(str(self.locks / f"{self.gpu}.lock"), finding["text"])


class Place(Case):
    """A program that cleans /tmp removes a rotad's socket."""

    def setUp(self):
        super().setUp()
        self.folder = self.scratch / "place"
        self.folder.mkdir(mode=0o700)
        self.environment["ROTA_SOCKET"] = str(self.folder / "rotad.sock")

    def program(self):
        child = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        self.assertEqual(child.stdout.readline().strip(), "ready")
        return child

    def is_client(self, child):
        return any(client["pid"] == child.pid and client["gpus"] for client in self.clients())

    def test_a_socket_that_is_removed_is_made_again(self):
        daemon = self.start_daemon()
        before = self.program()
        os.unlink(self.environment["ROTA_SOCKET"])
        self.eventually(lambda: self.status() is not None, "the socket is there again")
        self.assertEqual(self.status()["daemon"]["pid"], daemon.pid)
        after = self.program()
        self.assertTrue(self.is_client(before) and self.is_client(after))

    def test_a_folder_that_is_removed_is_made_again_with_the_modes_that_it_had(self):
        daemon = self.start_daemon()
        self.program()
        shutil.rmtree(self.folder)
        self.eventually(lambda: self.status() is not None, "the folder and the socket are there again")
        self.assertEqual(self.status()["daemon"]["pid"], daemon.pid)
        self.assertEqual(self.folder.stat().st_mode & 0o777, 0o700)
        self.assertTrue((self.folder / "rotad.sock.control").exists())
        self.checked(ROTA, "control", "mode", "exclusive")

    def test_another_rotad_that_took_the_place_meanwhile_gets_the_gpus_and_the_programs(self):
        first = self.start_daemon()
        before = self.program()
        first.send_signal(signal.SIGSTOP)
        shutil.rmtree(self.folder)
        self.folder.mkdir(mode=0o700)
        second = self.start_daemon()
        after = self.program()
        first.send_signal(signal.SIGCONT)
        self.eventually(lambda: self.is_client(before) and self.is_client(after), "both are the second rotad's")
        self.assertEqual(self.finish(first).returncode, 0)
        self.assertEqual(self.status()["daemon"]["pid"], second.pid)


class Users(UsersCase):
    """Users with rotads of their own, and the machine's, in a folder that stands for /run/rota."""

    def test_a_users_own_rotad_gives_its_gpu_and_its_program_to_the_machines_when_that_asks(self):
        first, second = self.users[:2]
        before = self.program(first)
        self.eventually(lambda: self.served_by_own(first, before), "the first user's own rotad serves its program")
        self.start_machine()
        beside = self.program(second, "0.3")  # it comes before the machine's rotad has the GPU, and then has to fit
        self.eventually(lambda: self.served_by_machine(before, beside), "both programs are the machine's rotad's")
        self.assertIsNone(before.poll())
        self.assertIsNone(beside.poll())
        modes = [how["mode"] for client in self.machine_status()["clients"] for how in client["memory"].values()]
        self.assertEqual(set(modes), {"swap"})

    def test_a_program_without_room_for_its_context_waits_until_those_of_the_other_rotad_have_come(self):
        first, second = self.users[:2]
        before = [self.program(first, "0.55") for _ in range(2)]
        self.eventually(lambda: self.served_by_own(first, *before), "the first user's own rotad serves its programs")
        self.start_machine()
        beside = self.program(second, "0.2")
        self.eventually(lambda: self.served_by_machine(*before, beside), "all programs are the machine's rotad's")
        self.assertEqual([each.poll() for each in (*before, beside)], [None] * 3)

    def test_two_users_without_the_machines_rotad_are_told_what_helps_and_it_takes_over_once_started(self):
        first, second = self.users[:2]
        before = self.program(first)
        self.eventually(lambda: self.served_by_own(first, before), "the first user's own rotad serves its program")
        beside = self.start_as(second, ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        line = beside.stderr.readline()
        self.assertIn("ask for `rotad --socket /run/rota/rotad.sock`", line)
        self.assertEqual(beside.stdout.readline().strip(), "ready")
        text = self.call_as(second, ROTA, "status").stdout
        self.assertIn("is another rotad's", text)
        self.assertIn("ask for `rotad --socket /run/rota/rotad.sock`", text)
        found = json.loads(self.call_as(second, ROTA, "doctor", "--json").stdout)["findings"]
        self.assertIn("rotad.elsewhere", [finding["id"] for finding in found])
        self.start_machine()
        self.eventually(lambda: self.served_by_machine(before, beside), "both programs are the machine's rotad's")

    def test_without_the_machines_rotad_the_gpu_goes_to_the_next_users_with_the_last_program_of_the_first(self):
        first, second = self.users[:2]
        before = self.program(first, "0.3")
        self.eventually(lambda: self.served_by_own(first, before), "the first user's own rotad serves its program")
        beside = self.program(second, "0.3")
        self.assertIn("no turns on GPU 0 for now", beside.stderr.readline())
        self.assertFalse(self.served_by_own(second, beside))
        self.assertEqual(self.has_the_gpu(second), [first])
        kill(before)
        self.eventually(lambda: self.served_by_own(second, beside), "the second user's own rotad serves its program")
        # The first user's rotad is still there, without programs: whoever asks it is told who has the GPU.
        self.assertEqual(self.has_the_gpu(first), [second])
        self.assertEqual(self.has_the_gpu(second), [])
        after = self.program(first, "0.3")
        self.assertIn("no turns on GPU 0 for now", after.stderr.readline())
        # And so on, in the other direction and when a rotad is killed: the program goes on, and has turns again with the next.
        kill(self.rotad_of(second))
        self.eventually(lambda: self.served_by_own(first, after), "the first user's own rotad has the GPU")
        self.assertIsNone(beside.poll())
        third = self.program(second, "0.1")
        self.assertIn("no turns on GPU 0 for now", third.stderr.readline())
        kill(after)
        self.eventually(lambda: self.served_by_own(second, beside, third), "both are served by their user's new rotad")

    def test_su_without_a_login_is_no_reason_for_a_warning(self):
        # Its rotad is in the usual place of its user, where the programs of other tests must not find it: so it is a user of its own.
        user = 61900 + os.getpid() % 1000
        environment = dict(self.of(self.users[0]), XDG_RUNTIME_DIR=str(self.scratch / f"run-{self.users[1]}"))
        self.environment["TMPDIR"] = "/tmp"
        self.addCleanup(shutil.rmtree, f"/tmp/rota-{user}", ignore_errors=True)
        self.addCleanup(subprocess.run, ["pkill", "-KILL", "-U", str(user)], check=False)
        result = self.finish(self.start("setpriv", "--reuid", user, "--regid", user, "--clear-groups", ROTA, "run", "--", "true",
                                        **environment))
        self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
