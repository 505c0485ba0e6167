#!/usr/bin/env python3
"""Programs that read their results back while they exit, and whose memory has been evicted by then.

    tests/gpu/swap_exits.py --build DIR [--room 2.4] [--size 1] [--rounds 3] [--quantum 300ms] [--trust user] [--logs DIR]

tests/programs/results_at_exit with --size GiB, --rounds times with each kind of exit handler, next to a program that works with as much
and a ballast; first without rota, which shows what the driver itself allows in a handler. Prints a line of JSON; the exit status is 1 if
a word was wrong, a handler printed nothing, or memory was not evicted when a program began to exit, and 77 where there is no GPU.
"""
import argparse
import json
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from swap_rig import GIB, add_options, await_line, driver_library, served, settle_room

KINDS = {"before": ["--when", "before"], "after": ["--when", "after"], "both": []}
PATIENCE = 60


def all_found_right(kind, said):
    """Whether each handler of this kind has said that nothing was wrong."""
    wanted = ["before", "after"] if kind == "both" else [kind]
    return re.fullmatch("".join(rf"{when}: \d+ words, 0 wrong\n" for when in wanted), said) is not None


def memory_left(rig, name):
    """Waits until some of the program's memory is evicted. False: none was in time."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if re.search(r"bytes moved out", rig.said(name)):
            return True
        time.sleep(0.005)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=2.4, size=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    driver_library()
    settle_room(options)
    program = [options.build / "tests/programs/results_at_exit", "--bytes", int(options.size * GIB), "--pieces", 2]
    native = {kind: all_found_right(kind, subprocess.run([*map(str, program), "--ends", *more], capture_output=True, text=True).stdout.removeprefix("ready\n"))
              for kind, more in KINDS.items()}
    ends, problems, not_out = {kind: [] for kind in KINDS}, [], 0
    with served(options) as rig:
        other = rig.start("other", [options.build / "tests/programs/memhog", "--bytes", int(options.size * GIB), "--hold", "--ahead", 20])
        await_line(other, "ready")
        for number in range(options.rounds):
            for kind, more in KINDS.items():
                name = f"{kind}{number}"
                exits = rig.start(name, [*program, *more])
                await_line(exits, "ready")
                not_out += not memory_left(rig, name)
                begun = time.monotonic()
                said = exits.communicate(timeout=PATIENCE)[0]
                ends[kind].append(round(time.monotonic() - begun, 3))
                if exits.returncode or (native[kind] and not all_found_right(kind, said)):
                    problems.append([name, exits.returncode, said, rig.said(name)[-500:]])
        others_said = other.communicate(timeout=PATIENCE)[0].strip()
    right = not problems and not not_out and native["before"] and other.returncode == 0
    print(json.dumps({"part": "exits", "right": right, "native": native, "seconds": ends, "memory_not_out": not_out, "other": others_said[-200:],
                      "trust": options.trust, "quantum": options.quantum, "problems": problems}), flush=True)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
