#!/usr/bin/env python3
"""Programs whose memory fits a GPU together: how well rota's automatic mode shares it, against the driver's time slicing.

    tests/gpu/share.py --build DIR --load LOAD [--only REGEX] [--windows 20] [--seconds 2]

LOAD is tests/gpu/programs/load.cu, built by nvcc (its head says how). Each set of programs runs under one rotad of its own
with plain device memory, and the mode is switched while they run: windows of automatic mode and of `concurrent`, which is
the driver's time slicing, alternate. A program's rate in a window is what it counted, over its rate alone in the same run;
a window's score is the sum. The first set runs once more without rota, in windows of its own. Bursts are timed one by one, alone and in both modes.

All of LOAD's kernels do work that was measured once, while nothing else ran.

Hand-overs are measured by the GPU's own clock, from the end of one program's last kernel to the start of the other's next.

Prints one line of JSON for each set: mean scores with 95% intervals, their ratio, each program's own mean, the candidate
that rotad chose, and for bursts their times in ms. Exits 77 where there is no NVIDIA GPU.
"""
import argparse
import json
import math
import mmap
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

TORCH = """
import mmap, struct, sys, time, torch
file = open(sys.argv[1], "r+b")
words = mmap.mmap(file.fileno(), 4096)
kind = sys.argv[2]
torch.backends.cuda.matmul.allow_tf32 = True
device = torch.device("cuda")
done = 0
if kind == "matmul":
    a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    def step():
        b = a
        for _ in range(10): b = a @ a
        torch.cuda.synchronize()
elif kind == "train":
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device=device)
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    x = torch.randn(16, 128, 512, device=device)
    def step():
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
else:
    a = torch.ones(1000, device=device)
    def step():
        b = a
        for _ in range(100): b = b + 1
        torch.cuda.synchronize()
while struct.unpack_from("<Q", words, 8)[0] == 0:
    step()
    done += 1
    struct.pack_into("<Q", words, 16, time.monotonic_ns())
    struct.pack_into("<Q", words, 0, done)
"""

SETS = {
    "two-saturating": [["saturate", "200", "40"]] * 2,
    "eight-saturating": [["saturate", "200", "40"]] * 8,
    "two-queueing": [["saturate", "1000", "60"]] * 2,
    "saturating-and-half": [["saturate", "200", "40"], ["half", "500", "500"]],
    "two-half": [["half", "500", "500"]] * 2,
    "two-tiny": [["tiny", "100"]] * 2,
    "saturating-and-tiny": [["saturate", "200", "40"], ["tiny", "100"]],
    "two-saturating-and-tiny": [["saturate", "200", "40"]] * 2 + [["tiny", "100"]],
    "torch-matmul-pair": [["torch", "matmul"]] * 2,
    "torch-train-pair": [["torch", "train"]] * 2,
    "torch-tiny-pair": [["torch", "tiny"]] * 2,
    "torch-matmul-and-tiny": [["torch", "matmul"], ["torch", "tiny"]],
    "torch-matmul-and-train": [["torch", "matmul"], ["torch", "train"]],
    "torch-train-and-tiny": [["torch", "train"], ["torch", "tiny"]],
    "torch-train-three": [["torch", "train"]] * 3,
}
# The burst: length of its kernels, their number, and the pause in ms; the program next to it; and how many programs send bursts.
BURSTS = {
    "burst-beside-saturating": (["1000", "20", "200"], ["saturate", "1000", "8"], 1),
    "burst-beside-queueing": (["1000", "20", "200"], ["saturate", "2000", "300"], 1),
    "four-notebooks": (["1000", "100", "2000"], ["saturate", "1000", "8"], 4),
}


class Counter:
    def __init__(self, path):
        self.path = path
        path.write_bytes(bytes(4096))
        with open(path, "r+b") as file:
            self.words = mmap.mmap(file.fileno(), 4096)

    def done(self):
        return struct.unpack_from("<Q", self.words, 0)[0]

    def last(self):
        """What it has counted, and when it last did, in s."""
        while True:
            done, at = struct.unpack_from("<Q8xQ", self.words, 0)
            if done == self.done():
                return done, at / 1e9

    def stop(self):
        struct.pack_into("<Q", self.words, 8, 1)


