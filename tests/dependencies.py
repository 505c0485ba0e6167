#!/usr/bin/env python3
"""Reads the includes of every file that we write by hand, and fails on any that its folder may not depend on.

    tests/dependencies.py          what is wrong, one line each; exit code 1 if anything is
    tests/dependencies.py --table  which folder may include what

A folder may always include its own files. EXCEPTIONS are what does not hold yet, each with the reason; one that is no longer
needed is a failure too, so the list only gets shorter. The same goes for files of more than 500 lines, and for namespaces: a file
of runtime/X or scheduler/X, of its sub-folders too, opens rota::X or a namespace in it.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOG = "runtime/core/log.h"
FILES = "runtime/core/files.h"  # one way to read a small file and to reserve a large one
OWN_THREAD = "runtime/core/own_thread.h"  # one way to start a thread that is not the program's
FUNCTION_REF = "runtime/core/function_ref.h"  # a callable that is passed down
DEVICES = "runtime/core/devices.h"  # sets of GPUs
UNDO = "runtime/core/undo.h"  # what a call undoes that fails or is left
ONE_ALLOCATION = "runtime/core/one_allocation.h"  # all that one allocation asks rotad
LEFT = "runtime/core/left.h"  # whether a thread has left a call
COUNTED = "runtime/core/counted.h"  # one more for as long as it lives
WAITERS = "runtime/core/waiters.h"  # threads that wait, and signal handlers that run in them
HELD_SIGNALS = "runtime/core/held_signals.h"  # the program's signals, held while rota's code runs
OWN_TID = "runtime/core/own_tid.h"  # one way to ask for a thread's number
MEMORY_FOR_TURNS = ["runtime/memory/residency.h", "runtime/memory/ledger.h"]  # what turns ask of memory, and its sums
MAPPINGS = "runtime/core/mappings.h"  # one way to read the process's mappings

# The longest prefix that fits a file says what it may include besides its own folder: folders, or single files.
ALLOWED = {
    # What every part shares, one header per idea.
    "scheduler/base": [],
    "codegen": ["scheduler/base"],
    # What the gates see of what they call.
    "generated": ["runtime/contract.h"],
    "runtime/contract.h": ["runtime/gate/scope.h", "runtime/driver/answers.h", "generated", FUNCTION_REF],
    # With the table of overrides; the preload traces the runtime API through the interface of the trace.
    "runtime/preload": ["generated", "runtime/trace/thread.h", "runtime/trace/tracer.h", "runtime/trace/runtime_rows.h"],
    "runtime/core": ["runtime", "generated", "scheduler/base"],
    "runtime/account": ["generated", "runtime/preload/symbol_list.h", LOG, FILES],
    "runtime/driver": ["generated", "scheduler/base", FUNCTION_REF, DEVICES, OWN_TID, COUNTED],
    # core's runtime.h owns the parts; attach.h and tables.h lead from an address to the function.
    "runtime/hooks": ["runtime/account/account.h", "runtime/memory", "runtime/gate", "runtime/monitor", "runtime/driver", "generated",
                      "runtime/overrides.inc", "runtime/core/runtime.h", "runtime/core/attach.h", "runtime/core/tables.h", LOG, UNDO],
    # What simgpu says of each call's GPUs, against what the gate has found.
    "runtime/gate": ["runtime/driver", "generated", "tools/simgpu/reach_check.h", LOG, FUNCTION_REF, DEVICES, WAITERS, HELD_SIGNALS, LEFT, OWN_TID],
    # A machine's words for time and leases are what the client hands to it.
    "runtime/client": ["scheduler/base", "scheduler/protocol", "scheduler/rules", "scheduler/address", "generated", "runtime/turn/machine.h", "runtime/account/account.h", "runtime/driver/memory_descriptor.h",
                       "runtime/driver/gpu_number.h", LOG, FUNCTION_REF, WAITERS, HELD_SIGNALS, MAPPINGS, DEVICES, ONE_ALLOCATION, *MEMORY_FOR_TURNS],
    # Memory only as its two interfaces show it.
    "runtime/monitor": ["scheduler/base", "runtime/account", "runtime/client", "runtime/core", "runtime/driver", "runtime/gate", "runtime/turn", "runtime/trace",
                        *MEMORY_FOR_TURNS, "runtime/memory/turns.h", "runtime/memory/swap/reach.h", "generated", "scheduler/protocol", "scheduler/rules", "scheduler/address"],
    "runtime/turn": ["scheduler/protocol", "scheduler/rules", DEVICES],
    "runtime/memory": ["scheduler/base", "runtime/account/account.h", "runtime/driver", "scheduler/protocol", "scheduler/rules", "generated", LOG, OWN_THREAD, FUNCTION_REF, DEVICES, UNDO, ONE_ALLOCATION],
    # Of what moves extents it knows nothing.
    "runtime/memory/swap/store": ["scheduler/base", "runtime/memory/ledger.h", "runtime/memory/round_up.h", "runtime/driver/context.h", "scheduler/protocol", "scheduler/rules", "generated", LOG, OWN_THREAD],
    "runtime/trace": ["generated", "scheduler/base", LOG, FILES],
    "scheduler/protocol": ["scheduler/base"],
    # Where rotad listens, and what is said where it does not answer.
    "scheduler/address": ["scheduler/base", "scheduler/protocol"],
    # Figures that rotad and its clients both compute with.
    "scheduler/rules": ["scheduler/base"],
    "scheduler/core": ["scheduler/base", "scheduler/protocol", "scheduler/rules"],
    # Accounts of sessions, users, cgroups and the host; what is on the GPUs is in the core's accounting.
    "scheduler/limits": ["scheduler/base", "scheduler/core", "scheduler/protocol", "scheduler/rules"],
    # What programs have done, summed up, as text for Prometheus.
    "scheduler/metrics": ["scheduler/base", "scheduler/protocol"],
    # The events of both as text.
    "scheduler/log": ["scheduler/core", "scheduler/limits"],
    "scheduler/server": ["scheduler/base", "scheduler/core", "scheduler/limits", "scheduler/log", "scheduler/metrics", "scheduler/protocol", "scheduler/rules", "scheduler/address"],
    "tools": ["scheduler/base", "scheduler/core", "scheduler/protocol", "scheduler/rules", "scheduler/address", "generated", "runtime/trace/format.h", "runtime/trace/names.h",
              "runtime/account/format.h", "runtime/account/test_interface.h", "runtime/client/admission.h", "runtime/client/gang_name.h", "runtime/preload/symbol_list.h",
              "runtime/preload/standard_error.h", "runtime/preload/cuda/locate.h", "runtime/preload/cuda/clean_environment.h", "runtime/preload/attachment.h"],
    # Accounts that processes leave, and which build's functions they count.
    "tools/rota/report": ["scheduler/base", "tools", "scheduler/protocol", "generated", "runtime/account/format.h", "runtime/account/groups.h",
                          "runtime/account/test_interface.h", "runtime/trace/names.h", "runtime/preload/symbol_list.h"],
    # NVML is asked by the code that rotad asks it with.
    "tools/rota/status": ["scheduler/base", "tools", "scheduler/core", "scheduler/protocol", "scheduler/address", "scheduler/rules", "scheduler/server/nvml.h"],
    "tools/rota/try": ["scheduler/base", "tools", "scheduler/core", "scheduler/protocol", "scheduler/address", "scheduler/server/nvml.h"],
    # Of use by itself: the simulated GPU knows the driver's API and nothing of rota.
    "tools/simgpu": ["generated", "tools/elf", "scheduler/base"],
    "tools/elf": ["scheduler/base"],
    "tests": ["scheduler/base", "codegen", "generated", "runtime", "scheduler", "tools"],
}

# (who, whom): why, and what ends it.
EXCEPTIONS = {
}

MOST_LINES = 500
# Files over that: why.
LONG = {}

# Folders, or files by the beginning of their names, of runtime/ and scheduler/ that open other namespaces than their part's, or none;
# the longest that fits counts.
NAMESPACES = {
    # What every part uses is named without a qualifier, except where the word alone would say too little.
    "scheduler/base": ["rota"],
    "runtime/core": ["rota", "rota::log", "rota::files"],
    # From an address to the function of a call, and what librota.so asks of the core: shared with the hooks of look-ups.
    "runtime/core/attach": ["rota::interpose"],
    "runtime/core/gpu_memory": ["rota::interpose"],
    "runtime/hooks/gated_table": ["rota::interpose"],
    "runtime/hooks/lookup": ["rota::interpose", "rota::overrides"],
    # Generated code names these.
    "runtime/hooks": ["rota::overrides"],
    "runtime/contract.h": ["rota::contract"],
    "runtime/core/contract.cpp": ["rota::contract"],
    "runtime/core/tables.h": ["rota::next"],
    "runtime/trace/driver_tracers": ["rota::tracers", "rota::next"],
    # Rows of names, which the trace, the command that prints it and the report share.
    "runtime/trace/names": ["rota::names"],
    "runtime/trace/rows.h": ["rota::names"],
    "runtime/trace/driver_rows.h": ["rota::names::driver_rows"],
    "runtime/trace/runtime_rows.h": ["rota::names::runtime_rows"],
    # Each preload is a library of its own.
    "runtime/preload": ["rota::thin"],
    "runtime/preload/nvml": ["rota::nvml"],
    "runtime/preload/cudart/tracers": ["rota::runtime_tracers"],
    # What the trace's header leaves to the library that it is in.
    "runtime/preload/cudart/resolver.cpp": ["rota::trace"],
    # Structs that libraries hand to each other through C symbols.
    "runtime/account/test_interface.h": [],
    "runtime/preload/attachment.h": [],
    "runtime/preload/gpu_memory.h": [],
    "runtime/trace/interface.h": [],
    # Entry points.
    "runtime/core/core_entry.cpp": [],
    "scheduler/server/main.cpp": [],
    # Compared by the preloads, the core and the tools.
    "runtime/preload/symbol_list.h": ["rota"],
    # What rotad and its clients have agreed on, as the messages.
    "scheduler/address": ["rota::protocol"],
    "scheduler/rules": ["rota::protocol"],
    # One pure machine, its accounts and its log, used together.
    "scheduler/core": ["rota::scheduler"],
    "scheduler/limits": ["rota::scheduler"],
    "scheduler/log": ["rota::scheduler"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# What a generator prints is not what it includes.
PRINTED = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)
SOURCE = (".cpp", ".h", ".inc", ".S", ".cu", ".cuh")


def committed():
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\n")
    return [name for name in listed if name and (ROOT / name).is_file()]


def inside(path, folder):
    return path == folder or path.startswith(folder + "/")


def rule_of(path):
    return max((folder for folder in ALLOWED if inside(path, folder)), key=len, default=None)


def resolved(including, included):
    """The file that an include names, from the repository's root; nothing for one that is not ours."""
    for base in (ROOT, (ROOT / including).parent):
        if (base / included).is_file():
            return str((base / included).resolve().relative_to(ROOT))
    return None


