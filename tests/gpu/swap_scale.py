#!/usr/bin/env python3
"""For scale: how fast other ways take a program's memory off the GPU, or let programs have more.

    tests/gpu/swap_scale.py --build DIR [--only checkpoint|unified] [--size 8] [--unified 2]

checkpoint  the driver's checkpoint of a process without rota that holds --size GiB (cuCheckpointProcessLock, Checkpoint, Restore, Unlock):
            seconds for each, and whether all words are there afterwards.
unified     one program of --unified GiB that fits (tests/programs/renewer of the build): rounds a second natively, in swap mode and with Unified
            Memory, in turn. Under ROTA_GPU_MEM_LIMIT=3G, so that no more than that is managed.

Prints a line of JSON for each. Exits 77 where there is no GPU.
"""
import argparse
import ctypes
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import swap_rig
from swap_rig import GIB, Driver, add_options, answer, await_line, driver_library, tell

own = functools.partial(swap_rig.own, script=__file__)
LIMIT_GIB = 3


def holder(size):
    driver = Driver()
    words = size // 4
    piece = driver.allocate(size)
    driver.call("cuMemsetD32_v2", piece, ctypes.c_uint(0x5a5a1234), ctypes.c_size_t(words))
    driver.call("cuCtxSynchronize")
    swap_rig.say("ready")
    sys.stdin.readline()
    word, wrong = ctypes.c_uint(), 0
    for at in range(0, words, max(1, words // 1000)):
        driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(piece.value + 4 * at), ctypes.c_size_t(4))
        wrong += word.value != 0x5a5a1234
    swap_rig.say(json.dumps({"wrong": wrong}))


def checkpoint(options):
    library = driver_library()
    size = int(options.size * GIB)
    process = swap_rig.start(own("holder", size))
    try:
        await_line(process, "ready")
        seconds, failed = {}, None
        for repeat in ("first", "second"):
            for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
                begun = time.monotonic()
                result = getattr(library, "cuCheckpointProcess" + step)(ctypes.c_int(process.pid), None)
                seconds.setdefault(step.lower(), []).append(round(time.monotonic() - begun, 3))
                if result != 0:
                    failed = f"{step}: CUDA error {result}"
                    break
            if failed:
                break
        line = {"part": "checkpoint", "gib": options.size, "seconds": seconds, "failed": failed}
        if not failed:
            tell(process)
            line["wrong"] = answer(process, 60)["wrong"]
            line["out_gb_s"] = [round(size / each / 1e9, 1) for each in seconds["checkpoint"]]
            line["back_gb_s"] = [round(size / each / 1e9, 1) for each in seconds["restore"]]
    finally:
        process.kill()
        process.wait()
    print(json.dumps(line), flush=True)


def unified(options):
    size = int(min(options.unified, LIMIT_GIB - 0.5) * GIB)
    program = [options.build / "tests/programs/renewer", "--bytes", size, "--piece", options.piece, "--seconds", f"{options.seconds:g}"]
    rates = {"native": [], "swap": [], "managed": []}
    with tempfile.TemporaryDirectory(prefix="rota-scale-", ignore_cleanup_errors=True) as folder:
        environment = dict(os.environ, ROTA_SOCKET=f"{folder}/rotad.sock", ROTA_LOCK_DIRECTORY=f"{folder}/locks", ROTA_GPU_MEM_LIMIT=f"{LIMIT_GIB}G")
        for _ in range(3):
            for how, values in rates.items():
                rota = [] if how == "native" else [options.build / "bin/rota", "run", "--memory", how, "--"]
                done = subprocess.run(list(map(str, [*rota, *program])), env=environment, capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, done.stderr[-500:]
                said = json.loads(done.stdout.splitlines()[-1])
                assert said["wrong"] == 0, said
                values.append(said["rounds"] / said["seconds"])
    middle = {how: statistics.median(values) for how, values in rates.items()}
    print(json.dumps({"part": "unified", "gib": round(size / GIB, 2), "rounds_a_second": {how: round(value, 2) for how, value in middle.items()},
                      "of_native": {how: round(value / middle["native"], 3) for how, value in middle.items()}}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=2)
    parser.add_argument("--only", choices=["checkpoint", "unified"])
    parser.add_argument("--unified", type=float, default=2)
    parser.add_argument("--piece", default="256M")
    options = parser.parse_args()
    if options.part:
        return holder(int(options.part[1]))
    driver_library()
    if options.only != "unified":
        checkpoint(options)
    if options.only != "checkpoint":
        unified(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
