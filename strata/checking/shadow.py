"""What has been done to which bytes, as far as something may still be unordered with it.

An interval map: disjoint segments in order of address, each with a *state*: the accesses that
a later one must be compared with, and the last alloc or free of the bytes.  A new access drops
those that are ordered before it and that whoever could race with them must race with it too; what
is left of a program without races is one write, and the reads since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from strata.checking.clocks import Clock
from strata.checking.events import Range
from strata.checking.places import Doing, Place

__all__ = ["ALLOC", "ATOMIC_READ", "ATOMIC_WRITE", "FREE", "READ", "WRITE", "Access", "Shadow", "State"]

READ, WRITE, ATOMIC_READ, ATOMIC_WRITE, ALLOC, FREE = range(6)
# CONFLICT[a][b]: two accesses of these kinds race when nothing orders them.
CONFLICT = (
    (False, True, False, True),
    (True, True, True, True),
    (False, True, False, False),
    (True, True, False, False),
)
# COVERS[new][old]: what conflicts with the old one conflicts with the new one.
COVERS = tuple(tuple(all(n or not o for n, o in zip(new, old, strict=True)) for old in CONFLICT) for new in CONFLICT)


class Access:
    """One access, alloc or free: who, when by its own count, where in the program, and as part of what."""

    __slots__ = ("count", "die", "doing", "kind", "place", "previous", "slot", "task", "what")

    def __init__(self, kind: int, die: int, task: int, slot: int, count: int, place: Place, what: str, doing: Doing):
        self.kind = kind
        self.die = die
        self.task = task
        self.slot = slot
        self.count = count
        self.place = place
        self.what = what
        self.doing = doing
        self.previous: Access | None = None  # of an alloc: the free before it

    def before(self, clock: Clock) -> bool:
        """Whether it is ordered before what has this clock."""
        return clock.get(self.slot, 0) >= self.count


class State(NamedTuple):
    """Of a segment."""

    mark: Access | None  # its alloc (until all know it) or its free
    accesses: tuple[Access, ...]


EMPTY = State(None, ())
Found = Callable[[Access, int, int], None]  # the earlier access, and the bytes that both touch


class Shadow:
    """The interval map of one job."""

    def __init__(self) -> None:
        self._los: list[int] = []
        self._his: list[int] = []
        self._states: list[State] = []

    def __len__(self) -> int:
        return len(self._los)

    def entries(self) -> int:
        """Accesses that are kept, over all segments."""
        return sum(len(state.accesses) for state in self._states)

    def _apply(self, lo: int, hi: int, change: Callable[[int, int, State], State]) -> None:
        """The state of each byte of [lo, hi) becomes change(its bytes, its state)."""
        los, his, states = self._los, self._his, self._states
        first, last = bisect_right(his, lo), bisect_left(los, hi)
        if last - first == 1 and los[first] == lo and his[first] == hi:  # the usual case
            new = change(lo, hi, states[first])
            if new is not EMPTY:
                states[first] = new
                return
        pieces: list[tuple[int, int, State]] = []
        if first and his[first - 1] == lo:
            first -= 1
            pieces.append((los[first], lo, states[first]))
        at = lo
        for k in range(first + bool(pieces), last):
            a, b, state = los[k], his[k], states[k]
            if a < lo:
                pieces.append((a, lo, state))
                a = lo
            if at < a:
                pieces.append((at, a, change(at, a, EMPTY)))
            at = min(b, hi)
            pieces.append((a, at, change(a, at, state)))
            if b > hi:
                pieces.append((hi, b, state))
        if at < hi:
            pieces.append((at, hi, change(at, hi, EMPTY)))
        if last < len(los) and los[last] == hi:
            pieces.append((hi, his[last], states[last]))
            last += 1
        self._replace(first, last, pieces)

    def _apply_rows(self, span: Range, change: Callable[[int, int, State], State]) -> None:
        """The same for each row of a range of several, in one go: it takes as long as it has rows and segments.

        Rows that nobody has touched, or that were touched as these before, are done with at once.
        """
        los, his, states = self._los, self._his, self._states
        first, last = bisect_right(his, span.lo), bisect_left(los, span.end)
        rows, ends = list(range(span.lo, span.end, span.step)), list(range(span.hi, span.end + 1, span.step))
        if first == last:
            new = change(span.lo, span.end, EMPTY)
            los[first:last], his[first:last], states[first:last] = rows, ends, [new] * span.n
            return
        if last - first == 1 and los[first] <= span.lo and span.end <= his[first]:
            a, b, old = los[first], his[first], states[first]
            new, gaps = change(span.lo, span.end, old), span.n - 1
            before, after = [a][: a < span.lo], [span.end][: span.end < b]
            los[first:last] = [*before, *_mixed(rows, ends[:-1]), *after]
            his[first:last] = [*[span.lo][: a < span.lo], *_mixed(ends, rows[1:]), *[b][: span.end < b]]
            states[first:last] = [*[old][: a < span.lo], *[new, old] * gaps, new, *[old][: span.end < b]]
            return
        every = slice(first, last, 1 if last - first == span.n else 2)
        if last - first in (span.n, 2 * span.n - 1) and los[every] == rows and his[every] == ends:
            old = states[first]
            if states[every].count(old) == span.n:
                states[every] = [change(span.lo, span.end, old)] * span.n
                return
        self._apply_each(span, change)

    def _apply_each(self, span: Range, change: Callable[[int, int, State], State]) -> None:
        los, his, states = self._los, self._his, self._states
        first, last = bisect_left(his, span.lo), bisect_right(los, span.end)
        pieces: list[tuple[int, int, State]] = []
        k, a, b, state = first - 1, span.end, span.end, EMPTY  # a segment, and what is left of it

        def forward() -> None:
            nonlocal k, a, b, state
            k += 1
            a, b, state = (los[k], his[k], states[k]) if k < last else (span.end, span.end, EMPTY)

        forward()
        size = span.hi - span.lo
        for row in range(span.n):
            at = span.lo + row * span.step
            end = at + size
            while k < last and b <= at:
                pieces.append((a, b, state))
                forward()
            if k < last and a < at:
                pieces.append((a, at, state))
                a = at
            while at < end:
                if k >= last or a >= end:
                    pieces.append((at, end, change(at, end, EMPTY)))
                    break
                if at < a:
                    pieces.append((at, a, change(at, a, EMPTY)))
                    at = a
                upto = min(b, end)
                pieces.append((at, upto, change(at, upto, state)))
                at = a = upto
                if a == b:
                    forward()
        while k < last:
            pieces.append((a, b, state))
            forward()
        self._replace(first, last, pieces)

    def _replace(self, first: int, last: int, pieces: list[tuple[int, int, State]]) -> None:
        merged: list[tuple[int, int, State]] = []
        for lo, hi, state in pieces:
            if state is EMPTY or state == EMPTY:
                continue
            if merged and merged[-1][1] == lo and (merged[-1][2] is state or merged[-1][2] == state):
                merged[-1] = (merged[-1][0], hi, state)
            else:
                merged.append((lo, hi, state))
        self._los[first:last] = [piece[0] for piece in merged]
        self._his[first:last] = [piece[1] for piece in merged]
        self._states[first:last] = [piece[2] for piece in merged]

    def access(self, span: Range, new: Access, clock: Clock, race: Found, dead: Found) -> None:
        """Adds an access.

        ``race`` hears of accesses that nothing orders before it, ``dead`` of the free, or of the alloc not known
        to this task, of bytes that it touches.
        """
        kind = new.kind
        conflict, covers = CONFLICT[kind], COVERS[kind]

        same: dict[int, tuple[State, State]] = {}  # what becomes of a state that meets nothing

        def change(a: int, b: int, state: State) -> State:
            known = same.get(id(state))
            if known is not None:
                return known[1]
            mark, early, met, kept = state.mark, False, False, []
            if mark is not None and mark.die == new.die and not mark.before(clock):
                return state  # by what held on to the array before: a die frees its own when nothing of it uses them
            if mark is not None and mark.die != new.die and (mark.kind == FREE or not mark.before(clock)):
                if mark.kind == FREE or mark.previous is not None:
                    dead(mark, a, b)
                    return state
                early = met = True
            for old in state.accesses:
                if not old.before(clock):
                    if conflict[old.kind]:
                        race(old, a, b)
                        early, met = False, True  # says as much, and more
                        if old.kind == kind and old.die == new.die and old.place is new.place:
                            continue  # a line that races with itself is told of: its last access stands for all
                    kept.append(old)
                elif not covers[old.kind]:
                    kept.append(old)
                elif old.slot == new.slot and old.count == new.count and old.kind == kind and old.place is new.place:
                    return state  # a loop that does the same again
            if early and mark is not None:
                dead(mark, a, b)
            kept.append(new)
            found = State(mark, tuple(kept))
            if not met:
                same[id(state)] = state, found
            return found

        if span.n > 1 and span.step > span.hi - span.lo:
            self._apply_rows(span, change)
        else:
            self._apply(span.lo, span.end, change)

    def free(self, lo: int, hi: int, mark: Access, clock: Clock, dead: Found) -> None:
        """The bytes are no array any more; ``dead`` hears of other dies' accesses that nothing orders before."""

        gone = State(mark, ())

        def change(a: int, b: int, state: State) -> State:
            for old in state.accesses:
                if old.die != mark.die and not old.before(clock):
                    dead(old, a, b)
            return gone

        if self._quiet(lo, hi, mark.die, clock):
            self._cover(lo, hi, gone)
        else:
            self._apply(lo, hi, change)

    def alloc(self, lo: int, hi: int, mark: Access, clock: Clock, early: Found) -> None:
        """The bytes are a new array: what was done to them before is nobody's business any more.

        ``early`` hears of other dies' accesses that nothing orders before.
        """
        marks: dict[Access | None, State] = {}

        def change(a: int, b: int, state: State) -> State:
            for access in state.accesses:
                if access.die != mark.die and not access.before(clock):
                    early(access, a, b)
            old = state.mark if state.mark is not None and state.mark.kind == FREE else None
            if old not in marks:
                own = mark
                if old is not None:
                    own = Access(ALLOC, mark.die, mark.task, mark.slot, mark.count, mark.place, mark.what, mark.doing)
                    own.previous = old
                marks[old] = State(own, ())
            return marks[old]

        first, last = bisect_right(self._his, lo), bisect_left(self._los, hi)
        olds = {id(state.mark): state for state in self._states[first:last]}
        held = sum(min(b, hi) - max(a, lo) for a, b in zip(self._los[first:last], self._his[first:last], strict=True))
        if first == last or (held == hi - lo and len(olds) == 1 and self._quiet(lo, hi, mark.die, clock)):
            self._cover(lo, hi, change(lo, hi, State(next(iter(olds.values())).mark, ()) if olds else EMPTY))
        else:
            self._apply(lo, hi, change)

    def _quiet(self, lo: int, hi: int, die: int, clock: Clock) -> bool:
        """Whether nothing that another die has done there is unordered."""
        first, last = bisect_right(self._his, lo), bisect_left(self._los, hi)
        states = {id(state): state for state in self._states[first:last]}.values()
        return all(access.die == die or access.before(clock) for state in states for access in state.accesses)

    def _cover(self, lo: int, hi: int, state: State) -> None:
        """All bytes get the same state, whatever they had."""
        first, last = bisect_right(self._his, lo), bisect_left(self._los, hi)
        pieces = [(lo, hi, state)]
        if first < last and self._los[first] < lo:
            pieces.insert(0, (self._los[first], lo, self._states[first]))
        if first < last and self._his[last - 1] > hi:
            pieces.append((hi, self._his[last - 1], self._states[last - 1]))
        self._replace(first, last, pieces)

    def drop(self, known: Clock, most_free: int) -> None:
        """Forgets what is ordered before all that may still come.

        ``known``      what all tasks know
        ``most_free``  segments that may be kept only since they were freed
        """
        free = 0
        pieces: list[tuple[int, int, State]] = []
        for lo, hi, state in self._all():
            mark = state.mark
            if mark is not None and mark.before(known):
                if mark.kind == ALLOC:
                    mark = None
                elif not state.accesses:
                    free += 1
                    mark = mark if free <= most_free else None
            kept = tuple(a for a in state.accesses if not a.before(known))
            if mark is not state.mark or len(kept) != len(state.accesses):
                state = State(mark, kept)
            pieces.append((lo, hi, state))
        self._replace(0, len(self._los), pieces)

    def _all(self) -> Iterator[tuple[int, int, State]]:
        yield from zip(self._los, self._his, self._states, strict=True)


def _mixed(even: list[int], odd: list[int]) -> list[int]:
    """One of each in turn; there is one less of the second."""
    found = [0] * (len(even) + len(odd))
    found[::2], found[1::2] = even, odd
    return found
