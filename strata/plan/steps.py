"""Plans of several steps: runs of slices one after another on every core, with their flags."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from strata.errors import InvalidArgument
from strata.plan import partition
from strata.plan.cost import Cost
from strata.plan.frontends._common import LINE, grain
from strata.plan.records import (
    ACCUMULATE,
    ATOMIC,
    COPY,
    NBUFS,
    NONE,
    OP_NAMES,
    OPERAND_DTYPE,
    PARTIAL,
    PARTIAL_DST,
    PARTIAL_SRC,
    PUSH,
    REDUCE,
    SYNC,
    SYNC_SLICE,
    TRANSIENT,
    UNIT_DTYPE,
    partial_bytes,
)
from strata.plan.spec import Spec
from strata.plan.topology import Tiers


class _Piece:
    """What is cut into units: operands as (member, buf, flags, offset), and what it waits for."""

    def __init__(self, kind: int, first: Any, sources: list, targets: list, waits: list, post: int):
        self.kind, self.first, self.sources, self.targets = kind, first, sources, targets
        self.waits, self.post = waits, post
        self.peers = {o[0] for o in sources + targets}


def schedule_steps(slices: np.ndarray, spec: Spec, rank: int, cores: int, *, policy: str, cost: Cost, tiers: Tiers,
                   local_first: bool):  # fmt: skip
    """units, operands, core_begin, extents, loads, largest unit: see ``schedule``."""
    lists: list[list] = [[] for _ in range(cores)]
    loads = np.zeros(cores, np.int64)
    largest = 0
    numbered = list(enumerate(slices))
    for (sync, step), run in groupby(numbered, lambda s: (s[1]["kind"] == SYNC_SLICE, int(s[1]["step"]))):
        if sync:
            for number, s in run:
                wait = [(int(s["wait_peer"]), int(s["wait_flag"]))] if s["wait_flag"] != NONE else []
                for core in lists:
                    core.append(_unit(SYNC, number, step, wait, int(s["post_flag"])))
            continue
        units, expense, peer, share = _units(list(run), spec, rank, tiers, cost, local_first)
        if cores == 1:
            placed = partition.one_core(expense)
        else:
            place = partition.balanced if policy == "balanced" else partition.naive
            turn = np.where(peer < 0, -2, (peer - (rank + 1)) % spec.nranks)
            cap = cost.caps[[u["tier"] for u in units]] if units else expense
            placed = place(expense, peer, turn, share, cores, cap)
        for at, core in zip(placed.order.tolist(), placed.core.tolist(), strict=True):
            lists[core].append(units[at])
        loads += placed.loads
        largest = max(largest, int(expense.max(initial=0)))
    return (*_arrays(lists, spec, rank), loads, largest)


def _unit(kind: int, number: int, step: int, waits: list, post: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "slice": number, "step": step, "waits": waits, "post": post, "sources": [], "targets": [],
            "tier": 0, "bytes": 0, "op": 0, "total": 0, **more}  # fmt: skip


def _pieces(run: list, spec: Spec, rank: int) -> list[_Piece]:
    fused: dict[tuple, list] = {}
    single, sends = [], {}
    for number, s in run:
        if s["kind"] == PUSH and not s["op"]:
            sends.setdefault((int(s["src_buf"]), int(s["src"]), int(s["bytes"])), []).append((number, s))
    used: set[int] = set()
    for number, s in run:
        if s["op"] and not s["flags"] & ATOMIC:
            if s["kind"] == PUSH:
                raise InvalidArgument("a push with an operator must be atomic")
            fused.setdefault((int(s["dst_buf"]), int(s["dst"]), int(s["bytes"])), []).append((number, s))
    pieces = []
    for key, pulled in fused.items():
        pushed = sends.get(key, [])
        used.update(n for n, _ in pushed)
        first = pulled[0][1]
        transient = bool(first["flags"] & TRANSIENT)
        if transient and not pushed:
            raise InvalidArgument("a transient reduction that is pushed nowhere")
        sources = [_end(s, int(s["peer"]), "src", PARTIAL_SRC) for _, s in pulled]
        targets = [] if transient else [_end(first, rank, "dst", PARTIAL_DST)]
        targets += [_end(s, int(s["peer"]), "dst", PARTIAL_DST) for _, s in pushed]
        everyone = [s for _, s in pulled + pushed]
        posts = {int(s["post_flag"]) for s in everyone} - {NONE}
        if len(posts) > 1 or len({int(s["op"]) for _, s in pulled}) > 1:
            raise InvalidArgument("slices of one destination have different operators or post different flags")
        pieces.append(_Piece(REDUCE, pulled[0], sources, targets, _waits(everyone), posts.pop() if posts else NONE))
    for number, s in run:
        if number in used or (s["op"] and not s["flags"] & ATOMIC):
            continue
        peer = int(s["peer"])
        push = s["kind"] == PUSH
        source = _end(s, rank if push else peer, "src", 0)
        target = _end(s, peer if push else rank, "dst", 0)
        kind = ACCUMULATE if s["op"] else COPY
        single.append(_Piece(kind, (number, s), [source], [target], _waits([s]), int(s["post_flag"])))
    single.sort(key=lambda p: (int(p.first[1]["peer"]) - rank - 1) % spec.nranks)
    return pieces + single


def _end(s: Any, member: int, side: str, flag: int) -> tuple[int, int, int, int]:
    return member, int(s[f"{side}_buf"]), PARTIAL if s["flags"] & flag else 0, int(s[side])


def _waits(slices: list) -> list[tuple[int, int]]:
    found = {(int(s["wait_peer"]), int(s["wait_flag"])): None for s in slices if s["wait_flag"] != NONE}
    return list(found)


def _units(run: list, spec: Spec, rank: int, tiers: Tiers, cost: Cost, local_first: bool):
    units, expense, peers, shares = [], [], [], []
    for piece in _pieces(run, spec, rank):
        number, s = piece.first
        nbytes, op = int(s["bytes"]), int(s["op"])
        legs = tiers(rank, np.array(sorted(piece.peers), np.int64))
        tier = int(max(legs))
        unit = grain(spec.itemsize) if op else LINE
        size = max(int(cost.units[tier]) // unit, 1) * unit
        count = -(-nbytes // size)
        size = -(-nbytes // (count * unit)) * unit
        wide = partial_bytes(spec.dtype, op) if op else 1
        total = spec.nranks if op and OP_NAMES[op] == "avg" else 0
        for begin in range(0, nbytes, size):
            length = min(size, nbytes - begin)
            shift = (begin, begin // max(spec.itemsize, 1) * wide)
            units.append(_unit(piece.kind, number, int(s["step"]), piece.waits, piece.post,
                               sources=_moved(piece.sources, *shift), targets=_moved(piece.targets, *shift),
                               tier=tier, bytes=length, op=op, total=total))  # fmt: skip
            rate = cost.ps_per_byte[tier] * max(len(piece.sources), 1)
            expense.append(int(cost.alpha_ps[tier]) + round(length * rate))
            peers.append(int(s["peer"]) if piece.kind != REDUCE else -1)
            shares.append(begin / nbytes)
    return units, np.array(expense, np.int64), np.array(peers, np.int64), np.array(shares)


def _moved(ends: list, whole: int, partial: int) -> list:
    return [(m, buf, flags, offset + (partial if flags else whole)) for m, buf, flags, offset in ends]


def _arrays(lists: list[list], spec: Spec, rank: int):
    units, operands, begin = [], [], [0]
    reach = np.zeros((spec.nranks, NBUFS), np.uint64)
    for core, todo in enumerate(lists):
        waited: set = set()
        for u in todo:
            waits = [w for w in u["waits"] if w not in waited]
            waited.update(waits)
            for extra in waits[:-1]:
                units.append(_record(_unit(SYNC, u["slice"], u["step"], [extra], NONE), core, 0, spec))
            u = {**u, "waits": waits[-1:]}
            if u["kind"] == SYNC and not waits and u["post"] == NONE:
                continue
            units.append(_record(u, core, len(operands), spec))
            for m, buf, flags, offset in u["sources"] + u["targets"]:
                operands.append((m, buf, flags, (0, 0), offset))
                wide = u["bytes"] // max(spec.itemsize, 1) * partial_bytes(spec.dtype, u["op"]) if flags else u["bytes"]
                reach[m, buf] = max(int(reach[m, buf]), offset + wide)
        begin.append(len(units))
    made = np.array(units, UNIT_DTYPE) if units else np.zeros(0, UNIT_DTYPE)
    return made, np.array(operands, OPERAND_DTYPE), np.array(begin, np.uint32), reach


def _record(u: dict[str, Any], core: int, first: int, spec: Spec) -> tuple:
    peer, flag = u["waits"][0] if u["waits"] else (NONE, NONE)
    nsrc, ndst = len(u["sources"]), len(u["targets"])
    return (u["kind"], u["op"], spec.dtype, u["tier"], core, 0, nsrc, ndst, first, first + nsrc, 0, u["bytes"], peer,
            flag, u["post"], u["slice"], u["total"], u["step"], (0,) * 12)  # fmt: skip
