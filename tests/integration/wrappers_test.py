"""Commands that wrap a program cannot be told from the program: a matrix of wrappers and what a caller can do or set.

Every cell runs the program `mirror` under a wrapper and natively, started in the same way, and compares what the program
was given, what reached it, and what its caller saw. A wrapper, a signal, an ending and a state of the caller are a line each.
"""
import ctypes
import difflib
import fcntl
import itertools
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import termios
import unittest

from harness import Case, PATIENCE, PROGRAMS, ROTA

MIRROR = PROGRAMS / "mirror"

# What is in front of the program, by a folder of the cell's own.
NATIVE = lambda folder: []
WRAPPERS = {
    "run": lambda folder: [ROTA, "run", "--"],
    "run --report": lambda folder: [ROTA, "run", "--report", folder / "report.txt", "--"],
    "ci": lambda folder: [ROTA, "ci", "--"],
    "ci --hang-after": lambda folder: [ROTA, "ci", "--hang-after", "100s", "--report-dir", folder / "reports", "--"],
    "trace": lambda folder: [ROTA, "trace", "--dir", folder / "trace", "--"],
    "sim": lambda folder: [ROTA, "sim", "--"],
    "trace in sim": lambda folder: [ROTA, "sim", "--", ROTA, "trace", "--dir", folder / "trace", "--"],
}

# `rota try` starts copies, without input and in sessions of their own. If a copy fails by itself, it ends with that copy's status.
TRIAL = {"try": lambda folder: [ROTA, "try", "-n", "1", "--"]}

SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
ENDINGS = [("exit", code) for code in (0, 1, 3, 126, 127, 255)] + [
    ("die", number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL, signal.SIGPIPE,
                                   signal.SIGALRM, signal.SIGTERM, signal.SIGUSR1, signal.SIGXFSZ, signal.SIGRTMIN, signal.SIGRTMAX)]


def ignore(*numbers):
    return lambda: [signal.signal(number, signal.SIG_IGN) for number in numbers]


def block(*numbers):
    return lambda: signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def pend(*numbers):
    return lambda: [block(*numbers)()] + [os.kill(os.getpid(), number) for number in numbers]


# States of signals that a caller may leave to what it starts.
SIGNAL_STATES = {
    "nothing": lambda: None,
    "SIGCHLD ignored": ignore(signal.SIGCHLD),
    "SIGCHLD blocked": block(signal.SIGCHLD),
    "SIGPIPE ignored": ignore(signal.SIGPIPE),
    "as nohup and a shell's background": ignore(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT),
    "job control ignored": ignore(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT),
    "all ignored": ignore(*SIGNALS),
    "all blocked": block(*SIGNALS),
    "all ignored and blocked": lambda: [ignore(*SIGNALS)(), block(*SIGNALS)()],
    "some blocked": block(signal.SIGUSR1, signal.SIGINT, signal.SIGRTMIN + 2),
    "some pending": pend(signal.SIGTERM, signal.SIGUSR2, signal.SIGRTMIN + 5),
}


def opened(number, path, flags):
    descriptor = os.open(path, flags, 0o600)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)


