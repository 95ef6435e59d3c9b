"""Slices to units: fuse, cut, order, place on cores.

Slices that work on the same bytes become one *bundle*: the pulls of a reduction with their
pushes, or a copy by itself.  A bundle is cut at whole lines of its destination (and whole
elements) into units of about its tier's size; no step loops over units in Python.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.plan import partition
from strata.plan.cost import Cost
from strata.plan.frontends._common import LINE, grain
from strata.plan.records import (
    COPY,
    NBUFS,
    NONE,
    OPERAND_DTYPE,
    PULL,
    PUSH,
    REDUCE,
    SYNC_SLICE,
    TRANSIENT,
    UNIT_DTYPE,
)
from strata.plan.spec import Spec
from strata.plan.steps import schedule_steps
from strata.plan.topology import Tiers

MAX_UNITS = 1 << 14  # of a die, beyond one for each bundle; larger operations get larger units


class Bundles(NamedTuple):
    """int64 arrays over the bundles but for ``rate`` (float64), and over their operands,
    which lie bundle by bundle, sources first."""

    bytes: np.ndarray
    start: np.ndarray  # offset of the first destination, which cuts are aligned to
    op: np.ndarray
    grain: np.ndarray
    peer: np.ndarray  # -1: a reduction, which has many
    tier: np.ndarray
    alpha: np.ndarray  # picoseconds, of each unit
    rate: np.ndarray  # picoseconds per byte
    slice: np.ndarray
    nsrc: np.ndarray
    ndst: np.ndarray
    member: np.ndarray
    buf: np.ndarray
    offset: np.ndarray


class Units(NamedTuple):
    """What scheduling gives: arrays of a plan, and the cost model's view of it."""

    units: np.ndarray
    operands: np.ndarray
    core_begin: np.ndarray
    buffer_bytes: np.ndarray
    makespan_ps: int
    bound_ps: int


