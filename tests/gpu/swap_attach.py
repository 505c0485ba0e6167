#!/usr/bin/env python3
"""A debugger that attaches to a program whose memory has been evicted, and detaches again.

    tests/gpu/swap_attach.py --build DIR [--room 2.4] [--size 1] [--rounds 3] [--logs DIR]

First cuda-gdb attaches to a program without rota (tests/programs/memhog), lists its threads and the driver's devices, and detaches: this
shows whether it can do so on this machine. Then two such programs of --size GiB run under rota on a GPU of which a ballast leaves --room
GiB. In each round cuda-gdb does the same with the first of them while memory of that one is evicted. Finally both end and say whether words
were wrong. Prints a line of JSON. The exit status is 1 if cuda-gdb succeeded without rota and not under it, if no memory was evicted in a
round, or if one of the two did not end or had a wrong word; it is 77 where there is no GPU or no cuda-gdb.
"""
import argparse
import json
import re
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from swap_rig import GIB, add_options, await_line, driver_library, end, served, settle_room, start

PATIENCE = 40


def attach(pid):
    """Whether cuda-gdb attached, listed threads and detached, and the end of what it said."""
    command = ["cuda-gdb", "-p", str(pid), "-batch", "-nx", "-ex", "info threads", "-ex", "info cuda devices", "-ex", "detach"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return False, f"no answer within {PATIENCE} s"
    all_of_it = said.stdout + said.stderr
    return said.returncode == 0 and "Thread" in said.stdout and "detached" in all_of_it.lower(), all_of_it[-400:]


def is_out(rig, pid):
    """Whether some of the program's memory is evicted."""
    return any(client["pid"] == pid and client["resident_bytes"] < client["bytes"] for client in rig.status()["clients"])


def is_right(program):
    """Closes the program's standard input: whether it then ends and says that no word was wrong."""
    try:
        said = program.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        return False
    return program.returncode == 0 and re.search(r'"wrong": ?0\b', said) is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=2.4, size=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    driver_library()
    if shutil.which("cuda-gdb") is None:
        return 77
    settle_room(options)
    program = [options.build / "tests/programs/memhog", "--bytes", int(options.size * GIB), "--hold", "--ahead", 20]
    native = start(program)
    await_line(native, "ready")
    try:
        natively = attach(native.pid)
        natively_right = is_right(native)
    finally:
        end(native)
    rounds, problems = [], []
    with served(options) as rig:
        both = [rig.start(name, program) for name in ("attached", "other")]
        for each in both:
            await_line(each, "ready")
        for _ in range(options.rounds):
            deadline = time.monotonic() + PATIENCE
            while not (out := is_out(rig, both[0].pid)) and time.monotonic() < deadline:
                time.sleep(0.005)
            begun = time.monotonic()
            attached, said = attach(both[0].pid)
            rounds.append({"out": out, "attached": attached, "seconds": round(time.monotonic() - begun, 1)})
            if natively[0] and not attached:
                problems.append(said)
        right = all([is_right(each) for each in both])
        moved = len(re.findall("bytes moved out", rig.said("attached")))
    well = right and not problems and all(each["out"] for each in rounds)
    print(json.dumps({"part": "attach", "natively": natively[0], "natively_right": natively_right, "rounds": rounds, "right": right, "moved_out": moved,
                      "said": natively[1] if not natively[0] else "", "problems": problems[:2]}), flush=True)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
