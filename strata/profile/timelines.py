"""Traces of what was simulated: a process for each die, a thread for each core, each ring, and what a die has begun.

The form is that of traces of real jobs, so that the same views are for both (``strata.profile.reading``).
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from strata.exec.timed import Timeline
from strata.exec.timed.records import ENGINE, HBM, LINK_NAMES, MOVE, NODE_UP, NONE, NOTHING, PAIR, TASK_NAMES
from strata.plan.records import TIER_NAMES
from strata.profile.chrome import Span, Trace

US = 1e6  # picoseconds
CORES, RINGS = 1000, 2000  # first threads of a die's cores and rings; those before are calls'
PORT_NAMES = {name: name.replace("_", " ").upper() for name in LINK_NAMES[:NODE_UP]} | {"engine": "SDMA engine"}


def trace(timeline: Timeline) -> Trace:
    """What a run's cores and rings did, which flags they waited for, and how busy ports were.

    A task's span is from when it began, or the one before it on the core was done, to when it was done; its arguments
    have all times.  Arrows lead from the task that raised a flag last to those that waited for it.  Counters of ports
    are GB/s, each flow counted with its mean rate; memories that limited nothing have none.
    """
    dies = sorted({int(die) for stage in timeline.stages for die in stage.dies})
    found = Trace(machine=timeline.machine.caption, digest=timeline.digest, clock="simulated", dies=len(dies), lost={})
    for die in dies:
        found.process(die, f"die {die}")
    _stages(timeline, found)
    _arrows(timeline, found, _cores(timeline, found, _Blamed(timeline)))
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
            found.thread(die, thread, f"calls {thread}" if thread else "calls")
            about: dict[str, Any] = {"stage": stage.index}
            if stage.kind == "operation":
                given = _given(stage.part.spec, stage.member[die])
                about |= {"number": stage.index, "group": "simulated", "bytes": given}
            found.span(die, thread, stage.name, begin, end, "call" if stage.kind == "operation" else stage.kind, about)


def _given(spec: Any, member: int) -> int:
    """Bytes of a member's source."""
    if spec.counts is not None:
        return int(spec.counts[member].sum()) * int(spec.itemsize)
    return int(spec.part) * (int(spec.nranks) if spec.operation in ("reduce_scatter", "all_to_all", "scatter") else 1)


class _Blamed:
    """Whom a core waited for: who raised its last flag, or came last to the opening or the end of the operation."""

    def __init__(self, timeline: Timeline) -> None:
        a = timeline.arrays
        self.arrays = a
        lane = np.repeat(np.arange(len(a.lanes)), a.lanes["count"])
        self.die, core = a.lanes["die"][lane], a.lanes["core"][lane]
        self.poster = posters(timeline)
        self.operations = {s.index: s for s in timeline.stages if s.kind == "operation"}
        self.first: dict[int, int] = {}  # of an operation: who came last
        self.last: dict[int, int] = {}  # and who was done last
        self.start: dict[tuple[int, int], int] = {}  # by (operation, die): when it came
        self.drained: dict[tuple[int, int], int] = {}  # when it had done its part
        self.finish: dict[tuple[int, int], int] = {}  # and when all had, as it saw it
        self.closing: set[int] = set()  # the last task of a core of each
        for index, stage in self.operations.items():
            mine = np.flatnonzero((a.tasks["operation"] == index) & (a.times["done"] >= 0))
            done, die = a.times["done"][mine], self.die[mine]
            until = np.zeros(int(stage.dies.max()) + 1, "i8")
            np.maximum.at(until, die, done)
            start, finish = timeline.start_us(stage), timeline.finish_us(stage)
            keys = [(index, d) for d in stage.dies.tolist()]
            self.drained.update(zip(keys, until[stage.dies].tolist(), strict=True))
            self.start.update(zip(keys, np.rint(start * US).astype("i8").tolist(), strict=True))
            self.finish.update(zip(keys, np.rint(finish * US).astype("i8").tolist(), strict=True))
            by_core = np.flatnonzero((core[mine] != NONE) & (core[mine] < timeline.machine.die.cores))
            by_core = by_core[np.lexsort((done[by_core], die[by_core]))]
            last = np.r_[die[by_core][1:] != die[by_core][:-1], True] if len(by_core) else np.zeros(0, bool)
            self.closing.update(mine[by_core[last]].tolist())
            self.last[index] = int(stage.dies[until[stage.dies].argmax()])
            self.first[index] = int(stage.dies[start.argmax()])

    def peer(self, task: int) -> int | None:
        """Of a task that waited: the die that let it wait the longest; None: for the most it was the flags' way."""
        waits = [f for f in self.arrays.tasks["wait"][task].tolist() if f != NONE]
        posters = [p for p in self.poster[waits].tolist() if p != NONE]
        if posters:
            return int(self.die[max(posters, key=lambda p: int(self.arrays.times["done"][p]))])
        operation, die = int(self.arrays.tasks["operation"][task]), int(self.die[task])
        late = self.first.get(operation, die)
        own, begun = self.start.get((operation, die), 0), int(self.arrays.times["begun"][task])
        return late if 2 * (self.start.get((operation, late), 0) - own) > begun - own else None

    def args(self, task: int) -> dict[str, Any]:
        """Of the wait before a task."""
        t, peer = self.arrays.tasks[task], self.peer(task)
        return {"call": int(t["operation"]), "unit": int(t["unit"]), **({} if peer is None else {"peer": peer})}

    def end(self, operation: int, die: int) -> dict[str, Any]:
        """Of a die's wait for the end of an operation."""
        late, own, finish = self.last[operation], self.drained[operation, die], self.finish[operation, die]
        most = 2 * (self.drained[operation, late] - own) > finish - own
        return {"call": operation, **({"peer": late} if most else {})}


