#!/usr/bin/env python3
"""Trainings of PyTorch with deterministic algorithms: one undisturbed and native, two that swap next to a ballast. The losses and the sum
over the weights have to be the same, bit for bit.

    tests/gpu/swap_losses.py --build DIR [--size 6] [--spare 0.8 | --room 13] [--steps 200] [--least 3] [--quantum 300ms] [--trust user] [--logs DIR]

The room is what the undisturbed one took of the GPU, once more what it took besides its tensors, and --spare GiB: so nearly all of one is evicted whenever the other's turn comes. --room sets it instead.

Prints a line of JSON; the exit status is 1 if anything differs or one of them moved less than --least times, and 77 where there
is no GPU or no PyTorch.
"""
import argparse
import functools
import importlib.util
import json
import os
import sys

sys.dont_write_bytecode = True
import swap_rig
import swap_switches
from swap_rig import GIB, add_options, answer, ask, await_line, driver_library, end, own as of_the_rig, served, start

own = functools.partial(swap_rig.own, script=__file__)
WIDTH = 8192
LAYER = WIDTH * WIDTH * 16  # bytes: weights, gradients and AdamW's two averages


def training(size, steps):
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(11)
    width = WIDTH if size >= 2 * LAYER else 1024
    layers = max(2, size // (width * width * 16))
    model = torch.nn.Sequential(*[part for _ in range(layers) for part in (torch.nn.Linear(width, width, device="cuda"), torch.nn.Tanh())])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    data = torch.randn(4, 64, width, device="cuda")
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data[step % 4]), data[(step + 1) % 4])
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    weights = sum(each.double().sum().item() for each in model.parameters()).hex()
    swap_rig.say(json.dumps({"losses": losses, "weights": weights, "bytes": torch.cuda.memory_reserved(), "free": torch.cuda.mem_get_info()[0]}))


def undisturbed(command):
    """What a training says that has the GPU for itself, and how many bytes of the GPU it took."""
    watch = start(of_the_rig("watcher"))
    try:
        await_line(watch, "ready")
        before = ask(watch)
        said = answer(start(command))
        return said, before - said["free"]
    finally:
        end(watch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=None, size=6)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--least", type=int, default=3, help="how often each has to move")
    options = parser.parse_args()
    if options.part:
        return training(*map(int, options.part[1:]))
    driver_library()
    if importlib.util.find_spec("torch") is None:
        return 77
    command = own("training", int(options.size * GIB), options.steps)
    alone, whole = undisturbed(command)
    if options.room is None:
        besides = whole - alone["bytes"]
        options.room = round((whole + (options.jobs - 1) * besides) / GIB + (0.8 if options.spare is None else options.spare), 3)
    with served(options) as rig:
        jobs = [rig.start(f"training{number}", command) for number in range(options.jobs)]
        results = [answer(each) for each in jobs]
        outs = [[left for _, _, left, _ in swap_switches.Said(rig.said(f"training{number}")).outs if left] for number in range(options.jobs)]
    same = [each["losses"] == alone["losses"] and each["weights"] == alone["weights"] for each in results]
    right = all(same) and all(len(each) >= options.least for each in outs)
    print(json.dumps({"part": "losses", "right": right, "same": same, "steps": options.steps, "first": float.fromhex(alone["losses"][0]),
                      "last": float.fromhex(alone["losses"][-1]), "different_losses": len(set(alone["losses"])), "trust": options.trust, "room_gib": options.room,
                      "alone_bytes": alone["bytes"], "alone_whole_bytes": whole, "bytes": [each["bytes"] for each in results],
                      "moves_out": [len(each) for each in outs], "out_bytes": [sum(each) for each in outs]}), flush=True)
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
