"""Which phases belong to which call, and what the time of each call went to.

A die's cores may work at once, or one thread may run them in turn.  So that both add up, the time of a call is shared,
at every instant, among those of its phases that are going on: with one core moving bytes and three waiting, a quarter
of that instant is transfer.  What no phase covers is the call's own, and counts as *other*.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from strata.profile.reading import CALL, NO, OTHER, RING, THREAD, TRANSFER, WAIT, Recorded

PHASES = (WAIT, TRANSFER, OTHER)
COLUMNS = ("row", "die", "name", "begin", "end", "group", "number", "bytes", "site", "busy", "moved")


class Calls(NamedTuple):
    """Calls of the library that are not within another one, of all dies; arrays of one length.

    ``row``, ``die``, ``name``, ``begin``, ``end``, ``group``: as the trace has them;  ``site``: a place in ``sites``;
    ``number`` in the group, ``bytes`` as given, -1 if unknown;  ``busy``: f64 (calls, 3), what its time
    went to, microseconds, in the order of ``PHASES``;  ``moved``: bytes that its phases moved
    """

    row: np.ndarray
    die: np.ndarray
    name: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    group: np.ndarray
    number: np.ndarray
    bytes: np.ndarray
    site: np.ndarray
    sites: list[str]
    tags: list[dict[str, Any]]
    busy: np.ndarray
    moved: np.ndarray

    def only(self, which: np.ndarray) -> Calls:
        """Those at these places."""
        columns = {name: getattr(self, name)[which] for name in COLUMNS}
        return self._replace(tags=[self.tags[i] for i in which.tolist()], **columns)


class Phases(NamedTuple):
    """Stretches of tracks in which one phase went on, none in another; ``call``: a place in the calls, or -1."""

    spans: np.ndarray
    call: np.ndarray


def link(trace: Recorded) -> tuple[Calls, Phases]:
    """The calls of a trace, and its phases by call."""
    outer = _outermost(trace)
    phases = innermost(trace)
    call = _owners(trace, outer, phases)
    calls = _described(trace, outer)
    moves = (phases["kind"] == TRANSFER) & (call >= 0) & (phases["bytes"] > 0)
    moved = np.bincount(call[moves], phases["bytes"][moves].astype("f8"), len(outer))
    busy = shares(calls.begin, calls.end, phases, call)
    return calls._replace(busy=busy, moved=moved), Phases(phases, call)


def _outermost(trace: Recorded) -> np.ndarray:
    """Rows of the calls that are not within another one of their track."""
    rows = trace.of(CALL)
    spans = trace.spans[rows]
    if not len(rows):
        return rows
    until = np.maximum.accumulate(spans["end"] + spans["track"] * _beyond(trace.spans))
    until = np.r_[-np.inf, until[:-1]] - spans["track"] * _beyond(trace.spans)
    return np.asarray(rows[(spans["end"] > until) | (spans["begin"] >= until)])


def _beyond(spans: np.ndarray) -> float:
    """More than any time of the trace, and a power of two, so that adding it loses little."""
    return float(2.0 ** np.ceil(np.log2(spans["end"].max() + 2)))


def innermost(trace: Recorded) -> np.ndarray:
    """Phases, cut so that those of one track do not overlap: of nested ones, the inner one's time is its own."""
    spans = trace.spans[trace.of(*PHASES)]
    if len(spans) < 2:
        return spans
    same = spans["track"][1:] == spans["track"][:-1]
    nested = same & (spans["begin"][1:] < spans["end"][:-1] - 1e-6)
    if not nested.any():
        return spans
    mixed = np.isin(spans["track"], np.unique(spans["track"][1:][nested]))
    parts = [spans[~mixed]]
    for track in np.unique(spans["track"][mixed]).tolist():
        parts.append(_cut(spans[spans["track"] == track]))
    found = np.concatenate(parts)
    return np.asarray(found[np.lexsort((found["begin"], found["track"]))])


