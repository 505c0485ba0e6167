#!/usr/bin/env python3
"""The rules of the driver API with swapped memory: all hold but for those of tests/simgpu/conformance/swap_exceptions.toml.

    tests/gpu/swap_rules.py --build DIR [--logs DIR]

Prints a line of JSON; the exit status is 1 if another rule fails or one of these does not, and 77 where there is no GPU.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
CONFORMANCE = HERE.parent / "simgpu/conformance"
sys.path[:0] = [str(HERE), str(CONFORMANCE)]
from exceptions import listed
from swap_rig import driver_library


def tried(options, log, *arguments):
    """{rule: (result, why)}"""
    program = options.build / "tests/programs/conformance"
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder) / "record.tsv"
        subprocess.run([options.build / "bin/rota", "run", "--memory", "swap", "--", program, *arguments, "--record", record],
                       stdout=log, stderr=log, timeout=400)
        rows = [line.split("\t") for line in record.read_text().splitlines()]
    return {f"{area}.{name}": (result, why) for area, name, result, why in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build/release")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    options = parser.parse_args()
    driver_library()
    expected = listed(CONFORMANCE / "swap_exceptions.toml", "gpu" if os.path.exists("/dev/nvidiactl") else "simgpu")
    with open(options.logs / "rules.log", "w") as log:
        rules = tried(options, log, "--jobs", "8")
        failed = {rule: why for rule, (result, why) in rules.items() if result not in ("ok", "skip")}
        # A rule that waits for a while may give up where others run at the same time.
        others = {rule: why for rule, why in failed.items() if rule not in expected and tried(options, log, "--rule", rule)[rule][0] != "ok"}
    not_failing = [rule for rule in expected if rule not in failed]  # they hold, or were not tried
    skipped = sum(result == "skip" for result, _ in rules.values())
    print(json.dumps({"part": "rules", "rules": len(rules), "skipped": skipped, "as_listed": len(expected) - len(not_failing), "failed": others,
                      "listed_but_not_failing": not_failing}), flush=True)
    return 1 if others or not_failing or len(rules) < 800 else 0


if __name__ == "__main__":
    sys.exit(main())
