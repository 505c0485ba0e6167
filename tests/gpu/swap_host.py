#!/usr/bin/env python3
"""The host's side of swapping, next to a ballast: a limit on its memory, and what giving pinned memory back costs.

    tests/gpu/swap_host.py --build DIR [--only limit|unregister] [--room 9.6] [--size 8] [--limit 9] [--seconds 12] [--logs DIR]

limit       Two programs of --size GiB (tests/programs/renewer of the build) that want more of the host's memory than the --limit GiB
            of `host_memory` in rotad.toml: both go on, no word is wrong, and in no sample do they have more there together than the limit, by rotad (`rota status`) and by the kernel (smaps). First the same without a limit that matters: unless they
            then have more than the limit, the run proves nothing ("proves": false).
unregister  Without rota: whether cuMemHostRegister and cuMemHostUnregister of memory that no work uses wait for a kernel that runs,
            how long they take, and cuMemFree, which does wait, for comparison; and how long other threads' calls take
            while cuMemHostUnregister waits.

Prints a line of JSON for each; the exit status is 1 if anything was not as it should be, and 77 where there is no GPU. Plain memory only.
"""
import argparse
import ctypes
import functools
import json
import mmap
import pathlib
import statistics
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import swap_rig
import swap_switches
from swap_rig import GIB, MIB, Driver, add_options, answer, driver_library, served, settle_room, start

own = functools.partial(swap_rig.own, script=__file__)

NOT_READY = 600  # CUDA_ERROR_NOT_READY
PORTABLE = 1     # CU_MEMHOSTREGISTER_PORTABLE, as rota pins
BLOCK = 128 * MIB


def kernels_bytes(pid):
    """What a process has in mappings that are in no core dump and in no child, but no device's: those that rota copies GPU memory to."""
    total = size = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if words[0] == "Rss:":
            size = int(words[1]) << 10
        elif words[0] == "VmFlags:" and {"dd", "dc"} <= set(words) and not {"io", "pf"} & set(words):
            total += size
    return total


def by_the_kernel(programs):
    """Together at one moment: what one has taken while the others were read, another may have given back before."""
    try:
        found = [kernels_bytes(each.pid) for each in programs]
        return sum(found) if found == [kernels_bytes(each.pid) for each in programs] else 0
    except OSError:  # one has just ended
        return 0


def by_rotad(rig):
    return next((each["host_swap_bytes"] for each in rig.status()["limits"] if each["of"] == "the host"), 0)


def pair(options, limit, seconds):
    """Two programs with this many bytes of the host: the most that they had there in any sample, and what they say."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as configuration:
        configuration.write(f"[limits]\nhost_memory = '{limit // MIB}M'\n")
        configuration.flush()
        return pair_served(options, configuration.name, seconds)


def pair_served(options, configuration, seconds):
    with served(options, "--config", configuration) as rig:
        jobs = [rig.start(f"job{number}", [options.build / "tests/programs/renewer", "--bytes", int(options.size * GIB), "--piece", options.piece,
                                           "--seconds", f"{seconds:g}", "--seed", number + 1]) for number in range(2)]
        most_rotad = most_kernel = looks = 0
        until = time.monotonic() + seconds * 8 + 60
        while any(each.poll() is None for each in jobs) and time.monotonic() < until:
            most_rotad, most_kernel, looks = max(most_rotad, by_rotad(rig)), max(most_kernel, by_the_kernel(jobs)), looks + 1
            time.sleep(0.01)
        said = [each.communicate(timeout=10)[0].splitlines()[-1:] for each in jobs]
        said = [json.loads(each[0]) if each else {} for each in said]
        logs = [rig.said(f"job{number}") for number in range(2)]
    outs = [[left for _, _, left, _ in swap_switches.Said(log).outs if left] for log in logs]
    return {"rounds": [each.get("rounds", 0) for each in said], "wrong": sum(each.get("wrong", 1) for each in said), "exits": [each.returncode for each in jobs],
            "moves_out": [len(each) for each in outs], "out_bytes": [sum(each) for each in outs], "most_by_rotad": most_rotad, "most_by_the_kernel": most_kernel,
            "looks": looks, "waited_long": sum("has not fit on the GPU" in log for log in logs)}


def a_limit(options):
    settle_room(options)
    limit = int(options.limit * GIB)
    free, bound = pair(options, 1 << 40, options.seconds / 2), pair(options, limit, options.seconds)  # a switch within the limit pins anew: slower
    proves = free["most_by_rotad"] > limit and free["most_by_the_kernel"] > limit and 0 < bound["most_by_the_kernel"] and 0 < bound["most_by_rotad"]
    right = bound["most_by_rotad"] <= limit and bound["most_by_the_kernel"] <= limit and not any(bound["exits"]) and bound["wrong"] == 0 \
        and min(bound["rounds"]) > 1 and min(bound["moves_out"]) > 1 and not bound["waited_long"]
    return {"proves": proves, "right": right, "limit_bytes": limit, "with_the_limit": bound, "without": free, "size_gib": options.size, "room_gib": options.room}


class Block:
    """Memory of the host with pages, as rota's are."""

    def __init__(self):
        self.map = mmap.mmap(-1, BLOCK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.map)))
        ctypes.memset(self.address, 1, BLOCK)


