"""What `rota status` says about how programs share a GPU, and why, and the forms in which it says so."""
import fcntl
import json
import os
import signal
import termios
import unittest

from harness import BUILD, Case, PROGRAMS, ROOT, ROTA, SHIMS
from sim_case import program


FREES_IN_ORDER = program("""
assert context() == 0
stream, blocks = ctypes.c_void_p(), [ctypes.c_uint64() for _ in range(20)]
assert call("cuStreamCreate", ctypes.byref(stream), 1) == 0
assert all(call("cuMemAllocAsync", ctypes.byref(block), ctypes.c_size_t(4 << 20), stream) == 0 for block in blocks)
assert all(call("cuMemFreeAsync", block, stream) == 0 for block in blocks)
assert call("cuStreamSynchronize", stream) == 0
print("ready", flush=True)
sys.stdin.readline()
""")


class Why(Case):
    memory = "1G"

    def busy(self, *options):
        child = self.start(ROTA, "run", *options, "--", PROGRAMS / "spinner", "--hold", "--kernel-us", "2000", ROTA_SIM_TIME_SCALE="1")
        self.assertEqual(child.stdout.readline().strip(), "ready")
        return child

    # ctest labels: unsanitized
    def test_measured_turns_are_told_with_what_a_hand_over_costs_and_how_busy_each_program_is(self):
        both = [self.busy("--quantum", "automatic"), self.busy()]
        pids = {child.pid for child in both}

        def settled():
            status = self.status()
            uses = [use for client in status["clients"] for use in (client["use"] or {"gpus": {}})["gpus"].values()]
            known = len(uses) == 2 and all(use["busy"] and use["calls_per_second"] for use in uses)
            # On a machine that is busy with other work they may look idle.
            return status if known and status["gpus"][0]["sharing"]["reason"] in ("trial", "few contend") else None

        status = self.eventually(settled, "it is settled how they share the GPU")
        sharing = status["gpus"][0]["sharing"]
        self.assertEqual(sharing["active"], 2)
        self.assertGreater(sharing["turn_ns"], 0)
        self.assertGreater(sharing["switch_ns"], 0)
        self.assertEqual(sharing["trial"] is None, sharing["reason"] == "few contend", sharing)
        if sharing["trial"] is not None:
            self.assertEqual(sharing["candidate"] == "in turns", sharing["trial"] < 1, sharing)
        self.assertEqual({client["pid"] for client in status["clients"]}, pids)
        for client in status["clients"]:
            [use] = client["use"]["gpus"].values()
            self.assertGreater(use["busy"], 0)
            self.assertLessEqual(use["busy"], 1)
            self.assertGreater(use["calls_per_second"], 1)
            self.assertGreater(client["use"]["held_ns"], 0)
            self.assertGreater(client["use"]["waited_ns"], 0)  # first everybody takes turns

        text = self.checked(ROTA, "status").stdout
        self.assertRegex(text, r"2 programs active: .*; a hand-over costs [\d.e-]+ ms")
        for pid in pids:
            self.assertRegex(text, rf"pid {pid} .*\n +keeps the GPU busy \d+% of its own time, [\d.]+ calls/s alone, has waited [\d.]+ s")

    # ctest labels: unsanitized
    def test_what_nobody_has_measured_is_told_as_unknown(self):
        both = [self.busy("--quantum", "2s"), self.busy()]
        status = self.status()
        self.assertEqual((status["gpus"][0]["sharing"]["candidate"], status["gpus"][0]["sharing"]["reason"]), ("all at once", "fits"))
        self.assertIsNone(status["gpus"][0]["sharing"]["trial"])
        for client in status["clients"]:
            [use] = client["use"]["gpus"].values()
            self.assertIsNone(use["busy"])
            self.assertIsNone(use["calls_per_second"])
        self.assertIn("all at once: their memory fits, and the quantum is fixed", self.checked(ROTA, "status").stdout)
        self.checked(ROTA, "control", "mode", "exclusive")
        sharing = self.status()["gpus"][0]["sharing"]
        self.assertEqual((sharing["candidate"], sharing["reason"]), ("in turns", "mode"))
        self.assertIn("in turns, each of 2 s: rotad is in exclusive mode", self.checked(ROTA, "status").stdout)
        for child in both:
            self.assertEqual(self.finish(child).returncode, 0)


