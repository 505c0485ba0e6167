"""`rota doctor` as users and scripts see it: on a healthy machine, and with one thing wrong at a time."""
import json
import pathlib
import shutil
import socket
import struct
import subprocess
import threading
import unittest

from harness import BUILD, Case, PROGRAMS, ROTA, ROTAD, SHIMS

ODD_DRIVER = BUILD / "tests/libodd_driver.so"
LEVELS = ("ok", "note", "warning", "problem")

WITHOUT_PROC = ("unshare", "--mount", "--propagation", "private", "sh", "-c", 'umount -l /proc && exec "$@"', "sh")


class DoctorCase(Case):
    def setUp(self):
        super().setUp()
        self.environment["ROTA_CACHE"] = str(self.scratch / "cache")
        for name in list(self.environment):
            if name.startswith("CUDA_"):
                del self.environment[name]

    def doctor(self, *options, rota=ROTA, **environment):
        """The findings by id, and the whole result: checks that the exit code agrees with it and that every finding is complete."""
        result = self.call(rota, "doctor", "--json", *options, **environment)
        self.assertIn(result.returncode, (0, 1), result.stderr)
        answer = json.loads(result.stdout)
        self.assertEqual(result.stderr, "")
        for finding in answer["findings"]:
            self.assertIn(finding["level"], LEVELS)
            self.assertTrue(finding["text"])
            self.assertEqual(finding["remedy"] == "", finding["level"] == "ok", finding)
        levels = [finding["level"] for finding in answer["findings"]]
        self.assertEqual(answer["ok"], "problem" not in levels)
        self.assertEqual(result.returncode, 0 if answer["ok"] else 1)
        self.assertEqual(answer["counts"], {level: levels.count(level) for level in LEVELS})
        findings = {}
        for finding in answer["findings"]:
            findings.setdefault(finding["id"], finding)
        return findings, answer

    def odd(self, behaviour, *options, **environment):
        return self.doctor(*options, ROTA_REAL_LIBCUDA=str(ODD_DRIVER), ODD_DRIVER=behaviour, **environment)


class Healthy(DoctorCase):
    def test_on_a_healthy_machine_all_is_well(self):
        findings, answer = self.doctor()
        problems = [finding for finding in answer["findings"] if finding["level"] == "problem"]
        self.assertEqual(problems, [])
        self.assertEqual(answer["version"], self.checked(ROTA, "--version").stdout.split()[1])
        self.assertEqual(findings["driver"]["values"]["path"], str(self.sim_driver))
        self.assertEqual(findings["driver"]["values"]["place"], "ROTA_REAL_LIBCUDA")
        self.assertEqual(findings["driver.init"]["values"], {"error": 0, "count": 1})
        self.assertEqual(findings["gpu"]["values"]["name"], "NVIDIA H200")
        self.assertEqual(findings["gpu"]["values"]["bytes"], 256 << 20)
        self.assertTrue(findings["gpu"]["values"]["concurrent_managed_access"])
        self.assertIn("reaches the driver", findings["preload.trial"]["text"])
        self.assertEqual(findings["preload.in_force"]["values"], {"in_force": False})
        self.assertEqual(findings["preload.files"]["values"]["directory"], str(SHIMS))

    def test_people_see_aligned_lines_and_each_remedy_below(self):
        result = self.checked(ROTA, "doctor")
        self.assertEqual(result.stderr, "")
        lines = result.stdout.splitlines()
        driver = next(line for line in lines if line.split()[1:2] == ["driver"])
        column = driver.index(str(self.sim_driver))
        for line in lines[:-2]:
            if line.split()[0] in LEVELS:
                self.assertEqual(line[column - 2:column], "  ", line)
            else:
                self.assertEqual(line[:column + 3], " " * column + "-> ", line)
        note = next(index for index, line in enumerate(lines) if line.startswith("note"))
        self.assertIn("->", lines[note + 1])
        self.assertRegex(lines[-1], r"^rota works here: 0 problems, \d+ warnings?, \d+ notes?$")

    def test_every_gpu_has_a_line(self):
        _, answer = self.doctor(ROTA_SIM_GPUS="3")
        gpus = [finding["values"]["uuid"] for finding in answer["findings"] if finding["id"] == "gpu"]
        self.assertEqual(len(set(gpus)), 3)

    def test_a_driver_in_the_search_path_is_found_there(self):
        findings, _ = self.doctor(ROTA_REAL_LIBCUDA="")
        self.assertEqual(findings["driver"]["values"]["place"], "LD_LIBRARY_PATH")
        self.assertEqual(findings["driver"]["values"]["path"], str(self.sim_driver))

    # ctest labels: unsanitized
    def test_under_rota_the_preload_is_in_force(self):
        result = self.checked(ROTA, "run", "--", ROTA, "doctor", "--json")
        findings = {finding["id"]: finding for finding in json.loads(result.stdout)["findings"]}
        self.assertEqual(findings["preload.in_force"]["values"], {"in_force": True})
        self.assertEqual(findings["rotad"]["level"], "ok")
        self.assertNotIn("preload.other", findings)

    def test_wrong_usage_is_told_apart_from_problems(self):
        for wrong in (["--nonsense"], ["--timeout", "never"], ["--timeout", "0"]):
            result = self.call(ROTA, "doctor", *wrong)
            self.assertEqual(result.returncode, 2, wrong)
            self.assertEqual(result.stdout, "")
            self.assertTrue(result.stderr)
        self.assertEqual(self.call(ROTA, "doctor", "--help").returncode, 0)