def full_pipe(number):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while os.write(writing, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(writing, True)
    os.dup2(writing, number)
    os.dup2(reading, 200)  # somebody has it, and does not read
    os.set_inheritable(200, True)


def broken_pipe(number):
    reading, writing = os.pipe()
    os.dup2(writing, number)
    for descriptor in (reading, writing):
        os.close(descriptor)


# What each of 0, 1 and 2 may be, and all combinations of some.
CLOSED = {f"{' '.join(map(str, numbers))} closed": lambda numbers=numbers: [os.close(number) for number in numbers]
          for size in (1, 2, 3) for numbers in itertools.combinations((0, 1, 2), size)}
DESCRIPTOR_STATES = {
    **CLOSED,
    "1 and 2 full": lambda: [opened(number, "/dev/full", os.O_WRONLY) for number in (1, 2)],
    "0 closed, 2 full": lambda: [os.close(0), opened(2, "/dev/full", os.O_WRONLY)],
    "2 a pipe that nobody reads": lambda: full_pipe(2),
    "2 a pipe without a reader": lambda: broken_pipe(2),
    "2 only for reading": lambda: opened(2, "/dev/null", os.O_RDONLY),
    "2 may not grow": lambda: [opened(2, "said", os.O_WRONLY | os.O_CREAT), os.ftruncate(2, 1 << 20), os.lseek(2, 1 << 20, os.SEEK_SET),
                               resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))],
    "2 somebody's data": lambda: [pathlib.Path("data").write_text("mine\n" * 999), opened(2, "data", os.O_RDWR)],
    "more are open": lambda: [os.set_inheritable(os.dup2(0, number), True) for number in (3, 10, 100)],
}
# Whatever else is inherited.
OTHER_STATES = {
    "few descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 40)),
    "a small stack, no core": lambda: [resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 22)), resource.setrlimit(resource.RLIMIT_CORE, (0, 0))],
    "a mask for files": lambda: os.umask(0o077),
    "nice": lambda: os.nice(5),
    "another folder": lambda: os.chdir("/"),
    "adopts orphans": lambda: ctypes.CDLL(None).prctl(36, 1),  # PR_SET_CHILD_SUBREAPER
    "killed sooner": lambda: pathlib.Path("/proc/self/oom_score_adj").write_text("300"),
}


def differences(found, native):
    """Only what differs, since a program is given much."""
    if isinstance(found, tuple) and isinstance(native, tuple):
        return {at: difference for at, pair in enumerate(zip(found, native)) if (difference := differences(*pair))}
    if isinstance(found, dict) and isinstance(native, dict):
        return {name: differences(found.get(name), native.get(name)) for name in {*found, *native} if found.get(name) != native.get(name)}
    if isinstance(found, list) and isinstance(native, list) and found != native:
        return [line for line in difflib.unified_diff(native, found, "native", "wrapped", lineterm="", n=1)]
    return {} if found == native else (found, native)


class Cell:
    """One run of the program behind a prefix."""

    def __init__(self, case, name, prefix, verb, *arguments, state=lambda: None, stdin=subprocess.DEVNULL, new_session=True):
        self.folder = case.scratch / name.replace(" ", "-").replace("/", "-")
        self.folder.mkdir(parents=True)
        self.case, self.file = case, self.folder / "mirror"
        command = [*prefix(self.folder), MIRROR, self.file, verb, *arguments]
        log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen([str(part) for part in command], env=case.environment, stdin=stdin, stdout=log, stderr=log, cwd=self.folder,
                                        start_new_session=new_session, restore_signals=False, close_fds=False, preexec_fn=self.prepared(state))
        log.close()
        case.children.append(self.process)

    def prepared(self, state):
        def prepare():
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            state()
        return prepare

    def lines(self, start):
        text = self.file.read_text() if self.file.exists() else ""
        return [line[len(start):].strip() for line in text.splitlines() if line.startswith(start)]

    def program(self):
        return int(self.case.eventually(lambda: self.lines("ready ") or self.process.poll() is not None and [0], f"it runs: {self.folder}")[0])

    def signals(self):
        return self.lines("signal ")

    def given(self):
        """What the program was given, without what differs from run to run; of groups and sessions only whether they are the caller's."""
        text = self.file.read_text() if self.file.exists() else "nothing"
        own = {"group": str(self.process.pid), "session": str(self.process.pid)}
        text = re.sub(r"pipe:\[\d+\]", "pipe", text.replace(str(self.folder), "FOLDER"))
        lines = [line.split(":", 1) for line in text.splitlines() if ":" in line]
        return {name: value.strip() == own[name] if name in own else value.strip() for name, value in lines}

    def data(self):
        file = self.folder / "data"
        return file.read_text() if file.exists() else None

    def ended(self):
        return self.process.wait(PATIENCE)

    def is_over(self, pid):
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True


