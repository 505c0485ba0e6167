#!/usr/bin/env python3
"""Programs whose plain device memory really does not fit together, swapped by rota, on a GPU: how long a switch takes.

    tests/gpu/swap.py --build DIR [--room 9.6] [--size 8] [--jobs 2] [--seconds 15] [--mode exclusive] [--quantum 300ms]
                      [--job renewer] [--graphs 60] [--own] [--piece 256M]

A ballast (a plain cuMemAlloc of a process without rota) leaves --room GiB of the GPU free; then --jobs programs of --size
GiB each run under `rota run --memory swap`, with a rotad of their own. Each (tests/programs/renewer of the build) checks
all of its words in every round and writes them anew: a word's value says its place and the round in which it was
written. Nothing here is managed memory. What it takes it gives back, what it starts it ends.

Prints one line of JSON: what each job said, and of the switches (swap_switches.py), as [10%, median, 90%] of those that
move nearly all: the copies from the first byte to the last (`copies_*`), the whole switch with drain and messages
(`whole_*`), each also as a share of what bare copies in both directions reach between two processes in the same run,
before and after. The first switches, which also allocate host memory, are listed separately (`first`).
Exits 77 where there is no GPU.
"""
import argparse
import ctypes
import functools
import json
import mmap
import pathlib
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the folder may be read-only
import swap_rig
import swap_switches
from swap_rig import GIB, PIECE, Driver, add_options, answer, driver_library, duplex, go, ready, say, served, settle_room, start, under_rota

own = functools.partial(swap_rig.own, script=__file__)


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
    """Sets each of them to a value, and waits for that."""
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
    """How often this much memory can be set in a second."""
    driver = Driver()
    pieces = pieces_of(driver, size)
    counts = 0
    driver.call("cuCtxSynchronize")
    begun = time.monotonic()
    while time.monotonic() - begun < 1:
        sweep(driver, pieces, [counts])
        counts += 1
    say(json.dumps(counts / (time.monotonic() - begun)))


def touch(size):
    """Touches this much of the host's memory. A virtual machine may get memory only when it first touches it, which takes seconds for the
    memory of a job. It has to happen before jobs are timed, as on a machine that has been in use."""
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, mmap.PAGESIZE):
        memory[at] = 1


def totals(options):
    """The time of two jobs that do not fit together, compared with running them one after the other: twice the native time of one."""
    subprocess.run(own("touch", int(2.2 * options.size * GIB)), check=True)
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


def commands(options):
    """What the jobs run."""
    size = int(options.size * GIB)
    for number in range(1, options.jobs + 1):
        if options.program:
            yield [options.program, "--bytes", size, "--seconds", f"{options.seconds:g}", "--seed", number]
        elif options.job == "renewer":
            yield [options.build / "tests/programs/renewer", "--bytes", size, "--seconds", f"{options.seconds:g}", "--seed", number,
                   "--piece", options.piece, "--graphs", options.graphs or 0, *(["--own"] if options.own else [])]
        else:
            yield own(options.job, size, round(options.seconds), number, *([options.graphs or 1] if options.job == "pattern" else []))


def measure(options):
    bare_size = min(GIB, int(options.room * GIB) // 4)
    bare = [duplex(bare_size)]
    with served(options) as rig:
        jobs = [rig.start(f"job{number}", command) for number, command in enumerate(commands(options))]
        results = [each.communicate(timeout=options.seconds * 8 + 120)[0].splitlines()[-1:] for each in jobs]
        codes = [each.returncode for each in jobs]
    errors = [rig.said(f"job{number}")[-400:] for number, code in enumerate(codes) if code]
    bare.append(duplex(bare_size))
    found = swap_switches.switches(rig.final_events(), [rig.said(f"job{number}") for number in range(options.jobs)])
    print(json.dumps({
        "jobs": [json.loads(line[0]) if line and line[0].startswith("{") else None for line in results], "exits": codes, **({"errors": errors} if errors else {}), "room_gib": options.room,
        "size_gib": options.size, "kind": options.job, "own": options.own, "piece": options.piece, "graphs": options.graphs, "mode": options.mode,
        "quantum": options.quantum, "trust": options.trust, **swap_switches.report(found, bare)}), flush=True)
    return int(any(codes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--job", choices=["renewer", "pattern", "weights"], default="renewer",
                        help="renewer: all is compared and written anew; pattern: PyTorch, all words compared in every round; weights: most of it is read and does not change")
    parser.add_argument("--graphs", type=int, help="how many graphs a job instantiates, for its rounds (pattern, renewer)")
    parser.add_argument("--own", action="store_true", help="renewer: memory of its own making (cuMemCreate)")
    parser.add_argument("--piece", default="256M", help="renewer: how large its allocations are")
    parser.add_argument("--program", type=pathlib.Path, help="instead of a job: a program that takes --bytes, --seconds and --seed and prints "
                                                             "such a line (programs/features.cu)")
    parser.add_argument("--percent", type=int, help="instead of a measurement of switches: two jobs that use the GPU for so much of the time, "
                                                    "each as long as --seconds alone, against one after the other")
    parser.add_argument("--burst-ms", type=int, default=1000, help="of such a job: how long it uses the GPU at a time")
    options = parser.parse_args()
    if not options.part:
        driver_library()  # without a context: this process takes nothing of the GPU
        settle_room(options)
        return totals(options) if options.percent else measure(options)
    name, *arguments = options.part
    return {"pattern": pattern, "weights": weights, "work": work, "calibrate": calibrate, "touch": touch}[name](*map(int, arguments))


if __name__ == "__main__":
    sys.exit(main())
