"""What goes between dies: arrows from who raised a flag to who waited for it, and bytes over time."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from strata._core import tracing
from strata.profile.chrome import Span, Trace
from strata.profile.events import KIND, MOVES, Die

__all__ = ["Arrows", "counters", "ports"]

STEPS = 1000  # of a counter
NOBODY = tracing.NOBODY
ARRIVAL, COMPLETION = tracing.WHYS.index("arrival"), tracing.WHYS.index("completion")
MOVED = (*MOVES, KIND["dma"])
RAISES = [tracing.DESCRIPTORS.index(name) for name in ("write", "add", "count")]
GATE = tracing.DESCRIPTORS.index("gate")
Counter = tuple[tuple[int, str], list[float], dict[str, list[float]]]


class Arrows:
    """Learns of phases as they are put into a trace, and knows in the end what arrows there are."""

    def __init__(self) -> None:
        self._came: dict[tuple[int, int, int], Span] = {}  # rank, group, operation
        self._moved: dict[tuple[int, int, int], Span] = {}  # the last phase that moved bytes
        self._waits: list[tuple[int, int, int, int, Span]] = []  # why, peer, group, operation
        self._raised: dict[tuple[Any, ...], Span] = {}  # rank, group, flag
        self._awaited: list[tuple[tuple[Any, ...], Span]] = []
        self._at: dict[int, list[tuple[float, Span]]] = {}  # by the address of a flag: when it was raised
        self._watched: list[tuple[int, Span]] = []

    def add(self, rank: int, about: tuple[int, ...], span: Span) -> None:
        """A phase: kind, core, peer, index, arg of its event, and its operation: group and number."""
        kind, core, peer, index, arg, group, number = about
        if kind in MOVES:
            before = self._moved.get((rank, group, number))
            if before is None or before.end <= span.end:
                self._moved[rank, group, number] = span
        elif kind == KIND["arrive"]:
            self._came[rank, index, arg] = span
        elif kind == KIND["wait"] and peer != NOBODY:
            self._waits.append((index, peer, group, number, span))
        elif kind == KIND["flag set"] and index:
            self._raised[rank, index, arg] = span
        elif kind == KIND["flag wait"] and index:
            self._awaited.append(((peer, index, arg), span))
        elif kind == KIND["flag set"] or (kind == KIND["dma"] and core in RAISES):
            self._at.setdefault(arg, []).append((span.end, span))
        elif kind == KIND["flag wait"] or (kind == KIND["dma"] and core == GATE):
            self._watched.append((arg, span))

    def write(self, made: Trace) -> None:
        """Puts the arrows into a trace."""
        for why, peer, group, number, span in self._waits:
            of = self._came if why == ARRIVAL else self._moved if why == COMPLETION else {}
            self._arrow(made, of.get((peer, group, number)), span)
        for key, span in self._awaited:
            self._arrow(made, self._raised.get(key), span)
        for raised in self._at.values():
            raised.sort(key=lambda pair: pair[0])
        for address, span in self._watched:
            raised = self._at.get(address, [])
            place = bisect.bisect_right(raised, span.end, key=lambda pair: pair[0])
            self._arrow(made, raised[place - 1][1] if place else None, span)

    @staticmethod
    def _arrow(made: Trace, source: Span | None, wait: Span) -> None:
        if source is not None and wait.end > wait.begin and source is not wait:
            made.release("flag", source, wait)


class _Moves:
    """Phases of a die that moved bytes: columns, times in microseconds."""

    def __init__(self, die: Die, first: int, rate: float) -> None:
        parts = [(t.phases, t.group) for t in die.threads]
        events = np.concatenate([e for e, _ in parts]) if parts else np.zeros(0, tracing.EVENT)
        group = np.concatenate([g for _, g in parts]) if parts else np.zeros(0, "i8")
        kept = np.isin(events["kind"], MOVED)
        kept &= (events["kind"] != KIND["dma"]) | np.isin(events["core"], range(1, 5))
        events, self.group = events[kept], group[kept]
        self.kind, self.peer = events["kind"], events["peer"].astype("i8")
        self.bytes = events["arg"].astype("f8")
        self.begin = (events["begin"] - np.uint64(first)).astype("f8") * rate
        self.end = (events["end"] - np.uint64(first)).astype("f8") * rate
        units = self.kind != KIND["dma"]
        away = (self.peer != die.rank) & (self.peer != NOBODY)
        self.remote = np.where(units, events["index"] >> 24, away).astype("f8")  # operands in other dies' memory
        self.away = away & (self.remote > 0)


def ports(dies: Sequence[Die], first: int, rate: float, groups: dict[int, list[int]]) -> Iterator[Counter]:
    """GB/s that come into a die from others, and that go out of it, as far as events tell.

    What a core takes from, or adds to, memory of another die counts as in here and out there; of atomic additions the
    other way round.  Of reductions of operands of several dies it is known how many are not the die's own; they are
    shared among the members of the group.
    """
    into: dict[int, list[tuple[Any, ...]]] = {}
    out: dict[int, list[tuple[Any, ...]]] = {}
    for die in dies:
        moves = _Moves(die, first, rate)
        pushes = moves.away & (moves.kind == KIND["accumulate"])
        pulls = moves.away & ~pushes
        whole = moves.bytes * moves.remote
        into.setdefault(die.rank, []).append((moves.begin[pulls], moves.end[pulls], whole[pulls]))
        out.setdefault(die.rank, []).append((moves.begin[pushes], moves.end[pushes], moves.bytes[pushes]))
        one = pulls & (moves.remote == 1)
        for peer in np.unique(moves.peer[one | pushes]).tolist():
            for which, side in ((one, out), (pushes, into)):
                mine = which & (moves.peer == peer)
                side.setdefault(peer, []).append((moves.begin[mine], moves.end[mine], moves.bytes[mine]))
        several = pulls & (moves.remote > 1)
        for low in np.unique(moves.group[several]).tolist():
            others = [r for r in groups.get(low, ()) if r != die.rank]
            mine = several & (moves.group == low)
            for peer in others:
                out.setdefault(peer, []).append((moves.begin[mine], moves.end[mine], whole[mine] / len(others)))
    for name, sides in (("port in (GB/s)", into), ("port out (GB/s)", out)):
        for die in dies:
            yield from _rate((die.rank, name), sides.get(die.rank, []))


def counters(die: Die, first: int, rate: float, groups: dict[int, list[int]]) -> Iterator[Counter]:
    """HBM: GB/s that a die's own cores and DMA thread read and write in all (one operand of a reduction counted as its
    own); registration lag: microseconds from a peer's record to its pages mapped here."""
    moves = _Moves(die, first, rate)
    reads = np.where(np.isin(moves.kind, (KIND["reduce"], KIND["accumulate"])), moves.remote + 1, 1)
    yield from _rate((die.rank, "HBM (GB/s)"), [(moves.begin, moves.end, moves.bytes * (reads + 1))])
    for thread in die.threads:
        lags = thread.phases[(thread.phases["kind"] == KIND["map"]) & (thread.phases["arg"] < 1 << 62)]
        if thread.role == "registrar" and len(lags):
            when = ((lags["end"] - np.uint64(first)).astype("f8") * rate).tolist()
            yield (die.rank, "registration lag (us)"), when, {"us": (lags["arg"] / 1e3).tolist()}


