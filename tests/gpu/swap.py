#!/usr/bin/env python3
"""Programs whose plain device memory really does not fit together, swapped by rota, on a GPU: how long a switch takes.

    tests/gpu/swap.py --build DIR [--room 12] [--size 8] [--jobs 2] [--seconds 15] [--mode exclusive] [--quantum 300ms]
                      [--job pattern]

A ballast (a plain cuMemAlloc of a process without rota) leaves --room GiB of the GPU free; then --jobs programs of --size
GiB each run under `rota run --memory swap`, with a rotad of their own. Each writes all of its memory in every round, checks
words of it before, and compares all of it at the end. Nothing here is managed memory. By ctypes and numpy; what it takes it
gives back, what it starts it ends.

Prints one line of JSON: rounds and words that were wrong for each job, for each switch the bytes and the time of moving
out and of bringing back, and what bare copies in both directions reach between two processes in the same run (GB/s).
Exits 77 where there is no NVIDIA GPU.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

GIB = 1 << 30
PIECE = 256 << 20


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


def ballast(room):
    """Leaves so many bytes free until its standard input closes."""
    driver = Driver()
    driver.allocate(driver.free_bytes() - room)
    say("ready")
    sys.stdin.read()


def copier(direction, size=GIB):
    driver = Driver()
    device = driver.allocate(size)
    host = ctypes.c_void_p()
    driver.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(size), 1)
    ready()
    begun, copies = time.monotonic(), 0
    while time.monotonic() - begun < 1.5:
        if direction == "out":
            driver.call("cuMemcpyDtoH_v2", host, device, ctypes.c_size_t(size))
        else:
            driver.call("cuMemcpyHtoD_v2", device, host, ctypes.c_size_t(size))
        copies += 1
    say(json.dumps(copies * size / (time.monotonic() - begun) / 1e9))


def job(size, seconds, seed):
    import numpy
    driver = Driver()
    pieces = pieces_of(driver, size)
    words = PIECE // 4
    value = seed
    for piece in pieces:
        driver.call("cuMemsetD32_v2", piece, ctypes.c_uint(value), ctypes.c_size_t(words))
    driver.call("cuCtxSynchronize")
    wrong = rounds = 0
    word = ctypes.c_uint()
    say("ready")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for piece in pieces:
            for at in (0, words // 2, words - 1):
                driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(piece.value + 4 * at), ctypes.c_size_t(4))
                wrong += word.value != value
        value += 2
        for piece in pieces:
            driver.call("cuMemsetD32_v2", piece, ctypes.c_uint(value), ctypes.c_size_t(words))
        driver.call("cuCtxSynchronize")
        rounds += 1
    whole = numpy.empty(words, dtype=numpy.uint32)
    for piece in pieces:
        driver.call("cuMemcpyDtoH_v2", whole.ctypes.data_as(ctypes.c_void_p), piece, ctypes.c_size_t(PIECE))
        wrong += int((whole != value).sum())
        driver.call("cuMemFree_v2", piece)
    say(json.dumps({"rounds": rounds, "wrong": wrong}))


def pattern(size, seconds, seed, graphs):
    """PyTorch: tensors of a few bytes to 64 MiB, also on a second stream, in part freed and taken anew; graphs of kernels,
    copies and sets, replayed in turn. In every round all words are compared with what they have to be, on the GPU."""
    import random

    import torch
    choose = random.Random(seed)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    tensors = {}

    def written(count, salt):
        return torch.arange(count, dtype=torch.int32, device="cuda").mul_(salt).add_(seed)

    def take():
        salt = choose.randrange(1 << 30)
        count = choose.randint(1, 1 << choose.choice([8, 14, 18, 20, 22, 24]))
        tensors[salt] = written(count, salt)

    while torch.cuda.memory_reserved() < size - (256 << 20):
        take()
    counters = [torch.zeros(1 << 20, dtype=torch.int32, device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    instantiated = [torch.cuda.CUDAGraph() for _ in range(graphs)]
    for graph in instantiated:
        with torch.cuda.graph(graph):
            counters[0].add_(1)
            counters[1].copy_(counters[0])
            counters[2].zero_()
            counters[2].add_(counters[1])
    say("ready")
    rounds, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        instantiated[rounds % graphs].replay()
        rounds += 1
        for counter in counters:
            wrong += (counter != rounds).sum()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for salt in list(tensors):
                wrong += (tensors[salt] != written(tensors[salt].numel(), salt)).sum()
        torch.cuda.current_stream().wait_stream(side)
        for salt in choose.sample(list(tensors), 5):
            tensors.pop(salt).record_stream(side)
            take()
    say(json.dumps({"rounds": rounds, "wrong": int(wrong), "tensors": len(tensors)}))


def weights(size, seconds, seed):
    """A model that is asked now and then: its weights are read and do not change, and a small part of its memory is written."""
    import numpy
    driver = Driver()
    words = PIECE // 4
    contents = numpy.random.default_rng(seed).integers(1, 1 << 32, words, dtype=numpy.uint32)
    pieces = [driver.allocate(PIECE) for _ in range(size // PIECE - 1)]
    for number, piece in enumerate(pieces):
        driver.call("cuMemcpyHtoD_v2", piece, numpy.roll(contents, number).ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(PIECE))
    activations = driver.allocate(64 << 20)
    wrong = rounds = 0
    word = ctypes.c_uint()
    say("ready")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        driver.call("cuMemsetD32_v2", activations, ctypes.c_uint(rounds + seed), ctypes.c_size_t((64 << 20) // 4))
        for number, piece in enumerate(pieces):
            for at in (0, words // 2, words - 1):
                driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(piece.value + 4 * at), ctypes.c_size_t(4))
                wrong += int(word.value != contents[(at - number) % words])
        rounds += 1
    whole = numpy.empty(words, dtype=numpy.uint32)
    for number, piece in enumerate(pieces):
        driver.call("cuMemcpyDtoH_v2", whole.ctypes.data_as(ctypes.c_void_p), piece, ctypes.c_size_t(PIECE))
        wrong += int((whole != numpy.roll(contents, number)).sum())
    say(json.dumps({"rounds": rounds, "wrong": wrong}))


def pieces_of(driver, size):
    return [driver.allocate(PIECE) for _ in range(size // PIECE)]


def sweep(driver, pieces, values):
    """Sets all of them to one value after the other, and waits for that."""
    for value in values:
        for piece in pieces:
            driver.call("cuMemsetD32Async", piece, ctypes.c_uint(value), ctypes.c_size_t(PIECE // 4), None)
    driver.call("cuCtxSynchronize")


def work(size, rounds, percent, burst_ms, repeats):
    """Bursts of work on all of its memory, then a rest, so that the GPU is used `percent` of the time: how long it takes."""
    driver = Driver()
    pieces = pieces_of(driver, size)
    sweep(driver, pieces, [7])
    ready()
    begun = time.monotonic()
    for number in range(rounds):
        for _ in range(repeats):
            sweep(driver, pieces, [number])
        time.sleep(burst_ms / 1e3 * (100 - percent) / percent)
    say(json.dumps({"seconds": round(time.monotonic() - begun, 2)}))


def calibrate(size):
    """How often all of so much memory is set in a second."""
    driver = Driver()
    pieces = pieces_of(driver, size)
    counts = 0
    driver.call("cuCtxSynchronize")
    begun = time.monotonic()
    while time.monotonic() - begun < 1:
        sweep(driver, pieces, [counts])
        counts += 1
    say(json.dumps(counts / (time.monotonic() - begun)))


def totals(options):
    """Two jobs that do not fit together against one after the other, which is twice the time of one alone, natively."""
    size, burst = int(options.size * GIB), options.burst_ms
    rate = json.loads(subprocess.run(own("calibrate", size), capture_output=True, text=True, check=True).stdout)
    repeats = max(1, round(rate * burst / 1e3))
    rounds = max(1, round(options.seconds * options.percent / 100 / (burst / 1e3)))
    job = own("work", size, rounds, options.percent, burst, repeats)

    def run(command, count, **settings):
        jobs = [start(command, **settings) for _ in range(count)]
        go(*jobs)
        return max(answer(each)["seconds"] for each in jobs)

    alone = run(job, 1)
    with served(options) as (folder, environment, _), open(folder / "jobs.log", "w") as log:
        together = run([*under_rota(options), *job], 2, env=environment, stderr=log)
    moves = len(re.findall("bytes moved out in", (folder / "jobs.log").read_text()))
    print(json.dumps({"percent": options.percent, "burst_ms": burst, "mode": options.mode, "quantum": options.quantum,
                      "room_gib": options.room, "size_gib": options.size, "alone_s": alone, "together_s": together,
                      "one_after_the_other_over_together": round(2 * alone / together, 3), "moves_out": moves}), flush=True)


def own(*arguments, script=__file__):
    return [sys.executable, os.path.abspath(script), "--part", *map(str, arguments)]


def start(command, **options):
    return subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def go(*programs):
    """Lets them begin together, once all are ready."""
    for each in programs:
        line = each.stdout.readline()
        assert line == "ready\n", line
    for each in programs:
        tell(each)


def tell(program):
    program.stdin.write("\n")
    program.stdin.flush()


def answer(program):
    return json.loads(program.communicate(timeout=600)[0].splitlines()[-1])


def duplex():
    """What a process that copies out and one that copies in reach beside each other. GB/s."""
    copiers = [start(own("copier", direction)) for direction in ("out", "in")]
    go(*copiers)
    return [round(answer(each), 1) for each in copiers]


def under_rota(options):
    return [options.build / "bin/rota", "run", "--memory", "swap", "--"]


@contextlib.contextmanager
def served(options):
    """A GPU that a ballast fills up to the room, and a rotad: the folder of its log, the environment of programs that find
    it, and a list for those that are to be ended, too."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rota-swap-"))
    environment = dict(os.environ, ROTA_SOCKET=str(folder / "rotad.sock"), ROTA_LOG="debug")
    weight, rotad, running = None, None, []
    try:
        weight = start(own("ballast", int(options.room * GIB)))
        assert weight.stdout.readline() == "ready\n"
        rotad = start([options.build / "bin/rotad", "--mode", options.mode, "--quantum", options.quantum, "--trust", options.trust,
                       "--lock-directory", folder / "locks"], env=environment, stderr=open(folder / "rotad.log", "w"))
        while not (folder / "rotad.sock").exists():
            time.sleep(0.01)
        yield folder, environment, running
    finally:
        for each in [*running, rotad, weight]:
            if each:
                each.kill()
                each.wait()
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for file in folder.glob("*.log"):
                (options.logs / f"{folder.name}-{file.name}").write_bytes(file.read_bytes())