def dependencies(files):
    """(including file, line, included file) of each include that names a file of ours."""
    for name in files:
        if not name.endswith(SOURCE):
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")
        text = PRINTED.sub(lambda printed: "\n" * printed[0].count("\n"), text)
        for match in INCLUDE.finditer(text):
            target = resolved(name, match[1])
            if target is not None:
                yield name, text.count("\n", 0, match.start(1)) + 1, target


def wrong_includes(files):
    needed = set()
    for name, line, target in dependencies(files):
        rule = rule_of(name)
        if rule is None:
            yield f"{name}:{line}: tests/dependencies.py does not know what this folder may include"
        elif not inside(target, rule) and not any(inside(target, folder) for folder in ALLOWED[rule]):
            exception = (rule, rule_of(target))
            if exception in EXCEPTIONS:
                needed.add(exception)
            else:
                yield f"{name}:{line}: {rule} may not include {target} (tests/dependencies.py --table says what it may)"
    for who, whom in sorted(set(EXCEPTIONS) - needed):
        yield f"{who} no longer includes {whom}: take the exception out of tests/dependencies.py"


OPENED = re.compile(r"^(?:inline )?namespace (rota\b[\w:]*) \{", re.MULTILINE)


def wrong_namespaces(files):
    needed = set()
    for name in files:
        if not name.startswith(("runtime/", "scheduler/")) or not name.endswith((".h", ".cpp")):
            continue
        entry = max((each for each in NAMESPACES if inside(name, each) or name.startswith(each + ".")), key=len, default=None)
        text = (ROOT / name).read_text()
        opened = list(OPENED.finditer(text))
        if not opened:
            needed.add((entry, None))
            if entry is None or NAMESPACES[entry]:
                yield f"{name} opens no namespace of its folder (NAMESPACES in tests/dependencies.py)"
        for match in opened:
            needed.add((entry, match[1]))
            own = "rota::" + name.split("/")[1]
            if match[1] not in NAMESPACES[entry] if entry else match[1] != own and not match[1].startswith(own + "::"):
                may = " or ".join(NAMESPACES[entry]) or "none" if entry else own
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: namespace {match[1]}, where {may} belongs (NAMESPACES in tests/dependencies.py)"
    for entry, allowed in NAMESPACES.items():
        for each in allowed or [None]:
            if (entry, each) not in needed:
                yield f"{entry} no longer opens {each or 'no namespace'}: take it out of NAMESPACES in tests/dependencies.py"