class Stopped(Case):
    # ctest labels: unsanitized
    def test_a_program_that_is_stopped_is_shown_so_since_its_memory_cannot_leave(self):
        child = self.start(ROTA, "run", "--", PROGRAMS / "spinner", "--hold")
        self.assertEqual(child.stdout.readline().strip(), "ready")
        [client] = self.status()["clients"]
        self.assertFalse(client["stopped"])
        self.assertNotIn("is stopped", self.checked(ROTA, "status").stdout)
        os.kill(client["pid"], signal.SIGSTOP)
        try:
            self.eventually(lambda: self.status()["clients"][0]["stopped"], "the program is seen to be stopped")
            self.assertRegex(self.checked(ROTA, "status").stdout,
                             rf"pid {client['pid']} .*, is stopped: its memory stays on the GPU until it goes on \(kill -CONT {client['pid']}\) or ends")
        finally:
            os.kill(client["pid"], signal.SIGCONT)
        self.eventually(lambda: not self.status()["clients"][0]["stopped"], "the program goes on")
        self.assertEqual(self.finish(child).returncode, 0)


KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int, "number": (int, float)}


def wrong(value, schema, where="status"):
    """What of a value is not as its schema says; a field that the schema does not have is wrong too: it is to be added there."""
    if "const" in schema and value != schema["const"] or "enum" in schema and value not in schema["enum"]:
        yield f"{where} is {value!r}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, KINDS[kind]) and not (isinstance(value, bool) and kind != "boolean") for kind in kinds):
        yield f"{where} is {value!r}, not {kinds}"
    elif isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        yield from (f"{where} has no {name}" for name in schema.get("required", []) if name not in value)
        for name, part in value.items():
            if name in known or rest:
                yield from wrong(part, known.get(name, rest), f"{where}.{name}")
            else:
                yield f"{where}.{name} is not in the schema"
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from wrong(part, schema["items"], f"{where}[{number}]")
    elif "minimum" in schema and value is not None and value < schema["minimum"]:
        yield f"{where} is {value}"


class Forms(Case):
    memory = "1G"

    def hold(self, *options, **environment):
        child = self.start(ROTA, "run", *options, "--", PROGRAMS / "memhog", "--bytes", "20M", "--hold", **environment)
        self.assertEqual(child.stdout.readline(), "ready\n")
        return child

    # ctest labels: unsanitized
    def test_the_json_is_as_its_schema_says_with_programs_limits_and_gangs_and_without(self):
        schema = json.loads((ROOT / "tools/rota/status/status.schema.json").read_text())
        self.start_daemon()
        self.assertEqual(list(wrong(self.status(), schema)), [])
        self.hold("--name", "train", "--gpu-mem", "100M", "--memory", "swap")
        self.hold("--gang", "ranks")
        status = self.status()
        self.assertEqual(list(wrong(status, schema)), [])
        for part in "gpus", "clients", "gangs", "sessions", "limits":
            self.assertTrue(status[part], part)
        spoilt = {**status, "daemon": {**status["daemon"], "pid": "1"}, "news": 1}
        self.assertEqual(len(list(wrong(spoilt, schema))), 2)

    # ctest labels: unsanitized
    def test_sessions_have_the_name_that_they_were_given_or_that_of_their_notebook_or_job(self):
        self.start_daemon()
        named = self.hold("--name", "train", "--gpu-mem", "100M")
        notebook = self.hold(JPY_SESSION_NAME="/home/alice/work/plots, final.ipynb")
        job = self.hold(SLURM_JOB_ID="4711")
        unnamed = self.hold()
        names = {client["pid"]: client["session_name"] for client in self.clients()}
        self.assertEqual(names, {named.pid: "train", notebook.pid: "/home/alice/work/plots_ final.ipynb", job.pid: "Slurm job 4711", unnamed.pid: None})
        text = self.checked(ROTA, "status").stdout
        self.assertRegex(text, rf"pid {named.pid} .*memhog, session train,")
        self.assertRegex(text, r"(?m)^ +process +allocated +for +program$")
        self.assertIn("  session train, 1 program:", text)
        long = self.hold("--name", "a,b:c\x1b[2J" + "x" * 60)
        self.assertEqual(next(client["session_name"] for client in self.clients() if client["pid"] == long.pid), "[2J" + "x" * 60)
        refused = self.call(ROTA, "run", "--name", "", "--", "true")
        self.assertEqual((refused.returncode, "the name is empty" in refused.stderr), (125, True), refused.stderr)

    # ctest labels: unsanitized
    def test_all_gpus_of_the_machine_are_shown_in_their_order_whether_or_not_programs_use_them(self):
        nvml = {"LD_LIBRARY_PATH": f"{SHIMS}/simgpu/nvml:{self.environment['LD_LIBRARY_PATH']}", "ROTA_SIM_GPUS": "3"}
        self.start_daemon()
        self.hold(CUDA_VISIBLE_DEVICES="1", **nvml)
        text = self.checked(ROTA, "status", **nvml).stdout
        status = json.loads(self.checked(ROTA, "status", "--json", **nvml).stdout)
        self.assertEqual([gpu["index"] for gpu in status["machine_gpus"]], [0, 1, 2])
        uuids = [gpu["uuid"] for gpu in status["machine_gpus"]]
        self.assertEqual([gpu["uuid"] for gpu in status["gpus"]], [uuids[1]])
        places = [text.index(f"GPU {number}  ") for number in range(3)]
        self.assertEqual(places, sorted(places))
        self.assertEqual(text.count("no program uses it under this rotad; "), 2)
        self.assertRegex(text, r"no program uses it under this rotad; \d+ MiB of 1\.0 GiB in use")

    # ctest labels: unsanitized
    def test_nvml_is_begun_once_for_a_look(self):
        machine, begun = self.scratch / "nvml", self.scratch / "nvml.begun"
        machine.write_text(f"gpu GPU-01234567-89ab-cdef-0123-456789abcdef {1 << 30} {1 << 29} {1 << 29}\n", encoding="utf-8")
        begun.touch()
        self.start_daemon()
        nvml = {"LD_LIBRARY_PATH": f"{BUILD}/tests/rotad_nvml/recent:{self.environment['LD_LIBRARY_PATH']}", "TEST_NVML_FILE": str(machine)}
        status = json.loads(self.checked(ROTA, "status", "--json", **nvml).stdout)
        self.assertEqual([gpu["used_bytes"] for gpu in status["machine_gpus"]], [1 << 29])
        self.assertEqual(begun.read_text(encoding="utf-8"), "i")

    # ctest labels: unsanitized
    def test_programs_without_rota_are_named_beside_those_under_it_and_where_there_are_none(self):
        self.environment["LD_LIBRARY_PATH"] = f"{SHIMS}/simgpu/nvml:{self.environment['LD_LIBRARY_PATH']}"
        self.environment["ROTA_SIM_GPUS"] = "2"
        self.start_daemon()
        natives = [self.start(PROGRAMS / "memhog", "--bytes", "20M", "--hold", CUDA_VISIBLE_DEVICES=str(gpu)) for gpu in (0, 1)]
        for native in natives:
            self.assertEqual(native.stdout.readline(), "ready\n")
        covered = self.hold(CUDA_VISIBLE_DEVICES="0")
        text, status = self.checked(ROTA, "status").stdout, self.status()
        for gpu, native in zip(status["machine_gpus"], natives):
            [other] = gpu["other_processes"]
            self.assertEqual((other["pid"], other["name"]), (native.pid, "memhog"))
            self.assertGreaterEqual(other["bytes"], 20 << 20)
            self.assertRegex(text, rf"not under this rotad: pid {native.pid} \(memhog, [^)]+\) has \d+ MiB")
        self.assertNotIn(f"not under this rotad: pid {covered.pid} ", text)

    def test_watch_shows_it_again_and_again_until_nobody_reads(self):
        self.start_daemon()
        watch = self.start(ROTA, "status", "--watch", "0.1")
        lines = [watch.stdout.readline() for _ in range(9)]
        self.assertGreaterEqual(sum(line.startswith("rotad pid ") for line in lines), 2, lines)
        watch.stdout.close()
        self.assertNotEqual(watch.wait(timeout=60), 0)
        watch = self.start(ROTA, "status", "--json", "--watch", "0.1")
        self.assertEqual({json.loads(watch.stdout.readline())["schema_version"] for _ in range(3)}, {1})
        self.assertNotEqual(self.call(ROTA, "status", "--watch", "0").returncode, 0)