def unregister(kernels, milliseconds):
    """In a process of its own: how long the calls take with the GPU idle and while a kernel of so many ms runs."""
    driver = Driver()
    module, spin, stream = (ctypes.c_void_p() for _ in range(3))
    driver.call("cuModuleLoad", ctypes.byref(module), str(kernels).encode())
    driver.call("cuModuleGetFunction", ctypes.byref(spin), module, b"_Z4spinm")
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)  # CU_STREAM_NON_BLOCKING
    nanoseconds = ctypes.c_uint64(int(milliseconds) * 1000000)
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(nanoseconds), ctypes.c_void_p))
    block = Block()
    register = functools.partial(driver.call, "cuMemHostRegister_v2", block.address, ctypes.c_size_t(BLOCK), PORTABLE)
    give_back = functools.partial(driver.call, "cuMemHostUnregister", block.address)
    nothing = lambda: None

    def busy():
        return driver.library.cuStreamQuery(stream) == NOT_READY

    def row(before, call, after, during):
        """How long the call takes in ms, and whether the kernel ran when it began and when it returned."""
        before()
        if during:
            driver.call("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)
        ran, begun = busy(), time.monotonic()
        call()
        taken, runs = (time.monotonic() - begun) * 1e3, busy()
        driver.call("cuStreamSynchronize", stream)
        after()
        return taken, ran, runs

    def free():
        driver.call("cuMemFree_v2", pieces.pop())

    pieces, found = [], {}
    for name, calls in (("cuMemHostRegister", (nothing, register, give_back)), ("cuMemHostUnregister", (register, give_back, nothing)),
                        ("cuMemFree", (lambda: pieces.append(driver.allocate(2 * MIB)), free, nothing))):
        # The first makes what all need.
        idle, beside = ([row(*calls, during) for _ in range(4)][1:] for during in (False, True))
        found[name] = {"idle_ms": round(statistics.median(each[0] for each in idle), 2), "beside_a_kernel_ms": round(statistics.median(each[0] for each in beside), 2),
                       "kernel_ran": all(each[1] for each in beside), "waits": not any(each[2] for each in beside)}
    found["while_cuMemHostUnregister_waits_ms"] = others(driver, register, give_back, spin, stream, parameters)
    swap_rig.say(json.dumps(found))


def others(driver, register, give_back, spin, stream, parameters):
    """How long calls take that do not wait by themselves, by this thread while another is in cuMemHostUnregister."""
    second, device = ctypes.c_void_p(), driver.allocate(2 * MIB)
    context = ctypes.c_void_p()
    driver.call("cuStreamCreate", ctypes.byref(second), 1)
    driver.call("cuCtxGetCurrent", ctypes.byref(context))
    host = ctypes.c_void_p()
    driver.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(MIB), PORTABLE)
    nanoseconds = ctypes.c_uint64(1000)
    short = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(nanoseconds), ctypes.c_void_p))
    calls = {"cuLaunchKernel": lambda: driver.call("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, second, short, None),
             "cuMemcpyHtoDAsync": lambda: driver.call("cuMemcpyHtoDAsync_v2", device, host, ctypes.c_size_t(MIB), second),
             "cuMemAlloc": lambda: driver.allocate(2 * MIB)}

    def unregister_there():
        driver.call("cuCtxSetCurrent", context)
        give_back()

    found = {}
    for name, call in calls.items():
        call()
        register()
        driver.call("cuLaunchKernel", spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)
        thread = threading.Thread(target=unregister_there)
        thread.start()
        time.sleep(0.03)  # it is in the call by then
        begun = time.monotonic()
        call()
        found[name] = {"ms": round((time.monotonic() - begun) * 1e3, 2), "the_other_still_waited": thread.is_alive()}
        thread.join()
        driver.call("cuCtxSynchronize")
    return found


def calls_beside_a_kernel(options):
    found = answer(start(own("unregister", options.build / "tests/programs/kernels.ptx", options.kernel_ms)))
    # cuMemFree waits for all of the context's work, and so shows that the kernel did run and that a wait is seen.
    return {"proves": found["cuMemFree"]["waits"] and all(each["kernel_ran"] for each in found.values() if "kernel_ran" in each), "kernel_ms": options.kernel_ms, "bytes": BLOCK, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, seconds=12)
    parser.add_argument("--only", choices=["limit", "unregister"])
    parser.add_argument("--limit", type=float, default=9, help="GiB of the host's memory")
    parser.add_argument("--piece", default="256M")
    parser.add_argument("--kernel-ms", type=int, default=500)
    options = parser.parse_args()
    if options.part:
        return unregister(*options.part[1:])
    driver_library()
    good = True
    for name, measured in (("limit", a_limit), ("unregister", calls_beside_a_kernel)):
        if options.only in (None, name):
            found = measured(options)
            print(json.dumps({"part": f"host-{name}", **found}), flush=True)
            good &= found["proves"] and found.get("right", True)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
