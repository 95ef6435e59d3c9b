"""Who is waited for.

A wait names the die that was waited for.  That die may itself have waited for another at that time, or have mapped
pages that it saw for the first time: that part of the wait is passed on, until it comes to a die that was busy with
something of its own.  Where no wait names anybody, the last to come to an operation is who the others waited for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from strata.profile.calls import Calls, Phases, covered, union
from strata.profile.reading import NO, RING, TRANSFER, WAIT, Recorded

ROUNDS = 64  # of passing on; what is then still on its way stays where it is
LEAST = 1e-4  # of all waiting: pairs of dies below this are not followed further


class Blame(NamedTuple):
    """Microseconds by die, in the order of ``dies``.

    ``direct``  the others waited for it;  ``blamed``  of all waiting, what comes to it in the end, the others' only;
    ``mapping``  what others waited while it mapped pages;  ``by``: "peers" or "arrivals", what it is known from
    ``once``     of ``direct``, what belongs to the one operation in which it was waited for the longest
    ``where``    the place of a call of that operation, -1: there is none
    """

    dies: list[int]
    direct: np.ndarray
    blamed: np.ndarray
    mapping: np.ndarray
    by: str
    once: np.ndarray
    where: np.ndarray


def waiting(trace: Recorded, calls: Calls, phases: Phases) -> Blame:
    """Who is waited for, by what waits say, else by who comes last."""
    dies = sorted(trace.dies)
    spans = phases.spans
    kinds = np.array([t.kind for t in trace.tracks])[spans["track"]]
    named = (spans["kind"] == WAIT) & (spans["end"] > spans["begin"]) & (kinds != RING)
    named &= np.isin(spans["peer"], dies) & (spans["peer"] != spans["die"])
    if named.any():
        return _by_peers(trace, calls, phases, named & (phases.call != NO), dies)
    return _by_arrivals(trace, calls, dies)


def _weight(spans: np.ndarray, rows: np.ndarray, inside: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """How long each of a die's rows went on within these intervals, where those at once share the time."""
    if not len(rows):
        return np.zeros(0)
    when = np.concatenate([spans["begin"], spans["end"], *inside])
    change = np.r_[np.repeat([1, -1], len(spans)), np.zeros(2 * len(inside[0]), int)]
    within = np.r_[np.zeros(2 * len(spans), int), np.repeat([1, -1], len(inside[0]))]
    order = np.argsort(when, kind="stable")
    when, active, within = when[order], np.cumsum(change[order]), np.cumsum(within[order])
    step = np.r_[np.diff(when), 0.0] / np.maximum(active, 1) * ((active > 0) & (within > 0))
    level = np.r_[0.0, np.cumsum(step)[:-1]]
    return np.asarray(np.interp(spans["end"][rows], when, level) - np.interp(spans["begin"][rows], when, level))


def _by_peers(trace: Recorded, calls: Calls, phases: Phases, named: np.ndarray, dies: list[int]) -> Blame:
    spans = phases.spans
    kinds = np.array([t.kind for t in trace.tracks])[spans["track"]]
    place = {die: i for i, die in enumerate(dies)}
    n = len(dies)
    direct = np.zeros((n, n))  # [who waited, for whom]
    weight = np.zeros(len(spans))
    for die in dies:
        mine = np.flatnonzero((spans["die"] == die) & (kinds != RING) & (phases.call != NO))
        rows = np.flatnonzero(named[mine])
        # A thread of the library that waits while the program goes on costs nobody anything.
        inside = union(calls.begin[calls.die == die], calls.end[calls.die == die])
        weight[mine[rows]] = _weight(spans[mine], rows, inside)
    waits, weight = spans[named], weight[named]
    np.add.at(direct, ([place[d] for d in waits["die"].tolist()], [place[p] for p in waits["peer"].tolist()]), weight)
    who = np.array([place[p] for p in waits["peer"].tolist()])
    once, where = _longest(calls, phases.call[named], who, weight, n)
    mapped = late(trace, spans)
    mapping = np.zeros(n)
    passed = np.zeros((n, n))
    for at, die in enumerate(dies):
        aims = waits["peer"] == die
        if not aims.any():
            continue
        begin, end, heavy = waits["begin"][aims], waits["end"][aims], weight[aims]
        long = np.maximum(end - begin, 1e-9)
        own = waits[waits["die"] == die]
        for peer in np.unique(own["peer"]).tolist():
            if direct[at, place[peer]] > LEAST * direct.sum():
                cover = union(*(own[key][own["peer"] == peer] for key in ("begin", "end")))
                passed[at, place[peer]] = (heavy * (covered(cover, end) - covered(cover, begin)) / long).sum()
        maps = mapped & (spans["die"] == die)
        if maps.any():
            cover = union(spans["begin"][maps], spans["end"][maps])
            mapping[at] = (heavy * (covered(cover, end) - covered(cover, begin)) / long).sum()
    return Blame(dies, direct.sum(axis=0), *_passed_on(direct, passed, mapping), "peers", once, where)


