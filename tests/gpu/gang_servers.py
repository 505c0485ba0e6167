#!/usr/bin/env python3
"""Two tensor-parallel servers over two GPUs, two NCCL ranks each, whose weights do not fit together: from a request to its answer.

    tests/gpu/gang_servers.py --build DIR [--model layers] [--size 12] [--requests 10] [--memory swap] [--logs DIR]

A server is a stack of layers, each cut in half over the ranks and summed with all_reduce, as in inference (`--model layers`), or a Llama of the
library transformers with random weights, in its own tensor-parallel plan, which answers with its first token. A ballast leaves on each GPU memory for the --size GiB of one server's ranks and not for two. Requests go to the servers in turn, each while the other is
idle, so each has its weights restored.
Prints a line of JSON: the median time of a request without rota and under it, the bytes that came in for one, and the bound: the time alone, those
bytes at 0.9 of the rate that bare copies reach on both GPUs at once in both directions, and 0.1 s. The exit status is 1 if an answer differs from
the one without rota or the median is above the bound; 77 where there are no two GPUs or no PyTorch (or transformers). Plain device memory only.
"""
import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import gang_losses
import swap_rig
import swap_switches
from swap_nccl import gpus
from swap_rig import GIB, add_options, ask, await_line, end, go, own as of_the_rig, ready, served, start, tell

own = functools.partial(swap_rig.own, script=__file__)
WIDTH = 8192
LAYER = 2 * WIDTH * WIDTH  # bytes of a rank: half of two matrices of 16-bit numbers
TOKENS = 64
LLAMA = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
LLAMA_LAYER = 2 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)  # bytes in all, in 16-bit numbers