def _cut(spans: np.ndarray) -> np.ndarray:
    """Of one track's nested spans, the stretches in which each is the innermost; bytes stay with the first stretch."""
    source: list[int] = []
    begins: list[float] = []
    ends: list[float] = []
    held: list[int] = []  # spans that are open, the innermost last
    at = 0.0
    begin, end = spans["begin"].tolist(), spans["end"].tolist()

    def piece(until: float) -> None:
        if held and until > at:
            source.append(held[-1])
            begins.append(at)
            ends.append(until)

    for i in range(len(spans)):
        while held and end[held[-1]] <= begin[i]:
            piece(end[held[-1]])
            at = max(at, end[held.pop()])
        piece(begin[i])
        at = begin[i]
        held.append(i)
    while held:
        piece(end[held[-1]])
        at = max(at, end[held.pop()])
    found = spans[source]
    found["begin"], found["end"] = begins, ends
    again = np.ones(len(found), bool)
    again[np.unique(source, return_index=True)[1]] = False
    found["bytes"][again] = 0
    return np.asarray(found)


def _owners(trace: Recorded, outer: np.ndarray, phases: np.ndarray) -> np.ndarray:
    """Of each phase, the place of its call in ``outer``: by number where it has one, else the call around it."""
    calls = trace.spans[outer]
    numbers = np.array([_number(trace.args[i], "number") for i in calls["args"].tolist()], "i8").reshape(-1)
    owner = np.full(len(phases), NO)
    numbered = phases["call"] != NO
    for known in (True, False):  # by group and number, and by number where the phase does not name its group
        mine = np.flatnonzero(numbered & ((phases["group"] != NO) == known))
        keys = [(calls["die"], phases["die"][mine]), (numbers, phases["call"][mine])]
        if known:
            keys.append((calls["group"], phases["group"][mine]))
        owner[mine] = _latest(keys, calls["begin"], phases["end"][mine])
    left = owner == NO
    around = _latest([(calls["die"], phases["die"])], calls["begin"], phases["begin"])
    fits = left & (around != NO)
    fits[fits] = phases["begin"][fits] <= calls["end"][around[fits]] + 1e-6
    # What runs aside (a registrar, a sampler) is not of the call that happens to be on.
    kinds = np.array([t.kind for t in trace.tracks])[phases["track"]]
    fits &= kinds != THREAD
    owner[fits] = around[fits]
    # Bytes move after a call that has not waited for them; but what else goes on outside of it is not its own.
    apart = (owner != NO) & (phases["kind"] == OTHER)
    mine = owner[apart]
    before, after = phases["end"][apart] < calls["begin"][mine], phases["begin"][apart] > calls["end"][mine]
    owner[apart] = np.where(before | after, NO, mine)
    return owner


def _latest(keys: list[tuple[np.ndarray, np.ndarray]], begin: np.ndarray, at: np.ndarray) -> np.ndarray:
    """For each of ``at``, the place of the last of ``begin`` that is not later and has the same keys; -1: none.

    ``keys``: pairs, of each of ``begin`` and of each of ``at``.
    """
    n = len(begin)
    columns = [np.concatenate(pair) for pair in keys]
    when = np.concatenate([begin - 1e-6, at])
    asks = np.arange(n + len(at)) >= n
    order = np.lexsort((asks, when, *columns))
    place = np.where(asks, -1, np.arange(n + len(at)))[order]
    new = np.zeros(len(order), bool)
    for column in columns:
        new[1:] |= column[order][1:] != column[order][:-1]
    first = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    last = np.maximum.accumulate(np.where(place >= 0, np.arange(len(order)), -1))
    found = np.where(last >= first, place[np.maximum(last, 0)], NO)
    result = np.full(n + len(at), NO)
    result[order] = found
    return np.asarray(result[n:])


def _number(args: dict[str, Any], key: str) -> int:
    value = args.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else NO


