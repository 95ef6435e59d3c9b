"""Rows on their way: from what members have posted to a plan, and the plan carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strata._core import array as codes
from strata._core import moe as core
from strata._core import routing
from strata.moe.handles import High, Low
from strata.plan.cost import Cost
from strata.plan.moe import combine_plan, dispatch_plan, windows
from strata.plan.plan import Plan
from strata.plan.records import DTYPE_BYTES
from strata.plan.topology import Topology

if TYPE_CHECKING:
    from strata.moe.rounds import Posted, Rounds

_F32 = codes.dtype_code(np.dtype(np.float32))


class How(NamedTuple):
    """Who moves rows, and in what pieces."""

    path: str
    cores: int
    partition: str
    cost: Cost
    topology: Topology

    def options(self) -> dict[str, Any]:
        return {"path": self.path, "policy": self.partition, "cost": self.cost, "topology": self.topology}


def dispatch(rounds: Rounds, posted: Posted, how: How, counts: np.ndarray, lists: list[np.ndarray],
             outs: list[np.ndarray], plans: dict[Any, Any]) -> None:
    """High throughput: the rows of ``lists``, by source, to the begin of ``outs``."""
    key = "dispatch", _row(outs), how
    handle = plans.get(key)
    if handle is None:
        mine = windows.high_throughput(counts, rounds.group.rank)
        handle = plans[key] = _handle(rounds, dispatch_plan(mine, np.concatenate(lists).astype(np.uint64), _row(outs),
                                                            _tokens(posted), how.cores, **how.options()))
    _run(rounds, posted, how, handle, outs)


def low_dispatch(rounds: Rounds, posted: Posted, how: How, counts: np.ndarray, low: Low, window: int,
                 lists: list[np.ndarray], outs: list[np.ndarray]) -> None:
    """Low latency: the rows of ``lists``, by source and then slot, to windows of so many rows of ``outs``.

    ``counts``  i64 (n, slots); of members that are left out 0
    """
    mine = windows.low_latency(counts, low.placement.first, rounds.group.rank, window)
    rows = np.concatenate(lists).astype(np.uint64)
    plan = dispatch_plan(mine, rows, _row(outs), _tokens(posted), how.cores, **how.options())
    _run(rounds, posted, how, _handle(rounds, plan), [out.reshape(-1, out.shape[-1]) for out in outs])


def combine_high(rounds: Rounds, posted: Posted, how: How, state: High, outs: list[np.ndarray],
                 biases: list[np.ndarray]) -> None:
    """Sums of the rows that dies have for this one's tokens, after the biases (of the first column)."""
    if not state.tokens:
        return
    key = "combine", _row(outs), how
    handle = state.plans.get(key)
    if handle is None:
        sums = windows.high_throughput_sums(state.counts, rounds.group.rank)
        entries = routing.ht_entries(state.position, sums.base)
        handle = state.plans[key] = _handle(rounds, combine_plan(sums, entries, _row(outs), _dtype(outs), how.cores,
                                                                 **how.options()))
    _run(rounds, posted, how, handle, outs, biases=biases)


def low_combine(rounds: Rounds, posted: Posted, how: How, state: Low, slot: np.ndarray, begins: np.ndarray,
                out: np.ndarray | None, window: int, weights: np.ndarray, result: np.ndarray) -> None:
    """Sums by weight of the rows in the windows of ``slot``.

    ``begins``  of each slot, where this die's rows begin in its window;  ``out``: members that are left out
    """
    if not len(result):
        return
    sums = windows.low_latency_sums(state.counts, state.placement.first, rounds.group.rank, window, out, begins)
    entries, order = routing.ll_entries(slot, state.position, sums.base, state.placement.logical)
    plan = combine_plan(sums, entries, _row([result]), _dtype([result]), how.cores, **how.options())
    _run(rounds, posted, how, _handle(rounds, plan), [result], weights[np.arange(len(order))[:, None], order])


def _row(columns: list[np.ndarray]) -> int:
    """Bytes of a row of all columns."""
    return sum(c.shape[-1] * c.dtype.itemsize for c in columns)


def _dtype(columns: list[np.ndarray]) -> int:
    """What a plan of sums says of its elements: the first column's, or float32 if a row is no whole number of them."""
    first = codes.dtype_code(columns[0].dtype)
    return _F32 if _row(columns) % DTYPE_BYTES[first] else first


def _tokens(posted: Posted) -> np.ndarray:
    assert posted.posts is not None
    return posted.posts["tokens"].astype(np.int64)


def _handle(rounds: Rounds, plan: Plan) -> Any:
    return core.rows_handle(plan, rounds.group.size, rounds.group.context.ndies)


def _run(rounds: Rounds, posted: Posted, how: How, handle: Any, outs: list[np.ndarray],
         weights: np.ndarray | None = None, biases: list[np.ndarray] | None = None) -> None:
    if not len(handle.plan.units):
        return
    assert posted.posts is not None
    made = []
    for c, out in enumerate(outs):
        first, second, *_ = *(biases or [] if c == 0 else []), None, None
        made.append(core.Column(posted.posts["at"][:, c], posted.posts["bytes"][:, c], out, (first, second), weights))
    if how.path == "sdma":
        core.run_rows_sdma(rounds.group, handle, made, rounds.timeout)
    else:
        core.run_rows(rounds.group, handle, made)