def _rate(key: tuple[int, str], parts: list[tuple[Any, ...]]) -> Iterator[Counter]:
    """Bytes over time as GB/s, in steps in each of which it is the mean."""
    begin, end, nbytes = (np.concatenate([p[i] for p in parts]) if parts else np.zeros(0) for i in range(3))
    kept = nbytes > 0
    begin, end, nbytes = begin[kept], np.maximum(end[kept], begin[kept] + 1e-3), nbytes[kept]
    if not len(begin):
        return
    low, high = float(begin.min()), float(end.max())
    edges = np.linspace(low, high, min(STEPS, 4 * len(begin)) + 1)
    knots = np.concatenate([begin, end])
    slope = np.concatenate([nbytes / (end - begin), -nbytes / (end - begin)])
    order = np.argsort(knots, kind="stable")
    knots, level = knots[order], np.cumsum(slope[order])
    moved = np.concatenate([[0.0], np.cumsum(np.maximum(level[:-1], 0.0) * np.diff(knots))])
    found = np.diff(np.interp(edges, knots, moved)) / np.diff(edges) / 1e3
    found = np.round(np.append(np.maximum(found, 0.0), 0.0), 3)
    new = np.flatnonzero(np.diff(found, prepend=-1.0))
    yield key, edges[new].tolist(), {"GB/s": found[new].tolist()}