class Wrappers(Case):
    def setUp(self):
        super().setUp()
        self.environment.update(ROTA_OFF="1", TMPDIR=str(self.scratch))  # so each has something to say, and no rotad differs

    def rows(self, make, wrappers=WRAPPERS):
        """What `make` finds with each wrapper is what it finds natively."""
        native = make("native", NATIVE)
        for name, prefix in wrappers.items():
            with self.subTest(name):
                found = make(name, prefix)
                self.assertEqual(list(found), list(native))
                for row in native:
                    with self.subTest(row):
                        self.assertEqual(differences(found[row], native[row]), {})

    # ctest labels: unsanitized
    def test_the_caller_sees_the_programs_own_end(self):
        def ends(name, prefix):
            cells = {f"{verb} {number}": Cell(self, f"{name} {verb} {number}", prefix, verb, number) for verb, number in ENDINGS}
            return {row: cell.ended() for row, cell in cells.items()}
        self.rows(ends)

    def given_by(self, states):
        def given(name, prefix):
            cells = {row: Cell(self, f"{name} {row}", prefix, "exit", 5, state=state) for row, state in states.items()}
            return {row: (cell.ended(), cell.given(), cell.data()) for row, cell in cells.items()}
        return given

    # ctest labels: unsanitized
    def test_the_program_is_given_the_signals_that_the_caller_left(self):
        self.rows(self.given_by(SIGNAL_STATES))

    # ctest labels: unsanitized
    def test_the_program_starts_with_the_callers_descriptors_and_no_others(self):
        self.rows(self.given_by(DESCRIPTOR_STATES))

    # ctest labels: unsanitized
    def test_nothing_of_the_preparation_for_a_rotad_stays_in_the_program(self):
        self.start_daemon()
        self.environment["ROTA_OFF"] = "0"
        self.rows(self.given_by({state: {**SIGNAL_STATES, **DESCRIPTOR_STATES}[state] for state in ("nothing", "all ignored", "0 1 2 closed")}))

    # ctest labels: unsanitized
    def test_the_program_has_the_callers_limits_and_whatever_else_is_inherited(self):
        self.rows(self.given_by(OTHER_STATES))

    # ctest labels: unsanitized
    def test_a_folder_for_temporary_files_that_cannot_be_used_changes_nothing(self):
        (self.scratch / "file").touch()
        places = {"missing": self.scratch / "missing", "a file": self.scratch / "file", "no place for files": "/proc", "too long": "/" + "x" * 5000}
        for name, place in places.items():
            self.environment["TMPDIR"] = str(place)
            make = self.given_by({name: lambda: None})
            self.rows(lambda wrapper, prefix: make(f"{wrapper} {name}", prefix))
            with self.subTest(f"try: {name}"):
                self.assertEqual(Cell(self, f"try {name}", TRIAL["try"], "exit", 5).ended(), 5)

    # ctest labels: unsanitized
    def test_limits_that_leave_a_wrapper_nothing_leave_the_program_all_the_same(self):
        def few_processes(count):
            os.setgid(54321)
            os.setuid(54321)
            resource.setrlimit(resource.RLIMIT_NPROC, (count, count))

        limits = {"no room in files": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
                  "a tiny stack": lambda: resource.setrlimit(resource.RLIMIT_STACK, (64 << 10, 64 << 10)),
                  "four descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))}
        if os.geteuid() == 0:  # root may start any number of processes
            limits |= {f"{count} processes": lambda count=count: few_processes(count) for count in (1, 2, 3)}
        self.scratch.chmod(0o777)
        for name, limit in limits.items():
            for wrapper in ("run", "run --report", "ci", "ci --hang-after", "trace", "sim"):
                with self.subTest(limit=name, wrapper=wrapper):
                    # A folder of its own: another user's program makes files there.
                    folder = self.scratch / f"{name} {wrapper}"
                    folder.mkdir(mode=0o777)
                    folder.chmod(0o777)
                    child = subprocess.Popen([*WRAPPERS[wrapper](folder), "sh", "-c", "exit 3"], env=dict(self.environment, TMPDIR=str(folder)),
                                             cwd=folder, preexec_fn=limit, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                             text=True)
                    self.children.append(child)
                    said = child.communicate(timeout=PATIENCE)[1]
                    self.assertEqual(child.returncode, 3, said)
                    if "processes" in name and wrapper == "run --report" and name[0] in "12":
                        self.assertIn("the program runs without a report", said)
                    if name == "no room in files" and wrapper.startswith("ci"):
                        self.assertRegex(said, "session.json: cannot be written: .*; the command runs without a rig")

    # ctest labels: unsanitized
    def test_a_trials_copies_are_given_what_the_caller_left_but_its_streams_and_terminal(self):
        states = {**SIGNAL_STATES, **OTHER_STATES}
        del states["some pending"]  # they would end the trial

        def given(name, prefix):
            cells = {row: Cell(self, f"{name} {row}", prefix, "exit", 7, state=state) for row, state in states.items()}
            ends = {row: cell.ended() for row, cell in cells.items()}
            things = {row: cells[row].given() for row in states}
            for given in things.values():
                given["descriptors"] = [each for each in given["descriptors"].split("; ") if not re.match("[012]=", each)]
                for own in ("group", "session", "parent's death"):
                    del given[own]
            return {row: (end, things[row]) for row, end in ends.items()}
        self.rows(given, TRIAL)

    # ctest labels: unsanitized
    def test_a_signal_to_a_trial_ends_it_or_reaches_its_copies(self):
        def ends(name, prefix):
            found = {}
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN + 1, signal.SIGKILL):
                cell = Cell(self, f"{name} {number}", prefix, "waits")
                program = cell.program()
                os.kill(cell.process.pid, number)
                found[str(number)] = cell.ended()
                self.eventually(lambda: cell.is_over(program), f"{name}: signal {number} ends the program")
            return found
        self.rows(ends, TRIAL)

    # ctest labels: unsanitized
    def test_commands_without_a_program_work_in_every_state_of_signals(self):
        for command, states in (([ROTA, "doctor"], SIGNAL_STATES), ([ROTA, "demo", "--sim"], ["SIGCHLD ignored"])):
            usual = self.call(*command).returncode
            for state in states:
                with self.subTest(command=command, state=state):
                    child = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                             start_new_session=True, restore_signals=False, preexec_fn=SIGNAL_STATES[state])
                    self.children.append(child)
                    self.assertEqual(child.wait(PATIENCE), usual)

    def sent(self, send, numbers):
        """Each signal is sent when the one before has reached the program; the last tells that no other is on its way."""
        def signals(name, prefix):
            cell = Cell(self, name, prefix, "signals")
            cell.program()
            for count, number in enumerate(numbers, start=1):
                send(cell.process.pid, number)
                self.eventually(lambda: len(cell.signals()) >= count, f"{name}: signal {number} has come")
            (cell.folder / "mirror.end").touch()
            return {"end": cell.ended(), "signals": cell.signals()}
        return signals

    # ctest labels: unsanitized
    def test_every_signal_to_the_process_that_the_caller_knows_reaches_the_program_once(self):
        self.rows(self.sent(os.kill, SIGNALS))

    # ctest labels: unsanitized
    def test_every_signal_to_the_process_group_reaches_the_program_once(self):
        self.rows(self.sent(os.killpg, SIGNALS))

    # ctest labels: unsanitized
    def test_real_time_signals_are_neither_lost_nor_doubled_however_they_are_mixed(self):
        numbers = [signal.SIGRTMIN + 4, signal.SIGRTMIN + 9] * 30

        def signals(name, prefix):
            cell = Cell(self, name, prefix, "signals")
            cell.program()
            for index, number in enumerate(numbers):
                (os.killpg if index % 3 == 0 else os.kill)(cell.process.pid, number)
            subprocess.run(["kill", "-q", "77", "-s", str(int(signal.SIGRTMIN)), str(cell.process.pid)], check=True)
            self.eventually(lambda: len(cell.signals()) > len(numbers), f"{name}: all have come")
            (cell.folder / "mirror.end").touch()
            end = cell.ended()
            queued = [line.split(" from ")[0] for line in cell.signals()]
            return {"end": end, "signals": sorted(queued)}
        self.rows(signals)

    # ctest labels: unsanitized
    def test_a_signal_that_ends_the_program_is_what_its_caller_sees(self):
        for kind, send in (("process", os.kill), ("group", os.killpg)):
            def ends(name, prefix):
                found = {}
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN + 1, signal.SIGKILL):
                    cell = Cell(self, f"{name} {kind} {number}", prefix, "waits")
                    program = cell.program()
                    send(cell.process.pid, number)
                    found[str(number)] = cell.ended()
                    self.eventually(lambda: cell.is_over(program), f"{name}: signal {number} to the {kind} ends the program")
                return found
            with self.subTest(kind):
                self.rows(ends)

    # ctest labels: unsanitized
    def test_what_the_program_sends_to_its_parent_reaches_the_caller(self):
        told = []
        before = signal.signal(signal.SIGUSR1, lambda *_: told.append(1))
        self.addCleanup(signal.signal, signal.SIGUSR1, before)

        def tells(name, prefix):
            told.clear()
            cell = Cell(self, name, prefix, "tells", int(signal.SIGUSR1))
            self.eventually(lambda: told, f"{name}: the caller is told")
            return {"end": cell.ended(), "told": len(told)}
        self.rows(tells)

    # ctest labels: unsanitized
    def test_timeout_ends_it_as_it_ends_the_program(self):
        def ends(name, prefix):
            cell = Cell(self, name, lambda folder: ["timeout", "--preserve-status", "-s", "INT", "1", *prefix(folder)], "waits")
            return {"end": cell.ended()}
        self.rows(ends)

    # ctest labels: unsanitized
    def test_it_stops_and_goes_on_with_the_program(self):
        def states(name, prefix):
            found = []
            cell = Cell(self, name, prefix, "waits")
            program, waited = cell.program(), cell.process.pid
            for stopper, number, starter in ((program, signal.SIGSTOP, program), (program, signal.SIGTSTP, waited), (-waited, signal.SIGSTOP, -waited),
                                             (waited, signal.SIGTSTP, waited), (-waited, signal.SIGTTIN, program)):
                os.kill(stopper, number) if stopper > 0 else os.killpg(waited, number)
                orphaned = number != signal.SIGSTOP  # the default action does nothing in a session without a shell
                found.append(None if orphaned else os.WSTOPSIG(os.waitpid(waited, os.WUNTRACED)[1]))
                os.kill(starter, signal.SIGCONT) if starter > 0 else os.killpg(waited, signal.SIGCONT)
            os.kill(program, signal.SIGTERM)
            return {"stops": found, "end": cell.ended()}
        self.rows(states)


