#!/usr/bin/env python3
"""What programs do through the driver's private tables (cuGetExportTable): the evidence for [export_tables] of
cuda_headers/policy.toml.

    tests/gpu/table_probe.py --tables FILE [--build DIR] [--out DIR]

Every identifier of a table in FILE is probed (tests/gpu/export_tables.py finds out which there are). Runs the programs of
tests/gpu/run natively, one after the other, with tables/probe.cpp preloaded, which says of every function of these tables how
often it was called and whether a call wrote to the pages through which work reaches the GPU, changed the device's free
memory, or changed the current context. First a program of a known kind shows that the probe sees a submission and an
allocation where there is one, and nothing where there is none. Prints a line per function that was called; probe.json in the
folder of logs has the same with the programs. Ends with 77 where there is no NVIDIA GPU.
"""
import argparse
import collections
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

from bench import Bench
from export_tables import programs

COLUMNS = ("calls", "watched", "blinded", "submitted", "written", "context_changed", "took", "most_taken", "gave", "most_given")
SELF_TEST = """
import ctypes
probe, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
context, block, stream, free = (ctypes.c_void_p() for _ in range(4))
cuda.cuInit(0)
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1 << 20)) == 0
cuda.cuStreamCreate(ctypes.byref(stream), 1)
def watched(work):
    probe.rota_probe_begin()
    result = work()
    probe.rota_probe_end()
    assert result == 0, result
for _ in range(10):
    %s
    cuda.cuCtxSynchronize()
"""
SELF_TESTS = {  # what is done, and what must be seen of it: (submitted, took memory); None: said, not judged
    "nothing, in a young context": ("for _ in range(100): watched(lambda: 0)", (False, None)),
    "a query": ("watched(lambda: cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(free)))", (False, False)),
    "a memset": ("watched(lambda: cuda.cuMemsetD8Async(block, 1, ctypes.c_size_t(1 << 20), stream))", (True, False)),
    "a copy to the host": ("watched(lambda: cuda.cuMemcpyDtoH_v2(ctypes.create_string_buffer(64), block, ctypes.c_size_t(64)))", (True, False)),
    "an allocation": ("watched(lambda: cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(16 << 20)))", (None, True)),
}


def add(into, row):
    for column, value in row.items():
        into[column] = max(into[column], value) if column.startswith("most") else into[column] + value


def probed(bench, library, tables, command, environment, timeout=240):
    """(result, {(table, index): its columns}) of a command and all of its processes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="probe-", dir=bench.scratch))
    result = bench.call(command, timeout=timeout, LD_PRELOAD=str(library), ROTA_PROBE_OUT=str(folder),
                        ROTA_PROBE_TABLES=",".join(tables), **environment)
    seen = collections.defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    for file in folder.glob("*.tsv"):
        for line in file.read_text().splitlines():
            table, index, *values = line.split("\t")
            add(seen[table, int(index)], dict(zip(COLUMNS, map(int, values))))
    return result, seen


def probe_sees(bench, library):
    """The probe finds what is there, and nothing where there is nothing."""
    good = True
    for name, (work, (submitted, took)) in SELF_TESTS.items():
        result, seen = probed(bench, library, [], [sys.executable, "-c", SELF_TEST % work], {})
        row = seen["self-test", 0]
        fits = result.returncode == 0 and row["watched"] >= 10 and submitted in (None, row["submitted"] == row["watched"]) \
            and (submitted is not False or row["submitted"] == 0) and took in (None, row["took"] > 0)
        print(f"{'ok' if fits else 'WRONG':6} {name}: {dict(row)} {'' if fits else result.stderr[-300:]}", flush=True)
        good &= fits
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=pathlib.Path, required=True)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=None, help="where logs go")
    parser.add_argument("--only", default="", help="only programs whose name matches this regular expression")
    options = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl"):
        print("tests/gpu/table_probe.py: no NVIDIA GPU on this machine: skipped")
        return 77
    library = options.build.resolve() / "tests/gpu/libtable_probe.so"
    if not library.exists():
        print(f"tests/gpu/table_probe.py: no {library}: build first (tools/dev build), or name a build with --build")
        return 2
    tables = re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", options.tables.read_text())
    out = options.out or pathlib.Path(tempfile.mkdtemp(prefix="rota-table-probe-"))
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.build.resolve(), out)
    if not probe_sees(bench, library):
        print("the probe does not see what it must: its figures would mean nothing")
        return 1
    total = collections.defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    where = collections.defaultdict(set)
    for name, command, environment in programs(bench):
        if not re.search(options.only, name):
            continue
        try:
            result, seen = probed(bench, library, tables, command, environment)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"failed   {name}: {error}", flush=True)
            continue
        print(f"{'ran' if result.returncode == 0 else f'exit {result.returncode}':8} {name}: {len(seen)} functions", flush=True)
        for function, row in seen.items():
            where[function].add(name if result.returncode == 0 else f"{name} (exit {result.returncode})")
            add(total[function], row)
        (out / "probe.json").write_text(json.dumps([{"table": table, "function": index, **row, "programs": sorted(where[table, index])}
                                                    for (table, index), row in sorted(total.items())]))
    print("\n" + "\t".join(("table", "function", *COLUMNS, "programs")))
    for function, row in sorted(total.items()):
        print("\t".join(map(str, (*function, *row.values(), len(where[function])))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
