#!/usr/bin/env python3
"""Programs in turns of a fixed order, of which not all fit at a time: how many bytes are evicted, compared with the least that suffices.

    tests/gpu/swap_order.py --build DIR [--jobs 3] [--size 3] [--room 8] [--seconds 15] [--quantum 300ms]

Each of --jobs programs (tests/programs/renewer of the build) has --size GiB, and in --room GiB less their contexts two of three fit.
The least is Belady's, over the grants that rotad's event log shows: with each grant, all of that program's memory has to be there, and memory of the program whose next turn is furthest away is evicted, in whole extents of --extent.

Prints a line of JSON. Exits 77 where there is no GPU. Plain device memory only.
"""
import argparse
import json
import sys

sys.dont_write_bytecode = True
import swap_switches
from swap_rig import GIB, MIB, add_options, await_line, driver_library, served, settle_room, tell


def least(order, sizes, resident, capacity, extent, next_of=None):
    """Bytes that are evicted over these grants. order: clients; resident: bytes of each on the GPU before; next_of(position, client): at which
    position its next turn is (the default knows the order; for others see least_recently_used)."""
    resident, out = dict(resident), 0
    next_of = next_of or (lambda position, client: next((at for at in range(position + 1, len(order)) if order[at] == client), len(order)))
    for position, client in enumerate(order):
        resident[client] = sizes[client]
        too_much = sum(resident.values()) - capacity
        for other in sorted((each for each in resident if each != client), key=lambda each: -next_of(position, each)):
            if too_much <= 0:
                break
            leaves = min(resident[other], -(-too_much // extent) * extent)
            resident[other] -= leaves
            too_much -= leaves
            out += leaves
    return out


def least_recently_used(order):
    """For least(): evicts memory of the program that ran longest ago."""
    return lambda position, client: -max((at for at in range(position) if order[at] == client), default=-1)


def books(events):
    """From rotad's event log: (time, client, bytes that it has, of them on the GPU), as they change."""
    client = swap_switches.clients(events)
    for line in events.splitlines():
        words = line.split()
        if len(words) >= 7 and words[1] == "usage":
            yield int(words[0]), client[int(words[2])], int(words[4]), int(words[6])


def compare(events, logs, capacity, extent, turns_before=1):
    """Compares over the grants from the first with which every program has had `turns_before` turns that moved memory, to the last before a program ends."""
    leave = next((int(line.split()[0]) for line in events.splitlines() if line.split()[1:2] == ["leave"]), float("inf"))
    all_grants = [grant for grant in swap_switches.grants(events) if grant[0] < leave]
    said = [swap_switches.Said(log) for log in logs]
    clients = {each.client for each in said}
    # Since their memory was complete: a program says so by the first grant with which all of it came back.
    complete = max(min((when for backs in each.backs.values() for whole, got, _, when in backs if whole and got), default=float("inf")) for each in said)
    counted = [grant for grant in all_grants if grant[0] > complete and grant[1] in clients]
    turns = {client: 0 for client in clients}
    while counted and min(turns.values()) < turns_before:
        turns[counted.pop(0)[1]] += 1
    if len(counted) < 2:
        return {"grants": len(counted)}
    begin, end = counted[0][0], counted[-1][0]
    sizes, resident = {}, {}
    for at, client, has, there in books(events):
        if client in clients:
            if at < begin:
                resident[client] = there
            if at < end:
                sizes[client] = max(sizes.get(client, 0), has)
    order = [client for _, client, _, _ in counted[:-1]]
    outs = sum(left for each in said for begun, _, left, _ in each.outs if begin <= begun < end)
    best = least(order, sizes, resident, capacity, extent)
    return {"grants": len(order), "out_bytes": outs, "least": best, "of_the_least": round(outs / best, 3) if best else None,
            "least_recently_used": least(order, sizes, resident, capacity, extent, least_recently_used(order)),
            "capacity": capacity, "sizes": sorted(sizes.values()), "in_turn": "".join("abcdefgh"[sorted(clients).index(each)] for each in order[:12])}


def measure(options):
    with served(options) as rig:
        jobs = [rig.start(f"job{number}", [options.build / "tests/programs/renewer", "--late", "--bytes", int(options.size * GIB), "--piece", options.piece,
                                           "--seconds", f"{options.seconds:g}", "--seed", number + 1]) for number in range(options.jobs)]
        for each in jobs:
            await_line(each, "context")
        capacity = rig.free_bytes()
        for each in jobs:
            tell(each)
        said = [json.loads(each.communicate(timeout=options.seconds * 8 + 120)[0].splitlines()[-1]) for each in jobs]
    compared = compare(rig.final_events(), [rig.said(f"job{number}") for number in range(options.jobs)], capacity, int(options.extent * MIB))
    print(json.dumps({"part": "order", "jobs": said, "room_gib": options.room, "size_gib": options.size, "trust": options.trust, **compared}), flush=True)
    return int(any(each["wrong"] for each in said))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=8, size=3, jobs=3)
    parser.add_argument("--piece", default="128M")
    parser.add_argument("--extent", type=float, default=128, help="MiB")
    options = parser.parse_args()
    driver_library()
    settle_room(options)
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