class Rig:
    """One rotad and the programs under it."""

    def __init__(self, arguments, mode):  # mode "": programs run without rota
        self.rota = pathlib.Path(arguments.build) / "bin" / "rota"
        self.load = arguments.load
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rota-share-"))
        self.environment = os.environ | {
            "ROTA_SOCKET": str(self.folder / "socket"), "ROTA_MEMORY": "native", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.rotad, self.programs = None, []
        if not mode:
            return
        ready, told = os.pipe()
        self.rotad = subprocess.Popen(
            [self.rota.parent / "rotad", "--mode", mode, "--ready-fd", str(told), "--event-log", self.folder / "events",
             "--lock-directory", self.folder / "locks", "--log", "warn"], env=self.environment, pass_fds=[told])
        os.close(told)
        os.read(ready, 8)
        os.close(ready)

    def start(self, command, **how):
        counter = Counter(self.folder / f"counter{len(self.programs)}")
        if command[0] == "torch":
            whole = [sys.executable, "-c", TORCH, counter.path, command[1]]
        else:
            whole = [self.load, counter.path, *command]
        rota = [self.rota, "run", "--"] if self.rotad else []
        process = subprocess.Popen([*rota, *whole], env=self.environment, **how)
        self.programs.append((process, counter))
        return process, counter

    def await_work(self):
        deadline = time.monotonic() + 120
        while any(counter.done() == 0 for _, counter in self.programs):
            if any(process.poll() is not None for process, _ in self.programs) or time.monotonic() > deadline:
                raise RuntimeError("a program did not begin to work")
            time.sleep(0.05)

    def set_mode(self, mode):
        subprocess.run([self.rota, "control", "mode", mode], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def status(self):
        answer = subprocess.run([self.rota, "status", "--json"], env=self.environment, capture_output=True, text=True)
        return json.loads(answer.stdout)["gpus"][0].get("sharing", {})

    def last(self):
        return [counter.last() for _, counter in self.programs]

    def close(self):
        for _, counter in self.programs:
            counter.stop()
        for process, _ in self.programs:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        if self.rotad:
            self.rotad.terminate()
            self.rotad.wait()
        if self.rotad and (keep := os.environ.get("SHARE_KEEP")):
            shutil.copy(self.folder / "events", f"{keep}/events-{os.getpid()}-{time.time():.0f}")
        shutil.rmtree(self.folder)


def settling(rig):
    """Seconds from the moment at which all work to the last change of the candidate: it has then stayed the same for 1.5 s, or 8 s have passed."""
    begun, last, before = time.monotonic(), 0.0, None
    while (now := time.monotonic()) < begun + min(last + 1.5, 8):
        sharing = rig.status()
        what = (sharing.get("candidate"), sharing.get("looking"))
        if what != before:
            last, before = now - begun, what
        time.sleep(0.01)
    return round(last, 2)


def rates(rig, seconds, settle=0.0):
    time.sleep(settle)
    before, begun = rig.last(), time.monotonic()
    time.sleep(seconds)
    after, ended = rig.last(), time.monotonic()
    return [(done - done_before) / (ended - begun) for (done_before, _), (done, _) in zip(before, after)]


def rate_of_steps(rig, seconds, settle):
    """The rate of the first program, which does nothing but its steps: counted from the end of one step to the end of another."""
    time.sleep(settle)
    before, begun = rig.last()[0]
    time.sleep(seconds)
    after, ended = rig.last()[0]
    return (after - before) / (ended - begun)


def alone(arguments, command, mode="automatic", known={}):
    key = (mode, *command)
    if key not in known:
        rig = Rig(arguments, mode)
        try:
            rig.start(command)
            rig.await_work()
            known[key] = rate_of_steps(rig, 2, 0.3)
        finally:
            rig.close()
    return known[key]


def interval(values):
    mean = statistics.fmean(values)
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return [round(mean, 3), round(mean - half, 3), round(mean + half, 3)]


def score_set(arguments, name, commands):
    own = [alone(arguments, command) for command in commands]
    rig = Rig(arguments, "automatic")
    windows = {"automatic": [], "concurrent": []}
    try:
        for command in commands:
            rig.start(command)
        rig.await_work()
        settled = settling(rig)
        for window in range(arguments.windows):
            mode = ("automatic", "concurrent")[window % 2]
            rig.set_mode(mode)
            got = rates(rig, arguments.seconds, 0.2)
            windows[mode].append([rate / base for rate, base in zip(got, own)])
        rig.set_mode("automatic")
        time.sleep(0.2)
        chosen = rig.status()
    finally:
        rig.close()
    scores = {mode: [sum(each) for each in all] for mode, all in windows.items()}
    ratios = [a / b for a, b in zip(scores["automatic"], scores["concurrent"])]
    return {"set": name, "chosen": chosen, "settled_after_s": settled, "automatic": interval(scores["automatic"]),
            "time_slicing": interval(scores["concurrent"]), "ratio": interval(ratios),
            "each": {mode: [round(statistics.fmean(column), 3) for column in zip(*all)] for mode, all in windows.items()}}


def score_without_rota(arguments, name, commands):
    own = [alone(arguments, command, "") for command in commands]
    rig = Rig(arguments, "")
    try:
        for command in commands:
            rig.start(command)
        rig.await_work()
        scores = [sum(rate / base for rate, base in zip(rates(rig, arguments.seconds, 0.2), own)) for _ in range(arguments.windows // 2)]
    finally:
        rig.close()
    return {"set": name + " without rota", "time_slicing": interval(scores)}


def percentile(values, part):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(part * len(values)))], 2) if values else None


def bursts_of(arguments, burst, beside, programs, mode, count):
    rig = Rig(arguments, mode)
    try:
        other = rig.start(beside)[1] if beside else None
        if beside:
            rig.await_work()
            time.sleep(0.5)
        # Different pauses, so that the programs do not stay in step.
        senders = [rig.start(["burst", *burst[:2], str(int(burst[2]) + 170 * each), str(count)], stdout=subprocess.PIPE,
                             text=True)[0] for each in range(programs)]
        times = []
        if other:
            done, begun = other.last()
        for sender in senders:
            times += [float(line) for line in sender.communicate()[0].split()[2:]]
        rate = None
        if other:
            ended_done, ended = other.last()
            rate = (ended_done - done) / (ended - begun)
    finally:
        rig.close()
    return times, rate


def score_bursts(arguments, name, burst, beside, programs):
    count = arguments.bursts if programs == 1 else max(8, arguments.bursts // 12)
    single, _ = bursts_of(arguments, burst, None, 1, "automatic", 12)
    base = alone(arguments, beside)
    result = {"set": name, "alone_p50": percentile(single, 0.5)}
    duty = programs * percentile(single, 0.5) / (percentile(single, 0.5) + float(burst[2]))
    for mode in ("automatic", "concurrent"):
        times, rate = bursts_of(arguments, burst, beside, programs, mode, count)
        result[mode] = {"p50": percentile(times, 0.5), "p95": percentile(times, 0.95), "p99": percentile(times, 0.99),
                        "max": round(max(times), 2), "other": round(rate / base, 3),
                        "other_of_remainder": round(rate / base / (1 - duty), 3)}
    return result


def score_hand_overs(arguments):
    """How long the GPU is idle when it changes hands, in us; compared with a gap between two kernels of one program."""
    rig = Rig(arguments, "automatic")
    try:
        senders = [rig.start(["stamps", "1000", "8"], stdout=subprocess.PIPE, text=True)[0] for _ in range(2)]
        rig.await_work()
        time.sleep(10 * arguments.seconds)
        for _, counter in rig.programs:
            counter.stop()
        kernels = sorted((*map(int, line.split()), which) for which, sender in enumerate(senders)
                         for line in sender.communicate()[0].splitlines())
    finally:
        rig.close()
    overs, within, overlapping = hand_overs(kernels)
    gaps = [gap for _, gap in overs]
    long = [[round((at - kernels[0][0]) / 1e9, 3), round(gap)] for at, gap in overs if gap > 1e3]
    return {"set": "hand-over", "count": len(gaps), "overlapping": overlapping,
            "p50": percentile(gaps, 0.5), "p99": percentile(gaps, 0.99), "max": percentile(gaps, 1),
            "above_1_ms_at_s": long[:20], "within_p50": percentile(within, 0.5), "within_p99": percentile(within, 0.99)}


def hand_overs(kernels):
    """Of kernels (begun, ended, whose) in ns, in the order in which they began: when the GPU changed hands and for how long
    it was idle then, in us; how long it was idle within a program's work; and how often a kernel began while another
    program's was under way: those two are interleaved by the driver, which is no hand-over.

    A kernel that the driver has interrupted ends after others that began later. The GPU is idle from the latest end so far."""
    overs, within, overlapping = [], [], 0
    last_end, last = None, None
    for begun, ended, who in kernels:
        if last is not None and who == last:
            within.append((begun - last_end) / 1e3)
        elif last is not None and begun >= last_end:
            overs.append((begun, (begun - last_end) / 1e3))
        elif last is not None:
            overlapping += 1
        if last is None or ended >= last_end:
            last_end, last = ended, who
    return overs, within, overlapping


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--load", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--bursts", type=int, default=300)
    arguments = parser.parse_args()
    if not pathlib.Path("/dev/nvidiactl").exists() and "ROTA_SHARE_ANYWHERE" not in os.environ:
        sys.exit(77)
    with tempfile.NamedTemporaryFile() as counter:
        os.environ["LOAD_ROUNDS_PER_US"] = subprocess.run([arguments.load, counter.name, "rounds"], check=True, stdout=subprocess.PIPE,
                                                          text=True).stdout.strip()
    for name, commands in SETS.items():
        if re.search(arguments.only, name):
            print(json.dumps(score_set(arguments, name, commands)), flush=True)
            if name == next(iter(SETS)):
                print(json.dumps(score_without_rota(arguments, name, commands)), flush=True)
    if re.search(arguments.only, "hand-over"):
        print(json.dumps(score_hand_overs(arguments)), flush=True)
    for name, how in BURSTS.items():
        if re.search(arguments.only, name):
            print(json.dumps(score_bursts(arguments, name, *how)), flush=True)


if __name__ == "__main__":
    main()
