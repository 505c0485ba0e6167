"""The libraries programs use (libraries/use_*.py): the same results natively, under `rota run` and under `rota trace`, and
the list of CUDA functions that each calls."""
import collections
import concurrent.futures
import glob
import json
import re
import shutil
import sys
import time

from bench import HERE, Skip, needs, same

# What a script needs beyond Python.
LIBRARIES = {
    "pytorch": ["torch"], "jax": ["jax"], "cupy": ["cupy"], "triton": ["triton", "torch"], "cublas": ["torch"], "cudnn": ["torch"],
    "cufft": ["torch", "cupy"], "math": ["torch", "cupy"], "nccl": ["torch"], "nccl_two_gpus": ["torch"], "numba": ["numba", "numba_cuda"], "cuda_python": ["cuda"],
}
# Legacy IPC refuses Unified Memory (README, limits): these processes are compared natively and traced, with native memory.
NATIVE_MEMORY_ONLY = {("pytorch", "ipc"), ("cupy", "ipc")}
MANAGED_AT_ONCE = 3  # times ROTA_GPU_MEM_LIMIT: below the 4 GiB of managed memory that all may take together

Outcome = collections.namedtuple("Outcome", "answer functions error")


def summary_functions(text):
    """{function: API} of the table that `rota trace` closes with."""
    functions, api = {}, None
    for line in text.splitlines():
        header = re.match(r"\s+calls\s+total.*\b(runtime|driver) API", line)
        # calls, total, self, errors and, where calls waited for their turn, for how long
        row = re.match(r"\s*\d+(?:\s+[\d.]+ \w+){2}\s+\d+(?:\s+(?:[\d.]+ \w+|-|0))?\s+(\w+)$", line)
        if header:
            api = header.group(1)
        elif row and api:
            functions[row.group(1)] = api
    return functions


class Runs:
    """All processes of the selected libraries, in the three ways, several at once: start-up is most of their time."""

    def __init__(self, bench, libraries):
        self.bench = bench
        self.all = concurrent.futures.ThreadPoolExecutor(8)
        self.managed = concurrent.futures.ThreadPoolExecutor(MANAGED_AT_ONCE)
        self.outcomes = {}
        for library in libraries:
            command = [sys.executable, "-B", HERE / "libraries" / f"use_{library}.py"]
            processes = json.loads(bench.checked([*command, "--list"]).stdout.splitlines()[-1])
            self.outcomes[library] = {
                process: {mode: pool.submit(self.outcome, [*command, process], environment, mode, f"{library}-{process}")
                          for mode, pool in (("native", self.all), ("trace", self.all), ("run", self.managed))
                          if mode != "run" or (library, process) not in NATIVE_MEMORY_ONLY}
                for process, environment in processes.items()}

    def outcome(self, command, environment, mode, name):
        folder = self.bench.scratch / f"calls-{name}"
        rota = {"native": [], "run": [self.bench.rota, "run", "--"], "trace": [self.bench.rota, "trace", "--dir", folder, "--"]}[mode]
        if mode == "trace":  # memory as the program would have it
            environment = dict(environment, ROTA_MEMORY="native")
        try:
            result = self.bench.call([*rota, *command], timeout=300, **environment)
            answers = [line for line in result.stdout.splitlines() if line.startswith('{"results"')]
            error = "" if result.returncode == 0 and answers else f"{mode}: exit {result.returncode}: {result.stderr[-600:]}"
            if "does not know the function that the driver returned" in result.stderr:
                error = f"{mode}: rota does not know the function that the driver returned: {result.stderr[-600:]}"
            return Outcome(json.loads(answers[-1]) if answers else None, summary_functions(result.stdout + "\n" + result.stderr), error)
        except Exception as error:
            return Outcome(None, {}, f"{mode}: {error}"[:600])
        finally:
            if mode == "trace":
                shutil.rmtree(folder, ignore_errors=True)


def write_list(bench, library, functions, outcomes):
    versions, missing = {}, {}
    for process, by_mode in outcomes.items():
        answer = by_mode["trace"].answer or {"versions": {}, "failed": {process: by_mode["trace"].error}}
        versions.update(answer["versions"])
        missing.update(answer["failed"])
    named = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
    lines = [f"# Driver and runtime API functions called by tests/gpu/libraries/use_{library}.py: {named}; "
             f"{bench.gpu}, {time.strftime('%Y-%m-%d')}."]
    lines += [f"# Not in it, since it failed there: {part} ({re.sub(r'/tmp/[^ :(]*', '…', why.splitlines()[0])[:120]})" for part, why in sorted(missing.items())]
    folder = bench.out / "calls"
    folder.mkdir(exist_ok=True)
    (folder / f"{library}.txt").write_text("\n".join(lines + sorted(functions)) + "\n")
    return missing


def can_run(library):
    needs(*LIBRARIES[library])
    if library == "nccl_two_gpus" and len(glob.glob("/dev/nvidia[0-9]*")) < 2:
        raise Skip("second GPU")


def available(library):
    try:
        can_run(library)
        return True
    except Skip:
        return False


def library_check(library):
    def check(bench):
        can_run(library)
        if not hasattr(bench, "library_runs"):
            bench.library_runs = Runs(bench, [check.library for check in bench.selected if hasattr(check, "library") and available(check.library)])
        outcomes = {process: {mode: future.result() for mode, future in by_mode.items()}
                    for process, by_mode in bench.library_runs.outcomes[library].items()}
        functions = {name: api for by_mode in outcomes.values() for name, api in by_mode["trace"].functions.items()}
        missing = write_list(bench, library, functions, outcomes)
        wrong = []
        traced = [by_mode["trace"] for by_mode in outcomes.values()]
        if not functions and not all(outcome.error for outcome in traced):
            wrong.append("the traces list no function")
        for process, by_mode in outcomes.items():
            native = by_mode["native"]
            for mode in ("trace", "run"):
                if native.error or mode not in by_mode:
                    continue
                try:
                    assert not by_mode[mode].error, by_mode[mode].error
                    assert by_mode[mode].answer["failed"].keys() == native.answer["failed"].keys(), f"failed: {by_mode[mode].answer['failed']}"
                    same(by_mode[mode].answer["results"], native.answer["results"])
                except AssertionError as difference:
                    wrong.append(f"{process} under rota {mode}: {difference}")
        assert not wrong, "; ".join(wrong)
        driver = sum(api == "driver" for api in functions.values())
        note = f"{driver} driver and {len(functions) - driver} runtime functions"
        unable = [process for process, by_mode in outcomes.items() if by_mode["native"].error]
        if missing or unable:
            note += f"; natively missing too: {', '.join([*missing, *unable])}"
        return note

    check.__name__ = f"library_{library}_gives_the_same_and_its_calls_are_listed"
    check.library = library
    return check


CHECKS = [library_check(library) for library in LIBRARIES]
