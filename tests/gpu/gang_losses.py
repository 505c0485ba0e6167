#!/usr/bin/env python3
"""Trainings of PyTorch over two GPUs, two NCCL ranks each, that do not fit together: one after the other without rota, then both at once
under it with swapped memory. The losses and the sum over the weights of every rank have to be the same, bit for bit.

    tests/gpu/gang_losses.py --build DIR [--size 6] [--spare 1.5 | --room 13] [--steps 60] [--mode exclusive] [--quantum 1s] [--pause 0.3] [--memory swap] [--logs DIR]

A ballast leaves on each GPU what one rank took, what the second takes besides its tensors, and --spare GiB. Gradients are summed over the
ranks with all_reduce. With --pause each rank works on the host for that many seconds after every hundredth step, as for a checkpoint.
Prints a line of JSON: the time from the first step of both jobs to the last as a ratio to one job after the other,
without their start-up, how often each rank's memory was evicted, revocations, and what `rota status` says of gangs halfway. The exit
status is 1 if anything differs, a rank's memory was evicted less than --least times or a turn was revoked; 77 where there are no two GPUs or no PyTorch.
Plain device memory only.
"""
import argparse
import functools
import importlib.util
import json
import os
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import swap_rig
import swap_switches
from swap_nccl import gpus
from swap_rig import GIB, add_options, answer, ask, await_line, end, go, own as of_the_rig, ready, served, start, tell

own = functools.partial(swap_rig.own, script=__file__)
WIDTH = 8192
LAYER = WIDTH * WIDTH * 16  # bytes: weights, gradients and AdamW's two averages
WARM = 3  # steps after which a rank waits until it is told to go on


def rank_of(rank, store, size, steps, pause):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    import torch.distributed as distributed
    rank, size, steps, pause = int(rank), int(size), int(steps), float(pause)
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    torch.manual_seed(11)
    width = WIDTH if size >= 2 * LAYER else 1024
    layers = max(2, size // (width * width * 16))
    model = torch.nn.Sequential(*[part for _ in range(layers) for part in (torch.nn.Linear(width, width, device="cuda"), torch.nn.Tanh())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    torch.manual_seed(12 + rank)
    data = torch.randn(4, 256, width, device="cuda")
    losses, begun = [], None
    for step in range(WARM + steps):
        if step == WARM:
            torch.cuda.synchronize()
            ready()
            begun = time.monotonic()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data[step % 4]), data[(step + 1) % 4])
        loss.backward()
        for each in model.parameters():
            distributed.all_reduce(each.grad)
        optimizer.step()
        losses.append(loss.item().hex())
        if step >= WARM and (step - WARM) % 100 == 99:
            time.sleep(pause)
    took = time.monotonic() - begun
    weights = sum(each.double().sum().item() for each in model.parameters()).hex()
    swap_rig.say(json.dumps({"losses": losses, "weights": weights, "took": took, "bytes": torch.cuda.memory_reserved(), "free": torch.cuda.mem_get_info()[0]}))
    sys.stdout.flush()
    os._exit(0)  # a communicator's end would wait for the other's


def of_a_launcher(job, rank):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29600 + job), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank),
            "NCCL_NVLS_ENABLE": "0"}


def commands(options, folder, job):
    """Of each rank."""
    return [["env", *map("=".join, of_a_launcher(job, rank).items()), *own("rank", rank, f"{folder}/store{job}", int(options.size * GIB), options.steps, options.pause)] for rank in (0, 1)]


def undisturbed(ranks):
    """What the ranks of a job say that has both GPUs for itself, and the bytes that each took of its GPU."""
    watches = [start(of_the_rig("watcher"), env=dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu))) for gpu in (0, 1)]
    try:
        for watch in watches:
            await_line(watch, "ready")
        before = [ask(watch) for watch in watches]
        started = [start(rank) for rank in ranks]
        go(*started)
        said = [answer(each) for each in started]
        return said, [had - rank["free"] for had, rank in zip(before, said)]
    finally:
        for watch in watches:
            end(watch)


def measure(options, folder):
    native = [undisturbed(commands(options, folder, job)) for job in range(options.jobs)]
    alone, whole = native[0]
    if options.room is None:
        besides = max(taken - rank["bytes"] for taken, rank in zip(whole, alone))
        options.room = round((max(whole) + (options.jobs - 1) * besides) / GIB + (1.5 if options.spare is None else options.spare), 3)
    with served(options) as rig:
        rig.fill(int(options.room * GIB), 1)
        jobs, gangs = {}, None
        for job in range(options.jobs):  # one after the other, so that their start-up does not count
            ranks = {(job, rank): rig.start(f"job{job}-{rank}", ["env", f"ROTA_MEMORY={options.memory}", *command])
                     for rank, command in enumerate(commands(options, folder, options.jobs + job))}
            for each in ranks.values():
                await_line(each, "ready")
            jobs.update(ranks)
        begun = time.monotonic()
        for each in jobs.values():
            tell(each)
        while all(each.poll() is None for each in jobs.values()) and time.monotonic() < begun + options.patience:
            gangs = rig.status()["gangs"] or gangs
            time.sleep(0.5)
        results = {which: answer(each, options.patience) for which, each in jobs.items()}
        outs = {which: [left for _, _, left, _ in swap_switches.Said(rig.said("job{}-{}".format(*which))).outs if left] for which in jobs}
        revoked = (rig.folder / "rotad.log").read_text().count("did not give its GPU back")
    same = {which: said["losses"] == alone[which[1]]["losses"] and said["weights"] == alone[which[1]]["weights"] for which, said in results.items()}
    one_by_one = sum(max(rank["took"] for rank in said) for said, _ in native)
    took = max(said["took"] for said in results.values())
    return {"right": all(same.values()) and all(len(each) >= options.least for each in outs.values()) and revoked == 0,
            "same": list(same.values()), "of_one_after_the_other": round(took / one_by_one, 3),
            "seconds_one_after_the_other": round(one_by_one, 1), "seconds": round(took, 1), "steps": options.steps, "pause": options.pause,
            "different_losses": len(set(alone[0]["losses"])), "moves_out": [len(each) for each in outs.values()], "out_bytes": [sum(each) for each in outs.values()],
            "revoked": revoked, "gangs": gangs, "room_gib": options.room, "alone_bytes": [rank["bytes"] for rank in alone], "mode": options.mode, "quantum": options.quantum}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=None, size=6, quantum="1s")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0, help="seconds of each hundred steps in which a rank does not use its GPU")
    parser.add_argument("--memory", choices=("swap", "auto"), default="swap")
    parser.add_argument("--least", type=int, default=3, help="how often each rank's memory has to be evicted")
    parser.add_argument("--patience", type=float, default=150, help="seconds until both jobs have ended")
    options = parser.parse_args()
    if options.part:
        return rank_of(*options.part[1:])
    if importlib.util.find_spec("torch") is None or gpus() < 2:
        return 77
    with tempfile.TemporaryDirectory(prefix="rota-gangs-") as folder:
        result = measure(options, folder)
    print(json.dumps({"part": "gang_losses", **result}), flush=True)
    return int(not result["right"])


if __name__ == "__main__":
    sys.exit(main())
