"""What runs under forced swaps show of the driver's private tables (swap_tables.py): files swap-DRIVER.json next to this one, and which of the tables that the policy lets programs use without pinning them are in none.

A file is JSON with a row on each line. A row of `programs` is what happened to a program; a row of `tables` is a table of the driver (`uuid`,
its length in `bytes`, whether `rota` knows it) and the files that `asked_by` it in these `programs`.
"""
import json
import pathlib
import tomllib

HERE = pathlib.Path(__file__).resolve().parent


def merged(evidence, found):
    """A file's contents with those of one more run: programs that ran again replace what they showed before."""
    programs = {**evidence.get("programs", {}), **found["programs"]}
    tables = {}
    for name, program in sorted(programs.items()):
        if "problem" in program:  # it shows nothing
            continue
        for uuid, table in program["tables"].items():
            row = tables.setdefault(uuid, {"uuid": uuid, "bytes": [], "rota": [], "asked_by": [], "programs": {}})
            for column, values in (("bytes", [table["bytes"]]), ("rota", [table["rota"]]), ("asked_by", table["asked_by"])):
                row[column] = sorted({*row[column], *values})
            row["programs"][name] = {"moves_out": program["moves_out"], "wrong": program["wrong"], "failed": len(program.get("failed", {}))}
    return {**{key: value for key, value in found.items() if key != "programs"}, "tables": [tables[uuid] for uuid in sorted(tables)], "programs": dict(sorted(programs.items()))}


def shown(table):
    """Whether a row of `tables` shows that programs which use it are swapped and nothing is wrong."""
    return any(each["moves_out"] for each in table["programs"].values()) and not any(each["wrong"] for each in table["programs"].values())


def lacking(policy, files):
    """{uuid: why} of the tables in a policy's [export_tables] that none of these files' contents shows. A shorter table is one that an older
    driver has; functions that only a longer one has were not there when the files were made."""
    found = {}
    for uuid, entry in tomllib.loads(policy).get("export_tables", {}).items():
        rows = [row for file in files for row in file["tables"] if row["uuid"] == uuid]
        if not rows:
            found[uuid] = "no program in an evidence file asked for it"
        elif not any(entry["bytes"] in row["bytes"] for row in rows):
            found[uuid] = f"it has {entry['bytes']} bytes, those of the evidence {sorted({size for row in rows for size in row['bytes']})}"
        elif any(each["wrong"] for row in rows for each in row["programs"].values()):
            found[uuid] = "results were wrong in " + ", ".join(sorted(name for row in rows for name, each in row["programs"].items() if each["wrong"]))
        elif not any(shown(row) for row in rows):
            found[uuid] = "no program that asked for it was moved out"
    return found


def text(found):
    """A file with what `merged` gives."""
    rows = {}
    for name, program in found["programs"].items():
        for uuid, table in program["tables"].items():
            row = rows.setdefault(json.dumps([uuid, table]), {"uuid": uuid, **table, "programs": []})
            row["programs"].append(name)
    programs = [{"program": name, **{key: value for key, value in program.items() if key != "tables"}} for name, program in found["programs"].items()]
    sections = [f'"{key}": [\n' + ",\n".join(map(json.dumps, those)) + "\n]" for key, those in (("programs", programs), ("tables", [rows[key] for key in sorted(rows)]))]
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items() if key not in ("programs", "tables")]
    return "{" + ",\n".join([", ".join(head), *sections]) + "}\n"


def read(path):
    """What `merged` gave when this file was written."""
    file = json.loads(pathlib.Path(path).read_text())
    programs = {row.pop("program"): {**row, "tables": {}} for row in file["programs"]}
    for row in file["tables"]:
        for name in row.pop("programs"):
            programs[name]["tables"][row["uuid"]] = {key: value for key, value in row.items() if key != "uuid"}
    return merged({}, {**{key: value for key, value in file.items() if key != "tables"}, "programs": programs})


def files(folder=HERE):
    return [read(path) for path in sorted(pathlib.Path(folder).glob("swap-*.json"))]
