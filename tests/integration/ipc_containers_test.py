"""Programs in two containers that open each other's memory by legacy IPC handles. A container is what an engine makes of the kernel's
namespaces: user, pid, mount, ipc, uts and network of its own, its own /tmp and /dev/shm, the folder of rotad's socket mounted into it."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import ROTA
from ipc_case import MIB, SERVES, Ipc

ENTER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount", "--ipc", "--uts", "--net")

# Replaces the folder of temporary files by one in which only the folders named are the machine's: $1 is a new folder, $2 the folder of
# temporary files, then the folders up to "--", then the command.
BEGIN = r"""
set -e
inside=$1 temporary=$2
shift 2
mkdir "$inside"
mount -t tmpfs -o mode=1777 tmpfs "$inside"
while [ "$1" != -- ]; do
    mkdir -p "$inside${1#"$temporary"}"
    mount --bind "$1" "$inside${1#"$temporary"}"
    shift
done
shift
mount --rbind "$inside" "$temporary"
if [ "$temporary" != /tmp ]; then mount -t tmpfs tmpfs /tmp; fi
mount -t tmpfs tmpfs /dev/shm
mount -t proc proc /proc
exec "$@"
"""


def may_be_contained():
    """Why this process cannot make containers, or nothing."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run([*ENTER, "sh", "-c", "mount -t tmpfs tmpfs /dev/shm && mount -t proc proc /proc"], capture_output=True, text=True,
                           check=False)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


class Containers(Ipc):
    trust = "user"

    def setUp(self):
        why = may_be_contained()
        if why:
            self.skipTest(why)
        super().setUp()

    def prepare(self):
        # What a GPU's device files and the socket's folder are to a container.
        for name in "gpu", "run":
            (self.scratch / name).mkdir()
        self.environment.update(ROTA_SIM_STATE=str(self.scratch / "gpu/device"), ROTA_SOCKET=str(self.scratch / "run/rotad.sock"))
        self.options = ("--trust", self.trust)

    def contained(self, name):
        """A program in a new container."""
        return self.served(*ENTER, "sh", "-c", BEGIN, "sh", self.scratch / name, tempfile.gettempdir(), self.scratch / "gpu", self.scratch / "run",
                           "--")

    def beside(self, other):
        """A program in the container of another one, which has begun."""
        [first] = pathlib.Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text().split()
        return self.served("nsenter", "--target", first, "--user", "--preserve-credentials", "--pid", "--mount", "--ipc", "--uts", "--net")

    def served(self, *enter):
        return self.start(*enter, ROTA, "run", "--memory", "swap", "--", sys.executable, "-c", SERVES, ROTA_SIM_TIME_SCALE="1",
                          ROTA_CACHE="/dev/shm/cache")

    def shared(self, exporter, importer):
        for size in 4096, 3 * MIB, 140 * MIB:
            address, handle = self.exported(exporter, size, 3)
            theirs = self.opened(importer, handle)
            self.assertTrue(self.ask(importer, "all_are", theirs, size, 3))
            self.ask(importer, "fill", theirs, size, 4)
            self.assertTrue(self.ask(exporter, "all_are", address, size, 4))
            self.assertEqual(self.ask(importer, "close", theirs), 0)
            self.assertEqual(self.ask(exporter, "free", address), 0)
        self.ends_well(importer, exporter)


class TrustedByTheContainer(Containers):
    # ctest labels: unsanitized
    def test_in_one_container_programs_open_what_others_have_exported(self):
        exporter = self.contained("one")
        self.ask(exporter, "allocate", 4096)  # so its container is there
        self.shared(exporter, self.beside(exporter))

    # ctest labels: unsanitized
    def test_what_another_container_has_exported_is_refused_at_once_with_a_line_that_says_why(self):
        exporter, importer = self.contained("one"), self.contained("another")
        _, handle = self.exported(exporter, 4 * MIB, 3)
        (result, _), seconds = self.ask(importer, "seconds_of", "open_handle", handle)
        self.assertEqual(result, 205)
        self.assertLess(seconds, 3)  # one in which rotad is asked again, and five for an exporter that does not answer
        result = self.finish(importer)
        [line] = [line for line in result.stderr.splitlines() if "cannot be opened" in line]
        self.assertIn("in the same container", line)
        self.assertIn("--memory native", line)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.ends_well(exporter)


class TrustedEverywhere(Containers):
    trust = "user-everywhere"

    # ctest labels: unsanitized
    def test_where_a_user_trusts_all_of_its_containers_programs_open_what_another_container_has_exported(self):
        exporter, importer = self.contained("one"), self.contained("another")
        self.shared(exporter, importer)


if __name__ == "__main__":
    unittest.main()
