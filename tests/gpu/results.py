#!/usr/bin/env python3
"""Measured results: lines of JSON in results/, one file for each program that measures, and the tables that pages make of them.

    tests/gpu/results.py add --program share.py [OUTPUT]     appends what the program printed to results/share.jsonl
    tests/gpu/results.py add OUT/results.jsonl               the same for all that swap_all ran
    tests/gpu/results.py tables [--check]                    writes the tables between the marks in pages, or fails if one differs

OUTPUT is standard input if not named. The GPU, the driver and the date are those that swap_all wrote, those of this machine, or what --gpu,
--driver and --date say. results/README.md describes a line and a mark.
"""
import argparse
import difflib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = HERE / "results"
FIELDS = {"program": str, "row": str, "gpu": (str, type(None)), "driver": (str, type(None)), "date": str, "figures": dict, "baseline": (dict, type(None)),
          "ratio": (int, float, type(None)), "interval": (list, type(None))}
MARK = re.compile(r"^(<!-- results of (\S+)(?: /(.*?)/)? \|(.*?)-->\n).*?^(<!-- end of results -->)", re.DOTALL | re.MULTILINE)


def machine():
    """The GPU and its driver, by nvidia-smi, which a container may lack."""
    if "ROTA_SIM_STATE" in os.environ or not os.path.exists("/dev/nvidiactl"):
        return {"gpu": "simgpu", "driver": "simgpu"}
    query = shutil.which("nvidia-smi")
    asked = subprocess.run([query, "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout if query else ""
    return dict(zip(("gpu", "driver"), asked.splitlines()[0].split(", "))) if asked else {"gpu": "NVIDIA GPU", "driver": "unknown"}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fault(line):
    """What keeps this from being a line of results, or None."""
    for name, kind in FIELDS.items():
        if name not in line:
            return f"it has no {name}"
        if not isinstance(line[name], kind) or isinstance(line[name], bool):
            return f"{name} is {json.dumps(line[name])}"
    if line.keys() - FIELDS.keys():
        return f"{sorted(line.keys() - FIELDS.keys())[0]} is not a field"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", line["date"]):
        return f"date is {line['date']}"
    for name, value in line["figures"].items():
        if not is_number(value):
            return f"the figure {name} is {json.dumps(value)}"
    if line["baseline"] is not None and not isinstance(line["baseline"].get("what"), str):
        return "the baseline does not say what it is"
    if line["interval"] is not None and not (len(line["interval"]) == 2 and all(map(is_number, line["interval"])) and line["interval"][0] <= line["interval"][1]):
        return f"interval is {line['interval']}"
    return "there are neither figures nor a ratio" if not line["figures"] and line["ratio"] is None else None


def read(path):
    """The lines of a file, each checked."""
    lines = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        try:
            line = json.loads(text)
            wrong = fault(line) if isinstance(line, dict) else "it is no object"
            if not wrong and path.stem != pathlib.PurePath(line["program"]).stem:
                wrong = f"it is of {line['program']}"
        except ValueError as error:
            wrong = str(error)
        if wrong:
            raise ValueError(f"{path.name}:{number}: {wrong}")
        lines.append(line)
    return lines


def newest(lines):
    """For each row on each kind of GPU its lines of the newest date: several runs or machines of that day. In the order of rows."""
    rows = {}
    for line in lines:
        rows.setdefault((line["row"], line["gpu"]), []).append(line)
    return [[line for line in each if line["date"] == max(other["date"] for other in each)] for each in rows.values()]


# What programs print, as [row, figures, baseline, ratio, interval].

def of_switches(row, said):
    figures = {name: said[name][1] for name in ("in_gib", "copies_ms", "copies_share", "whole_ms", "drain_ms")} | {"switches": said["full"]}
    low, ratio, high = said["whole_share"]
    rate = sum(map(sum, said["bare_duplex_gb_s"])) / len(said["bare_duplex_gb_s"])
    return [[row, figures, {"what": "bare copies in both directions", "gb_s": round(rate, 1)}, ratio, [low, high]]]


def of_share(said):
    both = said["automatic"], said.get("concurrent") or said.get("time_slicing")
    if isinstance(both[0], list):
        ratio, low, high = said["ratio"]
        return [[said["set"], {"rota": both[0][0], "low": both[0][1], "high": both[0][2]}, {"what": "time slicing", "rate": both[1][0]}, ratio, [low, high]]]
    figures = {f"{name}_ms": both[0][name] for name in ("p50", "p95", "p99")} | {"others_part_of_the_rest": both[0]["other_of_remainder"]}
    return [[said["set"], figures, {"what": "time slicing", "p50_ms": both[1]["p50"]}, round(both[0]["p50"] / both[1]["p50"], 3), None]]


def of_pairs(row, said):
    return [[row if what == "step" else f"{row} {what}", {"pairs": said["pairs"]}, {"what": "native"}, each["native_time_over_rota"], each["interval"]]
            for what, each in said.items() if isinstance(each, dict) and "native_time_over_rota" in each]


def of_calls(row, said):
    return [[f"{row} {call}", {"us": each["rota_us"]}, {"what": "native", "us": each["native_us"]}, each["rota_over_native"], None]
            for call, each in said.items() if isinstance(each, dict) and each.get("rota_over_native") is not None]


def flat(values, before=""):
    """The entries, with those of inner objects under names like outer_inner."""
    for name, value in values.items():
        yield from flat(value, f"{before}{name}_") if isinstance(value, dict) else [(before + name, value)]


def results_of(said, row):
    """Of a line that a program printed. Where nothing says how to compare it, its numbers are the figures, of a list the median or the sum."""
    if said.get("problem") or said.get("skipped"):
        return []
    if "whole_share" in said:
        return of_switches(f"own {said['piece']}" if said.get("part") == "own" else row, said)
    if "set" in said and "automatic" in said:
        return of_share(said)
    part = said.get("part", "")
    if found := of_pairs(f"{part} {said.get('program')}".removeprefix("throughput "), said) or of_calls(f"{part} {said.get('size')}", said):
        return found
    if part == "tables" and "program" in said:  # the line of all of them follows
        return []
    ratio = next((said[name] for name in ("of_the_least", "one_after_the_other_over_together") if is_number(said.get(name))), None)
    baseline = {"what": "the least that can leave" if "of_the_least" in said else "one after the other"} if ratio is not None else None
    figures = {} if "wrong" in said or "right" not in said else {"wrong": int(not said["right"])}
    for name, value in flat({name: value for name, value in said.items() if name != "on"}):
        if isinstance(value, list) and value and all(map(is_number, value)):
            value = sum(value) if name in ("moves_out", "out_bytes") else statistics.median(value)
        if is_number(value):
            figures |= {name.removesuffix("_bytes") + "_gb": round(value / 1e9, 1)} if name.endswith("_bytes") else {name: value}
    return [[row, figures, baseline, ratio, None]] if figures else []


def add(options):
    with options.output.open() if options.output else sys.stdin as file:
        printed = [json.loads(text) for text in file if text.startswith("{")]
    here = {**machine(), "date": time.strftime("%Y-%m-%d")}
    added = 0
    for said in printed:
        program = options.program or said.get("script")
        if not program:
            sys.exit("results.py: which program printed this? --program says it")
        where = {name: getattr(options, name) or said.get("on", here)[name] for name in ("gpu", "driver", "date")}
        row = said.get("preset") or " ".join(str(said[name]) for name in ("set", "case", "variant", "part", "mode") if name in said)
        for name, figures, baseline, ratio, interval in results_of(said, row or program):
            line = {"program": program, "row": name, **where, "figures": figures, "baseline": baseline, "ratio": ratio, "interval": interval}
            if wrong := fault(line):
                sys.exit(f"results.py: {wrong}: {json.dumps(said)}")
            options.results.mkdir(parents=True, exist_ok=True)
            with (options.results / (pathlib.PurePath(program).stem + ".jsonl")).open("a") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            added += 1
    print(f"{added} results")
    return 0 if added else 1


def cell(line, field):
    """`field` is one of a line's, or a figure; "whole_ms ms" has a unit, "baseline.ms" is a figure of the baseline."""
    name, _, unit = field.partition(" ")
    if name == "ratio" and line["ratio"] is not None:
        return f"{line['ratio']:g}" + ("" if line["interval"] is None else " ({:g} to {:g})".format(*line["interval"]))
    where, _, inner = name.rpartition(".")
    value = (line[where] or {}).get(inner) if where else line.get(name, line["figures"].get(name))
    if value is None:
        return ""
    text = str(value).removeprefix("NVIDIA ") if isinstance(value, str) else f"{value:,.10g}".replace(",", " ")
    return text + (f" {unit}" if unit else "")


def table(program, rows, columns, lines):
    """Of the rows that match. The columns are those of a mark: "heading = field", with bars between them."""
    parts = [[each.strip() for each in column.split("=")] for column in columns.split("|")]
    if any(len(part) != 2 for part in parts):
        raise ValueError(f"the mark of {program} has a column without a field")
    def cells_of(runs):
        for _, field in parts:
            values = [text for text in (cell(line, field) for line in runs) if text]
            yield values[0] if len(set(values)) == 1 else ", ".join(values)

    cells = [list(cells_of(each)) for each in newest(lines) if re.search(rows or "", each[0]["row"])]
    for place, (heading, field) in enumerate(parts):
        if not any(row[place] for row in cells):
            raise ValueError(f"no line of {program} has {field}")
    return "".join(f"| {' | '.join(row)} |\n" for row in [[heading for heading, _ in parts], ["---"] * len(parts), *cells])


def with_tables(text, folder=FOLDER):
    """A page with the tables that the lines give now."""
    def written(mark):
        head, program, rows, columns, end = mark.groups()
        return head + table(program, rows, columns, read(folder / (pathlib.PurePath(program).stem + ".jsonl"))) + end

    return MARK.sub(written, text)


def pages():
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return [ROOT / name for name in listed if name and (ROOT / name).is_file()]


def tables(options):
    differing = 0
    for page in pages():
        was = page.read_text()
        now = with_tables(was)
        if now != was and options.check:
            differing += 1
            sys.stdout.writelines(difflib.unified_diff(was.splitlines(True), now.splitlines(True), str(page.relative_to(ROOT)), "what the lines give", n=0))
        elif now != was:
            page.write_text(now)
    return int(differing > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("output", nargs="?", type=pathlib.Path)
    for name in ("--program", "--gpu", "--driver", "--date"):
        adding.add_argument(name)
    adding.add_argument("--results", type=pathlib.Path, default=FOLDER)
    commands.add_parser("tables").add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        return add(options) if options.command == "add" else tables(options)
    except (OSError, ValueError) as error:
        sys.exit(f"results.py: {error}")


if __name__ == "__main__":
    sys.exit(main())
