#!/usr/bin/env python3
"""NCCL while another program takes the GPU: collectives on plain, on registered and on graph-captured memory, compared in every round.

    tests/gpu/swap_nccl.py --build DIR [--ranks 1] [--size 2] [--seconds 15] [--trust user] [--logs DIR]

Each of --ranks processes (one per GPU; `--ranks 0`: as many as there are GPUs, at most two) has a process group of PyTorch and a
communicator of its own, and --size GiB of other memory. In every round it sums over the ranks: a tensor; a tensor in a CUDA graph
that has been captured once; memory of ncclMemAlloc and a tensor of PyTorch, both registered (ncclCommRegister). Once all are warm, a
ballast and a program that fills the rest (memhog) compete for each GPU under a rotad. Plain memory only.

Prints a line of JSON: rounds, what was wrong by kind, how much moved, what of the memory stays on the GPU and why. The exit
status is 1 if anything was wrong, or if nothing moved and nothing says why; 77 where there is no GPU or no PyTorch.
"""
import argparse
import ctypes
import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE / "libraries"))

import swap_rig
import swap_switches
from swap_rig import GIB, add_options, context_bytes, driver_library, end, ready, served, tell
from swap_tables import movable, ready_in_time

own = functools.partial(swap_rig.own, script=__file__)
WORDS = 4 << 20  # of each collective
FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
STAYS = re.compile(r"^rota: (.*(?:stays|cannot see every use).*)$", re.M)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Direct:
    """A communicator by NCCL's own interface, and memory that is registered with it."""

    def __init__(self, torch, rank, ranks, store):
        import parts
        self.torch, self.nccl = torch, parts.library("libnccl.so")
        identifier, file = UniqueId(), pathlib.Path(store + ".id")
        if rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(identifier))
            file.with_suffix(".new").write_bytes(bytes(identifier))
            file.with_suffix(".new").rename(file)
        while not file.exists():
            time.sleep(0.01)
        ctypes.memmove(ctypes.byref(identifier), file.read_bytes(), 128)
        self.communicator = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(self.communicator), ranks, identifier, rank)
        self.registered = {}  # by kind: "registered", or why not

    def call(self, name, *arguments):
        status = getattr(self.nccl, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def register(self, kind, address):
        try:
            self.call("ncclCommRegister", self.communicator, ctypes.c_void_p(address), ctypes.c_size_t(4 * WORDS), ctypes.byref(ctypes.c_void_p()))
            self.registered[kind] = "registered"
        except (AssertionError, AttributeError) as error:
            self.registered[kind] = str(error)

    def allocated(self):
        """A tensor in memory of ncclMemAlloc, or None."""
        address = ctypes.c_void_p()
        try:
            self.call("ncclMemAlloc", ctypes.byref(address), ctypes.c_size_t(4 * WORDS))
        except (AssertionError, AttributeError) as error:
            self.registered["ncclMemAlloc"] = str(error)
            return None
        self.register("ncclMemAlloc", address.value)
        view = type("View", (), {"__cuda_array_interface__": {"shape": (WORDS,), "typestr": "<f4", "data": (address.value, False), "version": 3}})()
        return self.torch.as_tensor(view, device="cuda")

    def all_reduce(self, tensor):
        stream = self.torch.cuda.current_stream().cuda_stream
        address = ctypes.c_void_p(tensor.data_ptr())
        self.call("ncclAllReduce", address, address, ctypes.c_size_t(WORDS), FLOAT, SUM, self.communicator, ctypes.c_void_p(stream))


def rank_of(rank, ranks, store, size):
    import torch
    import torch.distributed as distributed
    rank, ranks, size = int(rank), int(ranks), int(size)
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))

    def tensor():
        return torch.zeros(WORDS, dtype=torch.float32, device="cuda")

    plain, captured, output, flag = tensor(), tensor(), tensor(), torch.zeros(1, dtype=torch.int32, device="cuda")
    distributed.all_reduce(plain)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output.copy_(captured)
        distributed.all_reduce(output)
    direct = Direct(torch, rank, ranks, store)
    by_kind = {"tensor": (plain, distributed.all_reduce), "graph": (captured, lambda _: graph.replay())}
    own_memory, registered = direct.allocated(), tensor()
    direct.register("tensor", registered.data_ptr())
    by_kind["registered_tensor"] = (registered, direct.all_reduce)
    if own_memory is not None:
        by_kind["ncclMemAlloc"] = (own_memory, direct.all_reduce)
    weights = [tensor().add_(number) for number in range(max(1, size // (4 * WORDS)))]
    wrong, rounds = {kind: 0 for kind in [*by_kind, "weights"]}, 0

    def work():
        """What is summed are whole numbers that a float holds."""
        value = rounds % 1000
        wanted = ranks * value + ranks * (ranks + 1) // 2
        for kind, (memory, all_reduce) in by_kind.items():
            memory.fill_(value + rank + 1)
            all_reduce(memory)
            wrong[kind] += int(((output if kind == "graph" else memory) != wanted).sum().item())
        for number, each in enumerate(weights):
            wrong["weights"] += int((each != number).sum().item())

    for rounds in range(3):
        work()
    torch.cuda.synchronize()
    ready()
    end_told = swap_rig.told_again()
    while True:
        work()
        rounds += 1
        flag.fill_(int(end_told.is_set()))
        distributed.all_reduce(flag)  # all end with the same round
        if flag.item():
            break
    swap_rig.say(json.dumps({"rank": rank, "rounds": rounds, "wrong": {kind: count for kind, count in wrong.items() if count}, "kinds": list(wrong),
                             "registered": direct.registered, "reserved": torch.cuda.memory_reserved()}))
    sys.stdout.flush()
    os._exit(0)  # a communicator's end would wait for the others'


def stays(rig, program, log):
    """What part of a program's memory cannot be evicted, and what rota says about it."""
    client = next((each for each in rig.status()["clients"] if each["pid"] == program.pid), None)
    gpus = client["use"]["gpus"].values() if client else []
    return {"resident": client and client["resident_bytes"], "fixed": sum(each["fixed_bytes"] for each in gpus),
            "fixed_for_now": sum(each["fixed_for_now_bytes"] for each in gpus),
            "modes": sorted({f"{each['mode']} {each['reason']}".strip() for each in client["memory"].values()}) if client else [],
            "said": list(dict.fromkeys(STAYS.findall(log)))[:4]}


def measure(options):
    hogs_context = context_bytes(options)
    with served(options) as rig, tempfile.TemporaryDirectory(prefix="rota-nccl-") as folder:
        rig.environment.update(NCCL_NVLS_ENABLE="0")
        ranks = {f"rank{rank}": rig.start(f"rank{rank}", own("rank", rank, options.ranks, f"{folder}/store", int(options.size * GIB))) for rank in range(options.ranks)}
        warm = ready_in_time(ranks, options.warm)
        if len(warm) < len(ranks):
            return {"right": False, "not_ready": sorted(ranks.keys() - warm.keys()), "said": [rig.said(name)[-600:] for name in ranks]}
        hogs = {}
        for gpu, (name, program) in enumerate(ranks.items()):
            moving = movable(rig, {program.pid})
            bytes = max(int(options.hog * GIB), moving)
            rig.fill(hogs_context + bytes + int(options.slack * GIB) - moving, gpu)
            hogs[f"hog{gpu}"] = rig.start(f"hog{gpu}", ["env", f"CUDA_VISIBLE_DEVICES={gpu}", options.build / "tests/programs/memhog", "--hold", "--bytes", bytes])
        for each in ranks.values():
            tell(each)
        hogs_fit = len(ready_in_time(hogs, options.patience))
        time.sleep(options.seconds)
        kept = {name: stays(rig, each, rig.said(name)) for name, each in ranks.items()}
        for each in ranks.values():
            tell(each)
        said = {}
        for name, each in [*ranks.items(), *hogs.items()]:
            try:
                said[name] = json.loads((each.communicate(timeout=options.patience)[0].splitlines() or ["{}"])[-1])
            except (subprocess.TimeoutExpired, ValueError):
                end(each)
                said[name] = {"problem": f"did not end: {rig.said(name)[-300:]}"}
        outs = {name: [left for _, _, left, _ in swap_switches.Said(rig.said(name)).outs if left] for name in ranks}
    wrong = sum(sum(said[name].get("wrong", {"no answer": 1}).values()) for name in ranks) + sum(said[name].get("wrong", 1) for name in hogs)
    explained = all(outs[name] or kept[name]["fixed"] or kept[name]["said"] or kept[name]["modes"] != ["swap"] for name in ranks)
    return {"right": wrong == 0 and explained and all(said[name].get("rounds") for name in ranks), "wrong": wrong, "ranks": [said[name] for name in ranks],
            "moves_out": [len(outs[name]) for name in ranks], "out_bytes": [sum(outs[name]) for name in ranks], "stays": list(kept.values()),
            "hogs": [said[name] for name in hogs], "hogs_that_fit": hogs_fit, "trust": options.trust}


def gpus():
    count = ctypes.c_int()
    driver_library().cuDeviceGetCount(ctypes.byref(count))
    return count.value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=None, size=2, seconds=15, quantum="200ms")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--hog", type=float, default=3, help="GiB at least of the program that fills each GPU")
    parser.add_argument("--slack", type=float, default=0.3, help="GiB of a rank's memory that may stay, so that contexts can grow")
    parser.add_argument("--warm", type=float, default=90, help="seconds until all ranks are ready")
    parser.add_argument("--patience", type=float, default=40, help="seconds until a program ends once it is told to")
    options = parser.parse_args()
    if options.part:
        return rank_of(*options.part[1:])
    count = gpus()
    if importlib.util.find_spec("torch") is None or count < options.ranks:
        return 77
    options.ranks = options.ranks or min(2, count)
    result = measure(options)
    print(json.dumps({"part": "nccl", "ranks_wanted": options.ranks, **result}), flush=True)
    return int(not result["right"])


if __name__ == "__main__":
    sys.exit(main())
