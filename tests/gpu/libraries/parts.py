"""Programs in parts: each part uses one feature of a library and returns a number that two runs agree on.

`use_X.py [NAME…]` runs the parts of these names, or of these processes, or all; prints one JSON object
{"results": {part: number}, "failed": {part: why}, "versions": {package: version}}. A part that fails does not stop the
others: what the library at hand cannot do is then missing from the call list, and the list says so. With `--repeat BYTES` the
parts of these names run again and again (repeat.py).
"""
import ctypes
import glob
import importlib.metadata
import json
import os
import sys
import traceback

from repeat import repeat

PARTS = []


def part(process="main", **environment):
    """Registers a part. Parts of one process run one behind the other; an environment needs a process of its own."""
    def register(function):
        PARTS.append((process, environment, function))
        return function
    return register


def library(name):
    """A library of NVIDIA's Python packages, by its file name's beginning (libcublas.so)."""
    for folder in sys.path:
        found = sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", name + ".*")))
        if found:
            return ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(name)


def check(status, what):
    assert status == 0, f"{what}: {status}"


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(*packages):
    """Packages: those whose versions a call list names."""
    names = sys.argv[1:]
    if names == ["--list"]:
        processes = {}
        for process, environment, _ in PARTS:
            processes.setdefault(process, {}).update(environment)
        print(json.dumps(processes))
        return
    results, failed = {}, {}
    weight = int(names[names.index("--repeat") + 1]) if "--repeat" in names else None
    names = names[:names.index("--repeat")] if weight is not None else names
    chosen = [function for process, _, function in PARTS if not names or process in names or function.__name__ in names]
    if weight is not None:
        return repeat(chosen, weight)
    for function in chosen:
        try:
            value = function()
            results[function.__name__] = None if value is None else float(value)
        except Exception as error:
            failed[function.__name__] = "".join(traceback.format_exception_only(error)).strip()[:300]
    versions = {package: version(package) for package in packages}
    print(json.dumps({"results": results, "failed": failed, "versions": versions}), flush=True)
