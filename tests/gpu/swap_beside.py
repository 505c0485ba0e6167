#!/usr/bin/env python3
"""What programs notice of others that do not fit next to them, on a GPU that a ballast fills up to --room GiB (swap.py).

    tests/gpu/swap_beside.py --build DIR [--only interactive|launches|keeper] [--room 9.6] [--size 8] [--seconds 20] [--logs DIR]

interactive  one that uses all of its --size GiB for --burst-ms at a time and then rests for --think seconds, next to one of the
             same size that never rests: how long a burst takes, against alone natively, and what part the other gets of
             the time that is left.
launches     one of 256 MiB that launches and synchronises all the time, next to two of --size GiB that swap: how long a launch
             takes while memory moves and while none does, against alone natively.
keeper       one that keeps mappings of its memory behind rota's back (tests/programs/keeper of the build), next to memhog: what it
             sees of the other's, with --trust none, which has to be nothing, and with --trust user, which has to be something, or
             the run proves nothing ("proves": false). The exit status is 1 unless both are so.

Plain device memory only. Prints a line of JSON for each. Exits 77 where there is no NVIDIA GPU.
"""
import argparse
import ctypes
import functools
import json
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the folder may be read-only
import swap
import swap_switches
from share import percentile
from swap import pieces_of, sweep
from swap_rig import EXTENT, answer, go, ready, tell

own = functools.partial(swap.own, script=__file__)


def bursts(size, repeats, count, think_ms):
    driver = swap.Driver()
    pieces = pieces_of(driver, size)
    sweep(driver, pieces, [0])
    choose = random.Random(1)
    times = []
    ready()
    for _ in range(count):
        time.sleep(think_ms / 1e3 * choose.uniform(0.75, 1.25))
        begun = time.monotonic()
        sweep(driver, pieces, range(repeats))
        times.append(round((time.monotonic() - begun) * 1e3, 2))
    swap.say(json.dumps(times))


def batch(size, repeats):
    """Until its standard input has a second line: how many sweeps a second."""
    driver = swap.Driver()
    pieces = pieces_of(driver, size)
    sweep(driver, pieces, [0])
    end = threading.Event()
    ready()
    threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
    begun, count = time.monotonic(), 0
    while not end.is_set():
        sweep(driver, pieces, range(repeats))
        count += repeats
    swap.say(json.dumps(count / (time.monotonic() - begun)))


def launches(seconds):
    driver = swap.Driver()
    piece = driver.allocate(swap.PIECE)
    ready()
    taken, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        driver.call("cuMemsetD32Async", piece, ctypes.c_uint(1), ctypes.c_size_t(1024), None)
        launched = time.monotonic()
        driver.call("cuCtxSynchronize")
        taken.append((round(begun, 6), round((launched - begun) * 1e6, 1), round((time.monotonic() - begun) * 1e6, 1)))
        time.sleep(0.0002)
    swap.say(json.dumps(taken))


def beside_a_batch_job(options):
    size = int(options.size * swap.GIB)
    alone_rate = answer(swap.start(swap.own("calibrate", size)))
    repeats = max(1, round(alone_rate * options.burst_ms / 1e3))
    count = max(3, round(options.seconds / (options.think + options.burst_ms / 1e3)))
    job = own("bursts", size, repeats, count, round(options.think * 1e3))
    single = swap.start(own("bursts", size, repeats, 20, 100))
    go(single)
    alone = answer(single)
    with swap.served(options) as (folder, environment, running):
        for name, command in (("batch", own("batch", size, 1)), ("bursts", job)):
            running.append(swap.start([*swap.under_rota(options), *command], env=environment, stderr=open(folder / f"{name}.log", "w")))
        other, one = running
        go(other, one)
        begun = time.monotonic()
        times = answer(one)
        whole = time.monotonic() - begun
        tell(other)
        rate = answer(other)
        moves = len(re.findall("bytes moved out in", (folder / "batch.log").read_text()))
    used = count * percentile(alone, 0.5) / 1e3 / whole
    return {"alone_p50_ms": percentile(alone, 0.5), "bursts": count, **{f"p{round(part * 100)}_ms": percentile(times, part) for part in (0.5, 0.95, 0.99)},
            "longest_ms": max(times), "moves_out_of_batch": moves, "batch_part_of_the_rest": round(rate / alone_rate / (1 - used), 3),
            "mode": options.mode, "quantum": options.quantum, "think_s": options.think, "size_gib": options.size}


