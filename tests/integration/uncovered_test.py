"""Programs of a session that have lost rota's preload: they are reported, and --system-preload reaches them."""
import json
import os
import resource
import shutil
import subprocess
import unittest

from harness import Case, PROGRAMS, ROTA, SIM_DRIVER

MEMHOG = PROGRAMS / "memhog"


def can_mount():
    """Whether an overlay can be mounted over /etc here, as --system-preload does."""
    script = "mount --make-rprivate / && mount -t tmpfs none /mnt && mkdir /mnt/u /mnt/w && mount -t overlay -o lowerdir=/etc,upperdir=/mnt/u,workdir=/mnt/w none /etc"
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False).returncode == 0


class Uncovered(Case):
    lost = ("env", "-u", "LD_PRELOAD", MEMHOG, "--bytes", "96M", "--rounds", "1", "--hold")

    def setUp(self):
        super().setUp()
        self.start_daemon()

    def holding(self, *options, command=lost):
        child = self.start(ROTA, "run", *options, "--", *command)
        self.assertTrue(child.stdout.readline().startswith("ready"))
        return child

    def found(self):
        """Those of this test: others may have some at the same time."""
        return [one for one in self.status()["without_rota"] if str(MEMHOG) in one["command"] and one["pid"] in [child.pid for child in self.children]]

    # ctest labels: unsanitized
    def test_status_and_doctor_tell_of_a_program_that_lost_the_preload_but_not_the_limit(self):
        child = self.holding("--gpu-mem", "64M")
        one, = self.found()
        self.assertEqual((one["pid"], one["limited"]), (child.pid, True))
        self.assertRegex(self.checked(ROTA, "status").stdout, rf"without rota \(.*--system-preload.*\)\n(.*\n)*  pid {child.pid} +its limit does not hold: .*memhog")
        doctor = self.call(ROTA, "doctor", "--json")
        finding = next(finding for finding in json.loads(doctor.stdout)["findings"] if finding["id"] == "session.uncovered")
        self.assertIn(f"pid {child.pid} ", finding["text"])
        self.assertIn("--system-preload", finding["remedy"])

    # ctest labels: unsanitized
    def test_programs_that_no_preload_reaches_are_told_of_with_what_helps(self):
        raised = self.scratch / "raised"
        shutil.copy(PROGRAMS / "maps_file", raised)
        os.chown(raised, 65534, -1)
        raised.chmod(0o4755)
        self.scratch.chmod(0o755)
        kinds = [(PROGRAMS / "maps_file_static", "it is statically linked", "link it dynamically")]
        if os.geteuid() == 0 and not os.statvfs(self.scratch).f_flag & os.ST_NOSUID:
            kinds.append((raised, "it runs with raised privileges", "--system-preload"))
        for program, why, remedy in kinds:
            with self.subTest(program=program.name):
                child = self.start(ROTA, "run", "--gpu-mem", "64M", "--", "sh", "-c", '"$@"; true', "sh", program, SIM_DRIVER)
                self.assertEqual(child.stdout.readline().strip(), "ready")
                one = next(one for one in self.status()["without_rota"] if str(program) in one["command"])
                self.assertTrue(one["limited"])
                self.assertIn(why, one["why"])
                self.assertIn(remedy, one["remedy"])
                self.assertIn(why, self.checked(ROTA, "status").stdout)
                finding = next(each for each in json.loads(self.call(ROTA, "doctor", "--json").stdout)["findings"] if each["id"] == "session.uncovered")
                self.assertIn(why, finding["text"])
                self.assertIn(remedy, finding["remedy"])
                self.finish(child)

    # ctest labels: unsanitized
    def test_nobody_is_told_of_programs_that_have_rota_or_never_asked_for_it(self):
        smaller = (MEMHOG, "--bytes", "32M", "--rounds", "1", "--hold")  # natively all three have to fit together
        self.holding("--gpu-mem", "128M", command=smaller)
        native = self.start(*smaller)
        self.assertTrue(native.stdout.readline().startswith("ready"))
        self.holding(command=("env", "ROTA_OFF=1", *self.lost))
        self.assertEqual(self.found(), [])

    # ctest labels: unsanitized
    def test_a_job_with_a_report_says_so_while_it_runs(self):
        for command in (["run", "--report", f"{self.scratch}/report/"], ["ci", "--report-dir", f"{self.scratch}/ci"]):
            (self.scratch / "report").mkdir(exist_ok=True)
            said = self.scratch / f"{command[0]}.said"
            script = f'exec 2>{said}; exec "$@"'
            child = self.start("sh", "-c", script, "sh", ROTA, *command, "--gpu-mem", "64M", "--", "sh", "-c", " ".join(map(str, self.lost)) + "; true")
            self.assertTrue(child.stdout.readline().startswith("ready"))
            line = self.eventually(lambda: said.read_text(encoding="utf-8"), "the program is told of")
            self.assertRegex(line, r"^rota: .*memhog .* \(pid \d+\) runs without rota, and without its limit: .*--system-preload")
            child.stdin.close()
            child.stdin = None
            self.assertEqual(self.finish(child).returncode, 0)
            self.assertEqual(said.read_text(encoding="utf-8").count("runs without rota"), 1, "once is enough")

    # ctest labels: unsanitized
    def test_the_systems_preload_reaches_programs_with_a_clean_environment(self):
        if not can_mount():
            self.skipTest("no mounts over /etc here")
        for clean in (["env", "-i"], ["env", "-u", "LD_PRELOAD"], ["sh", "-c", 'unset LD_PRELOAD; "$@"; exit $?', "sh"]):
            with self.subTest(clean=clean):
                program = [*clean, MEMHOG, "--bytes", "96M", "--rounds", "1"]
                if "-i" not in clean:  # without rota it would not find the simulated driver
                    self.checked(ROTA, "run", "--gpu-mem", "64M", "--", *program)  # nothing holds it back
                result = self.call(ROTA, "run", "--system-preload", "--gpu-mem", "64M", "--", *program)
                self.assertNotEqual(result.returncode, 0, "the limit does not reach it")
                self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", result.stderr)
                self.checked(ROTA, "run", "--system-preload", "--gpu-mem", "128M", "--", *program)
        held = self.holding("--system-preload", "--gpu-mem", "128M")
        self.assertEqual(self.found(), [])
        self.assertIn(held.pid, [client["pid"] for client in self.clients()])

    def test_where_no_file_may_grow_the_program_starts_all_the_same_and_with_the_limit_that_it_was_given(self):
        for soft, hard in ((0, 0), (0, resource.RLIM_INFINITY)):
            with self.subTest(soft=soft, hard=hard):
                child = subprocess.Popen([ROTA, "run", "--system-preload", "--", "sh", "-c", "ulimit -S -f; grep SigIgn /proc/self/status; exit 3"],
                                         env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                         preexec_fn=lambda limit=(soft, hard): resource.setrlimit(resource.RLIMIT_FSIZE, limit))
                self.children.append(child)
                output, said = child.communicate(timeout=60)
                self.assertEqual((child.returncode, output.split()), (3, ["0", "SigIgn:", "0000000000000000"]), said)
                if said:  # only where the limit cannot be raised, or nothing mounted
                    self.assertRegex(said, r"^rota: processes with a clean environment run without rota: [^\n]*\n$")
                if hard != 0 and can_mount():
                    self.assertEqual(said, "")
        with self.subTest("a rotad is to be started first"):
            child = subprocess.Popen([ROTA, "run", "--", "sh", "-c", "exit 3"], env=dict(self.environment, ROTA_SOCKET=str(self.scratch / "own.sock")),
                                     stderr=subprocess.PIPE, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
            self.children.append(child)
            said = child.communicate(timeout=60)[1]
            self.assertEqual(child.returncode, 3, said)
            if said:  # only where the limit cannot be raised
                self.assertRegex(said, r"^rota: cannot start a rotad at [^\n]*, perhaps since no file here may exceed 0 bytes \(ulimit -f\)[^\n]*\n$")
            self.call(ROTA, "control", "stop", ROTA_SOCKET=str(self.scratch / "own.sock"))

    def test_where_the_system_does_not_allow_that_one_line_says_so_and_the_program_runs(self):
        if subprocess.run(["setpriv", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all", "unshare", "--mount", "true"],
                          capture_output=True, check=False).returncode == 0:
            self.skipTest("everybody may make mount namespaces here")
        result = self.call("setpriv", "--no-new-privs", "--bounding-set", "-all", "--inh-caps", "-all", ROTA, "run", "--system-preload", "--", PROGRAMS / "saxpy")
        self.assertIn("ok", result.stdout)
        if result.stderr:  # a user namespace may be allowed
            self.assertEqual(len(result.stderr.splitlines()), 1)
            self.assertRegex(result.stderr, "^rota: processes with a clean environment run without rota: ")


if __name__ == "__main__":
    unittest.main()
