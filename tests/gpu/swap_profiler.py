#!/usr/bin/env python3
"""PyTorch's profiler (CUPTI) is first used in a program whose memory has been evicted.

    tests/gpu/swap_profiler.py --build DIR [--room 3.4] [--size 1] [--rounds 3] [--logs DIR]

A program with --size GiB of PyTorch's next to tests/programs/memhog with half as much again, and a ballast. Once its memory is evicted and
memhog has ended, it profiles a few kernels, for which the memory is restored; every word is compared afterwards. First the same natively. Prints a line of JSON; the exit status is 1 if the profiler saw fewer kernels
than natively or a word was wrong, and 77 where there is no GPU or no PyTorch.
"""
import argparse
import functools
import importlib.util
import json
import os
import sys
import time

sys.dont_write_bytecode = True
import swap_rig
from swap_attach import PATIENCE, is_out, is_right
from swap_rig import GIB, add_options, ask, await_line, driver_library, end, served, settle_room, start

own = functools.partial(swap_rig.own, script=__file__)
PART = 64 << 20  # words of a tensor


def program(size):
    """Answers each line with how many kernels the profiler has seen, and how many words were wrong."""
    import torch
    parts = [torch.arange(PART, dtype=torch.int32, device="cuda") + index for index in range(max(1, int(size) // (4 * PART)))]
    torch.cuda.synchronize()
    swap_rig.say("ready")
    for _ in sys.stdin:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for part in parts:
                part += 1
            torch.cuda.synchronize()
        kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA and event.count for event in profile.key_averages())
        for part in parts:
            part -= 1
        wrong = sum(int((part != torch.arange(PART, dtype=torch.int32, device="cuda") + index).sum()) for index, part in enumerate(parts))
        swap_rig.say(json.dumps({"kernels": kernels, "wrong": wrong}))
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=3.4, size=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.part:
        return program(options.part[1])
    driver_library()
    if importlib.util.find_spec("torch") is None:
        return 77
    settle_room(options)
    command = own("program", int(options.size * GIB))
    native = start(command)
    try:
        await_line(native, "ready")
        natively = ask(native)
    finally:
        end(native)
    rounds = []
    with served(options) as rig:
        profiled = rig.start("profiled", command)
        await_line(profiled, "ready")
        other = rig.start("other", [options.build / "tests/programs/memhog", "--bytes", int(1.5 * options.size * GIB), "--hold", "--ahead", 20])
        await_line(other, "ready")
        deadline = time.monotonic() + PATIENCE
        while not is_out(rig, profiled.pid) and time.monotonic() < deadline:
            time.sleep(0.005)
        right = is_right(other)  # it has ended: memory is restored with the profiled program's own work
        for _ in range(options.rounds):
            rounds.append({"out": is_out(rig, profiled.pid), **ask(profiled)})
        end(profiled)
    well = right and rounds[0]["out"] and all(each["wrong"] == 0 and each["kernels"] >= natively["kernels"] for each in rounds)
    print(json.dumps({"part": "profiler", "natively": natively, "rounds": rounds, "right": right}), flush=True)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