def posters(timeline: Timeline) -> np.ndarray:
    """Of each flag, the task that raised it last; NONE: no task did."""
    a = timeline.arrays
    post = a.tasks["post"]
    posts = np.flatnonzero(post != NONE)
    found = np.full(len(a.flags), NONE)
    by_time = posts[np.argsort(a.times["done"][posts], kind="stable")]
    found[post[by_time]] = by_time  # of several, the last stays
    return found


def _cores(timeline: Timeline, found: Trace, blamed: _Blamed) -> dict[int, Span]:
    """Spans of tasks on cores and rings; by task."""
    a = timeline.arrays
    lane = np.repeat(np.arange(len(a.lanes)), a.lanes["count"])
    die, core = a.lanes["die"][lane], a.lanes["core"][lane]
    shown = (core != NONE) & (a.times["done"] >= 0)
    order = np.flatnonzero(shown)
    order = order[np.lexsort((order, a.times["done"][order], a.times["begun"][order], core[order], die[order]))]
    spans: dict[int, Span] = {}
    last, edge, thread = (-1, -1), 0, 0
    cores = timeline.machine.die.cores
    for task, after in zip(order.tolist(), [*order.tolist()[1:], NONE], strict=True):
        where = int(die[task]), int(core[task])
        if where != last:
            last, edge = where, 0
            ring = where[1] - cores
            thread = RINGS + ring if ring >= 0 else CORES + where[1]
            found.thread(where[0], thread, f"ring {ring}" if ring >= 0 else f"core {where[1]}")
        times, t = a.times[task], a.tasks[task]
        begun, done = max(int(times["begun"]), edge), int(times["done"])
        which = int(t["operation"]), where[0]
        asked = max(int(times["ready"]), edge, blamed.start.get(which, 0))
        if begun > asked and (t["wait"] != NONE).any() and t["unit"] != NONE:
            found.span(where[0], thread, "wait", asked / US, begun / US, "wait", blamed.args(task))
        if t["kind"] != NOTHING or (t["wait"] != NONE).any() or t["post"] != NONE:
            spans[task] = found.span(where[0], thread, _name(t), begun / US, max(done, begun) / US,
                                     TASK_NAMES[t["kind"]], _args(timeline, task, where[0]))  # fmt: skip
        edge = max(edge, done)
        if task in blamed.closing:
            begin, finish = max(edge, blamed.drained[which]), blamed.finish[which]
            follows = after != NONE and (int(die[after]), int(core[after])) == where
            if begin < finish and not (follows and a.times["begun"][after] < finish):
                found.span(where[0], thread, "wait", begin / US, finish / US, "wait", blamed.end(*which))
                edge = finish
    return spans


def _name(task: Any) -> str:
    kind = TASK_NAMES[task["kind"]]
    return f"{kind} {TIER_NAMES[task['tier']]}" if task["kind"] == MOVE else "flags" if kind == "nothing" else kind


def _args(timeline: Timeline, task: int, die: int) -> dict[str, Any]:
    a = timeline.arrays
    times, t = a.times[task], a.tasks[task]
    found: dict[str, Any] = {name: int(times[name]) / US for name in ("ready", "begun", "flowing", "done")}
    found |= {"call": int(t["operation"])} | ({"unit": int(t["unit"])} if t["unit"] != NONE else {})
    if t["kind"] == MOVE:
        uses = a.uses[t["use_first"] : t["use_first"] + t["nuse"]]
        links = a.links[uses["link"]]
        through = [f"{LINK_NAMES[k]} of {d}" for k, d in zip(links["kind"], links["die"], strict=True) if k <= PAIR]
        took, own = (found["done"] - found["flowing"]) * US, float(t["work"]) / float(t["bound"])
        found |= {"bytes": round(float(t["work"])), "through": ", ".join(through),
                  "ports_us": round(max(took - own, 0.0) / US, 3)}  # fmt: skip
        others = links["die"][(links["kind"] <= PAIR) & (links["die"] != die)]
        if len(others):
            found["peer"] = int(others[0])
    return found


def _arrows(timeline: Timeline, found: Trace, spans: dict[int, Span]) -> None:
    a, poster = timeline.arrays, posters(timeline)
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
