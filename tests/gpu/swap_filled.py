#!/usr/bin/env python3
"""Programs with swap memory that take all there is of a GPU, alone and two together: what they were granted they can use.

    tests/gpu/swap_filled.py --build DIR [--room 6] [--rounds 3] [--logs DIR]

In what a ballast leaves free: a program allocates all that the driver's function calls free, another one as much as it is given, piece by
piece, and each writes and reads all of it; two programs have half each of what natively remains next to their contexts, and a few MiB more
than that. Prints a line of JSON for each; the exit status is 1 if any did not end well, and 77 where there is no GPU.
"""
import argparse
import ctypes
import json
import subprocess
import sys
import threading

sys.dont_write_bytecode = True
from swap_rig import MIB, Driver, add_options, answer, await_line, driver_library, end, own, say, served, start, tell

PATIENCE = 60
BLOCK = 2 * MIB


class Filler(Driver):
    def tries(self, size):
        """The address, or None if the driver has no memory."""
        address = ctypes.c_uint64()
        result = self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        assert result in (0, 2), result
        return address if result == 0 else None

    def uses(self, pieces, value):
        """Whether all is there that was written: the first and the last word of each."""
        for address, size in pieces:
            self.call("cuMemsetD32_v2", address, ctypes.c_uint32(value), ctypes.c_size_t(size // 4))
        self.call("cuCtxSynchronize")
        for address, size in pieces:
            for at in (0, size - 4):
                word = ctypes.c_uint32()
                self.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(address.value + at), ctypes.c_size_t(4))
                if word.value != value:
                    return False
        return True


def takes_all():
    """All that is called free, in one piece."""
    filler = Filler()
    free = filler.free_bytes()
    address = filler.tries(free // 4 * 4)
    said = {"bytes": free, "granted": address is not None}
    if address is not None:
        said["right"] = filler.uses([(address, free // 4 * 4)], 7)
        said["one_more"] = filler.tries(1) is not None
        said["right"] = said["right"] and filler.uses([(address, free // 4 * 4)], 8)
    say(json.dumps(said))


def until_refused():
    filler = Filler()
    pieces = []
    for size in (256 * MIB, 32 * MIB, BLOCK, 64 << 10):
        while (address := filler.tries(size)) is not None:
            pieces.append((address, size))
    right = filler.uses(pieces, 3) and filler.uses(pieces, 4)
    say(json.dumps({"bytes": sum(size for _, size in pieces), "granted": True, "right": right}))


def half(rounds):
    """Of two: told how much, once both have their contexts; used by both before either ends."""
    filler = Filler()
    say("ready")
    size = int(sys.stdin.readline())
    address = filler.tries(size)
    right = address is not None
    for value in range(rounds if right else 0):
        right = right and filler.uses([(address, size)], value)
    say("used")
    sys.stdin.readline()
    right = right and filler.uses([(address, size)], rounds)
    say(json.dumps({"bytes": size, "granted": address is not None, "right": right}))


PARTS = {"takes_all": takes_all, "until_refused": until_refused, "half": half}


def ends(program):
    try:
        return answer(program, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        end(program)
        return {"granted": True, "right": False, "hung": True}


def two_halves(rig, options, more):
    """Each has half of what is free next to both contexts, and `more` bytes."""
    name = f"half{more // MIB}"
    pair = [rig.start(f"{name}-{number}", own("half", options.rounds, script=__file__)) for number in range(2)]
    for each in pair:
        await_line(each, "ready")
    size = rig.free_bytes() // 2 // BLOCK * BLOCK + more
    for each in pair:
        tell(each, str(size))
    waits = threading.Timer(PATIENCE, lambda: [each.kill() for each in pair])
    waits.start()
    used = [each.stdout.readline() == "used\n" for each in pair]
    waits.cancel()
    if not all(used):
        print(rig.said(f"{name}-0")[-900:], rig.said(f"{name}-1")[-900:], file=sys.stderr)
        return [{"granted": True, "right": False, "hung": True}]
    for each in pair:
        tell(each)
    return [ends(each) for each in pair]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=6, mode="automatic", quantum="automatic")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    driver_library()
    well = True
    with served(options) as rig:
        for part in ("takes_all", "until_refused"):
            natively = ends(start(own(part, script=__file__)))
            said = ends(rig.start(part, own(part, script=__file__)))
            well = well and said["granted"] and said.get("right", False)
            print(json.dumps({"part": part, "natively": natively, "rota": said, "log": rig.said(part)[-600:] if said.get("hung") else ""}), flush=True)
        for more in (-2 * BLOCK, 0, BLOCK, 8 * BLOCK):
            both = two_halves(rig, options, more)
            well = well and all(each["granted"] and each["right"] for each in both)
            print(json.dumps({"part": "half", "more": more, "both": both}), flush=True)
    return int(not well)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        PARTS[sys.argv[2]](*map(int, sys.argv[3:]))
    else:
        sys.exit(main())
