"""Proves, with no process and no data, that the plans of all members deliver an operation.

All memory of the group is laid out on one line of addresses, SRC and OUT of a member
overlapping where it works in place.  What the units write is then compared, as intervals,
with what the operation promises (``operations.result``): each byte written once, by a unit
that reads the right operands in rank order, and no byte read that another unit writes.
Everything is an array operation; Python loops only over members.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.plan import operations
from strata.plan.plan import Plan, PlanError
from strata.plan.records import BUFFER_NAMES, COPY, OP_NAMES, OUT, REDUCE, SRC
from strata.plan.spec import REDUCTIONS


class _Units(NamedTuple):
    """All units of all dies; ``src`` and ``dst`` index the joint operand columns."""

    die: np.ndarray
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index, on purpose
    core: np.ndarray
    kind: np.ndarray
    op: np.ndarray
    dtype: np.ndarray
    bytes: np.ndarray
    src: np.ndarray
    nsrc: np.ndarray
    dst: np.ndarray
    ndst: np.ndarray
    member: np.ndarray
    buf: np.ndarray
    offset: np.ndarray


class _Access(NamedTuple):
    """Operands read or written: by which unit, which operand, and where on the line."""

    unit: np.ndarray
    operand: np.ndarray
    start: np.ndarray
    end: np.ndarray


class _Promise(NamedTuple):
    """Segments that must be written, by address; member -1: reduced from all."""

    start: np.ndarray
    end: np.ndarray
    owner: np.ndarray
    dst: np.ndarray
    member: np.ndarray
    src: np.ndarray


def verify(plans: list[Plan]) -> dict[str, int]:
    """PlanError that names the first violation found by die, core, unit and bytes, if any.

    ``plans``: one of each member, in rank order, each at any number of cores.  Returns how
    many ``units``, ``reads``, ``writes`` (operands) and written ``bytes`` were proved.
    """
    _agree(plans)
    units = _collect(plans)
    base, size = _layout(plans)
    _in_bounds(units, size, plans)
    reads = _accesses(units, units.src, units.nsrc, base)
    writes = _accesses(units, units.dst, units.ndst, base)
    writes = _Access(*(column[np.argsort(writes.start, kind="stable")] for column in writes))
    _sides(units, reads, writes, plans)
    _written_once(units, writes)
    _delivered(units, writes, _promises(plans, base), plans)
    _no_conflict(units, reads, writes)
    written = int((writes.end - writes.start).sum())
    counts = {"units": len(units.die), "reads": len(reads.unit), "writes": len(writes.unit)}
    return {**counts, "bytes": written}


def _agree(plans: list[Plan]) -> None:
    if not plans:
        raise PlanError("no plans given")
    first = plans[0].spec
    if len(plans) != first.nranks or [p.rank for p in plans] != list(range(first.nranks)):
        ranks = [p.rank for p in plans]
        raise PlanError(f"plans of {ranks} given, in a group of {first.nranks}")
    for plan in plans:
        plan.check()
        spec = plan.spec._replace(in_place=first.in_place, counts=None)
        same = spec == first._replace(counts=None)
        if same and first.counts is not None:
            same = np.array_equal(plan.spec.counts, first.counts)
        if not same:
            raise PlanError(f"die {plan.rank} plans another operation than die 0", ranks=[plan.rank])


def _collect(plans: list[Plan]) -> _Units:
    every = np.concatenate([plan.units for plan in plans])
    operands = np.concatenate([plan.operands for plan in plans])
    number = [len(plan.units) for plan in plans]
    table = np.cumsum([0] + [len(plan.operands) for plan in plans[:-1]])
    shift = np.repeat(table, number)
    return _Units(
        die=np.repeat(np.arange(len(plans)), number),
        index=np.concatenate([np.arange(k) for k in number]),
        src=every["src_first"] + shift,
        dst=every["dst_first"] + shift,
        member=operands["member"].astype(np.int64),
        buf=operands["buf"],
        offset=operands["offset"].astype(np.int64),
        **{name: every[name] for name in ("core", "kind", "op", "dtype")},
        **{name: every[name].astype(np.int64) for name in ("bytes", "nsrc", "ndst")},
    )


def _layout(plans: list[Plan]) -> tuple[np.ndarray, np.ndarray]:
    """Start on the line and size of each member's SRC, OUT and SCRATCH (which none has)."""
    base, size = np.zeros((2, len(plans), 3), np.int64)
    at = 0
    for m, plan in enumerate(plans):
        src, out = operations.sizes(plan.spec, m)
        place = operations.own_place(plan.spec, m) if plan.spec.mode == "zero_copy" else None
        if place is None:
            starts = at, at + src
        else:
            starts = at + max(place, 0), at + max(-place, 0)
        base[m, :2], size[m, :2] = starts, (src, out)
        at = max(starts[0] + src, starts[1] + out)
    return base, size


