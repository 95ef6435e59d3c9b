"""What a trace says in numbers: by operation, by die, by core, by call site; and what of it matters most."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata.errors import InvalidArgument
from strata.profile import blame
from strata.profile.calls import Calls, Phases, exposure, link, union
from strata.profile.reading import CORE, NO, PROBE, TRANSFER, WAIT, Recorded

ANOMALY = 0.05  # of the run's time: less is not worth naming first
MAPPING = 0.02  # the same of late registrations, of which there need be none
LATE = 2.0  # a late die's waiting to the median of the others', from which on it is named
FEW = 4  # operations
ONCE = 0.1  # of the run's time, that one wait takes, to be named
UNEVEN = 1.25  # busiest core to the mean, from which on it counts
OVERLAP = 0.2  # of the run's time in calls, from which on exposed communication is named


def report(trace: Recorded, operation: str | None = None, top: int = 10) -> dict[str, Any]:
    """All tables, as plain numbers (times in microseconds, parts from 0 to 1), the findings first.

    With ``operation``, of calls of that name alone.  InvalidArgument if there is none.
    """
    calls, phases = link(trace)
    if operation is not None:
        calls, phases = only(trace, calls, phases, operation)
    spans = trace.spans
    begin, end = float(spans["begin"].min()), float(spans["end"].max())
    made: dict[str, Any] = {
        "file": trace.file, "clock": trace.about.get("clock"), "machine": trace.about.get("machine"),
        "program": trace.about.get("program"), "dies": sorted(trace.dies), "wall_us": end - begin, "spans": len(spans),
        "lost": {str(die): n for die, n in sorted(trace.lost.items()) if n},
    }  # fmt: skip
    tables = {
        "operations": operations(trace, calls),
        "straggler": straggler(trace, calls, phases),
        "exposure": [{"die": die, **exposure(trace, calls, phases, die)} for die in sorted(trace.dies)],
        "imbalance": imbalance(trace, calls, phases),
        "registrations": registrations(trace, phases),
        "mapping": mapping(trace, calls, phases),
        "sites": sites(trace, calls)[:top],
        "probes": probes(trace)[:top],
        "tags": by_tag(calls)[:top],
    }
    # What matters is told by the time from the first call to the last, without what all waited for once.
    within = float(calls.end.max() - calls.begin.min()) if len(calls.die) else end - begin
    return made | {"findings": findings(tables, within, len(trace.dies))} | tables


def only(trace: Recorded, calls: Calls, phases: Phases, operation: str) -> tuple[Calls, Phases]:
    """Calls of one name and their phases; InvalidArgument if there is none."""
    kept = np.flatnonzero(np.array([name == operation for name in trace.names])[calls.name])
    if not len(kept):
        there = ", ".join(sorted({trace.names[i] for i in calls.name.tolist()})) or "none at all"
        raise InvalidArgument(f"{trace.file}: there is no call of {operation!r}; there are {there}")
    place = np.full(len(calls.die) + 1, NO)
    place[kept] = np.arange(len(kept))
    owner = place[phases.call]
    return calls.only(kept), Phases(phases.spans[owner != NO], owner[owner != NO])


def size_class(nbytes: int) -> int:
    """The power of two that a size is under or at, as its exponent; -1: unknown."""
    return NO if nbytes < 0 else max(int(nbytes) - 1, 0).bit_length()


def _by_operation(trace: Recorded, calls: Calls) -> list[tuple[str, np.ndarray]]:
    """Places of the calls of each name and class of sizes, by name and size."""
    classes = np.array([size_class(b) for b in calls.bytes.tolist()], "i8").reshape(-1)
    found: dict[tuple[str, int], list[int]] = {}
    for i, key in enumerate(zip(calls.name.tolist(), classes.tolist(), strict=True)):
        found.setdefault((trace.names[key[0]], key[1]), []).append(i)
    return [(name, np.array(rows)) for (name, _), rows in sorted(found.items())]


def operations(trace: Recorded, calls: Calls) -> list[dict[str, Any]]:
    """By operation and class of sizes: calls, time, and what it went to; the longest first."""
    made = []
    for name, rows in _by_operation(trace, calls):
        took = calls.end[rows] - calls.begin[rows]
        wait, transfer, other = (float(x) for x in calls.busy[rows].sum(axis=0))
        whole = max(wait + transfer + other, 1e-12)
        sizes = calls.bytes[rows]
        made.append({
            "operation": name, "calls": len(rows), "bytes_least": int(sizes.min()), "bytes_most": int(sizes.max()),
            "bytes_moved": float(calls.moved[rows].mean()), "time_us": float(took.sum()), "mean_us": float(took.mean()),
            "p50_us": float(np.percentile(took, 50)), "p99_us": float(np.percentile(took, 99)),
            "wait_us": wait, "transfer_us": transfer, "other_us": other,
            "wait": wait / whole, "transfer": transfer / whole, "other": other / whole,
        })  # fmt: skip
    return sorted(made, key=lambda row: -row["time_us"])


def straggler(trace: Recorded, calls: Calls, phases: Phases) -> dict[str, Any]:
    """Who is waited for: by die, in the end and at first; and the others' time in calls, to compare with."""
    found = blame.waiting(trace, calls, phases)
    inside = {die: _inside(calls, die) for die in found.dies}
    many = len(blame.instances(calls)) >= FEW  # else the longest one says as much as the others
    rows: list[dict[str, Any]] = []
    for i, die in enumerate(found.dies):
        others = sum(us for other, us in inside.items() if other != die)
        rows.append({
            "die": die, "blamed_us": float(found.blamed[i]), "direct_us": float(found.direct[i]),
            "mapping_us": float(found.mapping[i]), "others_in_calls_us": others,
            "share": float(found.blamed[i]) / others if others > 0 else 0.0,
            # What is left without the one operation in which it was waited for the longest, and that one.
            "again_us": float(found.blamed[i] * (1 - many * found.once[i] / max(found.direct[i], 1e-12))),
            "longest": None if found.where[i] == NO else {
                "operation": trace.names[calls.name[found.where[i]]], "us": float(found.once[i]),
                "at_us": float(calls.begin[found.where[i]]), "site": calls.sites[calls.site[found.where[i]]]},
        })  # fmt: skip
    rows.sort(key=lambda row: -row["blamed_us"])
    made: dict[str, Any] = {"by": found.by, "dies": rows}
    if rows and rows[0]["blamed_us"] > 0:
        worst = max(rows, key=lambda row: float(row["again_us"]))["die"]
        made["cause"] = {"die": worst, **blame.cause(trace, calls, phases, worst)}
    return made


