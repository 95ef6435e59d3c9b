"""Dispatch and combine of one die as plans: rows to units, units to cores.

**Dispatch.**  Windows are cut at whole rows and given to the scheduler that all operations have, which is told what a
row costs in place of bytes.  *Balanced*: pieces of the tier's unit size, or finer where that leaves cores uneven (as
the scheduler does for bytes), or each peer's on cores of its own; of these the partition that is done first by the
cost model.  *Naive*: each peer's on cores of its own.

**Combine.**  A unit is a block of tokens that follow each other.  A token costs what its entries cost by the tiers of
their members, and a row written.  *Balanced*: blocks of equal cost, found in prefix sums, so that no core has more than
the average and one token.  *Naive*: as many tokens for each core.

Cost goes by windows and cores, not by tokens; what does look at each row (``windows.gathered``, ``entries``) is done
before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from strata._core import routing, scheduling
from strata.errors import InvalidArgument
from strata.plan import cost as costs
from strata.plan import topology as topologies
from strata.plan.build import MAX_CORES, PATHS
from strata.plan.frontends._common import pulls
from strata.plan.moe.windows import Sums, Windows
from strata.plan.operations import remote
from strata.plan.plan import Plan
from strata.plan.records import (
    COMBINE,
    DTYPE_BYTES,
    MAX_ENTRIES,
    NBUFS,
    NONE,
    OPERAND_DTYPE,
    OUT,
    SLICE_DTYPE,
    SRC,
    UNIT_DTYPE,
)
from strata.plan.schedule import LEAST_UNIT, POLICIES
from strata.plan.spec import Spec, normal
from strata.plan.topology import LOCAL

MAX_ROW = 1 << 31  # bytes
PER_CORE = 16  # pieces and blocks of a core, beyond one of each window: more bring nothing, and take longer to make
FEW = 256  # ... or so many of all cores: a thread sees between two of them that it is to stop
KIB = 1 << 10  # prices are whole picoseconds of so many bytes


class _Cut(NamedTuple):
    """A partition of a dispatch: the scheduler's result, and the pieces that its slices are."""

    units: np.ndarray
    operands: np.ndarray
    core_begin: np.ndarray
    extents: np.ndarray
    loads: np.ndarray
    makespan_ps: int
    bound_ps: int
    pieces: np.ndarray


def dispatch_plan(
    windows: Windows,
    rows: np.ndarray,
    row: int,
    tokens: np.ndarray,
    cores: int = 1,
    *,
    path: str | None = None,
    policy: str = "balanced",
    cost: costs.Cost = costs.HOST,
    topology: topologies.Topology = topologies.HOST,
) -> Plan:
    """What die ``windows.rank`` pulls in dispatch.

    ``rows``    u64: which of its source's rows each row is that the die receives (``windows.gathered``); kept, not
                copied
    ``row``     bytes of a row, of all arrays that move together
    ``tokens``  integers (n): rows of each source's array
    ``path``, ``policy``, ``cost``, ``topology``, ``cores``: as of ``plan.build``

    Units are ROWS.  InvalidArgument for what does not fit together.
    """
    path = _asked(row, cores, path, policy)
    spec = normal(Spec("moe_dispatch", itemsize=row, nranks=len(windows.pairs), counts=windows.pairs))
    rank, table = windows.rank, windows.table
    received = int(table[:, 1].sum())
    if rows.dtype != np.uint64 or rows.shape != (received,) or not rows.flags.c_contiguous:
        raise InvalidArgument(f"rows are {rows.dtype} of shape {rows.shape}: u64 of {received} are expected")
    reach = _reach(spec, row, SRC, tokens, table[:, 0])
    reach[rank, OUT] = windows.room * row
    found = _dispatch(table, spec.nranks, rank, row, cores, policy, cost, topology.seen(rank, spec.nranks))
    slices = pulls(table[:, 0], table[:, 1] * row, src=table[:, 2] * row, dst=table[:, 3] * row)
    return _plan(spec, rank, path, policy, cores, slices, found.units, found.operands, found.core_begin, reach,
                 found.makespan_ps, found.bound_ps, rows)  # fmt: skip