class Unwritable(DoctorCase):
    def test_findings_that_cannot_be_written_are_an_error_of_one_line(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([ROTA, "doctor", "--json"], env=self.environment, stdout=full, stderr=subprocess.PIPE,
                                    text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write to standard output", result.stderr)


class Older(DoctorCase):
    driver = "11.2"

    def test_an_older_driver_is_a_note_and_what_it_lacks_is_counted(self):
        findings, answer = self.doctor()
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["driver.version"]["level"], "note")
        self.assertEqual(findings["driver.version"]["values"]["version"], 11020)
        self.assertIn("cuGetProcAddress", findings["driver.exports"]["values"]["missing"])
        self.assertIn("shows exactly what the driver has", findings["preload.fit"]["text"])


class Newer(DoctorCase):
    driver = "14.0"

    def test_a_newer_driver_is_a_note_and_what_is_new_is_named(self):
        findings, answer = self.doctor()
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["driver.version"]["level"], "note")
        self.assertEqual(findings["driver.exports"]["level"], "note")
        unknown = findings["driver.exports"]["values"]["unknown"]
        self.assertTrue(unknown)
        text = self.checked(ROTA, "doctor", "--verbose").stdout
        for name in unknown:
            self.assertIn(f"unknown to rota: {name}", text)
        self.assertNotIn(unknown[0], self.checked(ROTA, "doctor").stdout)