def _inside(calls: Calls, die: int) -> float:
    begin, end = union(calls.begin[calls.die == die], calls.end[calls.die == die])
    return float((end - begin).sum())


def core_loads(trace: Recorded, phases: Phases, rows: np.ndarray | None = None) -> dict[tuple[int, int], list[float]]:
    """By (die, core): microseconds in which it was busy within calls, and bytes; ``rows``: of these phases alone.

    What the calling thread does for all cores (looking registrations up, mapping pages) is no core's.
    """
    spans = phases.spans[phases.call != NO] if rows is None else phases.spans[rows]
    tracks = trace.tracks
    kept = np.array([t.kind == CORE for t in tracks])[spans["track"]] & (spans["kind"] != WAIT)
    kept &= np.array([name not in ("check", "map") for name in trace.categories])[spans["category"]]
    spans = spans[kept]
    busy = np.bincount(spans["track"], spans["end"] - spans["begin"], len(tracks))
    moved = np.bincount(spans["track"], np.maximum(spans["bytes"], 0) * (spans["kind"] == TRANSFER), len(tracks))
    seen = np.unique(spans["track"]).tolist()
    return {(tracks[t].die, tracks[t].number): [float(busy[t]), float(moved[t])] for t in seen}


def imbalance(trace: Recorded, calls: Calls, phases: Phases) -> list[dict[str, Any]]:
    """By operation and class of sizes: how the busiest core compares with the mean of its die's, the worst die;
    ``lost_us`` is what an even share would save, of all dies.  Cores that did nothing in these calls do not count."""
    made = []
    for name, which in _by_operation(trace, calls):
        rows = np.flatnonzero(np.isin(phases.call, which))
        loads = core_loads(trace, phases, rows)
        worst: dict[str, Any] | None = None
        lost = 0.0
        for die in sorted({die for die, _ in loads}):
            mine = {core: load for (d, core), load in loads.items() if d == die}
            busy = np.array([load[0] for load in mine.values()])
            if len(busy) < 2 or busy.sum() <= 0:
                continue
            moved = np.array([load[1] for load in mine.values()])
            lost += float(busy.max() - busy.mean())
            row: dict[str, Any] = {
                "die": die, "core": list(mine)[int(busy.argmax())], "cores": len(busy),
                "max_us": float(busy.max()), "mean_us": float(busy.mean()), "ratio": float(busy.max() / busy.mean()),
                "bytes_ratio": float(moved.max() / moved.mean()) if moved.sum() > 0 else None,
            }  # fmt: skip
            worst = row if worst is None or row["ratio"] > worst["ratio"] else worst
        if worst is not None:
            sizes = calls.bytes[which]
            made.append({"operation": name, "bytes_least": int(sizes.min()), "bytes_most": int(sizes.max()), **worst,
                         "lost_us": lost})  # fmt: skip
    return sorted(made, key=lambda row: -row["lost_us"])


