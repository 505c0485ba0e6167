"""Switches between programs whose memory does not fit together, from what rota says of them: rotad's event log has the grants, each
program's debug log when its memory moved. All times are CLOCK_MONOTONIC, in ns, so they can be compared across programs.

A switch is a grant with which memory is restored, and what others evict meanwhile. It has two figures:

copies  from the first byte that is copied, in either direction, to the last
whole   from the moment the holder before begins to drain until all memory is restored, messages included
"""
import re
import statistics

CLIENT = re.compile(r"client (\d+) of rotad")
BACK = re.compile(r"grant (\d+): (memory back|no room for all memory) after (\d+) us, (\d+) bytes of it swapped, "
                  r"(\d+) of it in memory that others handed over, at (\d+) ns")
OUT = re.compile(r"GPU \d+: (\d+) of \d+ bytes moved out in (\d+) us, (\d+) of them copied.*, at (\d+) ns")
COPIES = re.compile(r"GPU \d+: (\d+) bytes copied (in|out) between (\d+) and (\d+) ns")
GIVEN = re.compile(r"grant (\d+): given back .*after (\d+) us, (\d+) us of them drained")


def numbers(found, *which):
    return [int(found[each]) for each in which]


class Said:
    """What one program's rota said."""

    def __init__(self, log):
        self.client = next((int(found[1]) for found in CLIENT.finditer(log)), None)
        self.backs = {}   # by grant: (whether that is all, bytes, taken over, at)
        self.drained = {}  # by grant: ns
        self.outs = []    # (begun, at, bytes, copied)
        self.copies = []  # (begun, ended, bytes, way)
        for line in log.splitlines():
            if found := BACK.search(line):
                grant, taken_us, got, taken, at = numbers(found, 1, 3, 4, 5, 6)
                self.backs.setdefault(grant, []).append((found[2] == "memory back", got, taken, at))
            elif found := OUT.search(line):
                left, us, copied, at = numbers(found, 1, 2, 3, 4)
                self.outs.append((at - us * 1000, at, left, copied))
            elif found := COPIES.search(line):
                self.copies.append((int(found[3]), int(found[4]), int(found[1]), found[2]))
            elif found := GIVEN.search(line):
                self.drained[int(found[1])] = int(found[3]) * 1000


def clients(events):
    """By the number of the task, which is what the log's events have: whose it is, by the number that the program knows."""
    return {int(words[3]): int(words[5]) for words in map(str.split, events.splitlines()) if words[:1] == ["#"] and words[2:3] == ["task"]}


def grants(events):
    """(time, client, grant, (client, grant) of the one that gave back with it or None), in order."""
    found, at, ended, client = [], 0, None, clients(events)
    for line in events.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        if words[0] != ">":
            at = int(words[0]) if words[0].isdigit() else 0
        elif words[1] == "ended":
            ended = (client[int(words[2])], int(words[3]))
        elif words[1] == "granted":
            found.append((at, client[int(words[2])], int(words[3]), ended))
            ended = None
    return found


def switches(events, logs):
    """A dictionary for each grant with which memory came back, in order."""
    said = {each.client: each for each in map(Said, logs)}
    all_grants = grants(events)
    moved_before = set()
    found = []
    for number, (at, client, grant, ended) in enumerate(all_grants):
        holder = said.get(client)
        if holder is None:
            continue
        until = all_grants[number + 1][0] if number + 1 < len(all_grants) else float("inf")
        others = [each for each in said.values() if each is not holder]
        outs = [(each.client, *out) for each in others for out in each.outs if at <= out[0] < until]
        movers = {out[0] for out in outs if out[4] != 0}
        first = bool(movers - moved_before)
        moved_before |= movers
        got = taken = 0
        back = None
        for whole, swapped, over, when in holder.backs.get(grant, []):
            got, taken = got + swapped, taken + over
            if whole:
                back = when
                break
        if back is None or got == 0:
            continue
        copies = [copy for each in others for copy in each.copies if copy[3] == "out" and at <= copy[0] < until]
        copies += [copy for copy in holder.copies if copy[3] == "in" and at <= copy[0] and copy[1] <= back]
        drained = said[ended[0]].drained.get(ended[1], 0) if ended and ended[0] in said else 0
        found.append({
            "client": client, "at": at, "in_bytes": got, "taken_over": taken, "out_bytes": sum(out[3] for out in outs),
            "out_copied": sum(out[4] for out in outs), "first": first,
            "copies_ns": max(copy[1] for copy in copies) - min(copy[0] for copy in copies) if copies else 0,
            "drain_ns": drained, "whole_ns": back - at + drained})
    return found


def full(found):
    """Those that moved at least three quarters of what any did, without a program's first switch, which also allocates host memory."""
    later = [each for each in found if not each["first"]]
    most = max((each["in_bytes"] + each["out_copied"] for each in later), default=0)
    return [each for each in later if each["in_bytes"] + each["out_copied"] >= 0.75 * most]


def spread(values, digits):
    ordered = sorted(values)
    return [round(ordered[len(ordered) // 10], digits), round(statistics.median(ordered), digits),
            round(ordered[len(ordered) - 1 - len(ordered) // 10], digits)]


def report(found, bare):
    """Figures of all full switches as [10%, median, 90%]. bare: GB/s out and in of bare copies, of each time they were measured."""
    rate = statistics.fmean(sum(each) for each in bare)
    chosen = full(found)
    result = {"bare_duplex_gb_s": bare, "switches": len(found), "full": len(chosen),
              "bytes_in": sum(each["in_bytes"] for each in found), "bytes_out": sum(each["out_bytes"] for each in found),
              "bytes_copied_out": sum(each["out_copied"] for each in found),
              "first": [figures(each, rate) for each in found if each["first"]]}
    if not chosen:
        return result
    all_figures = [figures(each, rate) for each in chosen]
    for name in all_figures[0]:
        result[name] = spread([each[name] for each in all_figures], 3 if "share" in name else 2)
    return result


def figures(switch, rate):
    both = switch["in_bytes"] + switch["out_copied"]

    def share(ns):
        return round(both / ns / rate, 3) if ns else 0

    return {"in_gib": round(switch["in_bytes"] / 2**30, 3), "out_gib": round(switch["out_bytes"] / 2**30, 3),
            "handed_over": round(switch["taken_over"] / switch["in_bytes"], 2),
            "copies_ms": round(switch["copies_ns"] / 1e6, 2), "copies_share": share(switch["copies_ns"]),
            "drain_ms": round(switch["drain_ns"] / 1e6, 2), "whole_ms": round(switch["whole_ns"] / 1e6, 2), "whole_share": share(switch["whole_ns"])}
