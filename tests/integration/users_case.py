"""What the tests with several users share: programs and rotads of users, and the machine's rotad in a folder of the test's own."""
import json
import os
import pathlib
import shutil
import subprocess
import time

from harness import Case, PATIENCE, PROGRAMS, ROTA, ROTAD


def may_be_other_users():
    """Why this process cannot start programs as other users, or nothing."""
    if os.geteuid() != 0:
        return "only root can start programs as other users"
    if shutil.which("setpriv") is None:
        return "there is no setpriv"
    tried = subprocess.run(["setpriv", "--reuid", "61000", "--regid", "61000", "--clear-groups", str(ROTA), "--version"],
                           capture_output=True, check=False)
    return None if tried.returncode == 0 else f"user 61000 cannot run {ROTA}"


class Process:
    """One that is no child: it is known by its pid only."""

    def __init__(self, pid):
        self.pid = pid

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        until = time.monotonic() + PATIENCE
        while pathlib.Path(f"/proc/{self.pid}").exists():
            assert time.monotonic() < until, f"process {self.pid} does not end"
            time.sleep(0.01)


class UsersCase(Case):
    """Users with rotads of their own, and the machine's, in a folder that stands for /run/rota."""

    users = (61000, 61001, 61002)

    def setUp(self):
        why = may_be_other_users()
        if why:
            self.skipTest(why)
        super().setUp()
        self.scratch.chmod(0o755)
        for name, mode in (("locks", 0o1777), ("sim", 0o777)):
            (self.scratch / name).mkdir()
            (self.scratch / name).chmod(mode)
        for name in ("ROTA_SOCKET", "ROTA_CACHE", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
            self.environment.pop(name, None)
        self.machine_socket = str(self.scratch / "machine" / "rotad.sock")
        self.environment.update(ROTA_MACHINE_SOCKET=self.machine_socket, ROTA_SIM_STATE=str(self.scratch / "sim" / "device"))
        self.call(PROGRAMS / "saxpy")
        for file in (self.scratch / "sim").iterdir():
            file.chmod(0o666)
        for user in self.users:
            for name in ("home", "run"):
                folder = self.scratch / f"{name}-{user}"
                folder.mkdir(mode=0o700)
                os.chown(folder, user, user)

    def of(self, user):
        return dict(HOME=str(self.scratch / f"home-{user}"), XDG_RUNTIME_DIR=str(self.scratch / f"run-{user}"))

    def start_as(self, user, *command, **environment):
        return self.start("setpriv", "--reuid", user, "--regid", user, "--clear-groups", *command, **self.of(user), **environment)

    def call_as(self, user, *command):
        return self.finish(self.start_as(user, *command))

    def start_machine(self):
        daemon = self.start(ROTAD, "--socket", self.machine_socket)
        self.eventually(lambda: self.machine_status() is not None or daemon.poll() is not None, "the machine's rotad answers")
        self.assertIsNone(daemon.poll(), "it ended at once")
        return daemon

    def machine_status(self):
        result = self.call(ROTA, "status", "--json", ROTA_SOCKET=self.machine_socket)
        return json.loads(result.stdout) if result.returncode == 0 else None

    def start_own(self, user):
        socket = self.own_socket(user)
        daemon = self.start_as(user, ROTAD, "--socket", socket)
        self.eventually(lambda: self.status_of(user, socket) is not None, "the user's rotad answers")
        return daemon

    def status_of(self, user, socket):
        result = self.finish(self.start_as(user, ROTA, "status", "--json", ROTA_SOCKET=socket))
        return json.loads(result.stdout) if result.returncode == 0 else None

    def own_status(self, user):
        return self.status_of(user, self.own_socket(user))

    def own_socket(self, user):
        return f"{self.of(user)['XDG_RUNTIME_DIR']}/rota/rotad.sock"

    def served_by_own(self, user, *children):
        status = self.own_status(user) or {"clients": []}
        return {client["pid"] for client in status["clients"] if client["gpus"]} >= {child.pid for child in children}

    def rotad_of(self, user):
        """The process of the user's own rotad, which is nobody's child."""
        return Process(self.own_status(user)["daemon"]["pid"])

    def has_the_gpu(self, user):
        """Whose rotads have the GPU, as the user's own rotad says when it has not; `rota doctor` and the text say the same."""
        sockets = {self.own_socket(each): each for each in self.users}
        elsewhere = self.own_status(user)["elsewhere"]
        text = self.call_as(user, ROTA, "status").stdout
        self.assertEqual("is another rotad's" in text, bool(elsewhere), text)
        found = json.loads(self.call_as(user, ROTA, "doctor", "--json").stdout)["findings"]
        self.assertEqual(any(finding["id"] == "rotad.elsewhere" for finding in found), bool(elsewhere), found)
        return [sockets[holder["socket"]] for holder in elsewhere]

    def program(self, user, share="0.6"):
        """Uses its memory again and again until it is killed; two with the usual share do not fit at the same time."""
        return self.start_as(user, ROTA, "run", "--", PROGRAMS / "memhog", "--share", share, "--seconds", "1000")

    def served_by_machine(self, *children):
        status = self.machine_status() or {"clients": []}
        served = {client["pid"] for client in status["clients"] if client["gpus"]}
        return served >= {child.pid for child in children}