# A shell with job control, in a session of a terminal: one job, told to go on in the foreground by each line that it reads.
SHELL = r"""
import fcntl, os, signal, sys, termios
terminal = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpid()) if sys.argv[2] == "foreground" else None
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.dup2(terminal, 0)
    os.execvp(sys.argv[3], sys.argv[3:])
while True:
    status = os.waitpid(job, os.WUNTRACED)[1]
    os.tcsetpgrp(terminal, os.getpgrp())
    print("stopped", os.WSTOPSIG(status)) if os.WIFSTOPPED(status) else print("ended", os.waitstatus_to_exitcode(status))
    sys.stdout.flush()
    if not os.WIFSTOPPED(status) or not sys.stdin.readline():
        break
    os.tcsetpgrp(terminal, job)
    os.killpg(job, signal.SIGCONT)
"""
STOP, INTERRUPT, QUIT = b"\x1a", b"\x03", b"\x1c"
# A job in the foreground or background; what it does; what is done, in turn: keys at the terminal, or a line to the shell.
JOBS = {
    "Ctrl-C": ("foreground", "waits", [INTERRUPT]),
    "Ctrl-\\": ("foreground", "waits", [QUIT]),
    "Ctrl-Z twice, then Ctrl-C": ("foreground", "waits", [STOP, "fg", STOP, "fg", INTERRUPT]),
    "what it reads": ("foreground", "reads", [b"text\n"]),
    "reading in the background, then in the foreground": ("background", "reads", ["fg", b"text\n"]),
}


