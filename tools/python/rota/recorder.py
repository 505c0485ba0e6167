"""Writes a line when a test begins and one when it has ended, into a file of this process's own in the report's folder.

A test's line is written before the test runs: what kills the process leaves a begin without an end. Each time that a test
is set up is an attempt, so the reruns of other plugins are attempts of one test. The numbers are taken once pytest has
let go of the test's fixtures. Whatever goes wrong in here becomes one line on stderr, and ends the recording, not the tests.
"""
import copy
import faulthandler
import functools
import gc
import json
import os
import pathlib
import sys
import time

import pytest
from _pytest.runner import runtestprotocol
from _pytest.unittest import TestCaseFunction

from rota import account

_MOST_OF_A_MESSAGE = 2000
_attempts = {}  # how often each test was set up in this process, by whichever of its sessions
_running = []  # recorders of this process; an inner pytest (pytester) is part of the outer one's test


def start(config):
    try:
        if not _running:
            config.pluginmanager.register(Recorder(config, pathlib.Path(os.environ["ROTA_REPORT"])), "rota-recorder")
    except Exception as error:
        warn(config, error)


def warn(config, error):
    line = f"rota: the pytest plugin is switched off: {type(error).__name__}: {error}\n".replace("\n", " ").rstrip() + "\n"
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        if capture is None:
            sys.stderr.write(line)
        else:
            with capture.global_and_fixture_disabled():
                sys.stderr.write(line)
                sys.stderr.flush()
    except Exception:  # not even stderr
        pass


def guarded(method):
    """Of a method that no failure may leave: the first one is said, and nothing is recorded from then on."""
    @functools.wraps(method)
    def guard(self, *arguments):
        if self.off:
            return
        try:
            method(self, *arguments)
        except Exception as error:
            self.off = True
            warn(self.config, error)
            self.give_up()
    return guard


def process_name():
    """PID-START, START being when the process started, as in the names of account files."""
    stat = pathlib.Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    return f"{os.getpid()}-{stat.rpartition(')')[2].split()[19]}"


