"""Arguments, paths and names of any length and any bytes: a program gets the bytes that it would have got, rota works from and in any
folder, and what it prints of either is one line of text."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from harness import BUILD, Case, PROGRAMS, ROTA, ROTAD, SHIMS

# Of every kind that a list of paths, a shell, JSON or a terminal takes for something else.
ODD = "a b:c;d#e'f\"g\\h,i-jä\x1b[31m\n.k"
SPOKEN = ("a b", "a:b", "a;b", "a#b", "-a-b", "ä€", "a$b", "a\nb", "a\"'b", ODD)
ARGUMENTS = [b"", b" ", b"--", b"-x", b"--mode", b"=", b"'", b'"', b"\\", b"\n", b"a\nb", b"\t\x01\x1b[31m\x7f", b"\xff\xfe", b"\xc3", "ä€😀".encode(),
             b"$HOME", b"`id`", b"%s%n", b"{}", b"[a]", b"[a,b]", b"{", b"''", b"a=b", b"@file", b"/?", b"run", b"--", b"", b"x" * 100_000,
             *[b"y" * 100] * 1000, b""]
SHOW = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(os.fsencode(a) for a in sys.argv[1:]))"


def long_folder(parent, length):
    """A folder under `parent` whose path has that many bytes."""
    path = str(parent)
    while length - len(path) > 1:
        part = min(length - len(path) - 1, 200)
        if length - len(path) - 1 - part == 1:
            part -= 1
        path += "/" + "l" * part
    os.makedirs(path)
    assert len(path) == length, (len(path), length)
    return path


class Installation(Case):
    """With a copy of rota in any folder."""

    def install(self, prefix):
        for folder in ("bin", "lib/rota/simgpu/nvml"):
            (prefix / folder).mkdir(parents=True)
        for file in [ROTA, ROTAD, *SHIMS.glob("librota*.so"), SHIMS / "rota-demo", *SHIMS.glob("simgpu/*.so*"), *SHIMS.glob("simgpu/nvml/*.so*")]:
            copy = prefix / file.relative_to(BUILD)
            try:
                os.link(file, copy, follow_symlinks=False)
            except OSError:  # another file system
                shutil.copy2(file, copy, follow_symlinks=False)
        return prefix / "bin/rota"

    def one_line(self, text):
        """Whether nothing in it takes a terminal for a ride."""
        for line in text.splitlines():
            self.assertTrue(line.isprintable(), repr(text))

    def sim(self, rota, *arguments, **environment):
        """In a machine of simulated GPUs of its own."""
        kept = {key: value for key, value in self.environment.items() if not key.startswith(("ROTA_", "LD_"))}
        kept["ROTA_CACHE"] = self.environment["ROTA_CACHE"]
        child = subprocess.run([rota, "sim", "--memory", "256M", *arguments], env=dict(kept, **environment), capture_output=True, text=True,
                               timeout=60, check=False)
        return child


class Arguments(Installation):
    def test_a_program_gets_its_arguments_byte_by_byte_from_every_command(self):
        self.start_daemon()
        wanted = b"\0".join(ARGUMENTS)
        for words in (["run", "--"], ["run", "--report", self.scratch / "report/", "--"], ["sim", "--"], ["sim", "--", ROTA, "run", "--"],
                      ["trace", "--dir", self.scratch / "trace", "--"], ["ci", "--"]):
            with self.subTest(command=words[0:2]):
                (self.scratch / "report").mkdir(exist_ok=True)
                result = subprocess.run([ROTA, *words, sys.executable, "-c", SHOW, *ARGUMENTS], env=self.environment, capture_output=True,
                                        timeout=60, check=False)
                self.assertEqual(result.returncode, 0, result.stderr[-2000:])
                self.assertEqual(result.stdout, wanted)

    def test_a_programs_name_may_have_any_bytes_and_is_shown_as_text(self):
        daemon = self.start_daemon()
        program = os.path.join(os.fsencode(self.scratch), b"odd \x1b[31m\xff\nname")
        shutil.copy2(PROGRAMS / "linger", program)
        child = self.start(ROTA, "run", "--", os.fsdecode(program))
        self.assertTrue(child.stdout.readline().startswith("ready"))
        self.eventually(lambda: self.clients(), "the program is a client")
        shown = subprocess.run([ROTA, "status"], env=self.environment, capture_output=True, timeout=60, check=True).stdout.decode()
        self.one_line(shown)
        self.assertIsNone(daemon.poll())

    def test_what_is_wrong_is_said_in_one_line_of_text_whatever_was_written(self):
        bad = os.fsdecode(b"x\x1b[31m\xff\n\x07y")
        for words in (["run", "--", bad], ["run", "--gpu-mem", bad, "--", "true"], ["run", "--report", f"/dev/null/{bad}/", "--", "true"], [bad],
                      ["sim", "--gpu", bad, "--", "true"], ["sim", "--state", f"/dev/null/{bad}", "--", "true"], ["sim", "--kernels", bad, "--", "true"],
                      ["control", "--socket", bad, "mode", "exclusive"], ["trace", "show", bad], ["report", bad], ["ci", "--junit", f"/dev/null/{bad}/x", "--", "true"],
                      ["ci", "--hang-after", bad, "--", "true"], ["try", "--", bad], ["run", bad], ["doctor", bad], ["doctor", "--", bad]):
            with self.subTest(words=words):
                result = subprocess.run([ROTA, *words], env=self.environment, capture_output=True, timeout=60, check=False)
                self.assertNotEqual(result.returncode, 0)
                self.one_line(result.stderr.decode(errors="strict"))
                self.one_line(result.stdout.decode(errors="strict"))


class Prefixes(Installation):
    # ctest labels: unsanitized
    def test_rota_works_from_a_folder_of_any_name(self):
        self.start_daemon()
        for number, name in enumerate(SPOKEN):
            with self.subTest(prefix=name):
                rota = self.install(self.scratch / str(number) / name)
                program = [PROGRAMS / "memhog", "--bytes", "96M", "--rounds", "1"]
                result = self.call(rota, "run", "--", *program)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                refused = self.call(rota, "run", "--gpu-mem", "64M", "--", *program)
                self.assertNotEqual(refused.returncode, 0, "rota is not in the program")
                simulated = self.sim(rota, "--driver", "12.4", "--", rota, "run", "--", PROGRAMS / "saxpy")
                self.assertEqual((simulated.returncode, simulated.stderr), (0, ""))

    # ctest labels: unsanitized
    def test_a_report_and_a_trace_are_made_from_a_folder_of_any_name_into_one(self):
        self.start_daemon()
        rota = self.install(self.scratch / "prefix" / ODD)
        for command, option, made in ("run", "--report", "rota-session.json"), ("ci", "--report-dir", "rota-session.json"):
            folder = self.scratch / command / ODD
            folder.mkdir(parents=True)
            result = self.call(rota, command, option, f"{folder}/", "--", PROGRAMS / "saxpy")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(any(folder.iterdir()))
            self.assertEqual(len(list(folder.rglob("*.account"))), 1, list(folder.rglob("*")))
            self.one_line(result.stderr)
        traces = self.scratch / "trace" / ODD
        result = self.call(rota, "trace", "--dir", traces, "--", PROGRAMS / "saxpy")
        self.assertEqual(result.returncode, 0, result.stderr)
        shown = self.call(rota, "trace", "show", traces)
        self.assertIn("cuLaunchKernel", shown.stdout)

    # ctest labels: unsanitized
    def test_a_simulated_machine_is_made_in_a_folder_of_any_name(self):
        kernels = self.scratch / "kernels" / ODD / "libmine.so"
        kernels.parent.mkdir(parents=True)
        shutil.copy2(SHIMS / "simgpu/libsimkernels.so", kernels)
        for number, name in enumerate(SPOKEN):
            with self.subTest(folder=name):
                folder = self.scratch / str(number) / name
                folder.mkdir(parents=True)
                for options in ([], ["--driver", "12.4", "--kernels", kernels], ["--state", folder / "machine"]):
                    result = self.sim(ROTA, *options, "--", ROTA, "run", "--", PROGRAMS / "saxpy", TMPDIR=str(folder))
                    self.assertEqual((result.returncode, result.stderr), (0, ""), options)
                self.assertEqual([path.name for path in folder.iterdir() if path.name.startswith("rota-sim")], [])


class Lengths(Installation):
    LENGTHS = (60, 72, 74, 80, 90, 98, 99, 100, 107, 108, 109, 150, 255, 300, 1000, 4000)

    def listens(self, path):
        status = self.call(ROTA, "status", "--json", ROTA_SOCKET=str(path))
        return json.loads(status.stdout)["daemon"]["socket"] if status.returncode == 0 else status.stderr

    def test_rotad_listens_at_a_path_of_any_length(self):
        for length in self.LENGTHS:
            with self.subTest(bytes=length):
                folder = pathlib.Path(long_folder(self.scratch, length - len("/rotad.sock")))
                path = str(folder / "rotad.sock")
                self.assertEqual(len(path), length)
                daemon = self.start(ROTAD, "--socket", path, "--lock-directory", self.scratch / "locks")
                self.eventually(lambda: self.listens(path) == path or daemon.poll() is not None, "rotad answers")
                self.assertEqual(self.listens(path), path)
                control = self.call(ROTA, "control", "mode", "exclusive", ROTA_SOCKET=path)
                self.assertEqual(control.returncode, 0, control.stderr)
                self.checked(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_SOCKET=path)
                daemon.terminate()
                self.assertEqual(self.finish(daemon).returncode, 0)
                self.assertEqual([entry.name for entry in folder.iterdir()], [])

    def test_a_sockets_name_may_be_as_long_as_a_files(self):
        path = self.scratch / ("n" * (255 - len(".control")))
        daemon = self.start(ROTAD, "--socket", path, "--lock-directory", self.scratch / "locks")
        self.eventually(lambda: self.listens(path) == str(path) or daemon.poll() is not None, "rotad answers")
        self.checked(ROTA, "control", "mode", "exclusive", ROTA_SOCKET=str(path))
        # A second one there finds the first.
        second = self.call(ROTAD, "--socket", path, "--lock-directory", self.scratch / "locks")
        self.assertIn("already served", second.stderr)
        self.assertEqual(self.listens(path), str(path))

    def test_a_users_own_rotad_is_started_in_a_run_time_folder_of_any_length(self):
        if os.path.exists("/run/rota/rotad.sock"):
            self.skipTest("the machine's rotad comes first")
        for length in (80, 107, 120, 1000):
            with self.subTest(bytes=length):
                run_time = long_folder(self.scratch, length)
                environment = {key: value for key, value in self.environment.items() if key != "ROTA_SOCKET"}
                script = f"'{ROTA}' status --json"
                result = subprocess.run([ROTA, "run", "--", "sh", "-c", script], env=dict(environment, XDG_RUNTIME_DIR=run_time), capture_output=True,
                                        text=True, timeout=60, check=False)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                found = json.loads(result.stdout)["daemon"]
                self.assertEqual(found["socket"], f"{run_time}/rota/rotad.sock")
                os.kill(found["pid"], 15)

    # ctest labels: unsanitized
    def test_a_folder_for_temporary_files_may_have_a_path_of_any_length(self):
        for length in (72, 74, 98, 107, 108, 300, 3900):
            folder = long_folder(self.scratch, length)
            with self.subTest(bytes=length):
                result = self.sim(ROTA, "--", ROTA, "run", "--", PROGRAMS / "saxpy", TMPDIR=folder)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertEqual(os.listdir(folder), [])

    # ctest labels: unsanitized
    def test_the_demo_and_a_rig_work_with_a_folder_of_any_length(self):
        for length in (75, 107, 3900):
            folder = long_folder(self.scratch, length)
            with self.subTest(bytes=length):
                demo = self.call(ROTA, "demo", "--sim", "--json", TMPDIR=folder)
                # What the machine's speed decides is no matter here; that rota was there is.
                self.assertNotIn("too long", demo.stderr)
                self.assertTrue(json.loads(demo.stdout), demo.stderr)
                rig = self.call(ROTA, "ci", "--sim", "h100", "--", PROGRAMS / "saxpy", TMPDIR=folder)
                self.assertEqual(rig.returncode, 0, rig.stderr)
                self.assertNotIn("does not take turns", rig.stderr)
                self.assertEqual(os.listdir(folder), [])

    def test_a_path_that_no_system_has_is_refused_in_a_line(self):
        path = "/" + "p" * 5000
        for words in (["status"], ["control", "--socket", path, "mode", "exclusive"]):
            result = self.call(ROTA, *words, ROTA_SOCKET=path)
            self.assertNotEqual(result.returncode, 0)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        result = self.call(ROTA, "run", "--", PROGRAMS / "saxpy", ROTA_SOCKET=path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ROTA_SOCKET", result.stderr)

    def test_what_is_no_socket_is_not_replaced(self):
        path = pathlib.Path(long_folder(self.scratch, 200)) / "rotad.sock"
        path.write_text("precious", encoding="ascii")
        result = self.call(ROTAD, "--socket", path, "--lock-directory", self.scratch / "locks")
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(path.read_text(encoding="ascii"), "precious")


if __name__ == "__main__":
    unittest.main()
