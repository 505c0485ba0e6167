#!/usr/bin/env python3
"""A CI rig on a GPU: 24 tests of five frameworks whose memory does not fit together, with and without rota.

    tests/gpu/ci.py --rota ROTA --programs PROGRAMS --out LOGS [--room 20] [--only REGEX]

PROGRAMS is tests/gpu/rig/programs.cu, built by nvcc (its head says how). A ballast of plain device memory leaves --room GiB free. Parts:

  warm     all tests once, eight at once, without the ballast: fills the caches of compiled kernels, and shows that the tests pass
  ctest    natively one after the other, then more and more at once; `rota ci -- ctest -j 8` twice, the second time with the needs that
           the first one wrote
  pytest   the same with `pytest` and `pytest -n 8`
  costs    a program that only launches and a PyTorch program of small steps: steps per second under `rota run`, under `rota ci` without
           options and with all of them, in turn

Prints a line of JSON for each run: how many passed, seconds, and for rota's what it found and how far its peaks are from the
frameworks' own figures; at the end the ratios. All memory is plain device memory (--memory swap). Exits 77 without an NVIDIA GPU.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
RIG = HERE / "rig"
sys.dont_write_bytecode = True  # the folder may be read-only
sys.path.insert(0, str(RIG))

import suite

GIB = 1 << 30
NATIVE_JOBS = {"ctest": [1, 2, 3, 4, 8], "pytest": [1, 2, 8]}  # unless --native-jobs says others

STEPS = """
import sys, time, torch
model = torch.nn.Sequential(*[layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.Tanh())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
inputs = torch.randn(64, 256, device="cuda")
def steps(seconds):
    done, begun = 0, time.monotonic()
    while time.monotonic() < begun + seconds:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        done += 1
        if done % 20 == 0: torch.cuda.synchronize()
    torch.cuda.synchronize()
    return done / (time.monotonic() - begun)
steps(1)
print(steps(3))
"""

LAUNCHES = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)) == 0
def launches(seconds):
    done, begun = 0, time.monotonic()
    while time.monotonic() < begun + seconds:
        for _ in range(100): assert cuda.cuMemsetD8Async(address, 1, ctypes.c_size_t(64), None) == 0
        assert cuda.cuCtxSynchronize() == 0
        done += 100
    return done / (time.monotonic() - begun)
launches(0.5)
print(launches(2))
"""


class Measurement:
    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="rota-ci-rig-"))
        self.environment = os.environ | {
            "RIG_PROGRAMS": str(options.programs.resolve()), "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{RIG}:{os.environ.get('PYTHONPATH', '')}"}
        # One session after another, each with a rotad of its own.
        self.environment["ROTA_SOCKET"] = str(self.folder / "rotad.sock")
        self.seconds = {}
        self.alone = {}  # seconds of each test by itself
        tests = [f'add_test({name} "{sys.executable}" "{RIG}/suite.py" {name})\nset_tests_properties({name} PROPERTIES TIMEOUT 150)\n'
                 for name in suite.TESTS]
        (self.folder / "CTestTestfile.cmake").write_text("".join(tests), encoding="ascii")

    def ballast(self):
        weight = subprocess.Popen([sys.executable, HERE / "swap_rig.py", "--part", "ballast", str(int(self.options.room * GIB))],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert weight.stdout.readline() == "ready\n"
        return weight

    def call(self, label, command, limit):
        figures = self.folder / f"{label}.figures"
        log = self.options.out / f"{label}.log"
        begun = time.monotonic()
        with log.open("w") as file:
            try:
                code = subprocess.run(command, env=self.environment | {"RIG_FIGURES": str(figures)}, cwd=self.folder, stdout=file,
                                      stderr=subprocess.STDOUT, timeout=limit, check=False).returncode
            except subprocess.TimeoutExpired:
                code = "timeout"
        self.seconds[label] = time.monotonic() - begun
        return code, log.read_text(errors="replace"), figures

    def result(self, label, code, text, **more):
        passed = len(re.findall(r"\bPassed +[\d.]+ sec|\bPASSED\b", text))
        line = {"run": label, "seconds": round(self.seconds[label], 1), "passed": passed, "of": len(suite.TESTS), "exit": code}
        failed = re.findall(r"Test +#\d+: (\w+) .*\*\*\*", text) or re.findall(r"^FAILED \S+\[(\w+)\]", text, re.M)
        if failed:
            line["failed"] = failed
        print(json.dumps(line | more), flush=True)
        return passed == len(suite.TESTS)

    def ctest(self, jobs):
        return ["ctest", "--test-dir", str(self.folder), "--output-on-failure", "-j", str(jobs)]

    def pytest(self, jobs):
        parallel = ["-n", str(jobs)] if jobs > 1 else []
        return [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *parallel, str(RIG / "test_rig.py")]

    def native(self, label, command, limit):
        code, text, _ = self.call(label, command, limit)
        if label == "ctest native -j 1":
            self.alone = {name: float(seconds) for name, seconds in re.findall(r"Test +#\d+: (\w+) .* ([\d.]+) sec", text)}
        return self.result(label, code, text)

    def rota(self, label, command, limit, *options):
        report = self.options.out / label.replace(" ", "-")
        rota = [self.options.rota, "ci", "--memory", "swap", "--report-dir", report, *options, "--"]
        code, text, figures = self.call(label, [*map(str, rota), *command], limit)
        said = json.loads((report / "report.json").read_text())
        own = {}
        for line in figures.read_text().splitlines() if figures.exists() else []:
            figure = json.loads(line)
            own[figure["test"]] = figure["bytes"]
        # Workspaces that libraries allocate by themselves are not in the frameworks' figures. A process that destroyed its handles
        # has none at the end: then as many bytes as the same number of allocations had in another one.
        kept = {}
        libraries = {at: [module for module in process["modules"] if re.search(r"/libcu(blas|solver|dnn|sparse)", module["path"])]
                     for at, process in enumerate(said["processes"])}
        for modules in libraries.values():
            kept |= {(module["path"], module["live"]): module["live_bytes"] for module in modules}
        peaks = {}
        for test in said["tests"]:
            name = re.sub(r".*\[(\w+)\]$", r"\1", test["name"])
            if name in own and test.get("host") is None:
                beside = sum(kept.get((module["path"], module["allocations"]), 0) for at in test["processes"] for module in libraries[at])
                peaks[name] = round((test["use"]["peak_bytes"] - beside) / own[name], 4)
        far = {name: ratio for name, ratio in peaks.items() if not 0.98 <= ratio <= 1.02}
        total = said["total"]
        self.result(label, code, text, findings=[finding["text"] for finding in said["findings"]], notes=said["notes"],
                    problems=said["problems"], tests_known=len(said["tests"]), peaks_compared=len(peaks), peaks_beyond_2_percent=far,
                    peak_gib=round(total["peak_bytes"] / GIB, 2), gpu_s=round(total["gpu_ns"] / 1e9, 1),
                    waited_s=round(total["waited_ns"] / 1e9, 1))
        return said

    def series(self, kind, command):
        label = f"{kind} native -j"
        best = None
        for jobs in self.options.native_jobs or NATIVE_JOBS[kind]:
            if self.native(f"{label} {jobs}", command(jobs), 420) and (best is None or self.seconds[f"{label} {jobs}"] < best[1]):
                best = (jobs, self.seconds[f"{label} {jobs}"])
        baseline = self.options.out / f"{kind}-rota-ci.json"
        baseline.unlink(missing_ok=True)
        self.rota(f"{kind} rota unknown", command(8), 240, "--update", baseline)
        said = self.rota(f"{kind} rota known", command(8), 240, "--baseline", baseline)
        summary = {"ratios": kind, "best_native": best}
        for which in ("unknown", "known"):
            seconds = self.seconds[f"{kind} rota {which}"]
            if f"{label} 1" in self.seconds:
                summary[f"one_after_the_other_over_{which}"] = round(self.seconds[f"{label} 1"] / seconds, 2)
            if best:
                summary[f"best_native_over_{which}"] = round(best[1] / seconds, 2)
        if self.alone and kind == "ctest":
            areas = [test["use"]["reserved_peak_bytes"] * self.alone[test["name"]] for test in said["tests"] if test["name"] in self.alone]
            bound = max(sum(areas) / (self.options.room * GIB), *self.alone.values())
            summary |= {"bound_s": round(bound, 1), "known_over_bound": round(self.seconds[f"{kind} rota known"] / bound, 2)}
        print(json.dumps(summary), flush=True)

    def costs(self):
        baseline = self.folder / "costs.json"
        baseline.write_text('{"version": 1, "tests": {}}')
        everything = ["--baseline", baseline, "--update", self.folder / "costs-new.json", "--fail-on", "errors,live,peak>+10%", "--hang-after", "300s",
                      "--junit", self.folder / "costs.xml", "--json", self.folder / "costs-report.json", "--html", self.folder / "costs.html",
                      "--github", "--suggest"]
        ways = {"run": ["run", "--memory", "swap"], "ci": ["ci", "--memory", "swap"], "everything": ["ci", "--memory", "swap", *everything]}
        for name, program, rounds in (("launches", LAUNCHES, 6), ("pytorch", STEPS, 3)):
            rates = {way: [] for way in ways}
            for at in range(rounds):
                for way in list(ways) if at % 2 == 0 else reversed(ways):
                    command = [self.options.rota, *ways[way], "--", sys.executable, "-c", program]
                    done = subprocess.run(list(map(str, command)), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                          text=True, timeout=90, check=False)
                    rates[way].append(float(re.findall(r"^[\d.]+$", done.stdout, re.M)[0]))
            line = {"costs": name} | {f"{way}_over_run": round(statistics.median(
                mine / run for mine, run in zip(rates[way], rates["run"])), 4) for way in ("ci", "everything")}
            # The fastest of each are disturbed least.
            line |= {f"best_{way}_over_best_run": round(max(rates[way]) / max(rates["run"]), 4) for way in ("ci", "everything")}
            line["spread_of_run"] = round(max(rates["run"]) / min(rates["run"]), 4)
            print(json.dumps(line | {"per_second": round(statistics.median(rates["run"]))}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rota", default="rota", help="the program, of a build or as installed")
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for logs and reports")
    parser.add_argument("--room", type=float, default=20, help="GiB that the ballast leaves")
    parser.add_argument("--only", default=".", help="parts whose names match")
    parser.add_argument("--native-jobs", type=int, nargs="+", help="how many tests at once without rota, one run for each")
    options = parser.parse_args()
    if not pathlib.Path("/dev/nvidiactl").exists() and "ROTA_RIG_ANYWHERE" not in os.environ:
        sys.exit(77)
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(options)
    wanted = lambda part: re.search(options.only, part)
    if wanted("warm"):
        measurement.native("warm", measurement.ctest(8), 300)
    if wanted("costs"):
        measurement.costs()
    if not wanted("ctest") and not wanted("pytest"):
        return
    weight = measurement.ballast()
    try:
        if wanted("ctest"):
            measurement.series("ctest", measurement.ctest)
        if wanted("pytest"):
            measurement.series("pytest", measurement.pytest)
    finally:
        weight.stdin.close()
        weight.wait()


if __name__ == "__main__":
    main()