def _described(trace: Recorded, outer: np.ndarray) -> Calls:
    spans = trace.spans[outer]
    sites: dict[str, int] = {}
    site, number, tags = [], [], []
    for i in spans["args"].tolist():
        args = trace.args[i]
        site.append(sites.setdefault(str(args.get("site") or "?"), len(sites)))
        number.append(_number(args, "number"))
        held = args.get("tags")
        tags.append(held if isinstance(held, dict) else {})
    n = len(outer)
    return Calls(
        outer, spans["die"], spans["name"], spans["begin"], spans["end"], spans["group"],
        np.array(number, "i8").reshape(n), spans["bytes"], np.array(site, "i8").reshape(n), list(sites), tags,
        np.zeros((n, 3)), np.zeros(n),
    )  # fmt: skip


def shares(begin: np.ndarray, end: np.ndarray, phases: np.ndarray, call: np.ndarray) -> np.ndarray:
    """What the time of each call went to, f64 (calls, 3), with its phases before and after it."""
    n, mine = len(begin), call >= 0
    spans, owner = phases[mine], call[mine]
    who = np.concatenate([np.arange(n), owner, np.arange(n), owner])
    when = np.concatenate([begin, spans["begin"], end, spans["end"]])
    column = np.concatenate([np.zeros(n, int), spans["kind"].astype(int) - WAIT + 1])
    column = np.concatenate([column, column])
    change = np.repeat([1, -1], n + len(spans))
    order = np.lexsort((when, who))
    who, when, column, change = who[order], when[order], column[order], change[order]
    counts = np.zeros((len(who), 4))
    counts[np.arange(len(who)), column] = change
    np.cumsum(counts, axis=0, out=counts)
    took = np.zeros(len(who))
    took[:-1] = np.where(who[1:] == who[:-1], np.diff(when), 0.0)
    active = counts[:, 1:].sum(axis=1)
    part = counts[:, 1:] / np.maximum(active, 1)[:, None]
    part[:, 2] += (active == 0) & (counts[:, 0] > 0)
    found = np.zeros((n, 3))
    for kind in range(3):
        found[:, kind] = np.bincount(who, part[:, kind] * took, n)
    return found


def union(begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intervals that cover the same, in order, none touching another."""
    if not len(begin):
        return np.zeros(0), np.zeros(0)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.r_[True, begin[1:] > end[:-1]]
    last = np.r_[first[1:], True]
    return begin[first], end[last]


def covered(cover: tuple[np.ndarray, np.ndarray], at: np.ndarray) -> np.ndarray:
    """How much of the time before each of ``at`` these intervals cover."""
    begin, end = cover
    if not len(begin):
        return np.zeros(len(at))
    knots = np.stack([begin, end], axis=1).ravel()
    level = np.stack([np.cumsum(end - begin) - (end - begin), np.cumsum(end - begin)], axis=1).ravel()
    return np.asarray(np.interp(at, knots, level))


def exposure(trace: Recorded, calls: Calls, phases: Phases, die: int) -> dict[str, float]:
    """How long the die's threads were in calls, and how long bytes moved while they were not, microseconds."""
    mine = calls.die == die
    inside = union(calls.begin[mine], calls.end[mine])
    kinds = np.array([t.kind for t in trace.tracks])
    spans = phases.spans
    moves = (spans["die"] == die) & (spans["kind"] == TRANSFER)
    aside = moves & np.isin(kinds[spans["track"]], (RING, THREAD))
    begin, end = union(spans["begin"][moves], spans["end"][moves])
    whole = float((end - begin).sum())
    within = float((covered(inside, end) - covered(inside, begin)).sum())
    exposed = float((inside[1] - inside[0]).sum())
    begin, end = union(spans["begin"][aside], spans["end"][aside])
    return {"exposed_us": exposed, "transfer_us": whole, "overlapped_us": max(whole - within, 0.0),
            "aside_us": float((end - begin).sum())}  # fmt: skip
