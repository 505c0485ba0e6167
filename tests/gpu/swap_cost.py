#!/usr/bin/env python3
"""What allocating costs in swap mode, against the driver; and what a program of its own memory costs to move.

    tests/gpu/swap_cost.py --build DIR [--only allocate|stream|own] [--sizes 64K 2M 64M 1G] [--repeats 5]

allocate  cuMemAlloc and cuMemFree of each size, cold (nothing of that size was freed before) and warm, in processes that run natively
          and under `rota run --memory swap` in turn (tests/programs/alloc_cost of the build). The figures are the medians of the
          processes' means, and rota's over native.
stream    cuMemAllocAsync and cuMemFreeAsync in a stream, by themselves and around a short kernel (alloc_cost --stream-ordered), likewise;
          and of many sizes, with other work between the calls, which takes the processor's caches (alloc_cost --among-others).
own       two programs with memory of their own making (cuMemCreate) in pieces of 2, 20, 64 and 256 MiB, which swap: what a moved GiB
          takes (swap.py --own --piece), next to a ballast.

Prints a line of JSON for each. Exits 77 where there is no GPU. Plain memory only.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from swap_rig import add_options, driver_library

HERE = pathlib.Path(__file__).resolve().parent
CALLS = ("cold_alloc", "first_free", "warm_alloc_and_free")


def in_turn(options, *arguments):
    """What alloc_cost says natively and under rota, in turn: lists of what it printed, and what failures said."""
    program = options.build / "tests/programs/alloc_cost"
    with tempfile.TemporaryDirectory(prefix="rota-cost-", ignore_cleanup_errors=True) as folder:
        environment = dict(os.environ, ROTA_SOCKET=f"{folder}/rotad.sock", ROTA_LOCK_DIRECTORY=f"{folder}/locks", ROTA_LOG="warn")
        prefixes = {"native": [], "rota": [options.build / "bin/rota", "run", "--memory", "swap", "--"]}
        taken, failed = {who: [] for who in prefixes}, []
        for number in range(options.repeats):
            for who in list(prefixes)[::1 if number % 2 else -1]:
                done = subprocess.run(list(map(str, [*prefixes[who], program, *arguments])), env=environment, capture_output=True, text=True)
                if done.returncode != 0:
                    failed.append(done.stderr.strip()[-200:])
                    continue
                taken[who].append(json.loads(done.stdout))
    return taken, failed


def compared(taken, figure):
    """The medians of a figure, and rota's over native."""
    medians = {who: statistics.median(map(figure, values)) for who, values in taken.items() if values}
    return {**{f"{who}_us": round(value, 3) for who, value in medians.items()},
            "rota_over_native": round(medians["rota"] / medians["native"], 3) if len(medians) == 2 else None}


def allocate(options):
    for size in options.sizes:
        taken, failed = in_turn(options, "--bytes", size)
        line = {"part": "allocate", "size": size, "repeats": options.repeats, "failed": failed[:2]}
        for call in CALLS:
            line[call] = {**compared(taken, lambda each, call=call: each[call]["mean"]),
                          "longest_us": {who: max(each[call]["max"] for each in values) for who, values in taken.items() if values}}
        print(json.dumps(line), flush=True)


def stream_ordered(options):
    for size in ("4K", "2M"):
        taken, failed = in_turn(options, "--bytes", size, "--stream-ordered")
        line = {"part": "stream", "size": size, "repeats": options.repeats, "failed": failed[:2]}
        for figure in ("pair", "kernel", "pair_and_kernel"):
            line[figure] = compared(taken, lambda each, figure=figure: each[figure])
        print(json.dumps(line), flush=True)
    taken, failed = in_turn(options, "--among-others")
    line = {"part": "stream", "size": "many, among other work", "repeats": options.repeats, "failed": failed[:2]}
    for figure in ("allocation", "free"):
        line[figure] = compared(taken, lambda each, figure=figure: each[figure])
    print(json.dumps(line), flush=True)


def moves_of_own_memory(options):
    for piece in options.pieces:
        command = [sys.executable, "-B", HERE / "swap.py", "--build", options.build, "--own", "--piece", piece]
        for name in ("room", "size", "seconds", "quantum", "trust"):
            command += [f"--{name}", getattr(options, name)]
        if options.logs:
            command += ["--logs", options.logs]
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        said = json.loads(done.stdout.splitlines()[-1])
        moved = {name: said.get(name) for name in ("in_gib", "out_gib", "copies_ms", "copies_share", "whole_ms", "whole_share", "full", "jobs", "bare_duplex_gb_s")}
        per_gib = round(said["whole_ms"][1] / said["in_gib"][1], 1) if said.get("full") else None
        print(json.dumps({"part": "own", "piece": piece, "whole_ms_per_gib_in": per_gib, **moved}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=5.2, size=4, seconds=10)
    parser.add_argument("--only", choices=["allocate", "stream", "own"])
    parser.add_argument("--sizes", nargs="+", default=["64K", "2M", "64M", "1G"])
    parser.add_argument("--pieces", nargs="+", default=["2M", "20M", "64M", "256M"])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    driver_library()
    options.build = options.build.resolve()
    for part, run in (("allocate", allocate), ("stream", stream_ordered), ("own", moves_of_own_memory)):
        if options.only in (None, part):
            run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
