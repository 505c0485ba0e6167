"""What rotad serves to Prometheus, and what connections cannot do to it."""
import contextlib
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest
import urllib.parse
import urllib.request
import uuid

from harness import PROGRAMS, ROOT, ROTA, ROTAD, Case
from raw_client import MOVED_OUT, SUM_OUT, RawClient

sys.path.append("/usr/lib/python3/dist-packages")  # where Debian has what this Python may lack
try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
    from prometheus_client.parser import text_string_to_metric_families as loosely
except ImportError:  # Debian's python3-prometheus-client
    strictly = loosely = None

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
SHARE = ROOT / "tools/metrics"


def tool(name):
    """A program of Debian's package prometheus, which tools/dev unpacks; or None."""
    unpacked = ROOT / "build/prometheus" / name
    return str(unpacked) if unpacked.exists() else shutil.which(name)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Metrics(Case):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.config = self.scratch / "rotad.toml"
        self.configure(f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n')

    def configure(self, text):
        self.config.write_text(text)

    def rotad(self, *options):
        return self.start_daemon("--config", self.config, *options)

    def get(self, path="/metrics", accept=OPEN):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def scrape(self):
        """{(name, labels): value}, as a strict reader understands it. rotad's figures are at most a second old."""
        if strictly is None:
            self.skipTest("there is no Python package prometheus_client: install python3-prometheus-client")
        kind, text = self.get()
        self.assertTrue(kind.startswith("application/openmetrics-text"), kind)
        samples = {}
        for family in strictly(text):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                self.assertNotIn(key, samples)
                samples[key] = sample.value
        return samples

    def hog(self, name, *options):
        return self.start(ROTA, "run", "--name", name, *options, "--", PROGRAMS / "memhog", "--bytes", "20M", "--hold")


def value(samples, name, **labels):
    """The sum of the samples with these labels."""
    return sum(number for (other, of), number in samples.items() if other == name and labels.items() <= dict(of).items())


def counters(samples):
    return {key: number for key, number in samples.items() if re.search(r"_(total|count|bucket|sum)$", key[0])}


class Scraped(Metrics):
    # ctest labels: unsanitized
    def test_two_programs_that_share_a_gpu_are_seen_by_a_strict_reader_and_nothing_falls_when_they_end(self):
        self.rotad("--mode", "exclusive", "--quantum", "50ms")
        hogs = [self.hog(name, "--memory", "swap") for name in ("train", "eval")]
        for hog in hogs:
            self.assertEqual(hog.stdout.readline(), "ready\n")
        seen = [self.scrape()]

        def both_waited():
            seen.append(self.scrape())
            return all(value(seen[-1], "rota_held_seconds_total", session=name) > 0 and
                       value(seen[-1], "rota_waited_seconds_total", session=name) > 0 for name in ("train", "eval"))

        self.eventually(both_waited, "both have held the GPU and waited for it")
        labels = next(dict(of) for name, of in seen[-1] if name == "rota_held_seconds_total")
        self.assertEqual(set(labels), {"gpu", "UUID", "Hostname", "user", "session", "cgroup", "container"})
        self.assertEqual((labels["gpu"], labels["Hostname"]), ("0", socket.gethostname()))
        self.assertRegex(labels["UUID"], r"^GPU-[0-9a-f-]{36}$")
        now = seen[-1]
        self.assertEqual(value(now, "rota_programs"), 2)
        self.assertEqual(int(value(now, "rota_allocated_bytes", session="train")) >> 20, 20)
        self.assertGreater(value(now, "rota_gpu_memory_total_bytes", gpu="0"), 0)
        self.assertGreater(value(now, "rota_wait_seconds_count"), 1)
        self.assertEqual(value(now, "rota_build_info"), 1)
        pids = {str(hog.pid) for hog in hogs}
        self.assertFalse([of for _, of in now if pids & set(dict(of).values())], "a pid is a label")
        for hog in hogs:
            self.assertEqual(self.finish(hog).returncode, 0)
        self.eventually(lambda: not self.clients(), "both are gone")

        def nobody():
            seen.append(self.scrape())
            return value(seen[-1], "rota_programs") == 0

        self.eventually(nobody, "what programs have is gone with them")
        self.assertEqual(value(seen[-1], "rota_allocated_bytes"), 0)
        for before, after in zip(seen, seen[1:]):
            for key, number in counters(before).items():
                self.assertIn(key, after)
                self.assertGreaterEqual(after[key], number, key)

    # ctest labels: unsanitized
    def test_what_a_limit_refuses_is_counted_by_its_reason_and_each_refusal_has_a_line(self):
        daemon = self.rotad()
        child = self.start(ROTA, "run", "--name", "greedy", "--gpu-mem", "30M", "--", "sh", "-c", f"""
            tail -f /dev/null | {PROGRAMS}/memhog --bytes 20M --hold &
            read line; {PROGRAMS}/memhog --bytes 20M --rounds 1; echo $?""")
        self.assertEqual(child.stdout.readline(), "ready\n")
        child.stdin.write("\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), "2\n")
        refusals = {key: number for key, number in self.scrape().items() if key[0] == "rota_refusals_total"}
        [(labels, number)] = [(dict(of), number) for (_, of), number in refusals.items()]
        self.assertEqual((labels["session"], labels["reason"]), ("greedy", "session_gpu_limit"))
        daemon.send_signal(signal.SIGTERM)
        log = self.finish(daemon).stderr
        lines = [line for line in log.splitlines() if "was refused memory" in line]
        self.assertEqual(len(lines), number, log)
        user = pwd.getpwuid(os.getuid()).pw_name
        self.assertRegex(lines[0], rf"^\d{{4}}-\d\d-\d\dT[\d:.]+[+-]\d\d:\d\d rotad: info: client \d+ \(memhog, pid \d+, {user}, session greedy\) was refused memory "
                                   r"on GPU 0: session greedy may have 30 MiB on each GPU; [0-9]+ MiB are in use; [0-9]+ MiB more were requested: raise `rota run --gpu-mem`$")

    # ctest labels: unsanitized
    def test_a_revoked_turn_is_counted(self):
        daemon = self.rotad("--mode", "exclusive", "--quantum", "50ms", "--grace", "100ms")
        stuck = self.hog("stuck")
        self.assertEqual(stuck.stdout.readline(), "ready\n")
        pid = next(client["pid"] for client in self.clients())
        self.eventually(lambda: any(client["holds"] for client in self.clients()), "it holds the GPU")
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
        other = self.hog("other one")
        try:
            self.assertEqual(other.stdout.readline(), "ready\n")
            self.eventually(lambda: value(self.scrape(), "rota_revocations_total", session="stuck") >= 1, "it is counted")
        finally:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)
        daemon.send_signal(signal.SIGTERM)
        self.assertRegex(self.finish(daemon).stderr, r"rotad: warning: client \d+ \(memhog, pid \d+, \w+, session stuck\) did not give GPU 0 back within "
                                                     r"100 ms of the end of its turn, and has 20 MiB there: others run at the same time\n")

    # ctest labels: unsanitized
    def test_memory_that_moves_is_counted_in_bytes_and_by_how_long_it_took(self):
        self.rotad("--mode", "exclusive", "--quantum", "50ms")
        hogs = [self.start(ROTA, "run", "--name", name, "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.6", "--hold") for name in ("one", "two")]
        for hog in hogs:
            self.assertEqual(hog.stdout.readline(), "ready\n")

        def moved():
            now = self.scrape()
            both = [value(now, f"rota_moved_{way}_bytes_total", session=name) > 1 << 20 for way in ("out", "in") for name in ("one", "two")]
            return all(both) and value(now, "rota_move_seconds_count", direction="out") > 0 and value(now, "rota_hand_over_seconds_count") > 1

        self.eventually(moved, "memory has moved out and in")
        # What a scrape tells may be a second older.
        out = sum(client["moved"]["out_bytes"] for client in self.status()["clients"])
        self.eventually(lambda: value(self.scrape(), "rota_moved_out_bytes_total") >= out, f"{out} bytes that status tells are counted")

    # ctest labels: unsanitized
    def test_moves_are_counted_on_the_gpu_that_they_were_on_and_in_equal_parts_where_a_program_does_not_say(self):
        self.rotad()
        gpus = {gpu: f"metrics-of-gpu-{gpu}".encode() for gpu in (0, 1)}
        clients = []
        for _ in range(2):
            clients.append(RawClient(self.environment["ROTA_SOCKET"], timeout=20))
            clients[-1].hello(b"moves")
            for gpu in gpus.values():
                clients[-1].add_gpu(gpu, 1 << 30)
                clients[-1].socket.recv(1024)
        says, earlier = clients
        says.use(1, MOVED_OUT, 6 << 20)
        says.use(1, MOVED_OUT + 8, 3_000_000)  # ns
        for client in clients:
            client.use(-1, SUM_OUT, 6 << 20)
            client.use(-1, SUM_OUT + 8, 3_000_000)

        def moved():
            now = self.scrape()
            return [value(now, "rota_moved_out_bytes_total", UUID=f"GPU-{uuid.UUID(bytes=gpu)}") / (1 << 20) for gpu in gpus.values()]

        self.eventually(lambda: moved() == [3, 9], lambda: f"they are where they were: {moved()}")
        self.eventually(lambda: value(self.scrape(), "rota_move_seconds_count", direction="out") == 3, "one of one GPU, and one of both")
        for client in clients:
            client.socket.close()

    # ctest labels: unsanitized
    def test_a_program_on_two_gpus_says_which_one_its_memory_has_left(self):
        self.environment["ROTA_SIM_GPUS"] = "2"
        self.rotad("--mode", "exclusive", "--quantum", "50ms")
        both = self.start(ROTA, "run", "--name", "both", "--memory", "swap", "--", PROGRAMS / "several", "--bytes", "160M", "--hold")
        self.assertEqual(both.stdout.readline(), "ready\n")
        hog = self.start(ROTA, "run", "--name", "hog", "--memory", "swap", "--", PROGRAMS / "memhog", "--share", "0.6", "--hold",
                         CUDA_VISIBLE_DEVICES="1")
        self.assertEqual(hog.stdout.readline(), "ready\n")

        def moved(gpu):
            return value(self.scrape(), "rota_moved_out_bytes_total", session="both", gpu=gpu)

        self.eventually(lambda: moved("1") > 100 << 20, "its memory has left the second GPU")
        self.assertEqual(moved("0"), 0)

    def test_a_reader_that_does_not_ask_for_openmetrics_gets_the_older_format(self):
        if loosely is None:
            self.skipTest("there is no Python package prometheus_client")
        self.rotad()
        kind, text = self.get(accept="text/plain")
        self.assertTrue(kind.startswith("text/plain; version=0.0.4"), kind)
        self.assertNotIn("# EOF", text)
        families = {family.name: family.type for family in loosely(text)}
        self.assertEqual(families["rota_grants"], "counter")


class Served(Metrics):
    def test_what_is_not_a_scrape_is_refused_with_a_word(self):
        self.rotad()
        for request, answer in ((b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
                                (b"nonsense\r\n\r\n", b"400 Bad Request"), (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000, b"431 Request Header Fields Too Large")):
            with self.subTest(answer=answer), socket.create_connection(("127.0.0.1", self.port)) as peer:
                peer.settimeout(20)
                peer.sendall(request)
                self.assertIn(answer, self.all_of(peer))

    @staticmethod
    def all_of(peer):
        text = b""
        with contextlib.suppress(ConnectionResetError):
            while part := peer.recv(65536):
                text += part
        return text

    def test_a_port_that_is_taken_is_an_error_with_a_remedy_and_at_a_reload_everything_stays(self):
        with socket.create_server(("127.0.0.1", self.port)):
            failed = self.call(ROTAD, "--socket", self.scratch / "other.sock", "--lock-directory", self.scratch / "locks", "--config", self.config)
            self.assertEqual(failed.returncode, 1)
            self.assertIn(f"cannot serve metrics at 127.0.0.1:{self.port}: Address already in use: end what listens there", failed.stderr)
            self.assertIn("choose another port in metrics.listen of rotad.toml", failed.stderr)
            taken, self.port = self.port, free_port()
            self.configure(f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n')
            self.rotad()
            self.configure(f'mode = "exclusive"\n[metrics]\nlisten = "127.0.0.1:{taken}"\n')
            refused = self.call(ROTA, "control", "reload")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(f"nothing has changed: cannot serve metrics at 127.0.0.1:{taken}", refused.stderr)
        self.assertIn("rota_build_info", self.get()[1])
        self.assertEqual(self.status()["daemon"]["mode"], "automatic")

    def test_names_that_visibility_hides_are_said_to_be_in_metrics(self):
        self.configure(f'visibility = "own"\n[metrics]\nlisten = "127.0.0.1:{self.port}"\n')
        checked = self.checked(ROTAD, "--check", "--config", self.config)
        self.assertIn(f'visibility is "own", but whoever reaches 127.0.0.1:{self.port} reads the names', checked.stderr)

    def test_a_reload_moves_ends_and_begins_it_again(self):
        daemon = self.rotad()
        first = self.port
        self.assertIn("rota_build_info", self.get()[1])
        self.port = free_port()
        self.configure(f'[metrics]\nlisten = "127.0.0.1:{self.port}"\n')
        self.assertIn("metrics changed", self.checked(ROTA, "control", "reload").stdout)
        self.assertIn("rota_build_info", self.get()[1])
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", first))
        # The same place with something else: nobody finds it closed in between.
        self.configure(f'[metrics]\nlisten = "127.0.0.1:{self.port}"\ntextfile = "{self.scratch}/rota.prom"\ninterval = "1s"\n')
        self.assertIn("metrics changed", self.checked(ROTA, "control", "reload").stdout)
        self.assertIn("rota_build_info", self.get()[1])
        self.configure("")
        self.checked(ROTA, "control", "reload")
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", self.port))
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(daemon).returncode, 0)

    def test_a_scrape_that_has_begun_is_answered_whatever_a_reload_changes(self):
        self.rotad()
        for number, listen in enumerate((self.port, self.port, free_port()), 1):
            with socket.create_connection(("127.0.0.1", self.port)) as begun, socket.create_connection(("127.0.0.1", self.port)) as connected:
                begun.settimeout(20)
                connected.settimeout(20)
                begun.sendall(b"GET /metrics HTTP/1.1\r\n")
                self.get()  # so the two have been accepted
                self.configure(f'[metrics]\nlisten = "127.0.0.1:{listen}"\ntextfile = "{self.scratch}/{number}.prom"\ninterval = "1s"\n')
                self.assertIn("metrics changed", self.checked(ROTA, "control", "reload").stdout)
                begun.sendall(b"\r\n")
                self.assertIn(b"rota_build_info", self.all_of(begun))
                connected.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                self.assertIn(b"rota_build_info", self.all_of(connected))
            self.port = listen
            self.eventually((self.scratch / f"{number}.prom").exists, "the new file is written")
            self.assertFalse((self.scratch / f"{number - 1}.prom").exists())
            self.assertIn("rota_build_info", self.get()[1])

    def test_the_textfile_is_whole_at_every_moment_and_goes_with_rotad(self):
        if loosely is None:
            self.skipTest("there is no Python package prometheus_client")
        file = self.scratch / "rota.prom"
        self.configure(f'[metrics]\ntextfile = "{file}"\ninterval = "1s"\n')
        daemon = self.rotad()
        self.eventually(file.exists, "it is written")
        first = file.stat().st_ino
        self.assertEqual(file.stat().st_mode & 0o777, 0o644)
        files = set()

        def written_again():
            text = file.read_text()
            files.add(file.stat().st_ino)
            self.assertIn("rota_build_info", {sample.name for family in loosely(text) for sample in family.samples})
            return files - {first}

        self.eventually(written_again, "it is written again")
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(daemon).returncode, 0)
        self.assertEqual(list(self.scratch.glob("rota.prom*")), [])

    def test_a_textfile_that_cannot_be_written_is_said_once_and_rotad_serves(self):
        self.configure(f'[metrics]\ntextfile = "{self.scratch}/no/rota.prom"\ninterval = "1s"\n')
        daemon = self.rotad()
        self.assertIsNotNone(self.status())
        (self.scratch / "no").mkdir()
        self.eventually((self.scratch / "no/rota.prom").exists, "it is written once it can be")
        daemon.send_signal(signal.SIGTERM)
        log = self.finish(daemon).stderr
        self.assertEqual(log.count(f"cannot create {self.scratch}/no/rota.prom: No such file or directory"), 1, log)
        self.assertEqual(log.count(f"{self.scratch}/no/rota.prom is written again"), 1, log)

    def test_a_thousand_connections_that_say_nothing_keep_no_scraper_out_and_take_no_descriptors(self):
        daemon = self.rotad()
        silent = []
        self.addCleanup(lambda: [peer.close() for peer in silent])
        for _ in range(1000):
            silent.append(socket.create_connection(("127.0.0.1", self.port)))
            silent[-1].sendall(b"GET /metrics HTTP/1.1\r\nHalf: ")
        self.assertIn("rota_build_info", self.get()[1])
        self.assertLess(len(list(pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir())), 100)
        self.assertIsNotNone(self.status())

    # ctest labels: unsanitized
    def test_scrapers_that_do_not_read_keep_neither_programs_nor_other_scrapers_waiting(self):
        self.rotad()
        slow = []
        self.addCleanup(lambda: [peer.close() for peer in slow])
        for _ in range(20):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            peer.connect(("127.0.0.1", self.port))
            peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            slow.append(peer)
        started = time.monotonic()
        self.assertIn("rota_build_info", self.get()[1])
        self.checked(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "10M", "--rounds", "1")
        self.assertLess(time.monotonic() - started, 30)


NAME = re.compile(r"\brota_[a-z_]+")
DERIVED = re.compile(r"_(total|info|bucket|sum|count)$")


class Shipped(Metrics):
    """The dashboard and the alert rules that rota's package has, and what Prometheus itself says of all of it."""

    def names(self):
        """The families that rotad serves."""
        self.rotad()
        return set(re.findall(r"^# TYPE (\S+)", self.get()[1], re.MULTILINE))

    def test_dashboard_and_rules_name_figures_that_rotad_serves_and_the_page_names_all_of_them(self):
        served = self.names()
        self.assertGreater(len(served), 15)
        panels = json.loads((SHARE / "rota-dashboard.json").read_text())["panels"]
        asked = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
        asked |= set(NAME.findall((SHARE / "rota-alerts.yaml").read_text()))
        self.assertEqual({name for name in asked if DERIVED.sub("", name) not in served and name not in served}, set())
        page = (ROOT / "scheduler/metrics/README.md").read_text()
        shown = {DERIVED.sub("", name) for name in NAME.findall(page)}
        self.assertEqual({name for name in served if name not in shown and not name.startswith("rota_gpu_")}, set())

    # ctest labels: unsanitized
    def test_promtool_finds_nothing_wrong_with_figures_and_rules(self):
        promtool = tool("promtool")
        if promtool is None:
            self.skipTest("there is no promtool: tools/dev setup unpacks it")
        self.rotad()
        self.hog("train")
        figures = self.get(accept="text/plain")[1]
        checked = subprocess.run([promtool, "check", "metrics"], input=figures, capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        checked = subprocess.run([promtool, "check", "rules", SHARE / "rota-alerts.yaml"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    # ctest labels: unsanitized
    def test_the_alert_about_a_lost_rotad_names_its_machine_although_another_one_has_its_own(self):
        promtool = tool("promtool")
        if promtool is None:
            self.skipTest("there is no promtool: tools/dev setup unpacks it")
        rules = self.scratch / "rules_test.yaml"
        rules.write_text(textwrap.dedent(f"""
            rule_files: ["{SHARE}/rota-alerts.yaml"]
            evaluation_interval: 1m
            tests:
              - interval: 1m
                input_series:
                  - {{series: 'rota_build_info{{Hostname="one", version="1"}}', values: '1x60'}}
                  - {{series: 'rota_build_info{{Hostname="two", version="1"}}', values: '1x10 _x50'}}
                alert_rule_test:
                  - {{eval_time: 10m, alertname: RotaDown}}
                  - eval_time: 40m
                    alertname: RotaDown
                    exp_alerts:
                      - exp_labels: {{severity: warning, Hostname: two}}
                        exp_annotations:
                          summary: No rotad is seen on two
                          description: Programs of this machine run without turns. `systemctl status rotad` says more.
        """))
        checked = subprocess.run([promtool, "test", "rules", rules], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    # ctest labels: unsanitized
    def test_a_prometheus_scrapes_it_and_evaluates_the_rules(self):
        prometheus = tool("prometheus")
        if prometheus is None:
            self.skipTest("there is no prometheus: tools/dev setup unpacks it")
        self.rotad()
        hog = self.hog("train")
        self.assertEqual(hog.stdout.readline(), "ready\n")
        own = free_port()
        settings = self.scratch / "prometheus.yml"
        settings.write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{SHARE}/rota-alerts.yaml"]
scrape_configs: [{{job_name: rota, static_configs: [{{targets: ["127.0.0.1:{self.port}"]}}]}}]
""")
        self.start(prometheus, f"--config.file={settings}", f"--storage.tsdb.path={self.scratch}/data", f"--web.listen-address=127.0.0.1:{own}")

        def asked(path):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/{path}", timeout=20) as answer:
                    return json.load(answer)["data"]
            except OSError:
                return None

        def held():
            found = asked("query?query=" + urllib.parse.quote('rota_held_seconds_total{session="train"}'))
            return found and found["result"]

        [series] = self.eventually(held, "Prometheus has the series")
        self.assertEqual(series["metric"]["gpu"], "0")
        target = asked("targets")["activeTargets"][0]
        self.assertEqual((target["health"], target["lastError"]), ("up", ""))
        rules = [rule for group in asked("rules")["groups"] for rule in group["rules"]]
        self.assertEqual([rule["name"] for rule in rules if rule["health"] == "err"], [])


if __name__ == "__main__":
    unittest.main()