def schedule(
    slices: np.ndarray,
    spec: Spec,
    rank: int,
    cores: int,
    *,
    policy: str,
    cost: Cost,
    tiers: Tiers,
    local_first: bool,
) -> Units:
    """The units of ``slices`` on ``cores`` cores of one die, in per-core order.

    Peers come in turn from ``rank + 1`` on, so that dies do not start on one peer; what is
    the die's own comes last, or first with ``local_first``.  Reductions go before copies.
    """
    _check(slices)
    if _stepped(slices):
        *arrays, loads, largest = schedule_steps(
            slices, spec, rank, cores, policy=policy, cost=cost, tiers=tiers, local_first=local_first
        )
        return Units(*arrays, int(loads.max()), max(largest, -(-int(loads.sum()) // cores)))
    tier = np.asarray(tiers(rank, slices["peer"].astype(np.int64)), np.int64)
    turn = _turns(slices["peer"], rank, spec.nranks, local_first)
    bundles = _fuse(slices, rank, tier, turn, spec, cost)
    pieces, begin, length = _cut(bundles, cost)
    expense = bundles.alpha[pieces] + np.rint(length * bundles.rate[pieces]).astype(np.int64)
    if cores == 1:
        placed = partition.one_core(expense)
    else:
        nth = np.arange(len(pieces)) - np.searchsorted(pieces, pieces)
        share = nth / np.bincount(pieces, minlength=1)[pieces] if len(pieces) else begin
        place = partition.balanced if policy == "balanced" else partition.naive
        peer = bundles.peer[pieces]
        rank_turn = np.where(peer < 0, -2, _turns(peer, rank, spec.nranks, local_first))
        placed = place(expense, peer, rank_turn, share, cores, cost.caps[bundles.tier[pieces]])
        pieces, begin, length = (column[placed.order] for column in (pieces, begin, length))
    units, operands = _records(bundles, pieces, begin, length, placed, spec.dtype)
    loads = placed.loads
    largest = int(expense.max(initial=0))
    return Units(
        units,
        operands,
        np.searchsorted(placed.core, np.arange(cores + 1)).astype(np.uint32),
        _extents(bundles, spec.nranks),
        int(loads.max()),
        max(largest, -(-int(loads.sum()) // cores)),
    )


def _check(slices: np.ndarray) -> None:
    """InvalidArgument for slices that are none."""
    kind = slices["kind"]
    if not ((kind == PULL) | (kind == PUSH) | (kind == SYNC_SLICE)).all():
        raise InvalidArgument("a slice is neither a pull nor a push nor a synchronisation")
    if ((slices["bytes"] == 0) != (kind == SYNC_SLICE)).any():
        raise InvalidArgument("a transfer of no bytes, or a synchronisation with some")
    if ((slices["wait_flag"] == NONE) != (slices["wait_peer"] == NONE)).any():
        raise InvalidArgument("a slice has one of wait_peer and wait_flag without the other")
    if (np.diff(slices["step"].astype(np.int64)) < 0).any():
        raise InvalidArgument("steps fall along the slices")


def _stepped(slices: np.ndarray) -> bool:
    """Whether anything but free order of plain transfers is asked for."""
    if not len(slices):
        return False
    flags = (slices["flags"] & ~np.uint16(TRANSIENT)).any() or (slices["op"] * (slices["kind"] == PUSH)).any()
    ordered = any((slices[name] != NONE).any() for name in ("wait_flag", "post_flag"))
    return bool(flags or ordered or slices["step"][-1] or (slices["kind"] == SYNC_SLICE).any())


def _turns(peer: np.ndarray, rank: int, nranks: int, local_first: bool) -> np.ndarray:
    """Place of a peer in the die's staggered order: rank + 1 is 0, the die itself last."""
    turn = (peer.astype(np.int64) - (rank + 1)) % nranks
    if local_first:
        turn[peer == rank] = -1
    return turn


def _fuse(slices, rank: int, tier, turn, spec: Spec, cost: Cost) -> Bundles:
    reducing = slices["op"] != 0
    if not reducing.any():
        return _copies(slices, np.argsort(turn, kind="stable"), rank, tier, cost)
    parts, used = [], reducing.copy()
    fused: dict[tuple, list[int]] = {}
    sends: dict[tuple, list[int]] = {}
    whole = slices[["dst_buf", "dst", "bytes"]].tolist()
    for i in np.flatnonzero(reducing).tolist():
        fused.setdefault(whole[i], []).append(i)
    whole = slices[["src_buf", "src", "bytes"]].tolist()
    for i in np.flatnonzero(slices["kind"] == PUSH).tolist():
        sends.setdefault(whole[i], []).append(i)
    for key, pulled in fused.items():
        pushed = np.array(sends.get(key, ()), np.int64)
        used[pushed] = True
        pushed = pushed[np.argsort(turn[pushed], kind="stable")]
        parts.append(_reduction(slices, np.array(pulled), pushed, rank, tier, spec, cost))
    rest = np.flatnonzero(~used)
    if len(rest):
        rest = rest[np.argsort(turn[rest], kind="stable")]
        parts.append(_copies(slices, rest, rank, tier, cost))
    return parts[0] if len(parts) == 1 else Bundles(*map(np.concatenate, zip(*parts, strict=True)))


def _copies(slices, chosen, rank: int, tier, cost: Cost) -> Bundles:
    """One bundle for each chosen slice, in that order."""
    slices, tier = slices[chosen], tier[chosen]
    n = len(slices)
    peer = slices["peer"].astype(np.int64)
    push = slices["kind"] == PUSH
    member, buf, offset = np.empty((3, 2 * n), np.int64)
    member[0::2] = np.where(push, rank, peer)
    member[1::2] = np.where(push, peer, rank)
    buf[0::2], buf[1::2] = slices["src_buf"], slices["dst_buf"]
    offset[0::2], offset[1::2] = slices["src"], slices["dst"]
    one = np.ones(n, np.int64)
    return Bundles(
        bytes=slices["bytes"].astype(np.int64),
        start=offset[1::2],
        op=one * 0,
        grain=one * LINE,
        peer=peer,
        tier=tier,
        alpha=cost.alpha_ps[tier],
        rate=cost.ps_per_byte[tier],
        slice=chosen,
        nsrc=one,
        ndst=one,
        member=member,
        buf=buf,
        offset=offset,
    )


def _reduction(slices, pulled, pushed, rank: int, tier, spec: Spec, cost: Cost) -> Bundles:
    """One bundle: operands in the order of the slices; own destination first, then peers'."""
    first = slices[pulled[0]]
    if (slices["op"][pulled] != first["op"]).any():
        raise InvalidArgument("operands of one destination have different operators")
    transient = bool(first["flags"] & TRANSIENT)
    if transient and not len(pushed):
        raise InvalidArgument("a transient reduction that is pushed nowhere")
    own = [] if transient else [0]
    sources, sent = slices[pulled], slices[pushed]
    legs = tier[np.concatenate((pulled, pushed))]

    def operands(source, mine, theirs):
        return np.concatenate((source, [mine for _ in own], theirs)).astype(np.int64)

    offset = operands(sources["src"].astype(np.int64), int(first["dst"]), sent["dst"].astype(np.int64))
    columns = {
        "bytes": int(first["bytes"]),
        "start": offset[len(pulled)],
        "op": first["op"],
        "grain": grain(spec.itemsize),
        "peer": -1,
        "tier": legs.max(),
        "alpha": cost.alpha_ps[legs].max(),
        "slice": pulled[0],
        "nsrc": len(pulled),
        "ndst": len(own) + len(pushed),
    }
    return Bundles(
        **{name: np.array([value], np.int64) for name, value in columns.items()},
        rate=cost.ps_per_byte[legs].sum(keepdims=True),
        member=operands(sources["peer"], rank, sent["peer"]),
        buf=operands(sources["src_buf"], first["dst_buf"], sent["dst_buf"]),
        offset=offset,
    )


def _cut(bundles: Bundles, cost: Cost):
    """Units in the bundles' order: the bundle of each, where in it it begins, its bytes."""
    nbytes, unit = bundles.bytes, bundles.grain
    phase = bundles.start % unit
    span = phase + nbytes
    wanted = np.maximum(cost.units[bundles.tier], -(-int(span.sum()) // MAX_UNITS))
    size = np.maximum(wanted // unit, 1) * unit
    number = -(-span // size)
    size = -(-span // (number * unit)) * unit  # even units, in place of a small last one
    number = -(-span // size)
    if len(number) == int(number.sum()):
        return np.arange(len(number)), np.zeros(len(number), np.int64), nbytes
    pieces = np.repeat(np.arange(len(number)), number)
    last = np.cumsum(number)
    nth = np.arange(len(pieces)) - (last - number)[pieces]
    begin = np.maximum(nth * size[pieces] - phase[pieces], 0)
    end = np.append(begin[1:], 0)
    end[last - 1] = nbytes
    return pieces, begin, end - begin


def _records(bundles: Bundles, pieces, begin, length, placed, dtype: int):
    """The unit and operand arrays; arguments are in per-core order."""
    wide = bundles.nsrc + bundles.ndst
    widths = wide[pieces]
    first = np.cumsum(widths) - widths
    total = int(widths.sum())
    if total >= 1 << 32:
        raise InvalidArgument(f"the plan would have {total} operands: too many")
    which = np.arange(total) - np.repeat(first - (np.cumsum(wide) - wide)[pieces], widths)
    operands = np.zeros(total, OPERAND_DTYPE)
    operands["member"] = bundles.member[which]
    operands["buf"] = bundles.buf[which]
    operands["offset"] = bundles.offset[which] + np.repeat(begin, widths)

    units = np.zeros(len(pieces), UNIT_DTYPE)
    op = bundles.op[pieces]
    units["kind"] = np.where(op == 0, COPY, REDUCE)
    units["op"] = op
    units["dtype"] = dtype
    units["tier"] = bundles.tier[pieces]
    units["core"] = placed.core
    units["stripe"] = placed.stripe
    units["nsrc"] = bundles.nsrc[pieces]
    units["ndst"] = bundles.ndst[pieces]
    units["src_first"] = first
    units["dst_first"] = first + units["nsrc"]
    units["bytes"] = length
    units["slice"] = bundles.slice[pieces]
    units["wait_peer"] = units["wait_flag"] = units["post_flag"] = NONE
    return units, operands


def _extents(bundles: Bundles, nranks: int) -> np.ndarray:
    """(nranks, NBUFS): end of what the plan touches in each buffer of each member, bytes."""
    touched = np.zeros(nranks * NBUFS, np.int64)
    end = bundles.offset + np.repeat(bundles.bytes, bundles.nsrc + bundles.ndst)
    np.maximum.at(touched, bundles.member * NBUFS + bundles.buf, end)
    return touched.reshape(nranks, NBUFS).astype(np.uint64)