class Lines:
    """The file of this process; a forked child has its own."""

    def __init__(self, folder):
        self.folder, self.pid, self.file = folder, None, None

    def write(self, line):
        if self.pid != os.getpid():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.file = os.open(self.folder / f"{process_name()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self.pid = os.getpid()
        os.write(self.file, json.dumps(line).encode("ascii") + b"\n")


class Attempt:
    def __init__(self, test, number, begin):
        self.test, self.number, self.begin = test, number, begin
        self.outcome, self.message, self.pid = "passed", None, os.getpid()

    def add(self, report):
        """Of setup, call and teardown; the first that did not pass counts, and a failure more than a skip."""
        if report.outcome == "passed" or self.outcome in ("failed", "error"):
            return
        if report.outcome == "skipped":
            self.outcome = "skipped"
        else:
            self.outcome = "failed" if report.when == "call" else "error"
        self.message = message_of(report)


def text_of(value):
    """The text as UTF-8: bytes that are not, such as Python reads from some file names, become escapes."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def message_of(report):
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):  # of a skip: file, line, reason
        text = longrepr[2]
    else:
        crash = getattr(longrepr, "reprcrash", None)
        text = crash.message if crash is not None else longrepr
    return text_of(text)[:_MOST_OF_A_MESSAGE]


def properties(begin, end):
    """What --junitxml shows of a test; nothing for one that did not use a GPU."""
    if end is None:
        return []
    before = begin or dict.fromkeys(end, 0)
    spent = {name: end[name] - before[name] for name in end}
    return [("rota_peak_bytes", end["peak_bytes"]), ("rota_base_bytes", before["used_bytes"]), ("rota_growth_bytes", spent["used_bytes"]),
            ("rota_launches", spent["launches"]), ("rota_waited_seconds", spent["waited_ns"] / 1e9),
            ("rota_gpu_seconds", spent["busy_ns"] / 1e9)]


def renew_instance(item):
    """A method of a class gets an object of its own each time; unittest's do by themselves."""
    if isinstance(item, pytest.Function) and isinstance(item.parent, pytest.Class) and not isinstance(item, TestCaseFunction):
        for name in ("_instance", "_obj"):
            item.__dict__.pop(name, None)


class Recorder:
    def __init__(self, config, folder):
        self.config, self.off = config, False
        self.lines, self.account = Lines(folder / "tests"), account.Account()
        self.attempts, self.attempt = _attempts, None
        self.stacks, self.stack_signal = None, None
        self.limit = None  # seconds, after which pytest-timeout ends the process
        self.begun_early = None  # the test that has begun and was not set up yet
        repeat = os.environ.get("ROTA_CI_REPEAT", "") or "1"
        if not repeat.isdigit() or int(repeat) < 1:
            raise ValueError(f"ROTA_CI_REPEAT is {repeat!r}, not a number of times from 1 on")
        self.repeat = int(repeat)
        self.write_stacks_on_signal(folder / "stacks")
        _running.append(self)

    def write_stacks_on_signal(self, folder):
        number = os.environ.get("ROTA_STACK_SIGNAL")
        if not number:
            return
        if not number.isdigit():
            raise ValueError(f"ROTA_STACK_SIGNAL is {number!r}, not the number of a signal")
        folder.mkdir(parents=True, exist_ok=True)
        self.stacks = open(folder / f"{os.getpid()}.txt", "w", encoding="utf-8")
        self.stack_signal = int(number)
        # Where nothing else handles the signal, going on to its default action would end the process.
        faulthandler.register(self.stack_signal, file=self.stacks, all_threads=True, chain=account.has_handler(self.stack_signal))

    def give_up(self):
        """Without an end the test would count as one that died."""
        try:
            attempt, self.attempt = self.attempt, None
            if attempt is not None and attempt.pid == os.getpid():
                self.lines.write({"event": "end", "test": attempt.test, "attempt": attempt.number, "outcome": "unknown",
                                  "time_ns": time.time_ns(), "message": "the pytest plugin was switched off"})
        except Exception:  # the one that was said
            pass

    def pytest_unconfigure(self):
        self.ended_early()
        if self in _running:
            _running.remove(self)
        if self.stacks is not None:
            faulthandler.unregister(self.stack_signal)  # tests may have changed the environment
            self.stacks.close()

    @guarded
    def begin(self, item):
        self.end("error", "the test was set up again before its teardown was reported")
        name = text_of(item.nodeid)
        number = self.attempts[name] = self.attempts.get(name, 0) + 1
        line = {"event": "begin", "test": name, "runner": "pytest", "attempt": number, "pid": os.getpid(), "time_ns": time.time_ns()}
        self.lines.write(line)
        self.attempt = Attempt(name, number, None)
        self.write_limit()
        self.attempt.begin = self.account.mark(account.BEGINS, name)

    def end(self, outcome, message):
        """Of the attempt that has not ended, if there is one. The numbers at its end."""
        attempt = self.attempt
        if attempt is None or attempt.pid != os.getpid():  # the parent's
            self.attempt = None
            return []
        if self.repeat > 1 and attempt.number > 1:  # what only a cycle keeps alive has not grown
            gc.collect()
        end = self.account.mark(account.ENDS, attempt.test)
        self.attempt = None
        line = {"event": "end", "test": attempt.test, "attempt": attempt.number, "outcome": outcome, "time_ns": time.time_ns(),
                "begin": attempt.begin, "end": end}
        if message:
            line["message"] = message
        self.lines.write(line)
        return properties(attempt.begin, end)

    @guarded
    def reported(self, item, report):
        if self.attempt is None:
            return
        self.attempt.add(report)
        if report.when != "teardown":
            return
        # pytest does this as soon as the report is out; the numbers shall not count what only it keeps.
        if getattr(item, "funcargs", None):
            item.funcargs = None
        report.user_properties.extend(self.end(self.attempt.outcome, self.attempt.message))

    def write_limit(self):
        if self.limit is not None and self.attempt is not None and self.attempt.pid == os.getpid():
            self.lines.write({"event": "limit", "test": self.attempt.test, "attempt": self.attempt.number, "seconds": self.limit})

    @guarded
    def limited(self, settings):
        """With its thread method pytest-timeout ends the process, and nobody is told: the limit says afterwards that it was this."""
        self.limit = float(settings.timeout) if settings.method == "thread" and settings.timeout else None
        self.write_limit()

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item, settings):
        """The test's clock starts after this, so the time that it waits until it fits next to other tests does not count."""
        if self.attempt is None:
            self.begin(item)
            self.begun_early = item
        self.limited(settings)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_cancel_timer(self, item):
        self.limit = None

    @guarded
    def interrupted(self):
        self.end("error", "interrupted")

    @guarded
    def ended_early(self):
        self.end("error", "pytest ended during the test")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        early, self.begun_early = self.begun_early, None
        if early is not item or self.attempt is None:
            self.begin(item)
        yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item):
        outcome = yield
        try:
            report = outcome.get_result()
        except BaseException:  # another plugin's, and pytest's to handle
            return
        self.reported(item, report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """With ROTA_CI_REPEAT: the test again and again, as far as it passes, and reported once."""
        if self.repeat == 1 or self.off:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for attempt in range(1, self.repeat + 1):
            if attempt > 1:
                renew_instance(item)
            # A copy stands for the next test of the same class and module: fixtures of those stay, the function's end.
            following = nextitem if attempt == self.repeat else copy.copy(item)
            reports = runtestprotocol(item, nextitem=following, log=False)
            passed = all(report.passed for report in reports)
            if not passed or item.session.shouldstop:
                reports += self.tear_down(item, nextitem)
                break
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def tear_down(self, item, nextitem):
        """What the copy kept of classes and modules; a report if that fails."""
        call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown",
                                         reraise=(pytest.exit.Exception, KeyboardInterrupt))
        return [] if call.excinfo is None else [item.ihook.pytest_runtest_makereport(item=item, call=call)]

    def pytest_keyboard_interrupt(self):
        self.interrupted()
