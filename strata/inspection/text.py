"""Snapshots as text for people."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from strata.inspection.waiting import operation

__all__ = ["duration", "history", "job_line", "ranks", "size", "table", "waits", "whole"]

COUNTS = 1 << 24  # records are counted modulo
BRIEF = 0.1  # seconds: a wait that is shorter is no news


def _plain(line: str) -> str:
    """Without what a terminal would obey: names come from shared memory, and from files."""
    return line if line.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def ranks(numbers: Iterable[int]) -> str:
    """ "rank 3" or "ranks 0-2, 5"."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    several = len(spans) > 1 or bool(spans) and spans[0][0] < spans[0][1]
    return f"rank{'s' if several else ''} " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def size(nbytes: int) -> str:
    """ "96", "1.5K", "20M", "2.3G"."""
    value, unit = float(nbytes), ""
    for bigger in "KMGT":
        if value < 1024:
            break
        value, unit = value / 1024, bigger
    return f"{value:.0f}{unit}" if value >= 10 or not unit or value == int(value) else f"{value:.1f}{unit}"


def duration(seconds: float) -> str:
    """ "12 us", "3.4 ms", "12.3 s", "2 h 05 min"."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 600:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02} min"


def age(snapshot: dict[str, Any], since_ns: int) -> float:
    """Seconds from a moment to the snapshot."""
    return max(0.0, (snapshot["now_ns"] - since_ns) / 1e9)


def job_line(snapshot: dict[str, Any]) -> str:
    """Which job this is, and when it was looked at."""
    launcher = f", launcher {snapshot['launcher']}" if snapshot["launcher"] else ""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot["time"]))
    return _plain(f"{snapshot['name'] or 'job'}: {snapshot['ndies']} dies, job {snapshot['job'][:8]}{launcher}, {at}")


def _rate(die: dict[str, Any], before: dict[str, Any] | None, name: str, seconds: float) -> float | None:
    if before is None or seconds <= 0 or die["pid"] != before["pid"] or die[name] is None or before[name] is None:
        return None
    by = die[name] - before[name]
    return float((by % COUNTS if name == "begun" else by) / seconds)


def _line(row: tuple[str, ...], widths: list[int], left: tuple[int, ...]) -> str:
    """Cells side by side; those in ``left`` begin together, the others end so."""
    row = tuple(map(_plain, row))
    cells = [row[i].ljust(w) if i in left else row[i].rjust(w) for i, w in enumerate(widths)]
    return "  ".join([*cells, row[-1]]).rstrip()


def table(snapshot: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """A line for each die.  Rates are between two looks; without an earlier one they are left out."""
    seconds = (snapshot["now_ns"] - before["now_ns"]) / 1e9 if before else 0.0
    earlier = {die["rank"]: die for die in before["dies"]} if before and before["job"] == snapshot["job"] else {}
    rows = [("rank", "pid", "state", "cpu", "%cpu", "HBM", "cached", "lag", "rings", "late", "ops/s", "for", "doing")]
    for die in snapshot["dies"]:
        old = earlier.get(die["rank"])
        if "begun" not in die or "cpu" not in die:
            rows.append((str(die["rank"]), "", "unreadable", *[""] * 9, die.get("unreadable", "")))
            continue
        busy, done = (_rate(die, old, name, seconds) for name in ("cpu_seconds", "begun"))
        wait = next((w for w in snapshot["waits"] if w["rank"] == die["rank"]), None)
        rows.append((
            str(die["rank"]), str(die["pid"] or ""), die["state"], "" if die["cpu"] is None else str(die["cpu"]),
            "" if busy is None else f"{100 * busy:.0f}", f"{size(die['reserved'])}/{size(snapshot['hbm_bytes'])}",
            size(die["cached"]), str(die["lag"]), str(sum(ring["pending"] for ring in die["rings"])),
            str(die["late_maps"]), "" if done is None else f"{done:.0f}",
            duration(age(snapshot, wait["since_ns"])) if wait else "",
            die.get("unreadable") or (wait["operation"] if wait else ""),
        ))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    left = (2, 12)
    lines = []
    for row in rows:
        lines.append(_line(row, widths, left))
    return "\n".join(lines)


def waits(snapshot: dict[str, Any], brief: float = BRIEF) -> list[str]:
    """Who waits for whom, since when; what is shorter than ``brief`` seconds is left out."""
    together: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for wait in snapshot["waits"]:
        if wait["for"] and age(snapshot, wait["since_ns"]) >= brief:
            key = (wait["operation"], wait["group"], wait["phase"], tuple(wait["for"]))
            together.setdefault(key, []).append(wait)
    lines = []
    for (what, _, phase, missing), those in sorted(together.items(), key=lambda item: item[1][0]["since_ns"]):
        who = [wait["rank"] for wait in those]
        verb = "moves data with" if phase == "execution" else "waits for"
        if len(who) > 1:
            verb = verb.replace("moves", "move").replace("waits", "wait")
        where = f"the end of {what}" if phase == "completion" else what
        since = age(snapshot, min(wait["since_ns"] for wait in those))
        why = _why(snapshot, missing)
        lines.append(f"{ranks(who)} {verb} {ranks(missing)} in {where} since {duration(since)}{why}")
    for circle in snapshot["deadlocks"]:
        steps = [f"{ranks([w['rank']])} waits for {ranks(w['for'])} in {w['operation']}" for w in circle]
        lines.append("deadlock: " + ", ".join(steps) + ": none of them can go on")
    for group in snapshot["groups"]:
        failure = group["failure"]
        if failure:
            lines.append(f"group {group['name']} has failed: {failure['status']} in operation #{failure['number']}, "
                         f"declared by {ranks([failure['by']]) if failure['by'] is not None else 'a member'}"
                         + (f", names {ranks(failure['ranks'])}" if failure["ranks"] else ""))  # fmt: skip
    return list(map(_plain, lines))


def whole(snapshot: dict[str, Any], last: int | None = None) -> str:
    """All of the above; of the records, the last ones."""
    why, waiting = snapshot.get("why"), waits(snapshot, 0.0)
    head = [job_line(snapshot), *([_plain(why)] if why else []), "", table(snapshot)]
    return "\n".join([*head, *(["", *waiting] if waiting else []), "", history(snapshot, last)])


def _why(snapshot: dict[str, Any], missing: tuple[int, ...]) -> str:
    """What is the matter with those that are waited for, where their state says it."""
    states: dict[str, list[int]] = {}
    for die in snapshot["dies"]:
        if die["rank"] in missing and die["state"] != "running":
            states.setdefault(die["state"], []).append(die["rank"])
    verb = {"stopped": "stopped (SIGSTOP)", "left": "gone: it has left the job"}
    several = len(missing) > 1
    parts = [f"{ranks(who) + ' ' if several else ''}{'are' if len(who) > 1 else 'is'} {verb.get(state, state)}"
             for state, who in sorted(states.items())]  # fmt: skip
    return f" ({', '.join(parts)})" if parts and several else f", which {parts[0]}" if parts else ""


def history(snapshot: dict[str, Any], last: int | None = None) -> str:
    """The records of all dies, merged in time: seconds before the snapshot, rank, what, bytes, how long, outcome."""
    groups = {group["id"]: group for group in snapshot["groups"]}
    records = [(record["begin_ns"], die, record) for die in snapshot["dies"] for record in die.get("records", ())]
    records.sort(key=lambda item: (item[0], item[1]["rank"]))
    rows = [("seconds", "rank", "operation", "bytes", "took", "outcome")]
    for begin, die, record in records[-last if last else 0 :]:
        ended, over = record["end_ns"], bool(record["status"])
        took = duration((ended - begin) / 1e9) if over and ended >= begin > 0 else ""
        if not over:
            took = f"{duration(age(snapshot, begin))} so far"
        outcome = {"ST_OK": "", "": f"in progress ({record['phase']})"}.get(record["status"], record["status"])
        if die["state"] == "dead" and not over:
            outcome = f"died in it ({record['phase']})"
        rows.append((f"{(begin - snapshot['now_ns']) / 1e9:.6f}", str(die["rank"]),
                     operation(record, groups) + (" (async)" if record["async"] else ""),
                     size(record["bytes"]) if record["bytes"] else "", took, outcome))  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(_line(row, widths, (2,)) for row in rows)
