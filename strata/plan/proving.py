"""One execution of the plans of all members, in symbols, that stands for every execution.

Units wait for fixed others, so what comes before what is the same in all executions: two accesses to
one byte of which one is a write are either always ordered or a race, whichever order they are looked
at in.  Every access is compared with those before it by clocks, as race detectors do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np

from strata.plan import operations
from strata.plan.lines import Line, Piece
from strata.plan.plan import Plan, PlanError
from strata.plan.records import ACCUMULATE, BUFFER_NAMES, COPY, NONE, OUT, PARTIAL, SRC, SYNC
from strata.plan.values import Values, Wrong

Parts = list[tuple[int, int, int]]  # (offset, value, offset in the value)
Operand = tuple[int, int, int, int]  # member, buffer, flags, offset


class Core:
    """A core: its die, number there, units, and how far it has come."""

    __slots__ = ("clock", "die", "end", "next", "number", "place")

    def __init__(self, place: int, die: int, number: int, begin: int, end: int, cores: int) -> None:
        self.place, self.die, self.number, self.next, self.end = place, die, number, begin, end
        self.clock = np.zeros(cores, np.int32)


class Proof:
    """The state of the execution; ``run`` goes through it, PlanError names the first violation."""

    def __init__(self, plans: list[Plan]) -> None:
        self.plans, self.spec = plans, plans[0].spec
        spec = self.spec
        self.values = Values(spec.nranks, spec.itemsize, spec.dtype, spec.redop)
        self.units: list[list[Any]] = [plan.units.tolist() for plan in plans]
        self.operands: list[list[Any]] = [plan.operands.tolist() for plan in plans]
        shares = [(plan.rank, k, b, e) for plan in plans for k, (b, e) in enumerate(pairwise(plan.core_begin.tolist()))]
        shares = [share for share in shares if share[3] > share[2]]
        self.cores = [Core(i, *share, len(shares)) for i, share in enumerate(shares)]
        self.posts = _flags(plans, "post_flag")
        self.waits = _flags(plans, "wait_flag")
        self.raised: dict[tuple[int, int], Any] = {}  # flag -> the clock of those that posted it
        self.collected: dict[tuple[int, int], Any] = {}  # the same while some of them are not done
        self.reads = self.writes = self.bytes = 0
        self.base = np.zeros((spec.nranks, 3), np.int64).tolist()
        self.size = np.zeros((spec.nranks, 3), np.int64).tolist()
        self.lines = [self._line(m) for m in range(spec.nranks)]

    def _line(self, m: int) -> Line:
        """The member's memory: SRC and OUT, overlapping where it works in place, then SCRATCH."""
        plan = self.plans[m]
        src, out = operations.sizes(plan.spec, m)
        place = operations.own_place(plan.spec, m)
        apart = place is None or plan.spec.mode == "mailbox"
        starts = (0, src) if apart else (max(place, 0), max(-place, 0))
        end = max(starts[0] + src, starts[1] + out)
        self.base[m], self.size[m] = [*starts, end], [src, out, plan.scratch]
        line = Line(max(end + plan.scratch, 1))
        line.set(starts[0], starts[0] + src, self.values.source(m), 0)
        if place is not None and apart:  # the mailbox has a copy of what OUT holds
            begin, at = max(place, 0), max(-place, 0)
            line.set(src + begin, src + begin + min(src - at, out - begin), self.values.source(m), at)
        return line

    # ---- order ---------------------------------------------------------------------------

    def run(self) -> None:
        """Every unit, each after what it waits for."""
        ready, waiting = deque(self.cores), {}
        while ready:
            core = ready.popleft()
            while core.next < core.end:
                unit = self.units[core.die][core.next]
                flag = (unit[12], unit[13])
                if flag[1] != NONE:
                    if flag not in self.raised:
                        waiting.setdefault(flag, []).append(core)
                        break
                    self._meet(core, flag)
                core.clock[core.place] += 1
                self._unit(core, unit)
                if unit[14] != NONE:
                    ready.extend(self._post(core, (core.die, unit[14]), waiting))
                core.next += 1
        if waiting:
            self._deadlock({core.place: flag for flag, held in waiting.items() for core in held})

    def _meet(self, core: Core, flag: tuple[int, int]) -> None:
        np.maximum(core.clock, self.raised[flag], out=core.clock)
        self.waits[flag] -= 1
        if not self.waits[flag]:
            self.raised[flag] = None  # nobody will ask again

    def _post(self, core: Core, flag: tuple[int, int], waiting: dict) -> list[Core]:
        """Those that may go on."""
        known = self.collected.pop(flag, None)
        merged = core.clock.copy() if known is None else np.maximum(known, core.clock)
        self.posts[flag] -= 1
        if self.posts[flag]:
            self.collected[flag] = merged
            return []
        self.raised[flag] = merged if flag in self.waits else None
        return waiting.pop(flag, [])

    def _deadlock(self, held: dict[int, tuple[int, int]]) -> NoReturn:
        first = min(held)
        chain, seen = [], set()
        at = first
        while at not in seen:
            seen.add(at)
            core, flag = self.cores[at], held[at]
            chain.append(f"{self.where(core)} waits for flag {flag[1]} of member {flag[0]}")
            posters = [c for c in self.cores if c.die == flag[0] and self._will_post(c, flag[1])]
            if not posters:
                chain[-1] += ", which nobody posts"
                break
            at = posters[0].place
        else:
            chain.append(f"and so on round: {self.where(self.cores[at])}")
        raise PlanError("deadlock: " + "; ".join(chain), ranks=sorted({self.cores[p].die for p in seen}))

    def _will_post(self, core: Core, flag: int) -> bool:
        return any(unit[14] == flag for unit in self.units[core.die][core.next : core.end])

    # ---- accesses ------------------------------------------------------------------------

    def where(self, core: Core) -> str:
        """The unit that a core is at."""
        return f"die {core.die} core {core.number} unit {core.next}"

    def _by(self, place: int, time: int) -> str:
        """The unit that did an earlier access."""
        core = self.cores[place]
        begin = int(self.plans[core.die].core_begin[core.number])
        return f"die {core.die} core {core.number} unit {begin + time - 1}"

    def fail(self, core: Core, what: str, operand: Operand | None = None, length: int = 0) -> NoReturn:
        """PlanError that names the unit and, if given, the bytes."""
        if operand is not None:
            member, buf, _, offset = operand
            what += f": member {member} {BUFFER_NAMES[buf]} bytes [{offset}, {offset + length})"
        raise PlanError(f"{self.where(core)} {what}", ranks=[core.die], operation=self.spec.operation)

    def _span(self, core: Core, operand: Operand, length: int, verb: str) -> tuple[Line, int, int]:
        member, buf, _, offset = operand
        if offset + length > self.size[member][buf]:
            self.fail(core, f"{verb} beyond {self.size[member][buf]} bytes", operand, length)
        start = self.base[member][buf] + offset
        return self.lines[member], start, start + length

    def _race(self, core: Core, piece: Piece, verb: str, operand: Operand, length: int, adds: bool = False) -> None:
        """Every access to the piece so far comes before this one, or does not matter to it."""
        clock = core.clock
        if piece.writer is not None and clock[piece.writer[0]] < piece.writer[1]:
            self.fail(core, f"{verb} what {self._by(*piece.writer)} writes at the same time", operand, length)
        if not adds:
            for place, time in piece.adders:
                if clock[place] < time:
                    self.fail(core, f"{verb} what {self._by(place, time)} adds to at the same time", operand, length)
        if verb != "reads":
            for place, time in piece.readers.items():
                if clock[place] < time:
                    self.fail(core, f"{verb} what {self._by(place, time)} reads at the same time", operand, length)

    def _read(self, core: Core, operand: Operand, length: int) -> Parts:
        line, start, end = self._span(core, operand, length, "reads")
        if operand[1] == SRC and self.spec.mode == "mailbox":
            return line.read(start, end)
        if self.spec.mode == "mailbox" and operand[0] != core.die:
            self.fail(core, "reads a peer's array in mailbox mode", operand, length)
        for piece in line.touched(start, end):
            self._race(core, piece, "reads", operand, length)
            piece.readers[core.place] = int(core.clock[core.place])
        self.reads += 1
        parts = line.read(start, end)
        if any(value == 0 for _, value, _ in parts):
            self.fail(core, "reads memory that nobody has written", operand, length)
        return parts

    def _target(self, core: Core, operand: Operand, length: int, verb: str) -> tuple[Line, int, int]:
        line, start, end = self._span(core, operand, length, verb)
        if operand[1] == SRC:
            self.fail(core, f"{verb} SRC, which belongs to the caller", operand, length)
        if self.spec.mode == "mailbox" and operand[0] != core.die:
            self.fail(core, f"{verb} a peer's array in mailbox mode", operand, length)
        self.writes += 1
        self.bytes += length
        return line, start, end

    def _write(self, core: Core, operand: Operand, length: int, parts: Parts) -> None:
        line, start, end = self._target(core, operand, length, "writes")
        now = core.place, int(core.clock[core.place])
        again = False
        for piece in line.touched(start, end):
            if piece.writer == now:
                self.fail(core, "writes the same bytes twice", operand, length)
            self._race(core, piece, "writes", operand, length)
            again |= piece.writer is not None
        if again and operand[1] == OUT and _agree(line.read(start, end), parts):
            self.fail(core, "writes what an earlier unit has written already", operand, length)
        line.write(start, end, parts, now)

    # ---- units ---------------------------------------------------------------------------

    def _unit(self, core: Core, unit: tuple) -> None:
        kind, op, dtype, nbytes = unit[0], unit[1], unit[2], unit[11]
        if kind == SYNC:
            return
        table = self.operands[core.die]
        sources = [_operand(o) for o in table[unit[8] : unit[8] + unit[6]]]
        targets = [_operand(o) for o in table[unit[9] : unit[9] + unit[7]]]
        lengths = [self._length(o, nbytes) for o in sources], [self._length(o, nbytes) for o in targets]
        self._shifted(core, sources, targets, *lengths)
        given = [self._read(core, o, length) for o, length in zip(sources, lengths[0], strict=True)]
        if kind == COPY:
            for target in targets:
                self._write(core, target, nbytes, given[0])
        elif kind == ACCUMULATE:
            for target in targets:
                self._accumulate(core, target, nbytes, given[0], op, dtype)
        else:
            flags = [bool(o[2] & PARTIAL) for o in sources]
            made: dict[bool, Parts] = {}
            for target, length in zip(targets, lengths[1], strict=True):
                partial = bool(target[2] & PARTIAL)
                if partial not in made:
                    made[partial] = self._reduction(core, given, flags, op, dtype, nbytes, partial, unit[16], target)
                self._write(core, target, length, made[partial])

    def _length(self, operand: Operand, nbytes: int) -> int:
        return nbytes // self.values.size * self.values.wide if operand[2] & PARTIAL else nbytes

    def _shifted(self, core: Core, sources: list[Operand], targets: list[Operand], reads: list[int],
                 writes: list[int]) -> None:  # fmt: skip
        """A destination is the very range of a source, or apart from it."""
        by_member: dict[int, list[tuple[Operand, int]]] = {}
        for source, nread in zip(sources, reads, strict=True):
            by_member.setdefault(source[0], []).append((source, nread))
        for target, nwritten in zip(targets, writes, strict=True):
            for source, nread in by_member.get(target[0], ()):
                a = self.base[source[0]][source[1]] + source[3]
                b = self.base[target[0]][target[1]] + target[3]
                same = a == b and nread == nwritten  # not of sums onto elements, which are not as wide
                if not same and a < b + nwritten and b < a + nread:
                    self.fail(core, "writes over a part of what it reads", target, nwritten)

    def _elements(self, core: Core, parts: Parts, width: int) -> Parts:
        """Parts in elements in place of bytes."""
        if len(parts) == 1 and parts[0][2] % width == 0:
            return [(0, parts[0][1], parts[0][2] // width)]
        if any(offset % width or at % width for offset, _, at in parts):
            self.fail(core, "splits an element")
        return [(offset // width, value, at // width) for offset, value, at in parts]

    def _reduction(self, core: Core, given: list[Parts], flags: list[bool], op: int, dtype: int, nbytes: int,
                   partial: bool, total: int, target: Operand) -> Parts:  # fmt: skip
        values = self.values
        widths = [values.wide if f else values.size for f in flags]
        columns = [self._elements(core, p, w) for p, w in zip(given, widths, strict=True)]
        cuts = sorted({offset for parts in columns for offset, _, _ in parts})
        at = [0] * len(columns)
        width = values.wide if partial else values.size
        made = []
        for cut in cuts:
            operands, places = [], set()
            for i, parts in enumerate(columns):
                while at[i] + 1 < len(parts) and parts[at[i] + 1][0] <= cut:
                    at[i] += 1
                offset, value, begin = parts[at[i]]
                operands.append((value, flags[i]))
                places.add(begin + cut - offset)
            if len(places) > 1:
                what = f"combines element {min(places)} of one operand with element {max(places)} of another"
                self.fail(core, what, target, nbytes)
            try:
                value = values.reduce(op, dtype, operands, partial, total)
            except Wrong as wrong:
                self.fail(core, str(wrong), target, nbytes)
            made.append((cut * width, value, places.pop() * width))
        return made

    def _accumulate(self, core: Core, target: Operand, nbytes: int, given: Parts, op: int, dtype: int) -> None:
        line, start, end = self._target(core, target, nbytes, "adds to")
        size = self.values.size
        now = core.place, int(core.clock[core.place])
        if target[3] % size:
            self.fail(core, "adds to elements that are not aligned", target, nbytes)
        cuts = [*(offset for offset, _, _ in given), nbytes]
        for (offset, value, at), after in zip(given, cuts[1:], strict=True):
            begin = start + offset
            for piece in line.touched(begin, start + after):
                self._race(core, piece, "adds to", target, nbytes, adds=True)
                if piece.at % size or at % size or piece.at != at:
                    self.fail(core, f"adds element {at // size} to element {piece.at // size}", target, nbytes)
                try:
                    where = target[0], begin - at, piece.writer
                    piece.value = self.values.accumulate(op, dtype, piece.value, value, where)
                except Wrong as wrong:
                    self.fail(core, str(wrong), target, nbytes)
                piece.adders.append(now)
                at += self._next(line, begin, end) - begin
                begin = self._next(line, begin, end)

    @staticmethod
    def _next(line: Line, begin: int, end: int) -> int:
        """Where the piece after the one at ``begin`` starts."""
        i = bisect_right(line.starts, begin)
        return min(line.starts[i], end) if i < len(line.starts) else end


def _operand(record: tuple) -> Operand:
    return record[0], record[1], record[2], record[4]


def _flags(plans: list[Plan], name: str) -> Counter[tuple[int, int]]:
    """How many units post, or wait for, each (member, flag)."""
    found: Counter[tuple[int, int]] = Counter()
    for plan in plans:
        flags = plan.units[name]
        chosen = flags != NONE
        members = plan.units["wait_peer"] if name == "wait_flag" else np.full(len(flags), plan.rank)
        found.update(zip(members[chosen].tolist(), flags[chosen].tolist(), strict=True))
    return found


def _agree(old: Parts, new: Parts) -> bool:
    """Whether any byte keeps its value."""
    cuts = sorted({offset for offset, _, _ in old + new})
    i = j = 0
    for cut in cuts:
        while i + 1 < len(old) and old[i + 1][0] <= cut:
            i += 1
        while j + 1 < len(new) and new[j + 1][0] <= cut:
            j += 1
        if old[i][1] == new[j][1] and old[i][2] + cut - old[i][0] == new[j][2] + cut - new[j][0]:
            return True
    return False