def _accesses(units: _Units, first, number, base) -> _Access:
    unit = np.repeat(np.arange(len(number)), number)
    operand = np.arange(len(unit)) - np.repeat(np.cumsum(number) - number - first, number)
    start = base[units.member[operand], units.buf[operand]] + units.offset[operand]
    return _Access(unit, operand, start, start + units.bytes[unit])


def _fail(units: _Units, unit: int, what: str, operand: int | None = None) -> None:
    where = f"die {units.die[unit]} core {units.core[unit]} unit {units.index[unit]}"
    if operand is not None:
        member, buf = units.member[operand], BUFFER_NAMES[units.buf[operand]]
        first = units.offset[operand]
        what += f": member {member} {buf} bytes [{first}, {first + units.bytes[unit]})"
    raise PlanError(f"{where} {what}", ranks=[units.die[unit]])


def _in_bounds(units: _Units, size: np.ndarray, plans: list[Plan]) -> None:
    for first, number, verb in ((units.src, units.nsrc, "reads"), (units.dst, units.ndst, "writes")):
        found = _accesses(units, first, number, np.zeros_like(size))
        room = size[units.member[found.operand], units.buf[found.operand]]
        beyond = found.end > room
        if beyond.any():
            i = int(beyond.argmax())
            _fail(units, found.unit[i], f"{verb} beyond {room[i]} bytes", found.operand[i])
    for plan in plans:
        if (plan.buffer_bytes.astype(np.int64) > size).any():
            raise PlanError(f"die {plan.rank} claims more of a buffer than there is")


def _sides(units: _Units, reads: _Access, writes: _Access, plans: list[Plan]) -> None:
    """Reads come from SRC and writes go to OUT; of peers' arrays only if the mode allows."""
    for found, buf, verb in ((reads, SRC, "reads"), (writes, OUT, "writes")):
        wrong = units.buf[found.operand] != buf
        if wrong.any():
            i = int(wrong.argmax())
            name = BUFFER_NAMES[units.buf[found.operand[i]]]
            what = f"{verb} {name}, which an operation of one step does not"
            _fail(units, found.unit[i], what, found.operand[i])
    afar = [units.member[a.operand] != units.die[a.unit] for a in (reads, writes)]
    zero_copy = plans[0].spec.mode == "zero_copy"
    if not zero_copy and afar[1].any():
        i = int(afar[1].argmax())
        _fail(units, writes.unit[i], "writes a peer's array in mailbox mode", writes.operand[i])
    due = zero_copy and bool(afar[0].any() or afar[1].any())
    for plan in plans:
        if plan.needs_done != due:
            said = "is due" if due else "is not due"
            raise PlanError(f"die {plan.rank}: needs_done is wrong, a synchronisation {said}")


def _written_once(units: _Units, writes: _Access) -> None:
    double = writes.start[1:] < writes.end[:-1]
    if double.any():
        i = int(double.argmax()) + 1
        other = writes.unit[i - 1]
        what = f"writes what die {units.die[other]} unit {units.index[other]} writes"
        _fail(units, writes.unit[i], what, writes.operand[i])


def _promises(plans: list[Plan], base: np.ndarray) -> _Promise:
    parts = []
    for m, plan in enumerate(plans):
        found = operations.result(plan.spec, m)
        member = found.member if plan.spec.nranks > 1 else np.zeros_like(found.member)
        place = operations.own_place(plan.spec, m)
        wanted = np.ones(len(member), bool)
        if place is not None:  # what is there already is promised, and must not be written
            wanted = (member != m) | (found.dst != found.src + place)
        start = base[m, OUT] + found.dst
        columns = (start, start + found.bytes, np.full(len(start), m), found.dst, member, found.src)
        parts.append([column[wanted] for column in columns])
    return _Promise(*map(np.concatenate, zip(*parts, strict=True)))


