"""What rotad measures of programs by NVML, against what the driver tells the programs themselves. A few seconds.

Where NVML names no processes (some containers), rotad has to say so, and what it would have measured is skipped by name."""
import json
import subprocess
import sys
import time

from bench import Skip

MIB = 2**20
BLOCK = 2 * MIB  # what the driver counts in

# By ctypes: no framework needed. Takes memory step by step: one step for each line that it is sent. Then it says what it is told of the
# GPU, which is the driver's own figure natively.
PROGRAM = """
import ctypes, json, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def ok(result, what):
    assert result == 0, (what, result)
def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ok(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "info")
    return {"free": free.value, "total": total.value}
ok(cuda.cuInit(0), "init")
context = ctypes.c_void_p()
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "retain")
ok(cuda.cuCtxSetCurrent(context), "current")
for step in [(), (100, 100, 56), (1,) * 20]:
    for mib in step:
        address = ctypes.c_uint64()
        ok(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(mib << 20)), "allocate")
        ok(cuda.cuMemsetD8_v2(address, 1, ctypes.c_size_t(mib << 20)), "set")
    ok(cuda.cuCtxSynchronize(), "synchronize")
    print(json.dumps(info()), flush=True)
    sys.stdin.readline()
"""


def steps(bench, mode):
    """For each step what the program was told and what `rota status` shows of it, once that has been measured."""
    environment = dict(bench.environment, ROTA_MEMORY=mode, ROTA_GPU_MEM_LIMIT="", ROTA_SOCKET=str(bench.scratch / f"measured-{mode}.sock"))
    child = subprocess.Popen([str(bench.rota), "run", "--", sys.executable, "-c", PROGRAM], env=environment,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    seen = []
    try:
        for line in iter(child.stdout.readline, ""):
            time.sleep(2.5)  # measured once a second; what has just been allocated is passed over once
            status = json.loads(subprocess.run([str(bench.rota), "status", "--json"], env=environment, check=True,
                                               capture_output=True, text=True).stdout)
            [client], gpu = status["clients"], status["gpus"][0]
            seen.append((json.loads(line), client, gpu))
            child.stdin.write("\n")
            child.stdin.flush()
    finally:
        child.communicate(timeout=60)
    assert child.returncode == 0 and len(seen) == 3, (child.returncode, seen)
    with open(bench.out / "commands.log", "a") as log:
        log.write(f"$ measured {mode}\n{json.dumps(seen, indent=1)}\n")
    return seen


def measured_or_skipped(seen):
    for _, client, gpu in seen:
        if gpu["source"] != "measured":
            raise Skip("NVML that rotad can read")
        # The GPU's own figure is the driver's, whoever uses it.
        assert gpu["driver_used_bytes"] <= gpu["total_bytes"] + 2048 * MIB, gpu
    if any(client["memory"][gpu["uuid"]]["source"] != "measured" for _, client, gpu in seen):
        assert all(client["driver_bytes"] is None for _, client, gpu in seen), seen
        raise Skip("NVML that names this process (rotad says 'reported')")


def the_ledger_and_the_measured_context_are_the_drivers_figure(bench):
    seen = steps(bench, "native")
    measured_or_skipped(seen)
    allocations = [0, 3, 23]
    first = seen[0]
    for (told, client, gpu), count in zip(seen, allocations):
        difference = client["driver_bytes"] - client["bytes"] - client["context_bytes"]
        assert abs(difference) <= BLOCK * max(count, 1), (count, difference, client)
        assert abs(client["context_bytes"] - first[1]["context_bytes"]) <= BLOCK * max(count, 1), (client, first)
        # Alone on the GPU, what is gone of its free memory since the first step is what the process has more.
        gone = first[0]["free"] - told["free"]
        more = client["driver_bytes"] - first[1]["driver_bytes"]
        assert abs(gone - more) <= BLOCK * max(count, 1), (gone, more)
    taken = first[0]["total"] - first[0]["free"]
    return f"context {first[1]['context_bytes'] / MIB:.0f} MiB measured, {taken / MIB:.0f} MiB of the GPU gone with it"


def unified_memory_is_not_counted_for_its_process(bench):
    """What rotad takes for granted: else it would count a program's Unified Memory as contexts and modules."""
    seen = steps(bench, "managed")
    measured_or_skipped(seen)
    first, last = seen[0], seen[-1]
    assert abs(last[1]["driver_bytes"] - first[1]["driver_bytes"]) <= 23 * BLOCK, (first[1], last[1])
    assert last[2]["driver_used_bytes"] - first[2]["driver_used_bytes"] >= 200 * MIB, (first[2], last[2])
    for told, client, _ in seen:
        expected = told["total"] - client["context_bytes"] - client["bytes"]
        assert abs(told["free"] - expected) <= 512 * MIB, (told, client)  # it asked before the last measurement
    return f"context {last[1]['context_bytes'] / MIB:.0f} MiB, {last[1]['bytes'] / MIB:.0f} MiB of Unified Memory besides"


CHECKS = [the_ledger_and_the_measured_context_are_the_drivers_figure, unified_memory_is_not_counted_for_its_process]