def _dispatch(
    table: np.ndarray, n: int, rank: int, row: int, cores: int, policy: str, cost: costs.Cost, tiers: np.ndarray
) -> _Cut:
    """The partition of windows."""
    rate = cost.row_ps(row)
    alpha = np.where(np.array(cost.row_us) > 0, 0, cost.alpha_ps)  # which it is a part of
    number = int(table[:, 1].sum())
    least = min(number // max(PER_CORE * cores, FEW) + 1, LEAST_UNIT)
    plain = np.clip(cost.units // row, least, LEAST_UNIT)
    none = np.zeros(len(rate))

    def cut(big: np.ndarray, small: np.ndarray, tail: np.ndarray, balanced: bool) -> _Cut:
        slices, pieces = routing.cut(table, tiers, big, small, tail, LEAST_UNIT, SLICE_DTYPE)
        made = scheduling.schedule(
            slices, tiers, alpha, rate, _UNCUT, cost.caps, UNIT_DTYPE, OPERAND_DTYPE, rank=rank, cores=cores,
            balanced=balanced, local_first=False, dtype=0, itemsize=1, whole=True,
        )  # fmt: skip
        return _Cut(*made, pieces)

    if policy == "naive" or cores == 1:
        best = cut(plain, plain, none, policy == "balanced")
    else:
        big, small, tail, apart = routing.limits(
            table, tiers, plain, 1, alpha, rate, cores, 2 * PER_CORE * cores + len(table)
        )
        best = cut(big, small, tail, True)
        if best.makespan_ps > apart:
            naive = cut(plain, plain, none, False)
            best = naive if naive.makespan_ps < best.makespan_ps else best
        _spread(best, rank, len(tiers))
    routing.units(best.pieces, row, best.units, best.operands)
    return best


def _spread(cut: _Cut, rank: int, n: int) -> None:
    """Puts each core's units in the order of their peers, and lets the cores begin all around: in the scheduler's order
    all are on one peer or two at a time, and wait for its port while those of others are idle."""
    cores = len(cut.core_begin) - 1
    core = np.repeat(np.arange(cores), np.diff(cut.core_begin))
    turn = cut.operands["member"][cut.units["src_first"]] - rank - core * n // cores
    order = np.argsort(core * n + turn % n, kind="stable")
    stripe = cut.units["stripe"].copy()
    cut.units[:] = np.take(cut.units, order)
    cut.units["stripe"] = stripe


_UNCUT = np.full(len(costs.HOST.units), LEAST_UNIT, np.int64)  # a piece has no more rows, and here a row is a byte


def tariff(members: np.ndarray, rank: int, nranks: int, cost: costs.Cost = costs.HOST,
           topology: topologies.Topology = topologies.HOST, row: int = KIB) -> tuple[np.ndarray, int]:  # fmt: skip
    """(i64 of each of ``members``, int): what a KiB read from them costs die ``rank``, and one written, picoseconds.

    What ``routing.prices`` takes: ``sums = routing.prices(rows, *tariff(...))`` is made once for a routing, whatever
    rows will be long, unless rows cost something beyond their bytes (``cost.row_us``): ``row`` is theirs.
    """
    each = np.rint(cost.row_ps(row) * KIB / row).astype(np.int64)
    return each[topology.seen(rank, nranks)[members]], int(each[LOCAL])


def combine_plan(
    sums: Sums,
    rows: np.ndarray,
    row: int,
    dtype: int,
    cores: int = 1,
    *,
    prices: np.ndarray | None = None,
    path: str | None = None,
    policy: str = "balanced",
    cost: costs.Cost = costs.HOST,
    topology: topologies.Topology = topologies.HOST,
) -> Plan:
    """What die ``sums.rank`` adds up in combine, for each of its tokens.

    ``rows``    u64 (tokens, entries): ``routing.ht_entries`` or ``ll_entries`` with ``sums.base``; kept, not copied
    ``row``     bytes of a row, whole elements of ``dtype`` (a code)
    ``prices``  i64 (tokens + 1): ``routing.prices(rows, *tariff(sums.members, ...))`` of this machine; None: made here,
                which looks at every entry
    ``path``, ``policy``, ``cost``, ``topology``, ``cores``: as of ``plan.build``

    Units are COMBINE.  Their sources are all ``sums.members``, so that entries do not depend on the partition: a unit
    may have no entry of some.
    """
    path = _asked(row, cores, path, policy)
    rank, n = sums.rank, len(sums.pairs)
    spec = normal(Spec("moe_combine", itemsize=row, dtype=dtype, nranks=n, counts=sums.pairs))
    if not DTYPE_BYTES[dtype] or row % DTYPE_BYTES[dtype]:
        raise InvalidArgument(f"a row of {row} bytes is no whole number of elements of dtype {dtype}")
    wide = rows.ndim == 2 and 1 <= rows.shape[1] <= MAX_ENTRIES
    if rows.dtype != np.uint64 or not wide or not rows.flags.c_contiguous:
        raise InvalidArgument(f"rows are {rows.dtype} of shape {rows.shape}: u64 (tokens, 1 to {MAX_ENTRIES})")
    if prices is None:
        prices = routing.prices(rows, *tariff(sums.members, rank, n, cost, topology, row))
    elif prices.shape != (len(rows) + 1,):
        raise InvalidArgument(f"prices have shape {prices.shape} for {len(rows)} tokens")
    tiers = topology.seen(rank, n)[sums.members]
    begins = _blocks(prices, row, cores, policy, cost, tiers)
    units, operands, core_begin = _combine(sums, begins, row, dtype, cores, rows.shape[1], int(tiers.max(initial=0)))
    alpha = int(cost.alpha_ps[tiers].max(initial=cost.alpha_ps[LOCAL]))
    each = np.where(np.diff(begins) > 0, np.diff(prices[begins]) * row // KIB + alpha, 0)
    loads = each.reshape(cores, -1).sum(axis=1)
    reach = _reach(spec, row, SRC, sums.room, sums.members)
    reach[rank, OUT] = len(rows) * row
    back = sums.pairs[sums.members, rank] * row
    return _plan(spec, rank, path, policy, cores, pulls(sums.members, back), units, operands, core_begin, reach,
                 int(loads.max()), max(-(-int(loads.sum()) // cores), int(each.max(initial=0))),
                 rows.reshape(-1))  # fmt: skip


def _blocks(prices: np.ndarray, row: int, cores: int, policy: str, cost: costs.Cost, tiers: np.ndarray) -> np.ndarray:
    """The first token of each block and the number of tokens, i64; as many blocks for each core, of which some may be
    empty: about a unit of the farthest tier in each."""
    tokens, total = len(prices) - 1, int(prices[-1])
    far = int(tiers.max(initial=LOCAL))
    unit = max(int(cost.ps_per_byte[far] * int(cost.units[far]) / row * KIB), 1)  # what prices call a unit
    each = max(1, min(-(-total // (cores * unit)), max(PER_CORE, FEW // cores), -(-tokens // cores)))
    number = cores * each
    part = np.arange(number + 1)
    even = (tokens * (part // each) // cores) + _within(tokens, cores, each, part)
    if policy == "naive":
        return even
    target = total // number * part + total % number * part // number
    after = np.searchsorted(prices, target)
    before = np.maximum(after - 1, 0)
    fair = np.where(target - prices[before] < prices[after] - target, before, after)
    most = [int(np.diff(prices[begins[::each]]).max()) for begins in (fair, even)]
    return fair if most[0] <= most[1] else even  # few tokens of about the same cost


def _within(tokens: int, cores: int, each: int, part: np.ndarray) -> np.ndarray:
    """How far into its core's tokens a block begins, where all cores have as many."""
    core = np.minimum(part // each, cores - 1)
    mine = tokens * (core + 1) // cores - tokens * core // cores
    return mine * (part % each) // each


def _combine(
    sums: Sums, begins: np.ndarray, row: int, dtype: int, cores: int, entries: int, tier: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Units of the blocks that are not empty, their operands, and core_begin."""
    length = np.diff(begins)
    kept = np.flatnonzero(length)
    each = len(length) // cores
    core = kept // each
    members = len(sums.members)
    core_begin = np.searchsorted(core, np.arange(cores + 1)).astype(np.uint32)
    units = np.zeros(len(kept), UNIT_DTYPE)
    units["kind"], units["dtype"], units["tier"] = COMBINE, dtype, tier
    units["core"], units["stripe"] = core, np.arange(len(kept)) - core_begin[core]
    units["nsrc"], units["ndst"] = members, 1
    units["dst_first"] = np.arange(members, members + len(kept))
    units["bytes"] = length[kept] * row
    units["wait_peer"] = units["wait_flag"] = units["post_flag"] = NONE
    units["total"], units["row"], units["index"] = entries, row, begins[kept] * entries
    operands = np.zeros(members + len(kept), OPERAND_DTYPE)
    operands["member"][:members] = sums.members
    operands["member"][members:], operands["buf"][members:] = sums.rank, OUT
    operands["offset"][members:] = begins[kept] * row
    return units, operands, core_begin


def _asked(row: int, cores: int, path: str | None, policy: str) -> str:
    if not 1 <= row < MAX_ROW:
        raise InvalidArgument(f"a row has {row} bytes, not 1 to {MAX_ROW - 1}")
    if not 1 <= cores <= MAX_CORES:
        raise InvalidArgument(f"cores is {cores}, not 1 to {MAX_CORES}")
    if path not in (None, *PATHS):
        raise InvalidArgument(f"path {path!r} is not available; there is {', '.join(PATHS)}")
    if policy not in POLICIES:
        raise InvalidArgument(f"policy is {policy!r}, not one of {', '.join(POLICIES)}")
    return path or PATHS[0]


def _reach(spec: Spec, row: int, buf: int, rows: np.ndarray, members: np.ndarray) -> np.ndarray:
    """How far the plan reaches: into all rows of those it reads from."""
    rows = np.asarray(rows)
    if rows.shape != (spec.nranks,) or rows.dtype.kind not in "iu" or (rows.size and int(rows.min()) < 0):
        raise InvalidArgument(f"rows of {spec.nranks} members are expected, and given are {rows.tolist()!s:.60}")
    reach = np.zeros((spec.nranks, NBUFS), np.uint64)
    reach[members, buf] = rows[members].astype(np.uint64) * np.uint64(row)
    return reach


def _plan(
    spec: Spec, rank: int, path: str, policy: str, cores: int, slices: np.ndarray, units: np.ndarray,
    operands: np.ndarray, core_begin: np.ndarray, reach: np.ndarray, makespan: int, bound: int, rows: Any,
) -> Plan:  # fmt: skip
    return Plan(
        spec=spec,
        rank=rank,
        algorithm="full_mesh",
        path=path,
        policy=policy,
        cores=cores,
        needs_done=remote(spec),
        scratch=0,
        slices=slices,
        units=units,
        operands=operands,
        core_begin=core_begin,
        buffer_bytes=reach,
        makespan_ps=makespan,
        bound_ps=bound,
        rows=rows,
    )
