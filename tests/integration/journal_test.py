"""rotad's log in the journal: entries with fields, and lines with a level where there is no socket for entries."""
import os
import socket
import subprocess
import unittest

from harness import Case, PROGRAMS, ROTA, ROTAD


def fields_of(datagram):
    """By name, each with the list of its values; no value of rotad's has a newline."""
    fields = {}
    for line in datagram.decode().splitlines():
        name, _, value = line.partition("=")
        fields.setdefault(name, []).append(value)
    return fields


class Journal(Case):
    memory = "1G"

    def rotad(self, *options, entries=True):
        """A rotad whose standard error is a connection to this test's own journal; returns the journal's end of it."""
        folder = self.scratch / "journal"
        folder.mkdir()
        if entries:
            self.entries = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(self.entries.close)
            self.entries.bind(str(folder / "socket"))
            self.entries.settimeout(60)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind(str(folder / "stdout"))
        listener.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
            stream.connect(str(folder / "stdout"))
            file = os.fstat(stream.fileno())
            self.daemon = subprocess.Popen([ROTAD, "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.scratch / "locks", *options],
                                           env={**self.environment, "JOURNAL_STREAM": f"{file.st_dev}:{file.st_ino}"}, stdin=subprocess.DEVNULL,
                                           stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True)
        self.children.append(self.daemon)
        lines, _ = listener.accept()
        self.addCleanup(lines.close)
        lines.settimeout(60)
        self.eventually(self.status, "rotad answers")
        return lines

    def entry(self, **wanted):
        """The next one that has these values."""
        while True:
            fields = fields_of(self.entries.recv(65536))
            if all(fields.get(name) == [value] for name, value in wanted.items()):
                return fields

    # ctest labels: unsanitized
    def test_a_refusal_and_a_revocation_have_fields_that_one_can_search_by(self):
        lines = self.rotad("--mode", "exclusive", "--quantum", "50ms", "--grace", "100ms")
        begin = self.entry(PRIORITY="6")
        self.assertEqual(begin["SYSLOG_IDENTIFIER"], ["rotad"])
        self.assertRegex(begin["MESSAGE"][0], "^serving ")
        # Each process keeps within the session's limit, and both together do not.
        greedy = self.start(ROTA, "run", "--name", "greedy one", "--gpu-mem", "300M", "--", "sh", "-c", f"""
            tail -f /dev/null | {PROGRAMS}/memhog --bytes 150M --hold &
            read line; exec {PROGRAMS}/memhog --bytes 150M --rounds 1""")
        self.assertEqual(greedy.stdout.readline(), "ready\n")
        greedy.stdin.write("\n")
        greedy.stdin.flush()
        refused = self.entry(ROTA_EVENT="refused")
        self.assertRegex(refused["MESSAGE"][0], "^client [0-9]+ .* was refused memory on GPU 0: session greedy one may have 300 MiB")
        self.assertEqual((refused["PRIORITY"], refused["ROTA_PROGRAM"], refused["ROTA_PID"], refused["ROTA_UID"], refused["ROTA_SESSION"], refused["ROTA_GPU"],
                          refused["ROTA_REASON"]),
                         (["6"], ["memhog"], [str(greedy.pid)], [str(os.getuid())], ["greedy one"], ["0"], ["session_gpu_limit"]))
        self.assertRegex(refused["ROTA_GPU_UUID"][0], "^GPU-")
        self.assertRegex(refused["MESSAGE_ID"][0], "^[0-9a-f]{32}$")
        os.killpg(greedy.pid, 9)
        self.eventually(lambda: not self.clients(), "both have gone")
        stuck = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "20M", "--hold")
        self.assertEqual(stuck.stdout.readline(), "ready\n")
        self.eventually(lambda: any(client["holds"] for client in self.clients()), "it holds the GPU")
        os.kill(stuck.pid, 19)
        other = self.start(ROTA, "run", "--", PROGRAMS / "memhog", "--bytes", "20M", "--hold")
        try:
            revoked = self.entry(ROTA_EVENT="revoked")
        finally:
            os.kill(stuck.pid, 18)
        self.assertEqual((revoked["PRIORITY"], revoked["ROTA_PID"], revoked["ROTA_GPU"]), (["4"], [str(stuck.pid)], ["0"]))
        self.assertGreaterEqual(int(revoked["ROTA_BYTES"][0]), 20 << 20)
        self.assertNotEqual(revoked["MESSAGE_ID"], refused["MESSAGE_ID"])
        self.assertEqual(other.stdout.readline(), "ready\n")
        # Nothing came as a line: no entry is there twice.
        lines.setblocking(False)
        self.assertRaises(BlockingIOError, lines.recv, 1)

    # ctest labels: unsanitized
    def test_without_a_socket_for_entries_lines_have_their_level(self):
        lines = self.rotad(entries=False)
        self.assertRegex(lines.recv(65536).decode(), "^<6>serving ")


if __name__ == "__main__":
    unittest.main()
