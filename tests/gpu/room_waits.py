#!/usr/bin/env python3
"""Programs whose memory rota does not move, where one fits at a time: which of them wait, and what a refusal costs.

    tests/gpu/room_waits.py --build DIR [--room 6] [--size 3.5] [--pairs 5] [--alone] [--logs DIR]

In what a ballast leaves free, with the driver's own memory (`--memory native`): three programs take --size GiB each in one allocation, write it and
end a second later; three grow to it in 20 steps; the same without rota. Then one program alone takes pieces of 64 MiB until it is refused, without
rota, and under rota with native memory and by default, in pairs. Prints a line of JSON for each. The exit status is 1 unless all three of the first
and at least one of the second end well under rota, none takes longer than 90 s, and a program alone gets as far as natively; 77 where there is no
GPU. Plain device memory only.
"""
import argparse
import ctypes
import functools
import json
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import swap_filled
import swap_rig
from swap_rig import GIB, MIB, add_options, answer, driver_library, go, ready, say, served, start

own = functools.partial(swap_rig.own, script=__file__)
PATIENCE = 90
STEPS = 20
PIECE = 64 * MIB


class Taker(swap_filled.Filler):
    def takes(self, size):
        """Whether it was given so many bytes, which it then has written."""
        address = self.tries(size)
        if address is not None:
            self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), ctypes.c_size_t(size))
            self.call("cuCtxSynchronize")
        return address is not None


def grows(size, steps):
    """Takes `size` bytes in so many steps, works for a second, and ends; says after how many steps it was refused."""
    taker = Taker()
    ready()
    begun, had = time.monotonic(), 0
    while had < steps and taker.takes(size // steps):
        had += 1
        time.sleep(1 / steps)
    say(json.dumps({"had": had, "seconds": round(time.monotonic() - begun, 2)}))


def fills():
    """Takes pieces until it is refused. `first` and `refused`: how long the first piece took, and the refusal."""
    taker = Taker()
    times, taken = [], True
    while taken:
        begun = time.monotonic()
        taken = taker.takes(PIECE)
        times.append(time.monotonic() - begun)
    say(json.dumps({"had": len(times) - 1, "seconds": sum(times), "first": times[0], "refused": times[-1]}))


def until_refused(rig, mode, pairs):
    """One program alone, natively and under rota in this mode, in pairs."""
    def median(of):
        return round(statistics.median(map(of, done)), 3)

    done = []
    for index in range(pairs):
        native = answer(start(own("fills")), timeout=PATIENCE)
        under = answer(rig.start(f"fills-{mode}-{index}", ["env", f"ROTA_MEMORY={mode}", *own("fills")]), timeout=PATIENCE)
        done.append((native, under))
    ratios = [under["seconds"] / native["seconds"] for native, under in done]
    say(json.dumps({"part": "until refused", "mode": mode, "pairs": pairs, "ratio": median(lambda pair: pair[1]["seconds"] / pair[0]["seconds"]),
                    "without_first": median(lambda pair: (pair[1]["seconds"] - pair[1]["first"]) / (pair[0]["seconds"] - pair[0]["first"])),
                    "ratios": [round(each, 3) for each in ratios], "pieces": [[native["had"], under["had"]] for native, under in done],
                    **{f"{name}_ms": [[round(1e3 * each[name], 2) for each in pair] for pair in done] for name in ("seconds", "first", "refused")}}))
    return all(under["had"] >= native["had"] - 1 for native, under in done)


def three(options, rig, steps, native):
    command = own("grows", int(options.size * GIB), steps)
    begun = time.monotonic()
    programs = [start(command) if native else rig.start(f"grows{steps}-{index}", ["env", "ROTA_MEMORY=native", *command]) for index in range(3)]
    go(*programs)
    said = []
    for each in programs:
        try:
            said.append(answer(each, timeout=PATIENCE))
        except subprocess.TimeoutExpired:
            said.append({"had": -1, "seconds": PATIENCE})
    return {"well": sum(each["had"] == steps for each in said), "had": [each["had"] for each in said], "hung": sum(each["had"] < 0 for each in said),
            "seconds": round(time.monotonic() - begun, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=6, size=3.5, mode="automatic", quantum="automatic")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="only what one program alone does")
    options = parser.parse_args()
    if options.part:
        return {"grows": grows, "fills": fills}[options.part[0]](*map(int, options.part[1:]))
    driver_library()
    well = True
    with served(options) as rig:
        for steps in () if options.alone else (1, STEPS):
            natively, under = three(options, rig, steps, True), three(options, rig, steps, False)
            well = well and under["hung"] == 0 and under["well"] >= (3 if steps == 1 else 1)
            say(json.dumps({"part": "three", "steps": steps, "natively": natively, "rota": under}))
        for mode in ("native", "auto"):
            well = until_refused(rig, mode, options.pairs) and well
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
