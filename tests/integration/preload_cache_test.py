"""Copies of the preload that are fitted to a driver are safe from other users, from each other and from accidents, and
other files in their folder are safe from them."""
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

from fitted_preload_test import ASK, Fitted, PLAIN
from harness import ROTA, SHIMS


AS_USER = ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups")


def works(*command):
    """Whether root may do that on this machine: containers often forbid it, and the checkout may be where only root can read."""
    return (os.getuid() == 0 and shutil.which(command[0]) is not None and
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0)


CAN_MOUNT = works("unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt")
CAN_BE_ANOTHER = works(*AS_USER, "test", "-x", str(ROTA), "-a", "-r", str(PLAIN))


class Cache(Fitted):
    def test_a_second_start_uses_the_same_copy_and_another_driver_gets_its_own(self):
        first = self.fitted_once()
        made = first.stat()
        self.assertEqual(self.fitted_once(), first)
        self.assertEqual(first.stat(), made)
        changed = self.scratch / "libcuda.so.1"
        subprocess.run([SHIMS / "simgpu/simgpu-driver", "--version", "12.2", "--output", changed], check=True)
        self.environment["ROTA_REAL_LIBCUDA"] = str(changed)
        found, second, _ = self.asked()
        self.assertNotEqual(second, first)
        self.shows_exactly(found, changed)
        # The file changes but keeps its name, as when a driver is updated.
        subprocess.run([SHIMS / "simgpu/simgpu-driver", "--version", "13.0", "--output", changed], check=True)
        found, third, _ = self.asked()
        self.assertNotIn(third, (first, second))
        self.shows_exactly(found, changed)
        self.assertEqual(len(self.entries()), 3)

    def test_many_first_starts_at_once_make_one_copy(self):
        self.pose("12.4")
        children = [self.start(ROTA, "run", "--", sys.executable, "-c", ASK, self.names) for _ in range(6)]
        libraries = set()
        for child in children:
            result = self.finish(child)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            libraries.add(json.loads(result.stdout)["preload"])
        self.assertEqual(len(libraries), 1)
        self.assertEqual([str(entry) for entry in self.entries()], [os.path.dirname(libraries.pop())])

    def test_many_starts_at_once_on_a_spoiled_copy_all_get_a_whole_one(self):
        library = self.fitted_once()
        whole = library.read_bytes()
        for _ in range(3):
            os.truncate(library, 1000)
            for child in [self.start(ROTA, "run", "--", "stat", "-c", "%s", library) for _ in range(8)]:
                result = self.finish(child)
                self.assertEqual((result.returncode, result.stdout, result.stderr), (0, f"{len(whole)}\n", ""))
            self.assertEqual(library.read_bytes(), whole)
            self.assertEqual(self.entries(), [library.parent])

    def locked(self):
        """The cache's folder, locked as by a process that is making a copy."""
        folder = os.open(self.cache, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)
        return folder

    def test_a_start_that_waited_for_another_one_takes_the_copy_that_was_made(self):
        library = self.fitted_once()
        entry, made, aside = library.parent, library.stat(), self.scratch / "aside"
        entry.rename(aside)
        folder = self.locked()
        children = [self.start(ROTA, "run", "--", "printenv", "LD_PRELOAD") for _ in range(3)]
        here = str(self.cache.resolve())
        def waits(child):
            return any(os.path.realpath(file) == here for file in pathlib.Path(f"/proc/{child.pid}/fd").iterdir())
        self.eventually(lambda: all(waits(child) for child in children), "all starts wait for the folder")
        aside.rename(entry)
        fcntl.flock(folder, fcntl.LOCK_UN)
        for child in children:
            result = self.finish(child)
            self.assertEqual((result.returncode, result.stdout.strip().split(":")[0], result.stderr), (0, str(library), ""))
        self.assertEqual((library.stat().st_ino, library.stat().st_mtime), (made.st_ino, made.st_mtime))

    def test_a_start_does_not_wait_for_ever_for_another_one(self):
        library = self.fitted_once()
        self.locked()
        self.assertEqual(self.fitted_once(), library)  # nothing is to be made
        self.pose("12.2")
        _, used, errors = self.asked(ROTA_LOG="info")
        self.assertEqual(used, PLAIN)
        self.assertIn("another process has locked", errors)
        self.assertEqual(self.entries(), [library.parent])

    def test_the_preload_is_named_without_the_links_on_the_way(self):
        # Otherwise a user who may change the link could direct a running session's children to another library.
        real, link = self.scratch / "real", self.scratch / "link"
        real.mkdir(mode=0o700)
        link.symlink_to(real)
        for way in ("made", "found"):
            self.assertEqual(self.fitted_at(link / "cache").parent.parent, (real / "cache").resolve(), way)
        self.assertEqual(self.fitted_at(link).parent.parent, real.resolve())

    @unittest.skipUnless(CAN_MOUNT, "only root can mount, and not everywhere")
    def test_a_cache_that_nothing_can_be_loaded_from_is_said(self):
        self.fitted_once()
        mounted = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o noexec,mode=700 none "$ROTA_CACHE" && exec "$@"', "sh")
        _, library, errors = self.asked(*mounted, ROTA, "run", "--", ROTA_LOG="info")
        self.assertEqual(library, PLAIN)
        self.assertIn(f"nothing can be loaded from {self.cache.resolve()}", errors)
        self.assertNotIn("ld.so", errors)
        # A copy that is already there does not count either.
        mounted = (*mounted[:4], 'mount --bind "$ROTA_CACHE" "$ROTA_CACHE" && mount -o remount,bind,noexec "$ROTA_CACHE" '
                   '&& exec "$@"', "sh")
        _, library, errors = self.asked(*mounted, ROTA, "run", "--")
        self.assertEqual((library, errors), (PLAIN, ""))

    def test_only_its_owner_can_look_into_the_cache(self):
        library = self.fitted_once()
        for folder in (self.cache, library.parent):
            self.assertEqual(folder.stat().st_mode & 0o777, 0o700)
        self.assertEqual(library.stat().st_mode & 0o022, 0)

    def test_a_cache_that_cannot_be_written_is_said_and_the_program_runs(self):
        (self.scratch / "file").write_text("")
        self.pose("12.4")
        for cache in (self.scratch / "file/cache", "/proc/rota-cache"):
            _, library, errors = self.asked(ROTA_CACHE=str(cache))
            self.assertEqual((library, errors), (PLAIN, ""))
            _, library, errors = self.asked(ROTA_CACHE=str(cache), ROTA_LOG="info")
            self.assertEqual(library, PLAIN)
            self.assertIn(f"cannot create {cache}", errors)
            self.assertIn("set ROTA_CACHE", errors)

    def test_nothing_is_taken_from_a_folder_that_others_may_change(self):
        library = self.fitted_once()
        self.cache.chmod(0o777)
        _, used, errors = self.asked(ROTA_LOG="info")
        self.assertEqual(used, PLAIN)
        self.assertIn("not a folder that only you can write to", errors)
        self.cache.chmod(0o770)
        self.assertEqual(self.asked()[1], PLAIN)
        # The same holds for parent folders, unless files are safe from other users there, as in /tmp.
        self.cache.chmod(0o700)
        self.scratch.chmod(0o777)
        _, used, errors = self.asked(ROTA_LOG="info")
        self.assertEqual(used, PLAIN)
        self.assertIn(f"is in {self.scratch.resolve()}, which other users can change", errors)
        self.scratch.chmod(0o770)
        os.chown(self.scratch, -1, os.getegid())
        self.assertEqual(self.asked()[1], PLAIN)
        self.assertEqual(self.asked(ROTA_CACHE=str(self.scratch / "another"))[1], PLAIN)
        self.assertFalse((self.scratch / "another").exists())
        self.scratch.chmod(0o1777)
        self.assertEqual(self.asked()[1], library)

    @unittest.skipUnless(os.getuid() == 0, "only root can give files away")
    def test_nothing_is_taken_from_another_users_folder(self):
        self.fitted_once()
        os.chown(self.cache, 12345, 12345)
        self.assertEqual(self.asked()[1], PLAIN)
        os.chown(self.cache, 0, 0)
        os.chown(self.scratch, 12345, 12345)
        self.assertEqual(self.asked()[1], PLAIN)

    @unittest.skipUnless(CAN_BE_ANOTHER, "only root can become another user, who must be able to reach the build")
    def test_where_others_may_read_the_cache_a_program_that_becomes_another_user_keeps_its_preload(self):
        self.cache.mkdir()
        for folder in (self.cache, self.scratch):
            folder.chmod(0o755)
        self.pose("12.4")
        result = self.checked(ROTA, "run", "--", "setpriv", "--reuid=12345", "--clear-groups", "cat", "/proc/self/maps")
        self.assertEqual(result.stderr, "")
        self.assertIn(str(self.cache), result.stdout)

    @unittest.skipUnless(CAN_BE_ANOTHER, "only root can become another user, who must be able to reach the build")
    def test_roots_cache_serves_other_users_once_they_may_look_into_it(self):
        library = self.fitted_once()
        self.scratch.chmod(0o755)
        self.assertEqual(self.given(*AS_USER), PLAIN)
        self.cache.chmod(0o755)
        self.assertEqual(self.given(*AS_USER), PLAIN)  # the entry is still as it was made
        self.assertEqual(self.fitted_once(), library)
        self.assertEqual(library.parent.stat().st_mode & 0o777, 0o755)
        self.assertEqual(self.given(*AS_USER), library)

    @unittest.skipUnless(CAN_MOUNT, "only root can mount, and not everywhere")
    def test_roots_own_cache_is_not_in_a_users_home(self):
        del self.environment["ROTA_CACHE"]
        self.pose("12.4")
        home = self.scratch / "home"
        home.mkdir()
        os.chown(home, 12345, 12345)
        mounted = ("unshare", "-m", "sh", "-c",
                   'umask 077; mount -t tmpfs -o mode=755 none /var/cache && "$@" && stat -c %a /var/cache/rota/*', "sh")
        result = self.checked(*mounted, ROTA, "run", "--", "sh", "-c", 'echo "${LD_PRELOAD%%:*}"; stat -c %a /var/cache/rota',
                              HOME=str(home), XDG_CACHE_HOME=str(home / "caches"))
        library, *modes = result.stdout.split()
        self.assertEqual(os.path.dirname(os.path.dirname(library)), "/var/cache/rota")
        self.assertEqual(modes, ["755", "755"])
        self.assertEqual(list(home.iterdir()), [])
        # And if ROTA_CACHE says so, nothing is created there.
        _, library, errors = self.asked(ROTA_CACHE=str(home / ".cache/rota"), ROTA_LOG="info")
        self.assertEqual(library, PLAIN)
        self.assertIn(f"is in {home.resolve()}, which other users can change", errors)
        self.assertEqual(list(home.iterdir()), [])

    def test_a_library_that_others_could_write_or_that_is_not_whole_is_made_anew(self):
        library = self.fitted_once()
        whole = library.read_bytes()
        core = library.parent / "librota-core.so"
        right = os.readlink(core)
        spoil = {"writable": lambda: library.chmod(0o666), "cut off": lambda: os.truncate(library, 1000),
                 "gone": library.unlink, "a link": lambda: (library.unlink(), library.symlink_to(PLAIN)),
                 "folder writable": lambda: library.parent.chmod(0o777),
                 "no core": core.unlink, "another core": lambda: (core.unlink(), core.symlink_to("/nothing"))}
        for name, how in spoil.items():
            with self.subTest(spoiled=name):
                how()
                self.assertEqual(self.fitted_once(), library)
                self.assertEqual(library.read_bytes(), whole)
                self.assertFalse(library.is_symlink())
                self.assertEqual(os.readlink(core), right)
                self.assertEqual((library.stat().st_mode | library.parent.stat().st_mode) & 0o022, 0)
                self.assertEqual(self.entries(), [library.parent])

    def test_a_folder_whose_name_cannot_be_preloaded_has_a_stand_in_in_tmp(self):
        self.pose("12.4")
        _, library, errors = self.asked(ROTA_CACHE=str(self.scratch / "my cache"), ROTA_LOG="info")
        self.assertEqual(library.parent.parent, pathlib.Path(f"/tmp/rota-{os.geteuid()}/cache"), errors)
        self.addCleanup(shutil.rmtree, library.parent, ignore_errors=True)
        self.assertEqual(library.name, "librota.so")
        self.assertFalse((self.scratch / "my cache").exists())

    def left_of(self, days_unused):
        """Which of the entries 0, 1, …, last used this many days ago, remain after a new one is made."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.cache.mkdir(mode=0o700)
        now = time.time()
        for index, days in enumerate(days_unused):
            entry = self.cache / f"{index:016x}"
            entry.mkdir()
            (entry / "librota.so").write_text("")
            (entry / "librota-core.so").symlink_to("/nothing")
            os.utime(entry, (now - days * 86400, now - days * 86400))
        library = self.fitted_once()
        return [int(entry.name, 16) for entry in self.entries() if entry != library.parent]

    def test_copies_that_nobody_used_for_long_go_and_some_always_stay(self):
        # Eight including the new one: of the long-unused ones the most recently used remain; more only if used
        # recently.
        self.assertEqual(self.left_of([60 + index for index in range(15)] + [1] * 5), [0, 1, 15, 16, 17, 18, 19])
        self.assertEqual(self.left_of([60] * 5 + [1] * 12), list(range(5, 17)))

    def test_what_is_no_copy_stays_however_old_it_is(self):
        # ROTA_CACHE may be a folder that is also used for other things.
        self.cache.mkdir(mode=0o700)
        names = ["thesis", "photos 2019", "0123456789abcdeg", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef",
                 ".new-ideas", ".new-thesis", *(f"{index:016x}" for index in range(12))]
        for name in names:
            folder = self.cache / name
            (folder / "chapters").mkdir(parents=True)
            for file in ("librota.so", "one", "chapters/two"):
                (folder / file).write_text("mine")
            os.utime(folder, (1, 1))
        library = self.fitted_once()
        self.assertEqual([entry.name for entry in self.entries() if entry != library.parent], sorted(names))
        for name in names:
            for file in ("librota.so", "one", "chapters/two"):
                self.assertEqual((self.cache / name / file).read_text(), "mine")

    def test_a_folder_in_the_place_of_a_copy_stays_and_is_named(self):
        library = self.fitted_once()
        (library.parent / "mine").write_text("mine")
        library.unlink()
        _, used, errors = self.asked(ROTA_LOG="info")
        self.assertEqual(used, PLAIN)
        self.assertIn(f"{library.parent} cannot be replaced; remove it", errors)
        self.assertEqual([entry.name for entry in self.entries()], [library.parent.name])
        self.assertEqual((library.parent / "mine").read_text(), "mine")

    def test_what_a_killed_start_left_behind_goes(self):
        self.cache.mkdir(mode=0o700)
        abandoned, under_way = self.cache / ".new-abcdef", self.cache / ".new-ghijkl"
        for folder in (abandoned, under_way):
            folder.mkdir()
            for file in ("librota.so", "librota.so.a1B2c3"):
                (folder / file).write_text("")
        os.utime(abandoned, (time.time() - 7200,) * 2)
        library = self.fitted_once()
        self.assertEqual(self.entries(), sorted([under_way, library.parent]))

    def test_a_start_marks_the_copy_as_used(self):
        library = self.fitted_once()
        os.utime(library.parent, (1, 1))
        self.fitted_once()
        self.assertGreater(library.parent.stat().st_mtime, time.time() - 3600)

    @unittest.skipUnless(os.getuid() != 0 or CAN_BE_ANOTHER, "root has another default")
    def test_the_users_cache_folder_is_the_default(self):
        del self.environment["ROTA_CACHE"]
        self.pose("12.4")
        home = self.scratch / "home"
        home.mkdir()
        as_user = ()
        if os.getuid() == 0:
            self.scratch.chmod(0o755)
            os.chown(home, 12345, 12345)
            as_user = AS_USER
        library = self.given(*as_user, HOME=str(home), XDG_CACHE_HOME="")
        self.assertEqual(library.parent.parent, home / ".cache/rota")
        library = self.given(*as_user, HOME=str(home), XDG_CACHE_HOME=str(home / "xdg"))
        self.assertEqual(library.parent.parent, home / "xdg/rota")


if __name__ == "__main__":
    unittest.main()
