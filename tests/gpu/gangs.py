#!/usr/bin/env python3
"""Two jobs of two NCCL ranks each, at the same time on the same two GPUs.

    tests/gpu/gangs.py [--build DIR] [--seconds 20] [--variant default|no-p2p|no-shm] [--named]

Each rank of a job multiplies matrices and adds a vector over both ranks (all_reduce), step after step, and checks every sum. Ranks are
started as torchrun starts them; with --named they name their gang (`rota run --gang JOB:2`) and have nothing of a launcher's environment
that rota knows. Prints a line of JSON per variant and mode: the steps per second of each job under rota, their sum as a ratio to one job
alone without rota in the same run, the same for both jobs without rota at the same time, wrong sums, turns that were revoked, and what
`rota status` says of the gangs halfway. Some hundred megabytes of plain device memory.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

VARIANTS = {"default": {}, "no-p2p": {"NCCL_P2P_DISABLE": "1"}, "no-shm": {"NCCL_SHM_DISABLE": "1"}}

RANK = """
import json, os, sys, time
import torch
import torch.distributed as distributed
rank, store, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
torch.cuda.set_device(rank)
distributed.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2, device_id=torch.device("cuda", rank))
matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
def step(number):
    product = matrix
    for _ in range(8):
        product = matrix @ product
    vector = torch.full((1 << 20,), float(number % 97 + rank), device="cuda")
    distributed.all_reduce(vector)
    return vector, 2.0 * (number % 97) + 1
for number in range(20):
    step(number)
torch.cuda.synchronize()
distributed.barrier()
wrong = steps = 0
begin = time.monotonic()
go_on = torch.ones(1, device="cuda")
while True:
    for _ in range(20):
        vector, sum = step(steps)
        steps += 1
    wrong += int((vector != sum).sum())
    go_on.fill_(1.0 if time.monotonic() - begin < seconds else 0.0)
    distributed.all_reduce(go_on)
    if go_on.item() < 2:
        break
took = time.monotonic() - begin
print(json.dumps({"steps": steps, "seconds": took, "wrong": wrong}), flush=True)
distributed.destroy_process_group()
"""


class Machine:
    def __init__(self, options, scratch):
        self.build = options.build.resolve()
        self.named = options.named
        self.seconds = options.seconds
        self.scratch = scratch
        self.runs = 0
        self.environment = dict(os.environ, ROTA_SOCKET=str(scratch / "sock"), ROTA_LOCK_DIRECTORY=str(scratch / "locks"))
        self.program = scratch / "rank.py"
        self.program.write_text(RANK)

    def job(self, number, under_rota, variant):
        self.runs += 1
        store = self.scratch / f"store{self.runs}"
        ranks = []
        for rank in (0, 1):
            environment = dict(self.environment, **VARIANTS[variant])
            if not self.named:
                environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29500 + number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank))
            prefix = [self.build / "bin/rota", "run"] + (["--gang", f"job{number}:2"] if self.named else []) + ["--"] if under_rota else []
            command = [*prefix, sys.executable, self.program, rank, store, self.seconds]
            log = open(self.scratch / f"job{number}-{rank}-{self.runs}.log", "w", encoding="utf-8")
            ranks.append(subprocess.Popen([str(part) for part in command], env=environment, stdout=subprocess.PIPE, stderr=log, text=True))
        return ranks

    def said(self, ranks, patience):
        all_said = []
        for rank in ranks:
            try:
                output = rank.communicate(timeout=patience)[0].splitlines()
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.communicate()
                output = []
            all_said.append(json.loads(output[-1]) if output else {"steps": 0, "seconds": 1, "wrong": -1})
        return all_said

    def rates(self, jobs, under_rota, variant):
        """Of each job, words that were wrong in all, and the gangs as they were halfway."""
        started = [self.job(number, under_rota, variant) for number in range(jobs)]
        gangs = None
        if under_rota:
            begin = time.monotonic()
            with open(self.scratch / "status.log", "w", encoding="utf-8") as log:
                while all(rank.poll() is None for ranks in started for rank in ranks):
                    status = subprocess.run([str(self.build / "bin/rota"), "status", "--json"], env=self.environment, capture_output=True, text=True, check=False)
                    if status.returncode == 0 and time.monotonic() < begin + 20 + self.seconds / 2:
                        gangs = json.loads(status.stdout)["gangs"]
                    print(f"{time.monotonic() - begin:.1f}", status.stdout.replace("\n", " ") or status.stderr, file=log)
                    time.sleep(0.5)
        said = [self.said(ranks, self.seconds + 90) for ranks in started]
        return [ranks[0]["steps"] / ranks[0]["seconds"] for ranks in said], sum(rank["wrong"] for ranks in said for rank in ranks), gangs

    def daemon(self, mode):
        log = open(self.scratch / "rotad.log", "w+", encoding="utf-8")
        command = [self.build / "bin/rotad", "--socket", self.environment["ROTA_SOCKET"], "--lock-directory", self.environment["ROTA_LOCK_DIRECTORY"], "--mode", mode, "--event-log", self.scratch / "events.log"]
        daemon = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        while subprocess.run([self.build / "bin/rota", "status"], env=self.environment, capture_output=True, check=False).returncode != 0:
            if daemon.poll() is not None:
                sys.exit("rotad has ended")
        return daemon, log


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--mode", choices=("exclusive", "automatic"))
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for what the programs, rotad and, twice a second, `rota status` say, and rotad's event log")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="rota-gangs-") as scratch:
        machine = Machine(options, pathlib.Path(scratch))
        for variant in [options.variant] if options.variant else VARIANTS:
            alone = machine.rates(1, False, variant)[0][0]
            together = machine.rates(2, False, variant)[0]
            for mode in [options.mode] if options.mode else ("exclusive", "automatic"):
                daemon, log = machine.daemon(mode)
                try:
                    rates, wrong, gangs = machine.rates(2, True, variant)
                finally:
                    daemon.terminate()
                    daemon.wait()
                log.seek(0)
                revoked = sum("did not give its GPU back" in line for line in log)
                failed |= wrong != 0 or revoked != 0
                print(json.dumps({"variant": variant, "mode": mode, "steps_per_s": [round(rate, 1) for rate in rates],
                                  "sum_of_one_alone": round(sum(rates) / alone, 3) if alone else None,
                                  "native_together": round(sum(together) / alone, 3) if alone else None,
                                  "wrong": wrong, "lines_of_revocations": revoked, "gangs": gangs}), flush=True)
                if options.logs:
                    options.logs.mkdir(parents=True, exist_ok=True)
                    for said in pathlib.Path(scratch).glob("*.log"):
                        (options.logs / f"{variant}-{mode}-{said.name}").write_bytes(said.read_bytes()[-4000000:])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