# What only some files may do, and which.
ONLY = [(re.compile(r"\bgate_\.(open|close|open_for_good|admit|refuse)\(|\bout_of_place\.(store|fetch_or|fetch_and)\("), "runtime/",
         {"runtime/monitor/gate_keeper.h", "runtime/monitor/gate_keeper.cpp", "runtime/gate/gate.cpp"}, "opens or closes gates, which gate_keeper.h alone does")]


def done_elsewhere(files):
    for done, folder, where, what in ONLY:
        for name in files:
            if not name.startswith(folder) or not name.endswith(SOURCE) or name in where:
                continue
            text = (ROOT / name).read_text()
            for match in done.finditer(text):
                yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {what}"


def is_hand_written(name):
    return (name.endswith(SOURCE + (".py",)) or (ROOT / name).open("rb").read(2) == b"#!") and not inside(name, "generated")


def long_files(files):
    found = set()
    for name in filter(is_hand_written, files):
        lines = (ROOT / name).read_bytes().count(b"\n")
        if lines > MOST_LINES:
            found.add(name)
            if name not in LONG:
                yield f"{name}: {lines} lines; beyond {MOST_LINES} it is to be two files, split by idea"
    for name in sorted(set(LONG) - found):
        yield f"{name} has at most {MOST_LINES} lines by now: take it out of LONG in tests/dependencies.py"


def main():
    if sys.argv[1:] == ["--table"]:
        for folder, allowed in ALLOWED.items():
            print(f"{folder}: {', '.join(allowed) or 'nothing else of ours'}")
        return
    if sys.argv[1:]:
        sys.exit(__doc__)
    files = committed()
    complaints = [*wrong_includes(files), *wrong_namespaces(files), *done_elsewhere(files), *long_files(files)]
    if complaints:
        sys.exit("\n".join(complaints))
    print(f"{sum(name.endswith(SOURCE) for name in files)} files include only what they may, and open their folders' namespaces")


if __name__ == "__main__":
    main()
