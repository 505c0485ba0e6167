#!/usr/bin/env python3
"""Which private tables of the driver programs ask for (cuGetExportTable): the lines for [export_tables] of
cuda_headers/policy.toml.

    tests/gpu/export_tables.py [--build DIR] [--out DIR]

Runs what there is of the programs and libraries of tests/gpu/run under `rota run` with ROTA_LOG=debug, ROTA_MEMORY=native,
and without turns (no rotad is needed), and gathers what rota's cuGetExportTable says: the table's identifier, its length by its
first word, and the file whose code asked. Prints a line per table and, for each, who asked for it in which program; ends
with a line of JSON. Ends with 77 where there is no NVIDIA GPU, with 1 where no program ran.
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

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # the folder may be read-only
sys.path.insert(0, str(HERE))

from bench import Bench, Skip

LINE = re.compile(r"cuGetExportTable: (known|gated|ungated|unknown) table ([0-9a-f-]{36}) of (\d+) bytes for (.+)$", re.M)


def programs(bench):
    """(name, command, environment) of everything that can be run here."""
    built = bench.build / "tests/programs"
    for name in ("saxpy", "capture", "vectoradd_static", "vectoradd_shared"):
        if (built / name).exists():
            yield name, [built / name], {}
    for cudart in ("static", "shared"):
        try:
            yield f"vector_{cudart}", [bench.compiled(cudart)], {}
        except Skip:
            pass
    for program in sorted(bench.releases.rglob("*")):
        if program.is_file() and os.access(program, os.X_OK) and ".so" not in program.name:
            yield f"releases/{program.name}", [program], {}
    for name, module in (("torch_eager", "torch"), ("torch_graph", "torch"), ("torch_compile", "torch"),
                         ("torch_profiler", "torch"), ("jax_program", "jax"), ("cupy_program", "cupy"),
                         ("triton_kernel", "triton")):
        if importlib.util.find_spec(module):
            yield name, bench.workload(name), {}
    for script in sorted((HERE / "libraries").glob("use_*.py")):
        command = [sys.executable, "-B", script]
        listed = bench.call([*command, "--list"])
        if listed.returncode == 0 and listed.stdout.strip():
            for process, environment in json.loads(listed.stdout.splitlines()[-1]).items():
                yield f"{script.stem}/{process}", [*command, process], environment


def file_name(path):
    """libcudart.so.13 for /usr/lib/…/libcudart.so.13.0.96: what stays the same on another machine."""
    name = pathlib.Path(path).name
    return re.sub(r"(\.so\.\d+)\..*$", r"\1", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=None, help="where logs go")
    options = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl"):
        print("tests/gpu/export_tables.py: no NVIDIA GPU on this machine: skipped")
        return 77
    out = options.out or pathlib.Path(tempfile.mkdtemp(prefix="rota-export-tables-"))
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.build.resolve(), out)
    bench.environment.update(ROTA_LOG="debug", ROTA_MEMORY="native")
    tables = collections.defaultdict(lambda: {"bytes": set(), "asked_by": collections.defaultdict(set)})
    ran = 0
    for name, command, environment in programs(bench):
        try:
            result = bench.call([bench.rota, "run", "--", *command], **environment)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"failed   {name}: {error}", flush=True)
            continue
        asked = LINE.findall(result.stderr)
        (out / (re.sub(r"\W+", "-", name) + ".log")).write_text(result.stderr)
        print(f"{'ran' if result.returncode == 0 else f'exit {result.returncode}':8} {name}: {len({row[1] for row in asked})} tables", flush=True)
        ran += result.returncode == 0
        for _, uuid, length, path in asked:
            tables[uuid]["bytes"].add(int(length))
            tables[uuid]["asked_by"][file_name(path) if path.startswith("/") else path].add(name)
    query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True) \
        if pathlib.Path("/usr/bin/nvidia-smi").exists() else None
    print(f"\nGPU: {query.stdout.splitlines()[0] if query and query.stdout else 'unknown'}; {ran} programs ran; logs in {out}\n")
    for uuid, table in sorted(tables.items()):
        asked_by = sorted(table["asked_by"])
        print(f'"{uuid}" = {{ bytes = {max(table["bytes"])}, asked_by = {json.dumps(asked_by)}, evidence = "" }}'
              + (f"  # lengths differ: {sorted(table['bytes'])}" if len(table["bytes"]) > 1 else ""))
    print()
    for uuid, table in sorted(tables.items()):
        for library, names in sorted(table["asked_by"].items()):
            print(f"{uuid} {library}: {', '.join(sorted(names))}")
    print(json.dumps({uuid: {"bytes": sorted(table["bytes"]), "asked_by": {library: sorted(names) for library, names in table["asked_by"].items()}}
                      for uuid, table in tables.items()}))
    return 0 if ran else 1


if __name__ == "__main__":
    sys.exit(main())
