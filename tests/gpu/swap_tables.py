#!/usr/bin/env python3
"""Libraries under forced swaps, and through which private tables of the driver they work (cuGetExportTable): the evidence that programs
which use these tables can be swapped.

    tests/gpu/swap_tables.py --build DIR [--only REGEX] [--seconds 15] [--evidence DIR] [--features PROGRAM] [--logs DIR] [--list]

Each program (a process of libraries/use_*.py, its parts again and again as libraries/repeat.py does it, and programs/features.cu if it is
given) runs under `rota run --memory swap` until all are warm. Then a ballast and a program of at least --hog GiB (memhog) fill the GPU, so that with each
turn of that one all others have to be evicted but for some of their --weight, which is evicted last. Every number is compared with
what it was before that, each table that rota was asked for is noted, and a program that does not end is killed.

Prints a line of JSON per program and one of all. Writes into --evidence the file swap-DRIVER.json of {uuid, bytes, programs, how
often each was evicted, wrong results} (tables/evidence.py), with what is there already. The exit status is 1 if anything was wrong,
and 77 where there is no GPU. Plain memory, but for what the libraries' own parts take.
"""
import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE / "tables"))

import evidence
import swap_switches
from export_tables import LINE, file_name
from library_checks import LIBRARIES
from results import machine
from swap_rig import GIB, MIB, add_options, context_bytes, driver_library, end, served, stacks, tell

STAYS = re.compile(r"rota: (rota cannot see every use of this process's GPU memory: .*|.* this process's memory stays native.*|.* this program's memory stays on the GPU)$", re.M)
MOST_FEATURES = 512 * MIB


# The first needs two GPUs (swap_nccl.py), the part of the second resets the context in which the weight lies, and the last waits for
# 90 s for a tensor whose legacy handle PyTorch was refused in another thread.
NOT_HERE = ("nccl_two_gpus", "numba", "pytorch/ipc")


def programs(options):
    """(name, command, environment) of what can run here."""
    for script in sorted(options.libraries.glob("use_*.py")):
        library = script.stem.removeprefix("use_")
        if library in NOT_HERE or any(importlib.util.find_spec(module) is None for module in LIBRARIES.get(library, [])):
            continue
        listed = subprocess.run([sys.executable, "-B", script, "--list"], capture_output=True, text=True)
        if listed.returncode == 0 and listed.stdout.strip():
            for process, environment in json.loads(listed.stdout.splitlines()[-1]).items():
                if f"{library}/{process}" in NOT_HERE:
                    continue
                yield f"{library}/{process}", [sys.executable, "-B", script, process, "--repeat", int(options.weight * GIB)], environment
    if options.features:
        yield "features", [options.features, "--bytes", MOST_FEATURES, "--seconds", f"{options.seconds:g}", "--seed", 1], {}


def ready_in_time(programs, seconds):
    """Those of them that say so."""
    said = set()

    def listen(name, lines):
        for line in iter(lines.readline, ""):
            if line == "ready\n":  # and not the library's own words
                return said.add(name)

    listeners = [threading.Thread(target=listen, args=(name, each.stdout), daemon=True) for name, each in programs.items()]
    until = time.monotonic() + seconds
    for each in listeners:
        each.start()
    for each in listeners:
        each.join(max(0, until - time.monotonic()))
    return {name: programs[name] for name in set(said)}


def movable(rig, pids):
    """How many bytes of these programs lie on the GPU and can be evicted."""
    clients = [each for each in rig.status()["clients"] if each["pid"] in pids]
    return sum(max(0, each["resident_bytes"] - sum(gpu["fixed_bytes"] for gpu in each["use"]["gpus"].values())) for each in clients
               if any(gpu["mode"] == "swap" for gpu in each["memory"].values()))


def tables_of(log):
    tables = {}
    for known, uuid, size, path in LINE.findall(log):
        table = tables.setdefault(uuid, {"bytes": int(size), "rota": known, "asked_by": []})
        table["asked_by"] = sorted({*table["asked_by"], file_name(path)})
    return tables


def log_of(name):
    return name.replace("/", "-")


def row(program, line, log):
    said = json.loads(line) if line.startswith("{") else {}
    outs = [(left, copied) for _, _, left, copied in swap_switches.Said(log).outs if left]
    problem = None if said and program.returncode == 0 else f"exit {program.returncode}: {log[-300:]}"
    wrong = said.get("wrong_count", said.get("wrong", 0)) + said.get("weight_wrong", 0)
    return {"moves_out": len(outs), "out_bytes": sum(left for left, _ in outs), "wrong": wrong, "stays": (STAYS.search(log) or [None, None])[1],
            **({"problem": problem} if problem else {}), **{key: said[key] for key in ("parts", "rounds", "exact", "close", "unable", "unsteady", "failed") if said.get(key)},
            **({"wrong_parts": said["wrong"]} if isinstance(said.get("wrong"), list) and said["wrong"] else {}), "tables": tables_of(log)}