def registrations(trace: Recorded, phases: Phases) -> list[dict[str, Any]]:
    """By die: pages that were mapped on first use, how long that took, and when; the longest first."""
    found = blame.maps(trace, phases)
    made = []
    for die in np.unique(found["die"]).tolist():
        mine = found[found["die"] == die]
        took = mine["end"] - mine["begin"]
        made.append({"die": die, "times": len(mine), "time_us": float(took.sum()), "first_us": float(mine["begin"][0]),
                     "last_us": float(mine["end"].max()), "longest_us": float(took.max()),
                     "owners": sorted({int(p) for p in mine["peer"].tolist()} - {NO})})  # fmt: skip
    return sorted(made, key=lambda row: -row["time_us"])


def mapping(trace: Recorded, calls: Calls, phases: Phases) -> float:
    """Of the time of a typical call (the median), what it mapped pages for."""
    rows = np.flatnonzero(blame.late(trace, phases.spans) & (phases.call != NO))
    if not len(rows):
        return 0.0
    spans = phases.spans[rows]
    took = np.bincount(phases.call[rows], spans["end"] - spans["begin"], len(calls.die))
    return float(np.median(took / np.maximum(calls.end - calls.begin, 1e-12)))


def sites(trace: Recorded, calls: Calls) -> list[dict[str, Any]]:
    """By line of the program: its calls and their time; the longest first."""
    whole = max(float((calls.end - calls.begin).sum()), 1e-12)
    made = []
    for site in np.unique(calls.site).tolist():
        rows = np.flatnonzero(calls.site == site)
        took = calls.end[rows] - calls.begin[rows]
        names = sorted({trace.names[i] for i in calls.name[rows].tolist()})
        made.append({"site": calls.sites[site], "operations": names, "calls": len(rows), "time_us": float(took.sum()),
                     "part": float(took.sum()) / whole, "wait_us": float(calls.busy[rows, 0].sum())})  # fmt: skip
    return sorted(made, key=lambda row: -row["time_us"])


def probes(trace: Recorded) -> list[dict[str, Any]]:
    """By name of the program's own probes: how often, how long; the longest first."""
    spans = trace.spans[trace.of(PROBE)]
    made = []
    for name in np.unique(spans["name"]).tolist():
        mine = spans[spans["name"] == name]
        took = mine["end"] - mine["begin"]
        made.append({"probe": trace.names[name], "times": len(mine), "time_us": float(took.sum()),
                     "p50_us": float(np.percentile(took, 50)), "p99_us": float(np.percentile(took, 99))})  # fmt: skip
    return sorted(made, key=lambda row: -row["time_us"])


def by_tag(calls: Calls) -> list[dict[str, Any]]:
    """By tag and its value: calls beneath it and their time; the longest first."""
    found: dict[tuple[str, str], list[float]] = {}
    for tags, took in zip(calls.tags, (calls.end - calls.begin).tolist(), strict=True):
        for key, value in tags.items():
            found.setdefault((str(key), str(value)), []).append(took)
    made: list[dict[str, Any]] = [{"tag": key, "value": value, "calls": len(took), "time_us": sum(took)}
                                  for (key, value), took in found.items()]  # fmt: skip
    return sorted(made, key=lambda row: -row["time_us"])


def findings(tables: dict[str, Any], wall: float, dies: int) -> list[dict[str, Any]]:
    """What matters most, in words, with the part of the time ``wall`` that it costs a die on average."""
    once = _once(tables["straggler"], max(wall, 1e-12))
    whole, wall = max(wall, 1e-12), max(wall - (once["us"] if once else 0.0), 1e-12)
    least = {"straggler": ANOMALY, "imbalance": ANOMALY, "registration": MAPPING}
    found = [f for f in (_late_die(tables["straggler"], wall), _uneven(tables["imbalance"], wall, dies),
                         _unmapped(tables, wall, dies)) if f and f["share"] >= least[f["kind"]]]  # fmt: skip
    found.sort(key=lambda f: -f["share"])
    late = {f["die"] for f in found if f["kind"] == "straggler"}
    more = [f for f in [once] if f and f["share"] >= ONCE and f["die"] not in late]
    exposed = float(np.mean([row["exposed_us"] for row in tables["exposure"]])) / whole
    if exposed >= OVERLAP:
        moved = sum(row["transfer_us"] for row in tables["exposure"])
        aside = sum(row["overlapped_us"] for row in tables["exposure"])
        part = f"{aside / moved:.0%} of the time in which bytes move" if moved > 0 else "none"
        more.append({"kind": "exposed", "share": exposed, "text":
                     f"communication is exposed: the dies spend {exposed:.0%} of their time in calls; "
                     f"overlapped: {part}"})  # fmt: skip
    found += sorted(more, key=lambda f: -f["share"])
    if not found:
        text = f"nothing stands out: {exposed:.0%} of the time is spent in calls"
        found.append({"kind": "none", "share": exposed, "text": text})
    return found