class Driver(DoctorCase):
    def test_no_driver_is_a_problem(self):
        findings, _ = self.doctor(ROTA_REAL_LIBCUDA="", LD_LIBRARY_PATH="")
        if findings["driver"]["level"] == "ok":
            self.skipTest("this machine has a driver")
        self.assertEqual(findings["driver"]["level"], "problem")
        self.assertNotIn("driver.init", findings)
        self.assertEqual(findings["preload.trial"]["level"], "ok")

    def test_a_refused_driver_is_named(self):
        for path, why in ((self.scratch / "none.so", "no such file"), (SHIMS / "librota.so", "rota's own"), (ROTA, "")):
            findings, _ = self.doctor(ROTA_REAL_LIBCUDA=str(path))
            self.assertEqual(findings["driver"]["level"], "problem")
            self.assertIn(str(path), findings["driver"]["text"])
            self.assertIn(why, findings["driver"]["text"])

    # ctest labels: unsanitized
    def test_without_proc_programs_start_all_the_same_and_doctor_says_what_is_missing(self):
        if subprocess.run([*WITHOUT_PROC, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("nobody may unmount /proc here")
        for words in (["run", "--"], ["run", "--report", self.scratch / "report.txt", "--"], ["ci", "--report-dir", self.scratch / "ci", "--"],
                      ["trace", "--dir", self.scratch / "trace", "--"], ["sim", "--"]):
            with self.subTest(command=words[:2]):
                result = self.call(*WITHOUT_PROC, ROTA, *words, "sh", "-c", "echo started; exit 7")
                self.assertEqual((result.returncode, result.stdout), (7, "started\n"), result.stderr)
        findings = json.loads(self.call(*WITHOUT_PROC, ROTA, "doctor", "--json").stdout)["findings"]
        missing = next(finding for finding in findings if finding["id"] == "kernel.proc")
        self.assertIn("mount -t proc", missing["remedy"])
        self.assertEqual([finding for finding in findings if "exit 127" in finding["text"]], [])

    def test_a_driver_that_hangs_is_given_up_and_leaves_no_process(self):
        written = self.scratch / "pid"
        findings, _ = self.odd("hang", "--timeout", "4", ODD_DRIVER_PID=str(written))
        self.assertEqual(findings["driver.probe"]["values"]["step"], "cuInit")
        self.assertIn("hangs", findings["driver.probe"]["text"])
        self.assertFalse(pathlib.Path("/proc", written.read_text()).exists())
        self.assertEqual(findings["driver.version"]["level"], "ok")

    def test_a_driver_that_crashes_is_a_finding_and_no_crash(self):
        findings, _ = self.odd("abort")
        self.assertIn("crashes (Aborted), in cuInit; it printed: odd driver: hello", findings["driver.probe"]["text"])
        findings, _ = self.odd("load")
        self.assertIn("crashes (Aborted), in loading", findings["driver.probe"]["text"])

    def test_a_driver_that_ends_the_process_is_a_finding(self):
        findings, _ = self.odd("exit")
        self.assertIn("(exit 3), in cuInit", findings["driver.probe"]["text"])

    def test_what_a_driver_prints_and_calls_itself_does_no_harm(self):
        findings, answer = self.odd("0")
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["driver.init"]["values"]["count"], 1)
        self.assertEqual(findings["driver.exports"]["values"]["unknown"], ["cuNobodyKnowsThis"])

    def test_errors_of_cuinit_are_named(self):
        for error, name in ((100, "NO_DEVICE"), (802, "SYSTEM_NOT_READY"), (803, "DRIVER_MISMATCH"), (999, "UNKNOWN")):
            findings, _ = self.odd(str(error))
            self.assertEqual(findings["driver.init"]["level"], "problem")
            self.assertIn(f"{name} ({error})", findings["driver.init"]["text"])

    def test_an_exclusive_gpu_is_a_problem(self):
        findings, _ = self.odd("0", ODD_DRIVER_COMPUTE_MODE="3")
        self.assertEqual(findings["gpu.compute_mode"]["level"], "problem")
        self.assertIn("-c 0", findings["gpu.compute_mode"]["remedy"])


class Surroundings(DoctorCase):
    def test_an_absent_rotad_is_a_note_and_a_present_one_is_described(self):
        findings, answer = self.doctor()
        self.assertEqual(findings["rotad"]["level"], "note")
        self.assertIn(self.environment["ROTA_SOCKET"], findings["rotad"]["text"])
        daemon = self.start_daemon("--mode", "exclusive")
        findings, _ = self.doctor()
        self.assertEqual(findings["rotad"]["level"], "ok")
        self.assertEqual(findings["rotad"]["values"]["pid"], daemon.pid)
        self.assertEqual(findings["rotad"]["values"]["mode"], "exclusive")
        self.assertEqual(findings["rotad"]["values"]["version"], answer["version"])
        self.assertNotIn("rotad.version", findings)

    def serve(self, kind, answer):
        """A server at rotad's socket that answers each connection's first message, until the test ends."""
        server = socket.socket(socket.AF_UNIX, kind)
        server.bind(self.environment["ROTA_SOCKET"])
        server.listen()

        def run():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(4096):
                        connection.send(answer)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.close)
        self.addCleanup(server.shutdown, socket.SHUT_RDWR)

    def test_a_rotad_of_another_protocol_is_a_problem(self):
        self.serve(socket.SOCK_SEQPACKET, struct.pack("<IHH248x", 0x41544F52, 77, 103))
        findings, _ = self.doctor()
        self.assertEqual(findings["rotad.version"]["level"], "problem")
        self.assertEqual(findings["rotad.version"]["values"]["daemon_protocol"], 77)

    def test_something_else_at_the_socket_is_a_problem(self):
        self.serve(socket.SOCK_STREAM, b"hello")
        findings, _ = self.doctor()
        self.assertEqual(findings["rotad"]["level"], "problem")
        self.assertIn("is not rotad", findings["rotad"]["text"])

    def test_wrong_variables_are_warnings_with_what_was_meant(self):
        findings, answer = self.doctor(ROTA_GPU_MEM_LIMT="8G", ROTA_MEMORY="hologram")
        self.assertTrue(answer["ok"])
        self.assertIn("ROTA_GPU_MEM_LIMIT", findings["settings.unknown"]["remedy"])
        self.assertEqual(findings["settings.invalid"]["text"], "ROTA_MEMORY is 'hologram'")
        self.assertIn("managed", findings["settings.invalid"]["remedy"])
        findings, _ = self.doctor(ROTA_GPU_MEM_LIMIT="lots", ROTA_LOG="error")
        self.assertIn("ROTA_GPU_MEM_LIMIT is 'lots'", findings["settings.invalid"]["text"])
        findings, _ = self.doctor(ROTA_LOG="loud")
        self.assertIn("ROTA_LOG is 'loud'", findings["settings.invalid"]["text"])

    def test_mps_is_a_warning_only_while_it_lives(self):
        folder = self.scratch / "mps"
        folder.mkdir()
        environment = dict(CUDA_MPS_PIPE_DIRECTORY=str(folder))
        self.assertEqual(self.doctor(**environment)[0]["mps"]["level"], "ok")
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.bind(str(folder / "control"))
        control.listen()
        findings, answer = self.doctor(**environment)
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["mps"]["level"], "warning")
        control.setblocking(False)
        self.assertRaises(BlockingIOError, control.accept)  # nobody was connected to it
        control.close()
        self.assertEqual(self.doctor(**environment)[0]["mps"]["level"], "ok")

    # ctest labels: unsanitized
    def test_another_preload_that_hooks_cuda_is_a_warning(self):
        findings, answer = self.doctor(LD_PRELOAD=str(ODD_DRIVER))
        self.assertTrue(answer["ok"])
        self.assertIn(str(ODD_DRIVER), findings["preload.other"]["text"])

    def test_a_command_may_be_out_of_reach(self):
        self.assertEqual(self.doctor("--", PROGRAMS / "saxpy", "--option")[0]["command"]["level"], "ok")
        findings, answer = self.doctor("--", "no-such-command-anywhere")
        self.assertFalse(answer["ok"])
        self.assertIn("not found", findings["command"]["text"])


