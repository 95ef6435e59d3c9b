"""staged: the buffer-centric baseline; every operation goes through the library's own buffers.

Sources are copied into scratch, moved from scratch to scratch as full mesh moves them, and results
copied out: (1 + N) M bytes copied by a member of an all_gather of M bytes each, which zero-copy
algorithms do without (``Plan.staged_bytes``).
"""

from __future__ import annotations

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontend
from strata.plan.frontends._common import LINE
from strata.plan.operations import sizes
from strata.plan.records import OUT, PULL, PUSH, SCRATCH, SRC
from strata.plan.spec import OPERATIONS, Spec
from strata.plan.topology import Topology

_IN, _MOVED = 0, 1  # flags: the source is in scratch; what the member moves has arrived


def _results(spec: Spec, rank: int) -> int:
    """Where results lie in a member's scratch: after its sources, at a line."""
    return -(-sizes(spec, rank)[0] // LINE) * LINE


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    n = spec.nranks
    apart = spec._replace(in_place=False)
    if n == 1:
        return frontend(spec, rank)
    taken = t.made(peer=rank, src_buf=SRC, dst_buf=SCRATCH, bytes=sizes(spec, rank)[0], post_flag=_IN)
    plain = [frontend(apart, m) for m in range(n)]
    moved = plain[rank].copy()
    moved["step"] = 1
    into = moved["dst_buf"] == OUT
    pull, push = moved["kind"] == PULL, moved["kind"] == PUSH
    at = np.array([_results(spec, m) for m in range(n)], np.uint64)
    moved["src_buf"] = SCRATCH
    moved["wait_peer"][pull], moved["wait_flag"][pull] = moved["peer"][pull], _IN
    moved["dst"][into & pull] += at[rank]
    moved["src"][push & (plain[rank]["src_buf"] == OUT)] += at[rank]
    moved["dst"][push] += at[moved["peer"][push]]
    moved["dst_buf"] = SCRATCH
    moved["post_flag"] = _MOVED
    return np.concatenate((taken, moved, _given(plain, rank, int(at[rank]))))


def _given(plain: list[np.ndarray], rank: int, at: int) -> np.ndarray:
    """Results from scratch to OUT, as soon as those who bring them have: the member itself, or peers' pushes."""
    parts = []
    for m, theirs in enumerate(plain):
        mine = (theirs["kind"] == PULL) & (theirs["dst_buf"] == OUT) & (m == rank)
        brought = theirs[mine | ((theirs["kind"] == PUSH) & (theirs["peer"] == rank))]
        place, first = np.unique(brought["dst"], return_index=True)
        parts.append(t.made(peer=rank, src_buf=SCRATCH, src=place.astype(np.int64) + at, dst_buf=OUT, dst=place,
                            bytes=brought["bytes"][first], wait_peer=m, wait_flag=_MOVED, step=2))  # fmt: skip
    return t.merged(np.concatenate(parts))


def _scratch(spec: Spec, rank: int, topology: Topology) -> int:
    return 0 if spec.nranks == 1 else _results(spec, rank) + sizes(spec, rank)[1]


STAGED = Algorithm(
    "staged",
    frozenset(OPERATIONS) - {"barrier"},
    _slices,
    _scratch,
    exposes_out=False,
    order="rank order, one unit takes all operands, as in full_mesh",
    rank_order=True,
    chosen_freely=False,
)