def write_llama(folder, size):
    """Random weights of which each of two ranks has about `size` bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(21)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=max(1, 2 * int(size) // LLAMA_LAYER), dtype=torch.bfloat16, **LLAMA)).to(torch.bfloat16)
    model.save_pretrained(folder)


def llama(rank, weights):
    """The first token that follows a prompt, and a sum over its logits."""
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16, tp_plan="auto")
    prompt = torch.arange(1, TOKENS + 1, device=f"cuda:{rank}").unsqueeze(0)

    @torch.inference_mode()
    def respond():
        logits = model(prompt, use_cache=False).logits[0, -1].float()
        return f"{logits.argmax().item()} {logits.abs().sum().item().hex()}"

    return respond


def layers(rank, size):
    import torch
    import torch.distributed as distributed
    torch.manual_seed(21 + rank)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    halves = [(torch.randn(WIDTH, WIDTH // 2, **options) / 64, torch.randn(WIDTH // 2, WIDTH, **options) / 64) for _ in range(max(1, int(size) // LAYER))]
    torch.manual_seed(20)
    prompt = torch.randn(TOKENS, WIDTH, **options)

    @torch.inference_mode()
    def respond():
        state = prompt
        for up, down in halves:
            part = torch.relu(state @ up) @ down
            distributed.all_reduce(part)
            state = torch.nn.functional.layer_norm(state + part, (WIDTH,))
        return state.float().abs().sum().item().hex()

    return respond


def server(rank, store, model):
    """Answers each line with a sum over the logits of a prompt. `model`: bytes of layers, or a folder with a model of transformers."""
    import torch
    import torch.distributed as distributed
    rank = int(rank)
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    respond = layers(rank, int(model)) if model.isdigit() else llama(rank, model)
    for _ in range(3):
        respond()
    free = torch.cuda.mem_get_info()[0]
    ready()
    for _ in sys.stdin:
        swap_rig.say(json.dumps({"answer": respond(), "free": free, "bytes": torch.cuda.memory_reserved()}))
    os._exit(0)  # a communicator's end would wait for the other's


def commands(options, folder, which):
    return [["env", "CUBLAS_WORKSPACE_CONFIG=:4096:8", *map("=".join, gang_losses.of_a_launcher(which, rank).items()),
             *own("server", rank, f"{folder}/store{which}", options.weights)] for rank in (0, 1)]


def request(ranks):
    """How long it takes, and what each rank says."""
    begun = time.monotonic()
    for rank in ranks:
        tell(rank)
    said = [json.loads(rank.stdout.readline()) for rank in ranks]
    return time.monotonic() - begun, said


def seconds_and_answer(timed):
    times, answers = zip(*((took, [rank["answer"] for rank in said]) for took, said in timed))
    return statistics.median(times), answers


def alone(options, folder):
    """Without rota: the time of a request, the answer, and the bytes that each rank takes of its GPU and those besides its tensors."""
    watches = [start(of_the_rig("watcher"), env=dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu))) for gpu in (0, 1)]
    ranks = []
    try:
        for watch in watches:
            await_line(watch, "ready")
        before = [ask(watch) for watch in watches]
        ranks = [start(command) for command in commands(options, folder, 0)]
        go(*ranks)
        timed = [request(ranks) for _ in range(options.requests)]
        seconds, answers = seconds_and_answer(timed)
        taken = [had - rank["free"] for had, rank in zip(before, timed[-1][1])]
        return seconds, answers[0], max(taken), max(had - rank["bytes"] for had, rank in zip(taken, timed[-1][1]))
    finally:
        for each in [*watches, *ranks]:
            end(each)


def copy_rate():
    """GB/s copied into a GPU while as much is copied out, on both GPUs at once: the slower of the two."""
    copiers = [(direction, start(of_the_rig("copier", direction, GIB), env=dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu)))) for gpu in (0, 1) for direction in (0, 1)]
    go(*(each for _, each in copiers))
    return min(rate for direction, rate in [(direction, swap_rig.answer(each)) for direction, each in copiers] if direction == 1)


def measure(options, folder):
    options.weights = int(options.size * GIB)
    if options.model == "transformers":
        options.weights, size = f"{folder}/weights", options.weights
        subprocess.run(list(map(str, own("write", options.weights, size))), check=True)
    native, wanted, whole, besides = alone(options, folder)
    rate = copy_rate()
    options.room = round((whole + besides) / GIB + (1.5 if options.spare is None else options.spare), 3)
    timed = []
    with served(options) as rig:
        rig.fill(int(options.room * GIB), 1)
        servers = []
        for which in (1, 2):
            ranks = [rig.start(f"server{which}-{rank}", ["env", f"ROTA_MEMORY={options.memory}", *command])
                     for rank, command in enumerate(commands(options, folder, which))]
            go(*ranks)
            servers.append(ranks)
        for _ in range(options.requests):
            for ranks in servers:
                timed.append(request(ranks))
                time.sleep(options.pause)  # the other is idle
        came = [back[1] for which in (1, 2) for rank in (0, 1) for backs in swap_switches.Said(rig.said(f"server{which}-{rank}")).backs.values() for back in backs if back[1]]
    times = sorted(took for took, _ in timed[2:])
    answers = [[rank["answer"] for rank in said] for _, said in timed]
    bytes_in = statistics.median(came) if came else 0
    bound = native + bytes_in / (0.9 * rate * 1e9) + 0.1
    median = statistics.median(times)
    return {"right": all(each == wanted for each in answers) and median <= bound and len(came) > options.requests, "alone_s": round(native, 4),
            "median_s": round(median, 4), "longest_s": round(times[-1], 4), "bound_s": round(bound, 4), "same": all(each == wanted for each in answers),
            "model": options.model, "requests": len(times), "bytes_in": bytes_in, "moves_in": len(came), "copy_gb_s": round(rate, 1), "room_gib": options.room,
            "memory": options.memory, "mode": options.mode, "quantum": options.quantum}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=None, size=12, quantum="automatic", mode="automatic")
    parser.add_argument("--model", choices=("layers", "transformers"), default="layers")
    parser.add_argument("--requests", type=int, default=10, help="to each server")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two requests")
    parser.add_argument("--memory", choices=("swap", "auto"), default="swap")
    options = parser.parse_args()
    if options.part:
        return {"server": server, "write": write_llama}[options.part[0]](*options.part[1:])
    if any(importlib.util.find_spec(name) is None for name in ("torch", *(["transformers"] if options.model == "transformers" else []))) or gpus() < 2:
        return 77
    with tempfile.TemporaryDirectory(prefix="rota-servers-") as folder:
        result = measure(options, folder)
    print(json.dumps({"part": "gang_servers", **result}), flush=True)
    return int(not result["right"])


if __name__ == "__main__":
    sys.exit(main())