class Moves:
    """When memory of a program moved, by what its rota says."""

    def __init__(self, program, log):
        self.spans = []
        self.thread = threading.Thread(target=self.read, args=(program.stderr, log))
        self.thread.start()

    def read(self, lines, log):
        with open(log, "w") as file:
            for line in lines:
                file.write(line)
                found = re.search(r"bytes moved out in (\d+) us|memory back after (\d+) us", line)
                if found:
                    now = time.monotonic()
                    self.spans.append((now - int(found[1] or found[2]) / 1e6, now))


def during_moves(options):
    size = int(options.size * swap.GIB)
    single = swap.start(own("launches", 3))
    go(single)
    alone = answer(single)
    with swap.served(options) as (folder, environment, running):
        commands = [own("batch", size, 1), own("batch", size, 1), own("launches", options.seconds)]
        running += [swap.start([*swap.under_rota(options), *command], env=environment, stderr=subprocess.PIPE) for command in commands]
        moves = [Moves(each, folder / f"job{number}.log") for number, each in enumerate(running)]
        go(*running)
        taken = json.loads(running[2].stdout.readline())
        for each in running[:2]:
            tell(each)
            each.stdout.readline()
        for each in running:
            each.wait(timeout=120)
        for each in moves:
            each.thread.join()
    spans = sorted(span for each in moves for span in each.spans)
    meanwhile = [any(begin <= at <= end for begin, end in spans) for at, *_ in taken]

    def said(calls):
        return {name: {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values)}
                for name, values in (("launch_us", [call[1] for call in calls]), ("whole_us", [call[2] for call in calls]))} if calls else None
    return {"moves": len(spans), "moving_s": round(sum(end - begin for begin, end in spans), 2), "mode": options.mode, "quantum": options.quantum,
            "alone": said(alone), "while_memory_moves": said([call for call, inside in zip(taken, meanwhile) if inside]),
            "otherwise": said([call for call, inside in zip(taken, meanwhile) if not inside]), "calls": len(taken), "calls_while_memory_moves": sum(meanwhile)}


def kept_mappings(options, trust):
    """What a keeper of --keep pieces sees while it and memhog take turns."""
    options.trust = trust
    pieces = max(8, -(-int(options.size * swap.GIB) // EXTENT))  # none larger than an extent
    bytes = ["--bytes", int(options.size * swap.GIB)]
    with swap.served(options) as rig:
        programs = []
        for name, command in (("keeper", ["--pieces", pieces, "--keep", options.keep]), ("memhog", ["--hold"])):
            programs.append(rig.start(name, [options.build / "tests/programs" / name, *command, *bytes]))
            line = programs[-1].stdout.readline()
            assert line == "ready\n", rig.said(name)[-1000:]
        time.sleep(options.seconds)
        keeper, hog = map(answer, programs)
        outs = [left for _, _, left, _ in swap_switches.Said(rig.said("keeper")).outs if left]
    return {"kept_pieces": keeper["kept"], "kept_pieces_that_left": keeper["left"], "looks": keeper["looks"], "looks_while_away": keeper["looks_while_away"],
            "words_seen": keeper["foreign"], "wrong": keeper["wrong"] + hog["wrong"], "keeper_rounds": keeper["rounds"], "memhog_rounds": hog["rounds"],
            "moves_out": len(outs), "out_bytes": sum(outs)}


def keeps_a_mapping(options):
    """Across domains the keeper may see nothing, which proves something only if it does see memory within one domain."""
    seen = {trust: kept_mappings(options, trust) for trust in ("none", "user")}
    proves = all(each["kept_pieces_that_left"] and each["looks_while_away"] for each in seen.values()) and seen["user"]["words_seen"] > 0
    right = seen["none"]["words_seen"] == 0 and not any(each["wrong"] for each in seen.values())
    return {"proves": proves, "right": right, **seen}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--only", choices=["interactive", "launches", "keeper"])
    parser.add_argument("--room", type=float, default=9.6)
    parser.add_argument("--size", type=float, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--mode", default="automatic")
    parser.add_argument("--quantum", default="automatic")
    parser.add_argument("--trust", default="user")
    parser.add_argument("--burst-ms", type=int, default=50)
    parser.add_argument("--think", type=float, default=2)
    parser.add_argument("--keep", type=int, default=3, help="how many pieces the keeper keeps: with --trust none they are missing from then on")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for what rotad and the programs say")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        name, *arguments = options.part
        return {"bursts": bursts, "batch": batch, "launches": launches}[name](*map(int, arguments))
    swap.driver_library()  # without a context: this process takes nothing of the GPU
    good = True
    for name, measured in (("interactive", beside_a_batch_job), ("launches", during_moves), ("keeper", keeps_a_mapping)):
        if options.only in (None, name):
            found = measured(options)
            print(json.dumps({"part": name, **found}), flush=True)
            good &= found.get("right", True) and found.get("proves", True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