class Terminal(Case):
    def setUp(self):
        super().setUp()
        self.environment.update(ROTA_OFF="1", TMPDIR=str(self.scratch))

    def in_a_shell(self, name, prefix, where, verb, deeds):
        master, terminal = os.openpty()
        self.addCleanup(os.close, master)
        folder = self.scratch / name.replace(" ", "-").replace("\\", "")
        folder.mkdir()
        file = folder / "mirror"
        command = [sys.executable, "-c", SHELL, os.ttyname(terminal), where, *prefix(folder), MIRROR, file, verb]
        shell = subprocess.Popen([str(part) for part in command], env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, start_new_session=True, cwd=folder)
        os.close(terminal)
        self.children.append(shell)
        self.eventually(lambda: file.exists() and "ready" in file.read_text(), f"{name}: the program runs")
        program = int(file.read_text().split("ready ")[1].split()[0])
        seen = []
        if where == "background":
            seen.append(shell.stdout.readline())
        for deed in deeds:
            if isinstance(deed, str):
                shell.stdin.write("\n")
                shell.stdin.flush()
                self.eventually(lambda: pathlib.Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[0] in "SR", f"{name}: it goes on")
                continue
            group = lambda: int.from_bytes(fcntl.ioctl(master, termios.TIOCGPGRP, b"    "), sys.byteorder)
            self.eventually(lambda: group() != shell.pid, f"{name}: the job is in the foreground")
            os.write(master, deed)
            seen.append(shell.stdout.readline())
        return {"seen": seen, "said": [line for line in file.read_text().splitlines() if line.startswith("read ")]}

    # ctest labels: unsanitized
    def test_jobs_at_a_terminal_are_as_without_a_wrapper(self):
        for job, (where, verb, deeds) in JOBS.items():
            native = self.in_a_shell(f"native {job}", NATIVE, where, verb, deeds)
            for name, prefix in {**WRAPPERS, **(TRIAL if verb == "waits" else {})}.items():
                with self.subTest(f"{name}: {job}"):
                    self.assertEqual(self.in_a_shell(f"{name} {job}", prefix, where, verb, deeds), native)

    # ctest labels: unsanitized
    def test_ctrl_c_ends_a_shells_loop(self):
        for name, prefix in {"native": NATIVE, **WRAPPERS}.items():
            folder = self.scratch / name.replace(" ", "-")
            folder.mkdir()
            words = " ".join(f"'{part}'" for part in [*prefix(folder), MIRROR, folder / "mirror", "waits"])
            loop = self.start("bash", "-c", f"for i in 1 2 3; do {words}; done; touch '{folder}/went-on'")
            self.eventually(lambda: (folder / "mirror").exists() and "ready" in (folder / "mirror").read_text(), f"{name}: the program runs")
            os.killpg(loop.pid, signal.SIGINT)
            with self.subTest(name):
                self.assertEqual(self.finish(loop).returncode, -signal.SIGINT)
                self.assertFalse((folder / "went-on").exists())


if __name__ == "__main__":
    unittest.main()
