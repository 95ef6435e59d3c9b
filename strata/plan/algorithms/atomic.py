"""atomic: reductions by atomic read-modify-write of the target, peers' operands in no order.

Every member owns a share of all_reduce (its block of reduce_scatter): its own operand goes into OUT
first, then its cores accumulate the peers' onto it, each as it comes, several at a time; all_reduce
ends with an all_gather of shares.  In reduce the members push their operands onto the root's OUT,
all at once.  Small floats are rounded at every operand, and the bits depend on who was first.
"""

from __future__ import annotations

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontend
from strata.plan.records import (
    ATOMIC,
    DTYPE_NAMES,
    NONE,
    OP_NAMES,
    OUT,
    PUSH,
    SRC,
    SYNC_SLICE,
)
from strata.plan.spec import REDUCTIONS, Spec
from strata.plan.topology import Topology

_THERE, _SUMMED = 0, 1  # flags: own operand is in OUT; the share is complete


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    n, root = spec.nranks, spec.root
    if n == 1 or not spec.part:
        return frontend(spec, rank)
    if spec.operation == "reduce":
        if rank != root:
            return t.made(kind=PUSH, peer=root, src_buf=SRC, dst_buf=OUT, bytes=spec.part, op=spec.redop,
                          wait_peer=root, wait_flag=_THERE, flags=ATOMIC)  # fmt: skip
        there = t.own_copy(spec, rank) if not spec.in_place else t.made(kind=SYNC_SLICE, peer=rank, bytes=1)
        there["post_flag"] = _THERE
        there["bytes"][there["kind"] == SYNC_SLICE] = 0
        return there
    peers = (np.arange(1, n) + rank) % n
    if spec.operation == "reduce_scatter":
        return t.ordered(*_accumulated(spec, rank, peers, rank * spec.part, 0, spec.part))
    blocks = t.shares(spec, n)
    start = int(blocks.start[rank])
    shared = t.made(peer=peers, src_buf=OUT, dst_buf=OUT, src=blocks.start[peers], dst=blocks.start[peers],
                    bytes=blocks.bytes[peers], wait_peer=peers, wait_flag=_SUMMED, step=2)  # fmt: skip
    return t.ordered(*_accumulated(spec, rank, peers, start, start, int(blocks.bytes[rank])), shared)


def _accumulated(spec: Spec, rank: int, peers: np.ndarray, src: int, dst: int, nbytes: int) -> list[np.ndarray]:
    """Own operand into OUT, unless it is there, and the peers' onto it."""
    ends = {"src_buf": SRC, "src": src, "dst_buf": OUT, "dst": dst, "bytes": nbytes}
    wait = (NONE, NONE) if spec.in_place else (rank, _THERE)
    own = [] if spec.in_place else [t.made(peer=rank, post_flag=_THERE, **ends)]
    return [*own, t.made(peer=peers, op=spec.redop, flags=ATOMIC, wait_peer=wait[0], wait_flag=wait[1],
                         post_flag=_SUMMED, step=1, **ends)]  # fmt: skip


def _refuses(spec: Spec, topology: Topology) -> str | None:
    if spec.nranks == 1:
        return None
    dtype, op = DTYPE_NAMES[spec.dtype], OP_NAMES[spec.redop]
    if op == "avg":
        return "a mean cannot be accumulated operand by operand; reduce with sum and divide"
    if dtype == "c128" and op == "prod":
        return "there is no atomic product of 16-byte elements"
    return None


ATOMIC_RMW = Algorithm(
    "atomic",
    REDUCTIONS,
    _slices,
    refuses=_refuses,
    order="the member's (reduce: the root's) own operand first, then the others in no order; small floats are rounded "
    "at each",
    chosen_freely=False,
)