def measure(options, chosen):
    hogs_context = context_bytes(options)
    found = {}
    with served(options) as rig, tempfile.TemporaryDirectory(prefix="rota-caches-") as caches:
        rig.environment.update(XLA_PYTHON_CLIENT_PREALLOCATE="false", TRITON_CACHE_DIR=f"{caches}/triton", TORCHINDUCTOR_CACHE_DIR=f"{caches}/inductor", NCCL_NVLS_ENABLE="0",
                               PYTHONPATH=os.pathsep.join([str(HERE / "libraries"), os.environ.get("PYTHONPATH", "")]))
        def launch(those):
            launched = {name: rig.start(log_of(name), ["env", *(f"{key}={value}" for key, value in environment.items()), *command])
                        for name, command, environment in those}
            ready = ready_in_time(launched, options.warm)
            for name in launched.keys() - ready.keys():
                launched[name].kill()
            return launched, ready

        started, ready = launch([each for each in chosen if "--repeat" in each[1]])
        at_once, ready_at_once = launch([each for each in chosen if "--repeat" not in each[1]])  # they wait for nothing
        started, ready = started | at_once, ready | ready_at_once
        moving = movable(rig, {each.pid for each in ready.values()})
        hogs_bytes = max(int(options.hog * GIB), moving)
        rig.fill(hogs_context + hogs_bytes + int(options.slack * GIB) - moving)
        hog = rig.start("hog", [options.build / "tests/programs/memhog", "--hold", "--bytes", hogs_bytes])
        for each in ready.values():
            tell(each)
        hog_fits = bool(ready_in_time({"hog": hog}, options.patience))
        time.sleep(options.seconds)
        for each in ready.values():
            with contextlib.suppress(OSError):  # it has ended
                tell(each)
        until = time.monotonic() + options.patience
        for name, program in started.items():
            try:
                line = (program.communicate(timeout=max(1, until - time.monotonic()))[0].splitlines() or [""])[-1]
            except subprocess.TimeoutExpired:
                line = ""
                (rig.folder / f"{log_of(name)}-stacks.log").write_text(stacks(program.pid), encoding="utf-8")
                end(program)
            found[name] = row(program, line, rig.said(log_of(name)))
            if name not in ready:
                found[name]["problem"] = f"not ready within {options.warm:g} s: {found[name]['problem']}"
        hog_said = json.loads((hog.communicate(timeout=options.patience)[0].splitlines() or ["{}"])[-1] if hog_fits else "{}")
    return found, hog_said, moving


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, room=None, seconds=15, quantum="50ms")
    parser.add_argument("--only", default="", help="only programs whose name, as --list gives it, matches")
    parser.add_argument("--libraries", type=pathlib.Path, default=HERE / "libraries")
    parser.add_argument("--features", type=pathlib.Path, help="programs/features.cu, built")
    parser.add_argument("--hog", type=float, default=4, help="GiB of the program that fills the GPU")
    parser.add_argument("--weight", type=float, default=0.3, help="GiB that each program has besides its library's memory")
    parser.add_argument("--slack", type=float, default=0.2, help="GiB of the weights that may stay, so that contexts can grow")
    parser.add_argument("--warm", type=float, default=90, help="seconds until a program is ready")
    parser.add_argument("--patience", type=float, default=40, help="seconds until a program ends once it is told to")
    parser.add_argument("--evidence", type=pathlib.Path, help="where the file is that this run is added to")
    parser.add_argument("--policy", type=pathlib.Path, default=HERE.parents[1] / "cuda_headers/policy.toml")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    chosen = [each for each in programs(options) if re.search(options.only, each[0])]
    if options.list:
        return print(*(name for name, *_ in chosen), sep="\n")
    driver_library()
    if not chosen:
        return 77
    found, hog, moving = measure(options, chosen)
    result = {**machine(), "date": time.strftime("%Y-%m-%d"), "programs": found}
    if options.evidence:
        options.evidence.mkdir(parents=True, exist_ok=True)
        file = options.evidence / f"swap-{result['driver']}.json"
        result = evidence.merged(evidence.read(file) if file.exists() else {}, result)
        file.write_text(evidence.text(result))
    else:
        result = evidence.merged({}, result)
    for name, each in found.items():
        print(json.dumps({"part": "tables", "program": name, **{key: value for key, value in each.items() if key != "tables"}, "tables": len(each["tables"])}), flush=True)
    wrong = sum(each["wrong"] for each in found.values()) + hog.get("wrong", 1)  # a program that never had its memory proves nothing
    print(json.dumps({"part": "tables", "programs": len(found), "moved": sum(each["moves_out"] > 0 for each in found.values()), "wrong": wrong,
                      "problems": sorted(name for name, each in found.items() if "problem" in each), "failed_parts": sum(len(each.get("failed", {})) for each in found.values()),
                      "hog_rounds": hog.get("rounds"), "movable_bytes": moving, "tables_seen": len(result["tables"]),
                      "not_shown_so_far": evidence.lacking(options.policy.read_text(), [result]) if options.policy.exists() else None}), flush=True)
    return int(wrong > 0 or any("problem" in each for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
