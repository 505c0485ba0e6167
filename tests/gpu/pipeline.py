#!/usr/bin/env python3
"""A program that works on two GPUs in turn, a pipeline of PyTorch, concurrently with a program on each of them.

    tests/gpu/pipeline.py [--build DIR] [--seconds 15] [--memory MODE]

The pipeline trains a model whose first half is on the first GPU and whose second half on the second, in four pieces a
step, so that both work at once; what goes from one half to the other is copied between the GPUs. The other two multiply
matrices. Prints a line of JSON per mode: the steps per second of each under rota as a ratio to the same alone without
rota, in the same run; the same for all three together without rota; and whether the pipeline's losses are those that it
had alone, bit for bit, as far as both came. Plain device memory, some hundred megabytes each.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PIPELINE = """
import json, sys, time
import torch
torch.manual_seed(1)
first = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).to("cuda:0")
second = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(6)]).to("cuda:1")
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
data = torch.randn(4, 1024, 2048, device="cuda:0")
target = torch.randn(4, 1024, 2048, device="cuda:1")
def step():
    optimizer.zero_grad()
    moved = [first(piece).to("cuda:1", non_blocking=True) for piece in data]
    loss = sum(torch.nn.functional.mse_loss(second(piece), wanted) for piece, wanted in zip(moved, target))
    loss.backward()
    optimizer.step()
    return loss.detach()
losses = [step().item().hex() for _ in range(5)]
begin = time.monotonic()
while time.monotonic() < begin + SECONDS:
    some = [step() for _ in range(5)]
    losses += [loss.item().hex() for loss in some]
took = time.monotonic() - begin
print(json.dumps({"steps": len(losses) - 5, "seconds": took, "losses": losses}), flush=True)
"""

SINGLE = """
import json, time
import torch
torch.cuda.set_device(GPU)
matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def step():
    product = matrix
    for _ in range(8):
        product = matrix @ product
for _ in range(5):
    step()
torch.cuda.synchronize()
begin = time.monotonic()
steps = 0
while time.monotonic() < begin + SECONDS:
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    steps += 5
print(json.dumps({"steps": steps, "seconds": time.monotonic() - begin}), flush=True)
"""


class Machine:
    def __init__(self, options, scratch):
        self.build = options.build.resolve()
        self.seconds = options.seconds
        self.environment = dict(os.environ, ROTA_SOCKET=str(scratch / "sock"), ROTA_LOCK_DIRECTORY=str(scratch / "locks"), ROTA_MEMORY=options.memory)
        self.programs = [PIPELINE, SINGLE.replace("GPU", "0"), SINGLE.replace("GPU", "1")]

    def run(self, programs, under_rota):
        prefix = [str(self.build / "bin/rota"), "run", "--"] if under_rota else []
        children = [subprocess.Popen([*prefix, sys.executable, "-c", program.replace("SECONDS", str(self.seconds))], env=self.environment,
                                     stdout=subprocess.PIPE, text=True) for program in programs]
        said = []
        for child in children:
            try:
                said.append(json.loads(child.communicate(timeout=self.seconds + 120)[0].splitlines()[-1]))
            except (subprocess.TimeoutExpired, IndexError):
                for each in children:
                    each.kill()
                raise
        return said

    def daemon(self, mode):
        daemon = subprocess.Popen([str(self.build / "bin/rotad"), "--socket", self.environment["ROTA_SOCKET"], "--lock-directory",
                                   self.environment["ROTA_LOCK_DIRECTORY"], "--mode", mode])
        while subprocess.run([str(self.build / "bin/rota"), "status"], env=self.environment, capture_output=True, check=False).returncode != 0:
            if daemon.poll() is not None:
                sys.exit("rotad has ended")
        return daemon


def rates(said):
    return [one["steps"] / one["seconds"] for one in said]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--memory", default="swap")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="rota-pipeline-") as scratch:
        machine = Machine(options, pathlib.Path(scratch))
        alone = [machine.run([program], False)[0] for program in machine.programs]
        ratio = lambda said: [round(one / base, 3) for one, base in zip(rates(said), rates(alone))]
        native = machine.run(machine.programs, False)
        for mode in ("exclusive", "automatic"):
            daemon = machine.daemon(mode)
            try:
                together = machine.run(machine.programs, True)
            finally:
                daemon.terminate()
                daemon.wait()
            same = all(a == b for a, b in zip(together[0]["losses"], alone[0]["losses"]))
            failed |= not same
            print(json.dumps({"mode": mode, "memory": options.memory, "of_alone": ratio(together), "sum": round(sum(ratio(together)), 3),
                              "native_together_of_alone": ratio(native), "native_sum": round(sum(ratio(native)), 3), "losses_as_alone": same,
                              "losses_compared": min(len(together[0]["losses"]), len(alone[0]["losses"]))}), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
