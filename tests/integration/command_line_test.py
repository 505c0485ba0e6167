"""The command line: its output, and what it leaves behind."""
import os
import pathlib
import pwd
import stat
import subprocess
import sys
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD
from sim_case import SimCase, program


class CommandLine(Case):
    def test_a_wrong_command_is_named(self):
        for arguments in (["frobnicate"], ["statsu", "--json"]):
            result = self.call(ROTA, *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stderr, f"rota: '{arguments[0]}' is not a command: use run, try, demo, sim, status, top, control, doctor, trace, ci or report; "
                                            "`rota --help` says more\n")

    def test_wrong_options_are_named_with_the_command(self):
        for command, code, line in (([ROTA, "run", "--frob"], 125, "rota run: The following argument was not expected: --frob; `rota run --help` says more\n"),
                                    ([ROTA, "control"], 2, "rota control: setting is required; `rota control --help` says more\n"),
                                    ([ROTAD, "--frob"], 1, "rotad: The following argument was not expected: --frob; `rotad --help` says more\n")):
            result = self.call(*command)
            self.assertEqual((result.returncode, result.stderr), (code, line))

    def test_an_empty_command_is_not_found_and_empty_arguments_reach_the_program(self):
        for command in ("run", "trace", "sim", "ci", "try"):
            with self.subTest(command):
                result = self.call("env", "-C", self.scratch, ROTA, command, "--", "", "x")
                self.assertEqual(result.returncode, 127, result.stderr)
                self.assertIn("'': command not found\n", result.stderr)
                said = self.scratch / command
                self.checked("env", "-C", self.scratch, ROTA, command, "--", "sh", "-c", 'printf "<%s>" "$@" > "$0"', said, "a", "", "--", "b", "")
                self.assertEqual(said.read_text(), "<a><><--><b><>")

    def test_a_gang_is_named_for_the_program_and_one_that_has_no_proper_name_is_refused(self):
        for text in "train", "train:4":
            self.assertEqual(self.checked(ROTA, "run", "--gang", text, "--", "printenv", "ROTA_GANG", ROTA_GANG="outer").stdout, text + "\n")
        touched = self.scratch / "touched"
        for text in "", ":4", "train:", "train:0", "train:257", "train:four", "train:4:4", "t" * 32, "a\x1bb":
            result = self.call(ROTA, "run", "--gang", text, "--", "touch", touched)
            self.assertEqual(result.returncode, 125, text)
            shown = text.replace("\x1b", "\\x1b")
            self.assertEqual(result.stderr, f"rota run: --gang: '{shown}' names no gang: use NAME or NAME:SIZE, with a name of 1 to 31 printable characters and no "
                                            "colon and a size from 1 to 256, as in train:4; `rota run --help` says more\n")
        self.assertFalse(touched.exists())

    def test_a_trace_that_is_none_is_said_to_be_none(self):
        page = self.scratch / "page.txt"
        page.write_text("no trace")
        result = self.call(ROTA, "trace", "show", page)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{page}: at offset 0: not a rota trace", result.stderr)
        self.assertNotIn("no call matches", result.stderr)

    def test_a_program_that_is_not_covered_runs_without_its_limit_and_that_is_said(self):
        # Any file with the kernel's mark of a static program: the dynamic loader itself.
        loader = next(path for path in (pathlib.Path("/lib64/ld-linux-x86-64.so.2"), pathlib.Path("/lib/ld-linux-aarch64.so.1")) if path.exists())
        for options, ends in (["--gpu-mem", "1G"], "without rota, and without the limit\n"), ([], "without rota\n"):
            self.assertTrue(self.checked(ROTA, "run", *options, "--", loader, "--version").stderr.endswith(ends))

    def test_rotad_says_who_will_not_come_to_it(self):
        config = self.scratch / "rotad.toml"
        config.write_text('[limits.users]\nnobody-by-this-name = { gpu = "1G" }\n')
        daemon = self.start_daemon("--config", config)
        daemon.terminate()
        self.assertIn(f"{config}: there is no user 'nobody-by-this-name' on this machine, so its limits apply to nobody", self.finish(daemon).stderr)

    def test_a_size_without_a_unit_asks_for_one(self):
        for option in "--gpu-mem", "--host-mem":
            result = self.call(ROTA, "run", option, "8", "--", "true")
            self.assertEqual(result.returncode, 125)
            self.assertIn("8 without a unit is bytes: write 8G or 8M", result.stderr)

    def test_rotad_gives_the_journal_its_levels(self):
        config = self.scratch / "rotad.toml"
        config.write_text('[limits.cgroups]\n"/no-such.slice" = { gpu = "1G" }\n')
        journal = self.scratch / "journal"
        for shift, begins in (0, f"<4>{config}: there is no cgroup"), (1, f"rotad: warning: {config}: there is no cgroup"):
            with self.subTest(begins=begins), open(journal, "w") as stream:
                file = os.fstat(stream.fileno())
                environment = {**os.environ, "JOURNAL_STREAM": f"{file.st_dev}:{file.st_ino + shift}"}
                subprocess.run([ROTAD, "--check", "--config", config], stderr=stream, stdout=subprocess.DEVNULL, env=environment, check=True)
                self.assertTrue(journal.read_text().startswith(begins), journal.read_text())

    def test_rotad_checks_a_configuration_without_serving(self):
        config = self.scratch / "rotad.toml"
        config.write_text('[limits.cgroups]\n"/no-such.slice" = { gpu = "1G" }\n')
        right = self.checked(ROTAD, "--check", "--config", config)
        self.assertEqual(right.stdout, f"{config} can be read\n")
        self.assertIn(f"{config}: there is no cgroup '/no-such.slice' on this machine now", right.stderr)
        config.write_text('mode = "automatic"\nmodes = 1\n')
        wrong = self.call(ROTAD, "--check", "--config", config)
        self.assertEqual((wrong.returncode, wrong.stdout), (1, ""))
        self.assertIn(f"{config}, line 2: 'modes' is unknown", wrong.stderr)

    def test_usages_show_where_the_program_goes(self):
        for command in "run", "try", "sim", "trace":
            self.assertIn(f"Usage: rota {command} [OPTIONS] -- COMMAND [ARGUMENTS…]\n", self.checked(ROTA, command, "--help").stdout)
        self.assertIn("Usage: rota doctor [OPTIONS] [-- COMMAND [ARGUMENTS…]]\n", self.checked(ROTA, "doctor", "--help").stdout)

    def test_status_shows_user_and_command_line(self):
        self.start_daemon()
        holder = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "10M", "--rounds", "1", "--hold")
        self.assertEqual(holder.stdout.readline().strip(), "ready")
        user = pwd.getpwuid(os.getuid()).pw_name
        command = f"{PROGRAMS / 'memhog'} --bytes 10M --rounds 1 --hold"
        [client] = self.clients()
        self.assertEqual((client["user"], client["command"]), (user, command))
        self.assertIn(f"  {user}: {command}\n", self.checked(ROTA, "status").stdout)

    def test_a_lock_folder_is_made_where_it_was_asked_for_only_and_its_files_go(self):
        locks = self.scratch / "locks"
        self.start_daemon()
        holder = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "10M", "--rounds", "1", "--hold")
        self.assertEqual(holder.stdout.readline().strip(), "ready")
        self.assertEqual(stat.S_IMODE(locks.stat().st_mode), 0o755)
        self.assertEqual(len(list(locks.glob("GPU-*.lock"))), 1)
        self.finish(holder)
        self.eventually(lambda: not list(locks.iterdir()), "the lock file of a GPU that nobody uses is gone")