def measure(options):
    bare = duplex()
    with served(options) as (folder, environment, running):
        for number in range(options.jobs):
            size = int(options.size * GIB)
            graphs = [options.graphs] if options.job == "pattern" else []
            command = ([options.program, "--bytes", size, "--seconds", options.seconds, "--seed", number + 1] if options.program else
                       own(options.job, size, options.seconds, number + 1, *graphs))
            running.append(start([*under_rota(options), *command], env=environment, stderr=open(folder / f"job{number}.log", "w")))
        results = [each.communicate(timeout=options.seconds * 8 + 120)[0].splitlines()[-1:] for each in running]
    said = [(folder / f"job{number}.log").read_text() for number in range(options.jobs)]
    outs = [tuple(map(int, found)) for text in said
            for found in re.findall(r"GPU 0: (\d+) of \d+ bytes moved out in (\d+) us, (\d+) of them copied", text)]
    backs = [(int(got), int(us), int(taken)) for text in said for us, got, taken in re.findall(
        r"memory back after (\d+) us, (\d+) bytes of it swapped, (\d+) of it in memory that others", text)]
    most = max((got for got, _, _ in outs), default=0)
    whole = [us for got, us, _ in outs if got == most]
    print(json.dumps({
        "jobs": [json.loads(line[0]) if line else None for line in results], "room_gib": options.room, "size_gib": options.size,
        "mode": options.mode, "bare_duplex_gb_s": bare,
        "moves_out": len(outs), "out_bytes": sum(got for got, _, _ in outs), "copied_bytes": sum(copied for _, _, copied in outs),
        "last_copied_mib": [copied >> 20 for _, _, copied in outs[-8:]], "largest_out_bytes": most,
        "out_ms": [round(us / 1e3) for us in sorted(whole)],
        "out_gb_s_middle": round(most / statistics.median(whole) / 1e3, 1) if whole else None,
        "largest_back_bytes": max((got for got, _, _ in backs), default=0), "trust": options.trust,
        "back": [{"gib": round(got / GIB, 2), "ms": round(us / 1e3), "gb_s": round(got / us / 1e3, 1),
                  "handed_over": round(taken / got, 2)} for got, us, taken in sorted(backs)[-12:] if got],
    }), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--room", type=float, default=12)
    parser.add_argument("--size", type=float, default=8)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--mode", default="exclusive")
    parser.add_argument("--quantum", default="300ms")
    parser.add_argument("--job", choices=["job", "pattern", "weights"], default="job",
                        help="pattern: PyTorch, all words compared in every round; weights: most of it is read and does not change")
    parser.add_argument("--graphs", type=int, default=1, help="of a job of --job pattern: how many it instantiates")
    parser.add_argument("--program", type=pathlib.Path, help="instead of a job: a program that takes --bytes, --seconds and --seed and prints "
                                                             "such a line (programs/features.cu)")
    parser.add_argument("--trust", default="user", help="none: nothing is handed over from program to program")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for what rotad and the jobs say")
    parser.add_argument("--percent", type=int, help="instead of a measurement of switches: two jobs that use the GPU for so much of the time, "
                                                    "each as long as --seconds alone, against one after the other")
    parser.add_argument("--burst-ms", type=int, default=1000, help="of such a job: how long it uses the GPU at a time")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.part:
        driver_library()  # without a context: this process takes nothing of the GPU
        return totals(options) if options.percent else measure(options)
    name, *arguments = options.part
    if name == "copier":
        return copier(arguments[0])
    return {"ballast": ballast, "job": job, "pattern": pattern, "weights": weights, "work": work, "calibrate": calibrate}[name](*map(int, arguments))


if __name__ == "__main__":
    main()
