"""A user who may not change rotad's settings is told who may, at the socket that systemd or rotad made."""
import grp
import os
import socket
import unittest

from harness import ROTA
from users_case import UsersCase


class ControlSocket(UsersCase):
    def refusal(self, group, mode):
        """What user 61000 is told of a socket of root's."""
        path = self.scratch / "control.sock"
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(path))
            listener.listen()
            os.chown(path, 0, group)
            path.chmod(mode)
            done = self.call_as(61000, ROTA, "control", "--socket", path, "mode", "exclusive")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr.replace(str(path), "PATH")

    def test_who_may_is_said_by_name(self):
        group = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, 61000))
        self.assertEqual(self.refusal(group.gr_gid, 0o660),
                         f"rota: cannot reach rotad's control socket PATH: Permission denied; root and members of the group {group.gr_name} can\n")
        self.assertEqual(self.refusal(61001, 0o660),
                         "rota: cannot reach rotad's control socket PATH: Permission denied; root and members of the group 61001 can\n")
        self.assertEqual(self.refusal(0, 0o600), "rota: cannot reach rotad's control socket PATH: Permission denied; root can\n")


if __name__ == "__main__":
    unittest.main()