def _longest(calls: Calls, call: np.ndarray, who: np.ndarray, weight: np.ndarray,
             dies: int) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Of waits in these calls, for dies at these places: of each die, what one operation has at most; a call of it."""
    alone = np.where(calls.number == NO, np.arange(len(calls.die)), 0)
    keys = np.stack([calls.name, calls.number, calls.group, alone])
    operation = np.unique(keys, axis=1, return_inverse=True)[1].ravel()[call]
    pairs, first, place = np.unique(np.stack([who, operation]), axis=1, return_index=True, return_inverse=True)
    total = np.bincount(place.ravel(), weight)
    once, where = np.zeros(dies), np.full(dies, NO)
    for at in np.argsort(total, kind="stable").tolist():  # the most comes last, and stays
        once[pairs[0, at]], where[pairs[0, at]] = total[at], call[first[at]]
    return once, where


def _passed_on(direct: np.ndarray, passed: np.ndarray, mapping: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blame after passing on, of each die's the same part each time; and what goes to mapping."""
    whole = direct.sum(axis=0)
    away = passed.sum(axis=1) + mapping
    scale = np.where(away > whole, whole / np.maximum(away, 1e-12), 1.0) / np.maximum(whole, 1e-12)
    part, maps = passed * scale[:, None], mapping * scale
    blamed, mapped = np.zeros(len(whole)), np.zeros(len(whole))
    moving = whole.copy()
    for _ in range(ROUNDS):
        mapped += moving * maps
        on = moving @ part
        blamed += moving - moving @ np.diag(maps) - moving * part.sum(axis=1)
        moving = on
    return np.maximum(blamed + moving, 0.0), mapped


def instances(calls: Calls) -> list[np.ndarray]:
    """Places of the calls that are one operation of a group, of two dies or more, each die once."""
    known = np.flatnonzero(calls.number != NO)
    if not len(known):
        return []
    keys = [calls.name[known], calls.number[known], calls.group[known]]
    order = np.lexsort((calls.begin[known], *keys))
    known, keys = known[order], [key[order] for key in keys]
    new = np.r_[True, np.logical_or.reduce([key[1:] != key[:-1] for key in keys])]
    found = np.split(known, np.flatnonzero(new)[1:])
    return [rows for rows in found if len(rows) > 1 and len(np.unique(calls.die[rows])) == len(rows)]


def _by_arrivals(trace: Recorded, calls: Calls, dies: list[int]) -> Blame:
    place = {die: i for i, die in enumerate(dies)}
    found, once = np.zeros(len(dies)), np.zeros(len(dies))
    where = np.full(len(dies), NO)
    for rows in instances(calls):
        last = rows[np.argmax(calls.begin[rows])]
        waited = float(np.maximum(np.minimum(calls.begin[last], calls.end[rows]) - calls.begin[rows], 0.0).sum())
        at = place[int(calls.die[last])]
        found[at] += waited
        if waited > once[at]:
            once[at], where[at] = waited, last
    return Blame(dies, found, found.copy(), np.zeros(len(dies)), "arrivals", once, where)


def cause(trace: Recorded, calls: Calls, phases: Phases, die: int) -> dict[str, Any]:
    """Why a die may be late: how much after the others it comes (median, microseconds), and how its time to move
    bytes, and the bytes, compare with the median of the others."""
    late = []
    for rows in instances(calls):
        mine = rows[calls.die[rows] == die]
        if len(mine):
            others = rows[calls.die[rows] != die]
            late.append(float(calls.begin[mine[0]] - np.median(calls.begin[others])))
    spans = phases.spans
    took, moved = {}, {}
    for other in trace.dies:
        moves = (spans["die"] == other) & (spans["kind"] == TRANSFER)
        took[other] = float((spans["end"] - spans["begin"])[moves].sum())
        moved[other] = float(np.maximum(spans["bytes"][moves], 0).sum())
    made: dict[str, Any] = {"operations": len(late), "arrives_after_us": float(np.median(late)) if late else None}
    for name, by in (("transfer_times", took), ("bytes_times", moved)):
        rest = [value for other, value in by.items() if other != die]
        middle = float(np.median(rest)) if rest else 0.0
        made[name] = by[die] / middle if middle > 0 else None
    return made


def late(trace: Recorded, spans: np.ndarray) -> np.ndarray:
    """Which spans are pages mapped on first use: not ahead of it, by the registrar, nor a die's own."""
    there = np.array([name not in ("map ahead", "map own") for name in trace.names])
    return np.asarray((np.array(trace.categories)[spans["category"]] == "map") & there[spans["name"]])


def maps(trace: Recorded, phases: Phases) -> np.ndarray:
    """Spans of pages that were mapped on first use, in order of time."""
    found = phases.spans[late(trace, phases.spans)]
    return np.asarray(found[np.argsort(found["begin"], kind="stable")])