class Left(SimCase):
    # ctest labels: unsanitized
    def test_a_machine_leaves_no_lock_files(self):
        before = {path for folder in ("/run/lock", "/run/lock/rota", "/tmp/rota-locks") for path in pathlib.Path(folder).glob("*")}
        state = self.scratch / "machine"
        for options in [], ["--state", state]:
            result = self.sim("--memory", "256M", *options, "--", ROTA, "run", "--", *program("print(context(), allocate(4096)[0])"))
            self.assertEqual(result.stdout.split(), ["0", "0"], result.stderr)
        ours = {str(path) for path in self.scratch.iterdir() if path.suffix == ".start"}
        self.assertEqual(ours, set())
        self.eventually(lambda: not [path for path in self.scratch.iterdir() if path.suffix == ".lock"], "rotad's locks go with it")
        # Other tests on this machine may come and go there, but none of this test's processes may remain.
        uuids = self.sim("--memory", "256M", "--state", state, "--", *program("""
context()
uuid = (ctypes.c_ubyte * 16)()
call("cuDeviceGetUuid_v2", uuid, 0)
print(bytes(uuid).hex())
""")).stdout.split()
        for folder in "/run/lock/rota", "/tmp/rota-locks":
            for path in set(pathlib.Path(folder).glob("*.lock")) - before:
                self.assertNotIn(path.stem.removeprefix("GPU-").replace("-", ""), uuids)

    # ctest labels: unsanitized
    def test_a_machines_folder_goes_though_somebody_still_writes_there(self):
        # As with a rotad that is just ending, or a program that outlives the command.
        result = self.sim("--", sys.executable, "-c", """
import os, time
folder = os.path.dirname(os.environ["ROTA_SIM_STATE"])
if os.fork() == 0:
    os.closerange(0, 3)
    until = time.monotonic() + 20
    number = 0
    while time.monotonic() < until:
        number += 1
        try:
            os.close(os.open(f"{folder}/file{number % 50}", os.O_CREAT | os.O_WRONLY))
        except FileNotFoundError:
            break
else:
    while not os.path.exists(folder + "/file9"): pass
""")
        self.assertEqual(result.returncode, 0, result.stderr)

    # ctest labels: unsanitized
    def test_a_machine_in_use_speaks_of_what_was_written(self):
        state = self.scratch / "machine"
        holder = self.start(ROTA, "sim", "--memory", "256M", "--state", state, "--", *program("""
print(context(), flush=True)
sys.stdin.read()
"""))
        self.assertEqual(holder.stdout.readline().strip(), "0")
        total = "total = ctypes.c_size_t()\nprint(context(), call('cuDeviceTotalMem_v2', ctypes.byref(total), 0), total.value >> 20)"
        silent = self.call(ROTA, "sim", "--state", state, "--", *program(total))
        self.assertEqual((silent.stdout.strip(), silent.stderr), ("0 0 256", ""))
        same = self.call(ROTA, "sim", "--state", state, "--gpu", "h200", "--memory", "256M", "--", *program(total))
        self.assertEqual((same.stdout.strip(), same.stderr), ("0 0 256", ""))
        other = self.call(ROTA, "sim", "--state", state, "--gpu", "a100x2", "--memory", "128M", "--", *program(total))
        self.assertEqual(other.stdout.strip(), "0 0 256")
        self.assertEqual(other.stderr, f"simgpu: the machine {state} is in use, with one GPU h200 of 256M: --gpu a100x2 and --memory 128M "
                                       "are ignored; name another file with --state, or wait until its programs have ended\n")


if __name__ == "__main__":
    unittest.main()
