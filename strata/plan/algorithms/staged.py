"""staged: the buffer-centric baseline; every operation goes through the library's own buffers.

Sources are copied into scratch, moved from scratch to scratch as full mesh moves them, and results
copied out: (1 + N) M bytes copied by a member of an all_gather of M bytes each, which zero-copy
algorithms do without (``Plan.staged_bytes``).
"""

from __future__ import annotations

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontends
from strata.plan.frontends._common import LINE, joined
from strata.plan.operations import sizes
from strata.plan.records import OUT, PULL, PUSH, SCRATCH, SRC
from strata.plan.spec import OPERATIONS, Spec
from strata.plan.topology import Topology

PUSHED = ("all_reduce", "reduce")  # operations whose members push, unless from mailboxes
_IN, _MOVED = 0, 1  # flags: the source is in scratch; what the member moves has arrived


def _results(spec: Spec, rank: int) -> int:
    """Where results lie in a member's scratch: after its sources, at a line."""
    return -(-sizes(spec, rank)[0] // LINE) * LINE


class _Moves:
    """What members move as full mesh moves it: what some of them pull and push, and what others push to them."""

    def __init__(self, spec: Spec, ranks: np.ndarray) -> None:
        self.spec = spec
        if spec.operation in PUSHED and spec.mode == "zero_copy":
            everyone = np.arange(spec.nranks)
            plain = frontends(spec, everyone)
            pushes = joined(*plain)
            member = np.repeat(everyone, [len(own) for own in plain])
            which = np.flatnonzero(pushes["kind"] == PUSH)
            which = which[np.argsort(pushes["peer"][which], kind="stable")]
            self._pushes, self._by = pushes[which], member[which]
            self._first = np.searchsorted(self._pushes["peer"], np.arange(spec.nranks + 1))
            self._plain = {rank: plain[rank] for rank in ranks.tolist()}
            self.results = np.array([_results(spec, m) for m in range(spec.nranks)], np.uint64)
        else:
            self._plain = dict(zip(ranks.tolist(), frontends(spec, ranks), strict=True))
            self.results = np.zeros(spec.nranks, np.uint64)
            for rank in ranks.tolist():
                self.results[rank] = _results(spec, rank)

    def plain(self, rank: int) -> np.ndarray:
        """The member's slices under full mesh; they may be others' too."""
        return self._plain[rank]

    def pushed(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Others' pushes to the member, and whose they are."""
        if self.spec.operation not in PUSHED or self.spec.mode != "zero_copy":
            return self._plain[rank][:0], np.zeros(0, np.int64)
        mine = slice(self._first[rank], self._first[rank + 1])
        return self._pushes[mine], self._by[mine]


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    return _many(spec, np.array((rank,)), topology)[0]


def _many(spec: Spec, ranks: np.ndarray, topology: Topology) -> list[np.ndarray]:
    if spec.nranks == 1:
        return frontends(spec, ranks)
    moves = _Moves(spec._replace(in_place=False), ranks)
    return [_staged(spec, rank, moves) for rank in ranks.tolist()]


def _staged(spec: Spec, rank: int, moves: _Moves) -> np.ndarray:
    taken = t.made(peer=rank, src_buf=SRC, dst_buf=SCRATCH, bytes=sizes(spec, rank)[0], post_flag=_IN)
    plain = moves.plain(rank)
    moved = plain.copy()
    moved["step"] = 1
    into = moved["dst_buf"] == OUT
    pull, push = moved["kind"] == PULL, moved["kind"] == PUSH
    moved["src_buf"] = SCRATCH
    moved["wait_peer"][pull], moved["wait_flag"][pull] = moved["peer"][pull], _IN
    moved["dst"][into & pull] += moves.results[rank]
    moved["src"][push & (plain["src_buf"] == OUT)] += moves.results[rank]
    moved["dst"][push] += moves.results[moved["peer"][push]]
    moved["dst_buf"] = SCRATCH
    moved["post_flag"] = _MOVED
    return joined(taken, moved, _given(moves, rank))


def _given(moves: _Moves, rank: int) -> np.ndarray:
    """Results from scratch to OUT, as soon as those who bring them have: the member itself, or peers' pushes."""
    plain = moves.plain(rank)
    own = plain[(plain["kind"] == PULL) & (plain["dst_buf"] == OUT)]
    pushed, by = moves.pushed(rank)
    brought, by = joined(own, pushed), np.concatenate((np.full(len(own), rank), by))
    order = np.lexsort((brought["dst"], by))  # stable: of what is brought to one place the first
    brought, by = brought[order], by[order]
    first = np.ones(len(by), bool)
    first[1:] = (by[1:] != by[:-1]) | (brought["dst"][1:] != brought["dst"][:-1])
    brought, by = brought[first], by[first]
    place = brought["dst"]
    return t.merged(t.made(peer=rank, src_buf=SCRATCH, src=place + moves.results[rank], dst_buf=OUT, dst=place,
                           bytes=brought["bytes"], wait_peer=by, wait_flag=_MOVED, step=2))  # fmt: skip


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
    many=_many,
    chosen_freely=False,
)
