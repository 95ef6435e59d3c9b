"""Traces of what was simulated: a process for each die, a thread for each core, each ring, and what a die has begun."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from strata.exec.timed import Timeline
from strata.exec.timed.records import ENGINE, HBM, LINK_NAMES, MOVE, NODE_UP, NONE, NOTHING, PAIR, TASK_NAMES
from strata.plan.records import TIER_NAMES
from strata.profile.chrome import Span, Trace

US = 1e6  # picoseconds
CORES = 1000  # threads before this one are stages', not cores'
PORT_NAMES = {name: name.replace("_", " ").upper() for name in LINK_NAMES[:NODE_UP]} | {"engine": "SDMA engine"}


def trace(timeline: Timeline) -> Trace:
    """What a run's cores and rings did, which flags they waited for, and how busy ports were.

    A task's span is from when it began, or the one before it on the core was done, to when it was done; its arguments
    have all times.  Arrows lead from the task that raised a flag last to those that waited for it.  Counters of ports
    are GB/s, each flow counted with its mean rate; memories that limited nothing have none.
    """
    found = Trace(machine=timeline.machine.caption, digest=timeline.digest, clock="simulated")
    for die in sorted({int(die) for stage in timeline.stages for die in stage.dies}):
        found.process(die, f"die {die}")
    _stages(timeline, found)
    _arrows(timeline, found, _cores(timeline, found))
    _counters(timeline, found)
    return found


def _stages(timeline: Timeline, found: Trace) -> None:
    """Stages from start to finish, on as many threads of a die as overlap."""
    spans: dict[int, list[tuple[float, float, Any]]] = {}
    for stage in timeline.stages:
        times = timeline.start_us(stage).tolist(), timeline.finish_us(stage).tolist()
        for die, begin, end in zip(stage.dies.tolist(), *times, strict=True):
            spans.setdefault(die, []).append((begin, end, stage))
    for die, rows in spans.items():
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        for begin, end, stage in sorted(rows, key=lambda row: (row[0], row[1], row[2].index)):
            while busy and busy[0][0] <= begin:
                heapq.heappush(free, heapq.heappop(busy)[1])
            thread = heapq.heappop(free) if free else len(busy)
            heapq.heappush(busy, (end, thread))
            found.thread(die, thread, f"stages {thread}" if thread else "stages")
            found.span(die, thread, stage.name, begin, end, stage.kind, {"stage": stage.index})


def _cores(timeline: Timeline, found: Trace) -> dict[int, Span]:
    """Spans of tasks on cores and rings; by task."""
    a = timeline.arrays
    lane = np.repeat(np.arange(len(a.lanes)), a.lanes["count"])
    die, core = a.lanes["die"][lane], a.lanes["core"][lane]
    shown = (core != NONE) & (a.times["done"] >= 0)
    order = np.flatnonzero(shown)
    order = order[np.lexsort((order, a.times["done"][order], a.times["begun"][order], core[order], die[order]))]
    spans: dict[int, Span] = {}
    last, edge = (-1, -1), 0
    for task in order.tolist():
        where = int(die[task]), int(core[task])
        if where != last:
            last, edge = where, 0
            cores = timeline.machine.die.cores
            name = f"core {where[1]}" if where[1] < cores else f"ring {where[1] - cores}"
            found.thread(where[0], CORES + where[1], name)
        times, t = a.times[task], a.tasks[task]
        begun, done = max(int(times["begun"]), edge), int(times["done"])
        asked = max(int(times["ready"]), edge)
        if begun > asked and (t["wait"] != NONE).any() and t["unit"] != NONE:
            found.span(where[0], CORES + where[1], "wait", asked / US, begun / US, "wait")
        if t["kind"] != NOTHING or (t["wait"] != NONE).any() or t["post"] != NONE:
            spans[task] = found.span(where[0], CORES + where[1], _name(t), begun / US, max(done, begun) / US,
                                     TASK_NAMES[t["kind"]], _args(timeline, task))  # fmt: skip
        edge = max(edge, done)
    return spans


def _name(task: Any) -> str:
    kind = TASK_NAMES[task["kind"]]
    return f"{kind} {TIER_NAMES[task['tier']]}" if task["kind"] == MOVE else "flags" if kind == "nothing" else kind


def _args(timeline: Timeline, task: int) -> dict[str, Any]:
    a = timeline.arrays
    times, t = a.times[task], a.tasks[task]
    found: dict[str, Any] = {name: int(times[name]) / US for name in ("ready", "begun", "flowing", "done")}
    found |= {"stage": int(t["operation"]), "unit": int(t["unit"])}
    if t["kind"] == MOVE:
        uses = a.uses[t["use_first"] : t["use_first"] + t["nuse"]]
        links = a.links[uses["link"]]
        through = [f"{LINK_NAMES[k]} of {d}" for k, d in zip(links["kind"], links["die"], strict=True) if k <= PAIR]
        took, own = (found["done"] - found["flowing"]) * US, float(t["work"]) / float(t["bound"])
        found |= {"bytes": round(float(t["work"])), "through": ", ".join(through),
                  "ports_us": round(max(took - own, 0.0) / US, 3)}  # fmt: skip
    return found


def _arrows(timeline: Timeline, found: Trace, spans: dict[int, Span]) -> None:
    a = timeline.arrays
    post = a.tasks["post"]
    posts = np.flatnonzero(post != NONE)
    poster = np.full(len(a.flags), NONE)
    by_time = posts[np.argsort(a.times["done"][posts], kind="stable")]
    poster[post[by_time]] = by_time  # of several, the last stays
    for task, span in spans.items():
        for flag in a.tasks["wait"][task].tolist():
            source = spans.get(int(poster[flag])) if flag != NONE else None
            if source is not None and source is not span:
                found.arrow("flag", source, span)


def _counters(timeline: Timeline, found: Trace) -> None:
    a = timeline.arrays
    task = np.repeat(np.arange(len(a.tasks)), a.tasks["nuse"])
    first = np.cumsum(a.tasks["nuse"].astype(np.int64)) - a.tasks["nuse"]
    uses = a.uses[np.arange(len(task)) - np.repeat(first, a.tasks["nuse"]) + a.tasks["use_first"][task]]
    begin, end = a.times["flowing"][task], a.times["done"][task]
    kinds = a.links["kind"][uses["link"]]
    kept = (end > begin) & (a.tasks["kind"][task] == MOVE) & ((kinds <= HBM) | (kinds == ENGINE))
    link, begin, end = uses["link"][kept], begin[kept], end[kept]
    rate = 1e3 * uses["weight"][kept] * a.tasks["work"][task[kept]] / (end - begin)
    for which in np.unique(link).tolist():
        mine = link == which
        at = np.concatenate([begin[mine], end[mine]])
        change = np.concatenate([rate[mine], -rate[mine]])
        when, place = np.unique(at, return_inverse=True)
        level = np.cumsum(np.bincount(place.ravel(), change))
        about = a.links[which]
        values = np.round(np.maximum(level, 0.0), 3)
        new = np.flatnonzero(np.diff(values, prepend=-1.0))
        when, values = when[new], values[new]
        name = f"{PORT_NAMES[LINK_NAMES[about['kind']]]} (GB/s)"
        found.counter(int(about["die"]), name, (when / US).tolist(), {"GB/s": values.tolist()})