def _late_die(table: dict[str, Any], wall: float) -> dict[str, Any] | None:
    rows = sorted(table["dies"], key=lambda row: -float(row["again_us"]))
    if len(rows) < 2 or rows[0]["again_us"] <= 0:
        return None
    first = rows[0]
    others = len(rows) - 1
    # Waiting that is spread over all dies is nobody's fault; what counts is what this die has more than the others,
    # again and again: once is another finding.
    middle = float(np.median([row["again_us"] for row in rows[1:]]))
    if first["again_us"] < LATE * middle:
        return None
    share = (first["again_us"] - middle) / others / wall
    text = f"die {first['die']} is late: the others waited {first['share']:.0%} of their time in calls for it"
    cause = table["cause"]
    after, each = cause["arrives_after_us"], first["blamed_us"] / others / max(cause["operations"], 1)
    if after is not None and after > each / 4:
        text += f"; it comes {after:.0f} us after them"
    for key, what in (("bytes_times", "moves {:.1f} times as many bytes"),
                      ("transfer_times", "takes {:.1f} times as long to move its bytes")):  # fmt: skip
        if cause[key] is not None and cause[key] >= UNEVEN:
            text += "; it " + what.format(cause[key])
            break
    return {"kind": "straggler", "die": first["die"], "share": share, "text": text}


def _once(table: dict[str, Any], wall: float) -> dict[str, Any] | None:
    rows = [row for row in table["dies"] if row["longest"] and row["again_us"] < row["blamed_us"]]
    if not rows:
        return None
    first = max(rows, key=lambda row: float(row["longest"]["us"]))
    longest, each = first["longest"], first["longest"]["us"] / (len(table["dies"]) - 1)
    text = (f"once, the others waited {each:.0f} us for die {first['die']}: in {longest['operation']} at "
            f"{longest['at_us']:.0f} us")  # fmt: skip
    return {"kind": "once", "die": first["die"], "share": each / wall, "us": each, "text": text}


def _uneven(rows: list[dict[str, Any]], wall: float, dies: int) -> dict[str, Any] | None:
    whole = max(sum(row["max_us"] for row in rows), 1e-12)
    rows = [row for row in rows if row["ratio"] >= UNEVEN]
    if not rows:
        return None
    first = rows[0]
    # Of what the busiest cores do, what is theirs by their bytes too: a busy host makes any core slow, and all of them
    # wait, which hides what the plan would cost where each core is one.
    even = sum(row["max_us"] * (1 - 1 / min(row["ratio"], row["bytes_ratio"])) for row in rows
               if row["bytes_ratio"] is not None and row["bytes_ratio"] >= UNEVEN) / whole  # fmt: skip
    text = (f"cores are out of balance in {first['operation']}: core {first['core']} of die {first['die']} works "
            f"{first['ratio']:.1f} times as long as the mean of {first['cores']}")  # fmt: skip
    share = max(sum(row["lost_us"] for row in rows) / dies / wall, even)
    return {"kind": "imbalance", "operation": first["operation"], "die": first["die"], "share": share, "text": text}


def _unmapped(tables: dict[str, Any], wall: float, dies: int) -> dict[str, Any] | None:
    rows = tables["registrations"]
    if not rows:
        return None
    first = rows[0]
    cost = sum(row["time_us"] for row in rows) + sum(row["mapping_us"] for row in tables["straggler"]["dies"])
    whose = f" of die {', '.join(map(str, first['owners']))}" if first["owners"] else ""
    text = (f"registration is late on die {first['die']}: it mapped pages{whose} on first use {first['times']} times, "
            f"for {first['time_us']:.0f} us, first at {first['first_us']:.0f} us")  # fmt: skip
    # Few and short, they are lost among all waiting of a busy host; what a typical call has of them is not.
    share = max(cost / dies / wall, tables["mapping"])
    return {"kind": "registration", "die": first["die"], "share": share, "text": text}


def compared(a: Recorded, b: Recorded) -> list[dict[str, Any]]:
    """By operation and class of sizes, both traces side by side; what one of them does not have is None there."""
    found: dict[tuple[str, int], list[dict[str, Any] | None]] = {}
    for at, trace in enumerate((a, b)):
        calls, _ = link(trace)
        for row in operations(trace, calls):
            found.setdefault((row["operation"], size_class(row["bytes_most"])), [None, None])[at] = row
    made = []
    for (name, exponent), pair in found.items():
        both: dict[str, Any] = {"operation": name, "size_class": exponent, "first": pair[0], "second": pair[1]}
        if pair[0] and pair[1]:
            both["ratio"] = pair[1]["p50_us"] / max(pair[0]["p50_us"], 1e-12)
        made.append(both)
    return sorted(made, key=lambda row: ("ratio" not in row, row["operation"], row["size_class"]))