class Installation(DoctorCase):
    """An incomplete copy of rota."""

    def setUp(self):
        super().setUp()
        self.rota = self.scratch / "prefix/bin/rota"
        self.rota.parent.mkdir(parents=True)
        for program in (ROTA, ROTAD):
            shutil.copy2(program, self.rota.parent)
        self.shims = self.scratch / "prefix/lib/rota"
        self.shims.mkdir(parents=True)
        for shim in ("librota.so", "librota-core.so", "librota-cudart.so", "librota-nvml.so"):
            shutil.copy2(SHIMS / shim, self.shims / shim)

    def test_a_complete_copy_is_well(self):
        findings, answer = self.doctor(rota=self.rota)
        self.assertTrue(answer["ok"], answer)
        self.assertEqual(findings["preload.files"]["values"]["directory"], str(self.shims))

    def test_a_missing_rotad_is_a_problem(self):
        (self.rota.parent / "rotad").unlink()
        findings, _ = self.doctor(rota=self.rota)
        self.assertEqual(findings["rotad"]["level"], "problem")
        self.assertIn("cannot be started", findings["rotad"]["text"])

    def test_a_missing_core_is_a_problem(self):
        (self.shims / "librota-core.so").unlink()
        findings, _ = self.doctor(rota=self.rota)
        self.assertEqual(findings["preload.files"]["level"], "problem")
        self.assertIn("librota-core.so", findings["preload.files"]["text"])
        self.assertNotIn("preload.trial", findings)

    def test_a_missing_preload_is_one_problem(self):
        (self.shims / "librota.so").unlink()
        _, answer = self.doctor(rota=self.rota)
        problems = [finding["id"] for finding in answer["findings"] if finding["level"] in ("warning", "problem")]
        self.assertEqual(problems, ["preload.files"])

    def test_a_damaged_core_is_a_problem(self):
        (self.shims / "librota-core.so").write_bytes(b"\x7fELF")
        findings, _ = self.doctor(rota=self.rota)
        self.assertEqual(findings["preload.trial"]["level"], "problem")
        self.assertIn("librota-core.so does not load", findings["preload.trial"]["text"])

    def test_a_core_of_another_kind_does_not_attach(self):
        shutil.copy2(ODD_DRIVER, self.shims / "librota-core.so")
        findings, _ = self.doctor(rota=self.rota)
        self.assertEqual(findings["preload.trial"]["level"], "problem")

    def test_a_missing_runtime_shim_is_a_warning(self):
        (self.shims / "librota-cudart.so").unlink()
        findings, answer = self.doctor(rota=self.rota)
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["preload.files"]["level"], "warning")
        self.assertIn("rota trace does not see the runtime API", findings["preload.files"]["text"])

    def test_a_missing_or_damaged_nvml_shim_is_a_warning(self):
        shim = self.shims / "librota-nvml.so"
        shim.unlink()
        findings, answer = self.doctor(rota=self.rota)
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["preload.files"]["level"], "warning")
        self.assertIn("nvidia-smi shows the whole GPU", findings["preload.files"]["text"])
        shim.write_bytes(b"\x7fELF")
        findings, answer = self.doctor(rota=self.rota)
        self.assertTrue(answer["ok"])
        self.assertEqual(findings["preload.nvml"]["level"], "warning")
        self.assertIn("librota-nvml.so does not load", findings["preload.nvml"]["text"])


if __name__ == "__main__":
    unittest.main()
