"""What the scripts about swapped memory share: programs by ctypes, a ballast that leaves a part of the GPU free, a rotad, and what
bare copies reach. Nothing here is managed memory; what is started is ended."""
import argparse
import contextlib
import ctypes
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

GIB = 1 << 30
MIB = 1 << 20
PIECE = 256 * MIB
EXTENT = 128 * MIB  # the usual size of the extents of large allocations

# The 97.5% quantile of the t distribution by degrees of freedom, the last for more.
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
     2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 1.96]


def driver_library():
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        sys.exit(77)
    if library.cuInit(0) != 0:
        sys.exit(77)
    return library


class Driver:
    def __init__(self):
        self.library = driver_library()
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: CUDA error {result}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


def say(text):
    print(text, flush=True)


def ready():
    """In a program of its own: told to begin by go()."""
    say("ready")
    sys.stdin.readline()


def told_again():
    """In a program that has been told to begin: an event that is set once it is told to end."""
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    return told


def ballast(room):
    """Leaves this many bytes free until its standard input closes; says how many are free for each line of it."""
    driver = Driver()
    driver.allocate(driver.free_bytes() - room)
    say("ready")
    for _ in sys.stdin:
        say(driver.free_bytes())


def watcher():
    """Says how many bytes are free for each line of its standard input."""
    driver = Driver()
    say("ready")
    for _ in sys.stdin:
        say(driver.free_bytes())


def copier(direction, size):
    driver = Driver()
    device = driver.allocate(size)
    host = ctypes.c_void_p()
    driver.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(size), 1)
    ready()
    begun, copies = time.monotonic(), 0
    while time.monotonic() - begun < 1.5:
        if direction == 0:
            driver.call("cuMemcpyDtoH_v2", host, device, ctypes.c_size_t(size))
        else:
            driver.call("cuMemcpyHtoD_v2", device, host, ctypes.c_size_t(size))
        copies += 1
    say(json.dumps(copies * size / (time.monotonic() - begun) / 1e9))


def own(*arguments, script=__file__):
    return [sys.executable, "-B", os.path.abspath(script), "--part", *map(str, arguments)]


def start(command, **options):
    return subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def go(*programs):
    """Lets them begin together, once all are ready."""
    for each in programs:
        await_line(each, "ready")
    for each in programs:
        tell(each)


def await_line(program, wanted):
    line = program.stdout.readline()
    assert line == wanted + "\n", (line, program.args)


def tell(program, line=""):
    program.stdin.write(line + "\n")
    program.stdin.flush()


def ask(program, line=""):
    tell(program, line)
    return json.loads(program.stdout.readline())


def answer(program, timeout=600):
    lines = program.communicate(timeout=timeout)[0].splitlines()
    assert lines, f"it said nothing and ended with {program.returncode}: {program.args}"
    return json.loads(lines[-1])


def duplex(size=GIB):
    """The rates of a process that copies out and one that copies in at the same time. GB/s."""
    copiers = [start(own("copier", direction, size)) for direction in (0, 1)]
    go(*copiers)
    return [round(answer(each), 1) for each in copiers]


def under_rota(options):
    return [options.build / "bin/rota", "run", "--memory", "swap", "--"]


def context_bytes(options):
    """What a program takes besides its memory."""
    watch = start(own("watcher"))
    try:
        await_line(watch, "ready")
        before = ask(watch)
        program = start([options.build / "tests/programs/renewer", "--bytes", 64 * MIB, "--asked"])
        await_line(program, "ready")
        after = ask(watch)
        program.communicate(timeout=60)
        return before - after - 64 * MIB
    finally:
        end(watch)


def settle_room(options):
    """With --spare: the room is what one program needs, all contexts, and that much more."""
    if options.spare is not None:
        options.room = round(options.size + options.spare + options.jobs * context_bytes(options) / GIB, 3)


