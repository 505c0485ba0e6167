#!/usr/bin/env python3
"""Every forced swap, proven from outside: what the driver says is free, asked by a process without rota (the ballast).

    tests/gpu/swap_proof.py --build DIR [--room 3.4] [--size 2] [--other 1.6] [--cycles 20] [--trust none] [--logs DIR]

One program of --size GiB (tests/programs/renewer of the build) rests. In each cycle one of --other GiB starts, which takes
the room, works and ends. Then
    free = free before + the bytes that the first says it has evicted          within 2 MiB
and once the first has worked again and compared all of its words, free is what it was before the cycle. While the other is
there, free says what it has besides its memory: its context, the same each time. With --trust user rotad also counts what is
handed over: the other cannot have taken over more.

Prints a line of JSON; the exit status is 1 if any cycle was not as it should be, and 77 where there is no GPU. Plain memory only.
"""
import argparse
import json
import sys
import time

sys.dont_write_bytecode = True
import swap_switches
from swap_rig import GIB, MIB, add_options, ask, await_line, driver_library, served, settle_room

TOLERANCE = 2 * MIB
PATIENCE = 5


def free_once_it_is(rig, wanted):
    """The driver takes a moment to take back what an ended process had. What is free in the end, whatever it is."""
    until = time.monotonic() + PATIENCE
    while abs((free := rig.free_bytes()) - wanted) > TOLERANCE and time.monotonic() < until:
        time.sleep(0.005)
    return free


def handed_over(rig):
    """As rotad counts it."""
    return rig.status()["gpus"][0]["handed_over_bytes"]


def cycle(rig, first, number, options):
    name = f"other{number}"
    before, out_before, handed_before = rig.free_bytes(), len(swap_switches.Said(rig.said("first")).outs), handed_over(rig)
    other = rig.start(name, [options.build / "tests/programs/renewer", "--bytes", int(options.other * GIB), "--piece", options.piece,
                             "--seed", number, "--asked"])
    await_line(other, "ready")
    worked = ask(other)
    beside = rig.free_bytes()
    other.communicate(timeout=60)
    out = sum(left for _, _, left, _ in swap_switches.Said(rig.said("first")).outs[out_before:])
    after = free_once_it_is(rig, before + out)
    back = ask(first)
    again = free_once_it_is(rig, before)
    taken = sum(over for backs in swap_switches.Said(rig.said(name)).backs.values() for _, _, over, _ in backs)
    return {"out": out, "rose_by": after - before, "fell_by": after - again, "wrong": worked["wrong"] + back["wrong"] + int(other.returncode != 0),
            "beside": before + out - worked["bytes"] - beside, "handed": handed_over(rig) - handed_before, "taken": taken,
            "proven": out > 0 and abs(after - before - out) <= TOLERANCE and abs(again - before) <= TOLERANCE}


def measure(options):
    with served(options) as rig:
        first = rig.start("first", [options.build / "tests/programs/renewer", "--bytes", int(options.size * GIB), "--piece", options.piece, "--asked"])
        await_line(first, "ready")
        ask(first)
        warm = cycle(rig, first, 0, options)  # what rota loads with the first move stays
        cycles = [cycle(rig, first, number, options) for number in range(1, options.cycles + 1)]
        first.communicate(timeout=60)
    right = all(each["proven"] and each["wrong"] == 0 and each["taken"] <= each["handed"] <= each["out"] for each in cycles) and not first.returncode
    print(json.dumps({
        "part": "proof", "trust": options.trust, "cycles": len(cycles), "proven": sum(each["proven"] for each in cycles), "right": right,
        "wrong": sum(each["wrong"] for each in [warm, *cycles]), "out_bytes": sum(each["out"] for each in cycles),
        "free_rose_by": sum(each["rose_by"] for each in cycles), "largest_difference": max(abs(each["rose_by"] - each["out"]) for each in cycles),
        "handed_over_by_rotad": sum(each["handed"] for each in cycles), "taken_over_by_the_others": sum(each["taken"] for each in cycles),
        "others_besides_their_memory_mib": sorted({round(each["beside"] / MIB) for each in cycles}),
        "not_proven": [each for each in cycles if not each["proven"]][:3]}), flush=True)
    return int(not right)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=3.4, size=2, quantum="100ms")
    parser.add_argument("--other", type=float, default=1.6)
    parser.add_argument("--piece", default="256M")
    parser.add_argument("--cycles", type=int, default=20)
    options = parser.parse_args()
    driver_library()
    settle_room(options)
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
