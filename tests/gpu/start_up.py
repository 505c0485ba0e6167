#!/usr/bin/env python3
"""How long a program takes from its start to its first result: natively, and under `rota run` with a rotad that is running.

    tests/gpu/start_up.py --build DIR [--pairs 20] [--only REGEX]

Whole processes, one at a time, natively and under rota in turns, with which of the two comes first changing from pair to pair: a program
of the driver's API that makes a context, allocates 64 MiB, sets and reads it, and PyTorch's first tensor. Two of each are run before, so
that files are in memory. Prints a line of JSON for each: the middle of the native seconds, the middle and the mean of the differences in ms
and the mean of the ratios, with 95% intervals, for the time until the allocation has returned and for the whole; `rule` says whether a
start takes at most 1.05 times the native time or 30 ms more, in the mean. Exits 77 where there is no GPU.
"""
import argparse
import importlib.util
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from swap_rig import MIB, Driver, add_options, driver_library, interval, own, served


def driver_start():
    driver = Driver()
    address = driver.allocate(64 * MIB)
    allocated = time.time()
    driver.call("cuMemsetD32_v2", address, 1, 16 * MIB)
    driver.call("cuCtxSynchronize")
    print(json.dumps(allocated), flush=True)


def torch_start():
    import torch

    tensor = torch.zeros(1 << 24, device="cuda")
    allocated = time.time()
    assert float(tensor.sum()) == 0
    print(json.dumps(allocated), flush=True)


PARTS = {"driver": driver_start, "torch": torch_start}


def taken(command, environment):
    """Seconds until it has allocated, and until it has ended."""
    begun, from_start = time.time(), time.monotonic()
    said = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=120)
    all_of_it = time.monotonic() - from_start
    assert said.returncode == 0, said.stderr[-1500:]
    return json.loads(said.stdout.splitlines()[-1]) - begun, all_of_it


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=None, mode="automatic", quantum="automatic")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    driver_library()
    with served(options) as rig:
        environment = {name: value for name, value in rig.environment.items() if name != "ROTA_LOG"}
        for part in PARTS:
            if not re.search(options.only, part) or (part == "torch" and importlib.util.find_spec("torch") is None):
                continue
            native = own(part, script=__file__)
            both = [native, [pathlib.Path(options.build) / "bin/rota", "run", "--", *native]]
            for command in both * 2:
                taken(command, environment)
            pairs = []
            for number in range(options.pairs):
                order = (0, 1) if number % 2 == 0 else (1, 0)
                times = {which: taken(both[which], environment) for which in order}
                pairs.append((times[0], times[1]))
            line = {"part": "start-up", "program": part, "pairs": options.pairs}
            for what, name in ((0, "until_allocated"), (1, "whole")):
                more = [1000 * (rota[what] - native[what]) for native, rota in pairs]
                ratio, half = interval([rota[what] / native[what] for native, rota in pairs])
                mean, width = interval(more)
                line[name] = {"native_s": round(statistics.median(native[what] for native, _ in pairs), 3), "more_ms": round(mean, 1),
                              "more_ms_middle": round(statistics.median(more), 1),
                              "more_ms_interval": [round(mean - width, 1), round(mean + width, 1)], "ratio": round(ratio, 3),
                              "ratio_interval": [round(ratio - half, 3), round(ratio + half, 3)], "rule": ratio <= 1.05 or mean <= 30}
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        PARTS[sys.argv[2]]()
    else:
        sys.exit(main())
