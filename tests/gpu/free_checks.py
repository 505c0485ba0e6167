"""Whether what a program is told is free can be had: the first answer under a limit, the answer next to a program without rota, and a context that is made while the GPU is full of memory that can be evicted."""
import json
import os
import pathlib
import signal
import subprocess
import sys

from bench import Skip
from swap_rig import GIB, MIB, ask, await_line, own, start

# By ctypes: no framework needed. Asks what is free right after its context has been made, then wants all of that but a few MiB in one
# allocation.
PROGRAM = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, address = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
for result in [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
               cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))]:
    assert result == 0, result
slack, take = 4 << 20, sys.argv[1] == "take"
error = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(free.value - slack)) if take else 0
print(json.dumps({"free": free.value, "total": total.value, "error": error}))
"""
RUNS = 6


def answer(bench, mode, limit, what, name, log="warn"):
    environment = {"ROTA_SOCKET": str(bench.scratch / f"free-{name}.sock"), "ROTA_GPU_MEM_LIMIT": limit, "ROTA_LOG": log}
    result = bench.checked([bench.rota, "run", "--memory", mode, "--", sys.executable, "-c", PROGRAM, what], **environment)
    return json.loads(result.stdout.splitlines()[-1])


def what_is_free_at_first_can_be_had(mode):
    def check(bench):
        answers = [answer(bench, mode, "1024M", "take", mode) for _ in range(RUNS)]
        assert all(each["error"] == 0 for each in answers), answers
        assert all(0 < each["free"] <= each["total"] <= GIB for each in answers), answers
        least = min(each["free"] for each in answers)
        return f"{RUNS} of {RUNS}: all of the {least // MIB} MiB and more that were called free under a limit of 1 GiB"

    check.__name__ = f"what_is_called_free_at_first_can_be_allocated_{mode}"
    return check


def memory_of_programs_without_rota_is_not_free(bench):
    room = 3 * GIB
    ballast = start(own("ballast", room, script=pathlib.Path(__file__).with_name("swap_rig.py")))
    try:
        await_line(ballast, "ready")
        native = ask(ballast)
        told = {mode: answer(bench, mode, "", "ask", f"beside-{mode}")["free"] for mode in ("native", "swap", "managed")}
    finally:
        ballast.stdin.close()
        ballast.wait(timeout=60)
    assert all(free <= native + 64 * MIB for free in told.values()), (native, told)
    return f"the driver calls {native // MIB} MiB free, rota {', '.join(f'{free // MIB} ({mode})' for mode, free in told.items())}"


def contexts_are_made_while_others_memory_can_leave(bench):
    """Two programs that swap fill what a ballast leaves; many short ones make a context and load a module next to them."""
    renewer = bench.build / "tests/programs/renewer"
    if not renewer.exists():
        raise Skip("tests/programs/renewer of the build")
    environment = dict(bench.environment, ROTA_SOCKET=str(bench.scratch / "contexts.sock"), ROTA_MEMORY="swap", ROTA_GPU_MEM_LIMIT="")
    ballast = start(own("ballast", 5 * GIB, script=pathlib.Path(__file__).with_name("swap_rig.py")))
    fillers = []
    try:
        await_line(ballast, "ready")
        for seed in (1, 2):
            filler = start([bench.rota, "run", "--", renewer, "--bytes", int(2.1 * GIB), "--piece", 64 * MIB, "--seed", seed, "--asked"],
                           env=environment)
            fillers.append(filler)
            await_line(filler, "ready")
            assert ask(filler)["wrong"] == 0
        # What the contexts of the fillers have left is for the ballast: nothing is free but by eviction.
        failed = 0
        for _ in range(30):
            result = subprocess.run([str(bench.rota), "run", "--", sys.executable, "-c", PROGRAM, "ask"], env=environment,
                                    capture_output=True, text=True, timeout=120)
            if result.returncode != 0:
                failed += 1
                with open(bench.out / "commands.log", "a") as log:
                    log.write(f"$ context {result.returncode}\n{result.stderr}\n")
        wrong = [ask(filler)["wrong"] for filler in fillers]
    finally:
        for each in [*fillers, ballast]:
            each.stdin.close()
        for each in [*fillers, ballast]:
            try:
                each.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.kill(each.pid, signal.SIGKILL)
    assert failed == 0 and wrong == [0, 0], (failed, wrong)
    return "30 of 30 contexts, and the memory of the two others is right"


CHECKS = [*(what_is_free_at_first_can_be_had(mode) for mode in ("managed", "swap", "native")), memory_of_programs_without_rota_is_not_free,
          contexts_are_made_while_others_memory_can_leave]
