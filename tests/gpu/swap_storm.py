#!/usr/bin/env python3
"""Sixteen threads each of two programs allocate, launch kernels and free while the programs are swapped as fast as it goes.

    tests/gpu/swap_storm.py --build DIR [--room 4] [--size 2.4] [--seconds 15] [--quantum 50ms] [--trust user] [--logs DIR]

tests/programs/allocation_storm of the build with kernels that check every word and write it anew, in blocks of up to 300 KiB by every
route but managed memory and in --size GiB that each program holds, next to a ballast. Prints a line of JSON; the exit status is 1 if a
word was wrong or nothing moved, and 77 where there is no GPU.
"""
import argparse
import json
import sys

sys.dont_write_bytecode = True
import swap_switches
from swap_rig import GIB, add_options, driver_library, served, settle_room


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=4, size=2.4, quantum="50ms")
    options = parser.parse_args()
    driver_library()
    settle_room(options)
    with served(options) as rig:
        storms = [rig.start(f"storm{number}", [options.build / "tests/programs/allocation_storm", "--for", f"{options.seconds:g}", "--launch",
                                               "--held", int(options.size * GIB), "--without", "managed", "--seed", number + 1])
                  for number in range(options.jobs)]
        said = [each.communicate(timeout=options.seconds * 8 + 120)[0].strip() for each in storms]
        codes = [each.returncode for each in storms]
        outs = [[left for _, _, left, _ in swap_switches.Said(rig.said(f"storm{number}")).outs if left] for number in range(options.jobs)]
        problems = [rig.said(f"storm{number}")[-500:] for number, code in enumerate(codes) if code]
    right = not any(codes) and all(outs)
    print(json.dumps({"part": "storm", "right": right, "said": said, "exits": codes, "moves_out": [len(each) for each in outs],
                      "out_bytes": [sum(each) for each in outs], "trust": options.trust, "quantum": options.quantum, "problems": problems}), flush=True)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
