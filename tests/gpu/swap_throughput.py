#!/usr/bin/env python3
"""What swap mode costs a program that is alone on the GPU: throughput under `rota run --memory swap` over native throughput.

    tests/gpu/swap_throughput.py --build DIR [--pairs 10] [--batches 8] [--budget 290] [--whole 2] [--only REGEX]

PyTorch with its three allocators, JAX without preallocation and with the platform's allocator, CuPy with its pool and with the
driver's. For each, --pairs pairs of processes, one native and one under rota, that take turns batch by batch (pairs.py). All pairs of
a program start together, on other processors, and are measured one after the other once the last is ready. A pair's figure is the middle
of its batches' ratios, the result the mean of the pairs' with its 95% interval by the t distribution. Then --whole pairs of whole processes, start-up and allocation included, side
by side on processors of their own: what a process needed from its start to its end for the same work. Every program under rota has a rotad
of its own. A program whose turn comes after the steady part of --budget seconds is not run, and a line says so.

Prints a line of JSON for each; `rule` says whether the interval reaches 0.99 and its lower end 0.97. Exits 77 where there is no GPU.
"""
import argparse
import collections
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from pairs import PROCESSORS, Steps, ratios_of
from swap_rig import driver_library, interval

HERE = pathlib.Path(__file__).resolve().parent
PYTORCH = "PYTORCH_CUDA_ALLOC_CONF"
PROGRAMS = {
    "torch": ("torch", {}),
    "torch-expandable": ("torch", {PYTORCH: "expandable_segments:True"}),
    "torch-cudaMallocAsync": ("torch", {PYTORCH: "backend:cudaMallocAsync"}),
    "jax": ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    "jax-platform": ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "cupy": ("cupy", {}),
    "cupy-async": ("cupy_async", {}),
    "driver": ("driver", {}),
}
OTHERS = sorted(set(os.sched_getaffinity(0)) - set(PROCESSORS)) or PROCESSORS


class Pair:
    """Native, and under rota."""

    def __init__(self, name, number, build, scratch):
        self.name = name
        self.number = number
        workload, settings = PROGRAMS[name]
        folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
        self.environment = dict(os.environ, ROTA_SOCKET=str(folder / "rotad.sock"), ROTA_LOCK_DIRECTORY=str(folder / "locks"), ROTA_LOG="warn", **settings)
        command = [sys.executable, "-B", HERE / "throughput_workloads.py", workload]
        self.commands = [command, [build / "bin/rota", "run", "--memory", "swap", "--", *command]]
        self.log = folder / "stderr"

    def begin(self):
        with open(self.log, "w") as log:
            self.both = [Steps(command, self.environment, OTHERS, stderr=log) for command in self.commands]
        return self

    def ratios(self, batches):
        """Of native time to that under rota."""
        for each in self.both:
            each.move_to(PROCESSORS)
        return ratios_of(*self.both, batches, self.number)

    def may_end(self):
        for each in self.both:
            each.may_end()

    def end(self):
        for each in self.both:
            each.end()

    def whole(self, seconds):
        """The same for wall-clock and processor time of whole processes that do the same work: steps a second, start included."""
        every = sorted(os.sched_getaffinity(0))
        parts = [every[:len(every) // 2] or every, every[len(every) // 2:]]
        if self.number % 2:
            parts.reverse()
        begun, running = time.monotonic(), []
        with open(self.log, "w") as log:
            for command, processors in zip(self.commands, parts):
                running.append(subprocess.Popen(list(map(str, [*command, seconds])), env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True,
                                                preexec_fn=lambda processors=processors: os.sched_setaffinity(0, processors)))
        ended, processor, left = {}, {}, {each.pid for each in running}
        steps = {}
        while left:
            pid, status, used = os.wait4(-1, 0)
            if pid not in left:
                continue
            left.remove(pid)
            assert status == 0, self.log.read_text()[-1500:]
            ended[pid], processor[pid] = time.monotonic() - begun, used.ru_utime + used.ru_stime
        for each in running:
            each.returncode = 0
            steps[each.pid] = json.loads(each.stdout.read().splitlines()[-1])["steps"]
            each.stdout.close()
        native, rota = (each.pid for each in running)
        start = {pid: ended[pid] - seconds for pid in ended}
        # The time that the native one needed for its work, against the other's for as much.
        for_as_much = start[rota] + seconds * steps[native] / steps[rota]
        return {"whole": ended[native] / for_as_much, "start": start[native] / start[rota], "processor": processor[native] / processor[rota]}


def said(part, name, ratios, extra):
    line = {"part": part, "program": name, "pairs": max(map(len, ratios.values()), default=0), **extra}
    for what, values in ratios.items():
        mean, half = interval(values)
        line[what] = {"native_time_over_rota": round(mean, 4), "interval": [round(mean - half, 4), round(mean + half, 4)] if len(values) > 1 else None,
                      "rule": mean + half >= 0.99 and mean - half >= 0.97, "pairs": [round(value, 3) for value in values]}
    print(json.dumps(line), flush=True)


def steady(options, names, scratch, deadline):
    """All pairs of a program start together, and nothing starts or ends while they are measured one after the other."""
    for name in names:
        if time.monotonic() > deadline:
            print(json.dumps({"part": "throughput", "program": name, "skipped": "the time was over"}), flush=True)
            continue
        ratios, problems = collections.defaultdict(list), []
        pairs = [Pair(name, number, options.build, scratch).begin() for number in range(options.pairs)]
        try:
            for pair in pairs:
                for each in pair.both:
                    each.wait_until_ready()
            for pair in pairs:
                for what, ratio in pair.ratios(options.batches).items():
                    ratios[what].append(ratio)
        except (AssertionError, ValueError) as error:
            problems.append(f"{error} {''.join(pair.log.read_text()[-300:] for pair in pairs)[-900:]}")
        finally:
            for pair in pairs:
                pair.may_end()
            for pair in pairs:
                pair.end()
        said("throughput", name, ratios, {"batches": options.batches, **({"problems": problems} if problems else {})})


def whole(options, names, scratch, deadline):
    ratios = {name: collections.defaultdict(list) for name in names}
    for number in range(options.whole):
        for name in names:
            if time.monotonic() > deadline:
                break
            for what, ratio in Pair(name, number, options.build, scratch).whole(options.work).items():
                ratios[name][what].append(ratio)
    for name in names:
        said("whole process", name, ratios[name], {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--batches", type=int, default=8, help="of each process of a pair")
    parser.add_argument("--budget", type=float, default=290, help="seconds for all")
    parser.add_argument("--whole", type=int, default=2, help="pairs of whole processes")
    parser.add_argument("--work", type=float, default=2, help="how many seconds a whole process works once it has started")
    parser.add_argument("--only", default="^(?!driver)")
    options = parser.parse_args()
    driver_library()
    options.build = options.build.resolve()
    names = [name for name, (workload, _) in PROGRAMS.items()
             if re.search(options.only, name) and (workload == "driver" or importlib.util.find_spec(workload.split("_")[0]))]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rota-throughput-", ignore_cleanup_errors=True) as scratch:
        # The whole processes are left a third of the time.
        steady(options, names, scratch, begun + options.budget * (2 / 3 if options.whole else 1))
        if options.whole:
            whole(options, names, scratch, begun + options.budget)
    return 0


if __name__ == "__main__":
    sys.exit(main())
