"""The package, as users get it: what it asks of a machine, and that it runs on a bare Debian 12 and on the oldest one to be had.

ROTA_PACKAGE is a folder with the tarball and the deb, ROTA_BUILD the build folder. Root file systems are kept there, in tests/roots.
"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools/package"
BUILD = pathlib.Path(os.environ["ROTA_BUILD"])
PACKAGE = pathlib.Path(os.environ["ROTA_PACKAGE"])
# Namespaces of its own: nothing that is mounted or left running there outlives the command.
APART = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]

# The point of it all, in one command that a user may try as well: two programs share a GPU, a simulated one where there is none.
DEMO = "rota demo"

# A program under its turns and limits, seen by a rotad; ROTA_LOG=info has the core say what it does, which it only can if it loads.
SHARED = """set -e
cd /tmp
mkfifo input
exec 3<>input
ROTA_LOG=info rota run -- /opt/memhog --share 0.6 --hold <input 3>&- >output 2>log &
program=$!
until grep -q ready output; do kill -0 $program 2>/dev/null || { cat output log; exit 1; }; sleep 0.1; done
rota status --json 3>&-
exec 3>&-
wait $program || { cat output log; exit 1; }
tail -n 1 output
cat log >&2
"""


def the(pattern):
    found = list(PACKAGE.glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"there is not one {pattern} in {PACKAGE}: {found}")
    return found[0]


class Package(unittest.TestCase):
    def test_it_asks_for_glibc_2_28_and_for_nothing_that_is_not_everywhere(self):
        checked = subprocess.run([TOOLS / "check", the("*.tar.gz"), the("*.deb")], capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        self.assertRegex(checked.stdout, r"^\d\d files, \d\d of them ELF, none of which needs more than glibc 2\.28\n$")

    def test_what_would_not_run_elsewhere_is_named(self):
        with tempfile.TemporaryDirectory(prefix="rota-package-") as scratch:
            subprocess.run(["tar", "-xzf", the("*.tar.gz"), "-C", scratch], check=True)
            folder, = pathlib.Path(scratch).iterdir()
            # A program of this machine, with its glibc and its libstdc++.
            shutil.copy(BUILD / "tests/glibc_test", folder / "bin/rota")
            (folder / "bin/rotad").unlink()
            subprocess.run(["gcc", "-shared", "-nostdlib", "-x", "c", "-", "-o", folder / "lib/rota/librota.so"], check=True, text=True,
                           input="int absent(void); int here(void) { return absent(); }")
            tarball = pathlib.Path(scratch, "other.tar.gz")
            subprocess.run(["tar", "-czf", tarball, "--owner=1000", "-C", scratch, folder.name], check=True)
            checked = subprocess.run([TOOLS / "check", tarball, the("*.deb")], capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 1)
        for line in ("bin/rota needs libstdc++.so.6, which not every machine has", "bin/rota needs GLIBC_2.34 (",
                     "lib/rota/librota.so needs absent of no version", "other.tar.gz has no bin/rotad",
                     "bin/rotad is in one of the two only", "bin/rota of the tarball is not the deb's", "of another owner"):
            self.assertIn(line, checked.stderr)


class InRoot(unittest.TestCase):
    """A root file system, and rota in it as the README has it installed."""

    def setUp(self):
        if os.geteuid() != 0:
            self.cannot("only root may change the root")
        for command in "mmdebstrap", "unshare", "chroot":
            if shutil.which(command) is None:
                self.cannot(f"there is no {command} (tools/dev setup installs it)")
        if (tried := subprocess.run([*APART, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, check=False)).returncode:
            self.cannot(f"nothing may be mounted here: {tried.stderr.strip()}")
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="rota-root-"))
        self.addCleanup(shutil.rmtree, self.scratch)
        self.root = self.scratch / "root"
        self.root.mkdir()

    def cannot(self, why):
        """The machine does not let this be tried: that says nothing about the package, and is shown as skipped."""
        self.skipTest(why)

    def unpack(self, name, suites, *options):
        """A root file system of the first of the suites that there is; returns which."""
        file = BUILD / "tests/roots" / f"{name}.tar"
        made = subprocess.run([TOOLS / "root", *options, file, *suites], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.cannot(made.stderr.strip())
        subprocess.run(["tar", "-xf", file, "-C", self.root], check=True)
        return made.stdout.strip()

    def run_there(self, script, **environment):
        command = [*APART, "sh", "-c", 'mount -t proc proc "$1/proc" && exec chroot "$1" /bin/sh -c "$2"', "sh", self.root, script]
        done = subprocess.run(command, env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}\n{done.stderr}")
        return done

    def see_it_work(self):
        """A program in its turn by rotad's accounting, then the demo, then a trace."""
        (self.root / "opt").mkdir(exist_ok=True)
        for program in "memhog", "saxpy":
            shutil.copy(BUILD / "tests/programs" / program, self.root / "opt")
        (self.root / "opt/shared").write_text(SHARED)
        shared = self.run_there("rota sim --memory 1G -- sh /opt/shared")
        status, _, last = shared.stdout.rstrip().rpartition("\n")
        self.assertEqual(len(json.loads(status)["clients"]), 1, f"{status}\n{shared.stderr}")
        client, = json.loads(status)["clients"]
        self.assertIn("memhog", json.dumps(client))
        self.assertEqual(json.loads(last)["wrong"], 0)
        self.assertIn("rota: the real driver is ", shared.stderr)
        self.assertNotIn("cannot", shared.stderr)
        traced = self.run_there("rota sim -- rota trace --dir /tmp/trace -- /opt/saxpy")
        self.assertIn("cuLaunchKernel", traced.stdout + traced.stderr)
        return self.run_there(DEMO).stdout

    def test_the_deb_runs_on_a_bare_debian_12(self):
        print("root file system:", self.unpack("bookworm", ["bookworm"]), flush=True)
        deb = shutil.copy(the("*.deb"), self.root / "tmp")
        self.run_there(f"apt-get install --yes ./tmp/{pathlib.Path(deb).name}", DEBIAN_FRONTEND="noninteractive")
        self.assertIn("install ok installed", self.run_there("dpkg-query --status rota").stdout)
        print(self.see_it_work())
        self.run_there("apt-get purge --yes rota && ! test -e /usr/lib/rota && ! test -e /usr/bin/rota")

    def test_the_tarball_runs_on_the_oldest_debian_to_be_had(self):
        suite = self.unpack("oldest", ["buster", "bullseye", "bookworm"], "--unpacked")
        (self.root / "usr/local").mkdir(exist_ok=True)  # made when base-files is installed
        tarball = pathlib.Path(shutil.copy(the("*.tar.gz"), self.root / "tmp"))
        self.run_there(f"tar -xzf /tmp/{tarball.name} -C /usr/local --strip-components=1")
        print(f"root file system: {suite}, {self.run_there('ldd --version | head -n 1').stdout.strip()}", flush=True)
        print(self.see_it_work())


if __name__ == "__main__":
    unittest.main()