def _delivered(units: _Units, writes: _Access, promise: _Promise, plans: list[Plan]) -> None:
    """What is written is what is promised, byte for byte; writes do not overlap."""
    low = np.searchsorted(promise.end, writes.start, "right")
    high = np.searchsorted(promise.start, writes.end, "left")
    number = np.maximum(high - low, 0)
    which = np.repeat(np.arange(len(low)), number)  # a piece: one write in one segment
    segment = np.arange(len(which)) - np.repeat(np.cumsum(number) - number - low, number)
    start = np.maximum(writes.start[which], promise.start[segment])
    end = np.minimum(writes.end[which], promise.end[segment])
    inside = np.zeros(len(low), np.int64)
    np.add.at(inside, which, end - start)
    stray = inside != writes.end - writes.start
    if stray.any():
        i = int(stray.argmax())
        _fail(units, writes.unit[i], "writes what the operation does not change", writes.operand[i])
    _all_covered(promise, segment, start, end, plans)
    unit = writes.unit[which]
    moved = promise.member[segment] >= 0
    shift = start - writes.start[which]  # of the piece in the unit, and in the segment
    source = promise.src[segment] + start - promise.start[segment] - shift
    _copied(units, unit[moved], promise.member[segment[moved]], source[moved])
    into = (start - promise.start[segment])[~moved]
    _reduced(units, unit[~moved], source[~moved], into, plans)


def _all_covered(promise: _Promise, segment, start, end, plans: list[Plan]) -> None:
    covered = np.zeros(len(promise.start), np.int64)
    np.add.at(covered, segment, end - start)
    missing = covered != promise.end - promise.start
    if missing.any():
        s = int(missing.argmax())
        at = int(promise.start[s])
        pieces = np.stack((start, end), axis=1)[segment == s]
        for first, last in sorted(pieces.tolist()):
            if first > at:
                break
            at = last
        byte = at - int(promise.start[s]) + int(promise.dst[s])
        raise PlanError(
            f"no unit writes member {promise.owner[s]} OUT from byte {byte} on",
            ranks=[promise.owner[s]],
            operation=plans[0].spec.operation,
        )


def _copied(units: _Units, unit, member, source) -> None:
    """Each ``unit`` is a copy of SRC of ``member`` from ``source`` on."""
    operand = units.src[unit]
    wrong = units.kind[unit] != COPY
    wrong |= (units.member[operand] != member) | (units.offset[operand] != source)
    if wrong.any():
        i = int(wrong.argmax())
        what = f"should copy from member {member[i]} SRC byte {source[i]}, and uses"
        _fail(units, unit[i], what, operand[i])


def _reduced(units: _Units, unit, source, into, plans: list[Plan]) -> None:
    """Each ``unit`` reduces whole elements of all members' SRC from ``source`` on, in rank
    order; ``into``: how far within the result it begins."""
    spec, n = plans[0].spec, len(plans)
    # A unit's destinations ask for the same again, n times n operands in an all_reduce
    once = np.unique(np.stack((unit, source, into)), axis=1) if len(unit) else np.zeros((3, 0), np.int64)
    unit, source, into = once
    wrong = (units.kind[unit] != REDUCE) | (units.op[unit] != spec.redop)
    wrong |= (units.dtype[unit] != spec.dtype) | (units.nsrc[unit] != n)
    if spec.operation in REDUCTIONS:
        wrong |= (units.bytes[unit] % spec.itemsize != 0) | (into % spec.itemsize != 0)
    if wrong.any():
        i = int(unit[wrong.argmax()])
        what = f"should reduce whole elements of {n} operands by {OP_NAMES[spec.redop]}"
        _fail(units, i, f"{what}: it has {units.nsrc[i]}, {units.bytes[i]} bytes each")
    operand = units.src[unit][:, None] + np.arange(n)
    wrong = units.member[operand] != np.arange(n)
    wrong |= units.offset[operand] != source[:, None]
    if wrong.any():
        i, k = (int(x) for x in np.unravel_index(int(wrong.argmax()), wrong.shape))
        what = f"operand {k} should be member {k} SRC byte {source[i]}, and is"
        _fail(units, unit[i], what, operand[i, k])


def _no_conflict(units: _Units, reads: _Access, writes: _Access) -> None:
    """No byte is read that another unit writes; a unit may reduce onto an operand itself."""
    low = np.searchsorted(writes.end, reads.start, "right")
    high = np.searchsorted(writes.start, reads.end, "left")
    hit = np.flatnonzero(high > low)
    same = (high - low)[hit] == 1
    same &= (writes.unit[low[hit]] == reads.unit[hit]) & (writes.start[low[hit]] == reads.start[hit])
    if not same.all():
        i = hit[int((~same).argmax())]
        clash = np.arange(low[i], high[i])
        other = writes.unit[clash[writes.unit[clash] != reads.unit[i]][:1]]
        by = f"die {units.die[other[0]]} unit {units.index[other[0]]}" if len(other) else "it also"
        _fail(units, reads.unit[i], f"reads what {by} writes", reads.operand[i])