class Served:
    """A GPU that a ballast fills up to the room, and a rotad: the environment of programs that find it, and what was started."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.running = []
        self.ballast = None
        self.environment = dict(os.environ, ROTA_SOCKET=str(folder / "rotad.sock"), ROTA_LOG="debug", ROTA_LOCK_DIRECTORY=str(folder / "locks"))

    def fill(self, room, gpu=0):
        """Starts a ballast that leaves this many bytes free. served() does so unless the options have no --room."""
        filled = start(own("ballast", room), env=dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu)) if gpu else None)
        if gpu == 0:
            self.ballast = filled
        else:
            self.running.append(filled)
        await_line(filled, "ready")

    def free_bytes(self):
        """As a program without rota sees it."""
        return ask(self.ballast)

    def start(self, name, command, **options):
        """A program under rota, with its log."""
        with open(self.folder / f"{name}.log", "a") as log:
            program = start([*under_rota(self.options), *command], env=self.environment, stderr=log, **options)
        self.running.append(program)
        return program

    def said(self, name):
        return (self.folder / f"{name}.log").read_text()

    def final_events(self):
        """rotad's event log, once it has ended."""
        return (self.folder / "events.log").read_text()

    def status(self):
        answered = subprocess.run([str(self.options.build / "bin/rota"), "status", "--json"], env=self.environment, capture_output=True, text=True)
        return json.loads(answered.stdout)

    # As a tuple (folder, environment, running) for the older scripts.
    def __iter__(self):
        return iter((self.folder, self.environment, self.running))


@contextlib.contextmanager
def served(options, *arguments):
    """arguments: further ones for rotad."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rota-swap-"))
    rig = Served(options, folder)
    rotad = None
    try:
        if options.room is not None:
            rig.fill(int(options.room * GIB))
        with open(folder / "rotad.log", "w") as log:
            rotad = start([options.build / "bin/rotad", "--mode", options.mode, "--quantum", options.quantum, "--trust", options.trust,
                           "--event-log", folder / "events.log", "--lock-directory", folder / "locks", *arguments], env=rig.environment, stderr=log)
        while not (folder / "rotad.sock").exists():
            assert rotad.poll() is None, (folder / "rotad.log").read_text()
            time.sleep(0.01)
        yield rig
    finally:
        for each in rig.running:
            end(each)
        if rotad:
            rotad.terminate()  # it flushes the event log
            end(rotad, patience=5)
        if rig.ballast:
            end(rig.ballast)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for file in folder.glob("*.log"):
                (options.logs / f"{folder.name}-{file.name}").write_bytes(file.read_bytes())


def stacks(pid):
    """The stacks of a process that hangs, by whichever debugger there is."""
    debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
    if debugger is None:
        return "no debugger"
    try:
        return subprocess.run([debugger, "-p", str(pid), "-batch", "-nx", "-ex", "thread apply all bt 40"], capture_output=True, text=True, timeout=60).stdout
    except subprocess.TimeoutExpired:
        return "the debugger did not answer"


def end(program, patience=0):
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(patience)
    if program.poll() is None:  # its forked children have the GPU open as well, and with it its memory
        subprocess.run(["pkill", "-KILL", "-P", str(program.pid)])
    program.kill()
    program.wait()
    for pipe in (program.stdin, program.stdout):
        with contextlib.suppress(OSError):
            pipe.close()


def interval(values):
    """The mean and the half width of its 95% interval, by the t distribution."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, T[min(len(values) - 1, len(T)) - 1] * statistics.stdev(values) / math.sqrt(len(values))


def add_options(parser, room=9.6, size=8.0, jobs=2, seconds=15, mode="exclusive", quantum="300ms"):
    """The options that the scripts share."""
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--room", type=float, default=room, help="GiB that the ballast leaves free")
    parser.add_argument("--spare", type=float, help="instead: what one program needs, all contexts, and this many GiB")
    parser.add_argument("--size", type=float, default=size, help="GiB of each program")
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--mode", default=mode)
    parser.add_argument("--quantum", default=quantum)
    parser.add_argument("--trust", default="user", help="none: nothing is handed over from program to program")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for what rotad and the programs say")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)


if __name__ == "__main__" and sys.argv[1:2] == ["--part"]:
    {"ballast": ballast, "copier": copier, "watcher": watcher}[sys.argv[2]](*map(int, sys.argv[3:]))
