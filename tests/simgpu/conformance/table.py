#!/usr/bin/env python3
"""The table of conformance rules by area in tools/simgpu/README.md, between its two markers.

    tests/simgpu/conformance/table.py --rules FILE           writes it; FILE is the output of `conformance --list`
    tests/simgpu/conformance/table.py --rules FILE --check   fails if it is not what would be written, or rules are too few

The GPU's column comes from gpu.tsv beside this file, which is what `conformance --record gpu.tsv` wrote on a real GPU; the
first line, a comment, says which.
"""
import argparse
import collections
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
README = HERE.parents[2] / "tools" / "simgpu" / "README.md"
GPU = HERE / "gpu.tsv"
BEGIN = "<!-- conformance table: tests/simgpu/conformance/table.py -->"
END = "<!-- end of the conformance table -->"
RULES_IN_AN_AREA = 20
RULES_IN_ALL = 300


def read_rules(path):
    rules = [line.split("\t") for line in path.read_text().splitlines()]
    return [(area, name, mutation) for area, name, mutation, _ in rules]


def read_gpu():
    """The results on a real GPU by rule, and which GPU that was."""
    if not GPU.exists():
        return {}, "a GPU"
    lines = GPU.read_text().splitlines()
    which = lines[0].removeprefix("# ") if lines and lines[0].startswith("# ") else "a GPU"
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {(row[0], row[1]): row[2] for row in rows}, which


def table(rules):
    results, which = read_gpu()
    areas = collections.defaultdict(list)
    for area, name, mutation in rules:
        areas[area].append(((area, name), mutation))
    lines = [f"| area | rules, all hold on simgpu | hold on {which} | skipped there | mutations |", "|---|---|---|---|---|"]
    everything = [rule for area in areas.values() for rule in area]
    for area, members in [*sorted(areas.items()), ("all", everything)]:
        outcomes = collections.Counter(results.get(name, "not run") for name, _ in members)
        lines.append(f"| {area} | {len(members)} | {outcomes['ok']} | {outcomes['skip']} "
                     f"| {len({mutation for _, mutation in members})} |")
    return "\n".join(lines) + "\n"


def too_few(rules):
    areas = collections.Counter(area for area, _, _ in rules)
    for area, count in sorted(areas.items()):
        if count < RULES_IN_AN_AREA:
            yield f"the area {area} has {count} rules; {RULES_IN_AN_AREA} are asked for"
    if len(rules) < RULES_IN_ALL:
        yield f"there are {len(rules)} rules; {RULES_IN_ALL} are asked for"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rules = read_rules(options.rules)
    text = README.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{README}: the markers of the table are not there once each")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    wanted = f"{before}{BEGIN}\n{table(rules)}{END}{after}"
    if not options.check:
        README.write_text(wanted)
        return
    complaints = list(too_few(rules))
    if text != wanted:
        complaints.append(f"{README.name} has another table; tests/simgpu/conformance/table.py --rules {options.rules} writes it")
    if complaints:
        sys.exit("\n".join(complaints))


if __name__ == "__main__":
    main()
