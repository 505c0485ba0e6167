"""`rota top` on a terminal: what it shows, its keys, and that it leaves the terminal as it was, whatever ends it."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from harness import Case, PATIENCE, PROGRAMS, ROTA, SHIMS, kill

SEQUENCE = re.compile(rb"\x1b\[([?0-9;]*)([A-Za-z])")


class Terminal:
    """A pseudo-terminal with a program on it, and the screen that the program has drawn: as much of xterm as it uses."""

    def __init__(self, case, *command, rows=24, columns=100, full=False, **environment):
        """`full`: with so much output that nobody has read that it takes no more."""
        self.case, self.rows, self.columns, self.text, self.seen = case, rows, columns, {}, b""
        self.modes, self.row, self.column, self.rest = {}, 0, 0, b""
        self.master, self.slave = pty.openpty()
        case.addCleanup(os.close, self.master)
        case.addCleanup(os.close, self.slave)
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        if full:
            self.fill()
        # A shell in between, since a program that no shell started cannot be stopped by its terminal.
        self.child = subprocess.Popen([str(part) for part in command], env=dict(case.environment, TERM="xterm", LC_ALL="C.UTF-8", **environment),
                                      stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE, preexec_fn=self.own)
        case.children.append(self.child)

    def own(self):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def fill(self):
        writer = os.open(os.ttyname(self.slave), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            while True:
                os.write(writer, b"x" * 512)
        except BlockingIOError:
            pass
        finally:
            os.close(writer)

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys):
        os.write(self.master, keys.encode())

    def read(self):
        while select.select([self.master], [], [], 0.02)[0]:
            part = os.read(self.master, 65536)
            self.seen += part
            self.rest += part
        while self.rest:
            sequence = SEQUENCE.match(self.rest)
            if sequence:
                self.obey(sequence[1].decode(), sequence[2].decode())
                self.rest = self.rest[sequence.end():]
            elif self.rest.startswith(b"\x1b"):
                return
            else:
                plain = re.match(rb"[^\x1b]+", self.rest)[0]
                self.rest = self.rest[len(plain):]
                for letter in plain.decode(errors="replace"):
                    self.text[self.row, self.column] = letter
                    self.column += 1

    def obey(self, numbers, letter):
        if letter == "H":
            row, _, column = numbers.partition(";")
            self.row, self.column = int(row or 1) - 1, int(column or 1) - 1
        elif letter == "J":
            self.text = {}
        elif letter in "hl":
            self.modes[numbers] = letter == "h"
        else:
            self.case.assertEqual(letter, "m", f"a sequence that no terminal was promised: {numbers}{letter}")

    def screen(self):
        self.read()
        return "\n".join("".join(self.text.get((row, column), " ") for column in range(self.columns)).rstrip() for row in range(self.rows))

    def wait(self, pattern, present=True):
        """Until the screen has it, or no longer has it; returns the screen."""
        screen = lambda: self.screen()
        self.case.eventually(lambda: bool(re.search(pattern, screen())) == present or self.child.poll() is not None,
                             lambda: f"{pattern!r} {'is' if present else 'is not'} on the screen:\n{screen()}")
        self.case.assertEqual(bool(re.search(pattern, self.screen())), present, self.child.poll())
        return self.screen()

    def ended(self):
        """How the program ended, once the terminal was found as it was before."""
        deadline = time.monotonic() + PATIENCE
        while self.child.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        self.case.assertIsNotNone(self.child.returncode, "it goes on")
        self.case.assertEqual(termios.tcgetattr(self.slave), self.before)
        self.case.assertEqual((self.modes.get("?1049"), self.modes.get("?25"), self.modes.get("?7")), (False, True, True))
        return self.child.returncode

    def keys_are_its_own(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON


class Top(Case):
    memory = "1G"

    def top(self, **options):
        return Terminal(self, ROTA, "top", "--delay", "0.2", **options)

    def hold(self, *options, size="20M", **environment):
        child = self.start(ROTA, "run", *options, "--", PROGRAMS / "memhog", "--bytes", size, "--hold", **environment)
        self.assertEqual(child.stdout.readline(), "ready\n")
        return child

    # ctest labels: unsanitized
    def test_programs_come_and_go_are_sorted_and_filtered_and_q_leaves_the_terminal_as_it_was(self):
        self.start_daemon()
        top = self.top()
        top.wait(r"rotad pid \d+: automatic mode")
        small, large = self.hold("--name", "little"), self.hold("--name", "漢字", size="300M")
        screen = top.wait(rf"(?s)(?=.* {small.pid} )(?=.* {large.pid} ).*20\.0M")
        self.assertRegex(screen, r"(?m)^GPU +PID +USER +STATE +FOR +HELD%")
        self.assertRegex(screen, r"(?m)^ +0 \[.*\] \[.*/1\.0G\]")
        place = lambda pid: top.screen().index(f" {pid} ")
        top.type("M")
        self.eventually(lambda: place(large.pid) < place(small.pid), "the larger is the first")
        top.type("I")
        self.eventually(lambda: place(large.pid) > place(small.pid), "the smaller is the first")
        top.type("/LITTLE\r")
        top.wait(f" {large.pid} ", present=False)
        self.assertIn(f" {small.pid} ", top.wait(r"filter: LITTLE \(1 of 2\)"))
        top.type("\x1b")
        top.wait(f" {large.pid} ")
        top.type("\x1b[11~")
        top.wait("any key goes back")
        top.type(" ")
        top.wait("any key goes back", present=False)
        self.finish(small)
        top.wait(f" {small.pid} ", present=False)
        self.assertTrue(top.keys_are_its_own())
        top.type("q")
        self.assertEqual(top.ended(), 0)

    # ctest labels: unsanitized
    def test_it_goes_on_where_rotad_goes_away_and_comes_back_and_shows_the_gpus_meanwhile(self):
        nvml = {"LD_LIBRARY_PATH": f"{SHIMS}/simgpu/nvml:{self.environment['LD_LIBRARY_PATH']}", "ROTA_SIM_GPUS": "2"}
        daemon = self.start_daemon()
        self.hold(**nvml)
        top = self.top(**nvml)
        top.wait(f"rotad pid {daemon.pid}:")
        kill(daemon)
        screen = top.wait(r"(?s)no rotad is running.*`rota run` starts\s+one")
        self.assertRegex(screen, r"(?m)^ +1 \[.*\] \[")
        again = self.start_daemon()
        self.assertNotIn("no rotad", top.wait(f"rotad pid {again.pid}:"))
        top.type("\x1b[21~")
        self.assertEqual(top.ended(), 0)

    # ctest labels: unsanitized
    def test_a_name_with_control_characters_is_harmless(self):
        self.start_daemon()
        link = self.scratch / "evil\x1b]0;owned\x07\x9b2J\r\n"
        link.symlink_to(PROGRAMS / "memhog")
        child = self.start(ROTA, "run", "--", link, "--bytes", "20M", "--hold")
        self.assertEqual(child.stdout.readline(), "ready\n")
        top = self.top(columns=200)
        top.wait(rf" {child.pid} .*evil\?\]0;owned\?")
        self.assertNotRegex(top.seen, rb"[\x07\r\n\x9b]|\x1b\]")
        top.type("q")
        self.assertEqual(top.ended(), 0)

    # ctest labels: unsanitized
    def test_it_follows_the_size_of_its_window(self):
        self.start_daemon()
        top = self.top()
        top.wait("F10 quit")
        for rows, columns in (40, 160), (8, 40), (1, 1), (24, 100):
            top.text = {}
            top.resize(rows, columns)
            top.wait("F10 q" if rows > 1 else "^r")
            self.assertLess(max(row for row, _ in top.text), rows)
            self.assertLess(max(column for _, column in top.text), columns)
        top.type("q")
        self.assertEqual(top.ended(), 0)

    # ctest labels: unsanitized
    def test_signals_and_the_end_of_the_terminal_leave_it_as_it_was(self):
        for end, code in ((signal.SIGINT, 0), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGSEGV, -signal.SIGSEGV),
                          (signal.SIGABRT, -signal.SIGABRT), (signal.SIGUSR1, -signal.SIGUSR1), (signal.SIGXCPU, -signal.SIGXCPU),
                          (signal.SIGRTMAX, -signal.SIGRTMAX)):
            top = self.top()
            top.wait("no rotad is running")
            top.child.send_signal(end)
            self.assertEqual(top.ended(), code, end)
        top = self.top()
        top.wait("no rotad is running")
        top.type("\x03")
        self.assertEqual(top.ended(), 0)

    # ctest labels: unsanitized
    def test_it_can_be_ended_while_its_terminal_takes_no_output(self):
        ends = {"q": 0, "\x03": 0, signal.SIGINT: 0, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP, signal.SIGUSR1: -signal.SIGUSR1}
        for end, code in ends.items():
            with self.subTest(end):
                top = self.top(full=True)
                self.eventually(top.keys_are_its_own, "it reads keys")
                if isinstance(end, str):
                    top.type(end)
                else:
                    top.child.send_signal(end)
                self.assertEqual(top.child.wait(timeout=PATIENCE), code)
                self.assertEqual(termios.tcgetattr(top.slave), top.before)

    # ctest labels: unsanitized
    def test_it_draws_once_its_terminal_takes_output_again(self):
        top = self.top(full=True)
        self.eventually(top.keys_are_its_own, "it reads keys")
        top.wait("no rotad is running")
        top.type("q")
        self.assertEqual(top.ended(), 0)

    # ctest labels: unsanitized
    def test_ctrl_z_gives_the_terminal_back_and_going_on_draws_all_again(self):
        shell = Terminal(self, "bash", "--norc", "-i", "-c", f"set -m; {ROTA} top --delay 0.2; kill -0 $$; while read line; do $line; done")
        shell.wait("no rotad is running")
        self.assertTrue(shell.keys_are_its_own())
        shell.type("\x1a")
        self.eventually(lambda: not shell.keys_are_its_own() and not shell.screen() is None and not shell.modes["?1049"], "it has given the terminal back")
        shell.text = {}
        shell.type("fg\n")
        shell.wait("no rotad is running")
        self.assertTrue(shell.keys_are_its_own() and shell.modes["?1049"])
        shell.type("q")
        self.eventually(lambda: shell.screen() is not None and not shell.modes["?1049"], "it has ended")

    def test_where_the_terminal_cannot_it_is_status_watch(self):
        self.start_daemon()
        lines = self.start(ROTA, "top", "--delay", "0.1")
        got = [lines.stdout.readline() for _ in range(9)]
        self.assertGreaterEqual(sum(line.startswith("rotad pid ") for line in got), 2, got)
        lines.stdout.close()
        self.assertNotEqual(lines.wait(timeout=PATIENCE), 0)
        dumb = self.top()
        dumb_terminal = Terminal(self, "env", "TERM=dumb", ROTA, "top", "--delay", "0.1")
        self.eventually(lambda: dumb_terminal.screen() is not None and dumb_terminal.seen.count(b"rotad pid ") > 2, "it repeats")
        self.assertNotIn(b"\x1b", dumb_terminal.seen)
        dumb.type("q")
        self.assertEqual(dumb.ended(), 0)
        for wrong in "0", "nan", "x":
            self.assertEqual(self.call(ROTA, "top", "--delay", wrong).returncode, 2)


if __name__ == "__main__":
    unittest.main()