class Idle(Case):
    # ctest labels: unsanitized
    def test_what_a_program_has_freed_in_the_order_of_a_stream_before_it_paused_is_not_shown_as_its_own(self):
        for memory in ("swap", "managed"):
            child = self.start(ROTA, "run", "--memory", memory, "--", *FREES_IN_ORDER)
            self.assertEqual(child.stdout.readline(), "ready\n")

            def has():
                [client] = [client for client in self.clients() if client["pid"] == child.pid]
                return client["bytes"]

            self.eventually(lambda: has() < 20 << 20, f"{memory}: nothing that was freed is shown")
            child.stdin.close()
            child.stdin = None
            self.assertEqual(self.finish(child).returncode, 0)


class Log(Case):
    def test_a_rotad_whose_log_nobody_reads_serves_and_says_later_that_lines_are_missing(self):
        daemon = self.start_daemon("--log", "debug")
        pipe = daemon.stderr.fileno()
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(pipe, False)
        run = lambda: self.checked(ROTA, "run", "--", PROGRAMS / "memhog", "--rounds", "3")
        unread = lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")

        def full():
            before = unread()
            run()
            return unread() == before > 0

        self.eventually(full, "nothing more fits into the pipe")
        self.assertIsNotNone(self.status())
        log = []

        def missing():
            try:
                log.append(os.read(pipe, 4096).decode())
            except BlockingIOError:
                run()
            return "lines are missing here" in "".join(log)

        self.eventually(missing, "it says that lines are missing")


if __name__ == "__main__":
    unittest.main()
