#!/usr/bin/env python3
"""Programs with several GPUs on a machine that has two: each has memory on both, and takes turns only where it works.

    tests/gpu/two_gpus.py [--build DIR] [--seconds 8] [--kernel-us 2000] [--only NAME]

Prints a line of JSON per case: the steps per second of each program under rota, and the same as a ratio to that program
alone without rota, in the same run. `apart`: one works on the first GPU, one on the second. `peers`: the same, after
both have given their GPUs access to each other and copied across once. `coupled`: one works on both GPUs, with copies
between them, beside one on each. `wrong` counts words with wrong contents and has to be 0. Plain device memory only, a
few megabytes. Simulated GPUs (ROTA_SIM_GPUS=2 and the rest of simgpu's environment) do as well.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

APART = [["--work", "0"], ["--work", "1"]]
PEERS = ["--peers", "--cross", "1000000"]
CASES = {
    "apart": APART,
    "peers": [part + PEERS for part in APART],
    "coupled": [["--work", "0,1", "--peers", "--cross", "50"], ["--touch", "1", "--work", "0"], ["--work", "1"]],
}


class Machine:
    def __init__(self, build, seconds, kernel_us, scratch):
        self.build = build
        self.common = ["--seconds", str(seconds), "--kernel-us", str(kernel_us)]
        self.environment = dict(os.environ, ROTA_SOCKET=str(scratch / "sock"), ROTA_LOCK_DIRECTORY=str(scratch / "locks"), ROTA_MEMORY="swap")
        self.environment.pop("ROTA_GPU_MEM_LIMIT", None)

    def start(self, options, under_rota):
        command = [self.build / "tests/programs/several", *self.common, *options]
        prefix = [self.build / "bin/rota", "run", "--"] if under_rota else []
        return subprocess.Popen([str(part) for part in prefix + command], env=self.environment, stdout=subprocess.PIPE, text=True)

    def rates(self, programs, under_rota):
        children = [self.start(options, under_rota) for options in programs]
        said = [json.loads(child.communicate(timeout=300)[0].splitlines()[-1]) for child in children]
        return [one["steps"] / one["seconds"] for one in said], sum(one["wrong"] for one in said)

    def daemon(self, mode):
        command = [self.build / "bin/rotad", "--socket", self.environment["ROTA_SOCKET"], "--lock-directory",
                   self.environment["ROTA_LOCK_DIRECTORY"], "--mode", mode]
        daemon = subprocess.Popen([str(part) for part in command])
        while subprocess.run([self.build / "bin/rota", "status"], env=self.environment, capture_output=True, check=False).returncode != 0:
            if daemon.poll() is not None:
                sys.exit("rotad has ended")
        return daemon


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--kernel-us", type=float, default=2000)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="rota-two-gpus-") as scratch:
        machine = Machine(options.build.resolve(), options.seconds, options.kernel_us, pathlib.Path(scratch))
        for name in [options.only] if options.only else CASES:
            programs = CASES[name]
            alone = [machine.rates([program], False)[0][0] for program in programs]
            native, _ = machine.rates(programs, False)
            for mode in ("exclusive", "automatic"):
                daemon = machine.daemon(mode)
                try:
                    rates, bad = machine.rates(programs, True)
                finally:
                    daemon.terminate()
                    daemon.wait()
                wrong += bad
                ratio = lambda these: [round(one / base, 3) for one, base in zip(these, alone)]
                print(json.dumps({"case": name, "mode": mode, "steps_per_s": [round(rate, 1) for rate in rates], "of_alone": ratio(rates),
                                  "native_together_of_alone": ratio(native), "wrong": bad}), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
