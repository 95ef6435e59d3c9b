"""The baseline: dispatch and combine by what every library has, an all_to_all_v, with packing before and sums after.

*high* packs rows by destination, each once for a destination as `strata.moe` does, and the choices and their weights
beside them. *low* packs a row for each choice, by expert, and spreads what comes over experts' windows. Rows come
back the same way, and are added in float32. All of it at C speed: `np.take` packs, the collective is the library's,
zero-copy between packs, and sums are by the kernel that `strata.moe` has, from the pack.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

import strata
from strata._core.array import dtype_code
from strata._core.rows import Column, rows_handle, run_rows
from strata.plan.moe import combine_plan
from strata.plan.moe.windows import Sums


def take(table: Any, rows: Any, out: Any) -> None:
    """Rows of a bfloat16 table; as integers, which numpy copies faster."""
    np.take(table.view(np.uint16), rows, axis=0, out=out.view(np.uint16), mode="clip")


class _Staged:
    def __init__(self, group: Any, most: int, hidden: int) -> None:
        self.group = group
        self.pack = strata.empty((most, hidden), bfloat16)
        self.times: dict[str, float] = {}

    def lap(self, name: str, begin: float) -> float:
        now = time.perf_counter()
        self.times[name] = self.times.get(name, 0.0) + now - begin
        return now

    def add(self, entries: Any, weights: Any, out: Any) -> None:
        """``entries`` (tokens, k): rows of the pack whose sum, by ``weights``, is each row of ``out``; -1: none."""
        n, rank = self.group.size, self.group.rank
        pairs, room = np.zeros((n, n), np.int64), np.zeros(n, np.int64)
        pairs[rank, rank] = room[rank] = len(self.pack)
        sums = Sums(rank, pairs, np.array([rank]), np.zeros(n, np.int64), room)
        plan = combine_plan(sums, entries.astype(np.uint64), self.pack.strides[0], dtype_code(out.dtype))
        src, limit = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
        src[rank], limit[rank] = strata.address(self.pack), self.pack.nbytes
        run_rows(self.group, rows_handle(plan, n), [Column(src, limit, out, (None, None), weights)])


class High(_Staged):
    """``most``: rows that a die sends at most."""

    def __init__(self, group: Any, most: int, hidden: int, topk: int) -> None:
        super().__init__(group, most, hidden)
        self.choices = strata.empty(most, np.dtype([("idx", "i8", (topk,)), ("weights", "f4", (topk,))]))

    def dispatch(self, x: Any, idx: Any, weights: Any, in_rank: Any) -> tuple[Any, Any]:
        """Rows received, by source and token, and their choices."""
        begin = time.perf_counter()
        dies, self.token = np.nonzero(in_rank.T)
        self.count, total = np.bincount(dies, minlength=self.group.size), len(dies)
        self.entries = np.full(in_rank.shape, -1)
        self.entries[self.token, (np.cumsum(in_rank, axis=1) - 1)[self.token, dies]] = np.arange(total)
        take(x, self.token, self.pack[:total])
        self.choices["idx"][:total], self.choices["weights"][:total] = idx[self.token], weights[self.token]
        begin = self.lap("pack", begin)
        rows = self.group.all_to_all_v(self.pack[:total], self.count)
        got = self.group.all_to_all_v(self.choices[:total], self.count)
        self.lap("all_to_all_v", begin)
        return rows, got

    def combine(self, rows: Any, received: Any, out: Any) -> Any:
        """``rows`` by source, ``received`` of each; sums into ``out``."""
        begin = time.perf_counter()
        back = self.pack[: len(self.token)]
        self.group.all_to_all_v(rows, received, out=back, recv_counts=self.count)
        begin = self.lap("all_to_all_v", begin)
        self.add(self.entries, None, out)
        self.lap("sum", begin)
        return out


class Low(_Staged):
    """Experts divide evenly among dies."""

    def __init__(self, group: Any, tokens: int, hidden: int, topk: int, experts: int) -> None:
        super().__init__(group, tokens * topk, hidden)
        self.most, self.local, self.experts = tokens * group.size, experts // group.size, experts
        self.windows = strata.empty((self.local, self.most, hidden), bfloat16)
        self.flat = self.windows.reshape(-1, hidden)

    def dispatch(self, x: Any, idx: Any) -> Any:
        """Windows (experts here, rows, hidden)."""
        begin = time.perf_counter()
        self.chosen = np.argsort(idx.ravel(), kind="stable")
        self.token = self.chosen // idx.shape[1]
        take(x, self.token, self.pack)
        self.expert_counts = np.bincount(idx.ravel(), minlength=self.experts)
        self.count = self.expert_counts.reshape(self.group.size, -1).sum(axis=1)
        begin = self.lap("pack", begin)
        table = self.group.all_to_all(self.expert_counts.reshape(self.group.size, -1))  # [source, expert]
        self.received = table.sum(axis=1)
        rows = self.group.all_to_all_v(self.pack, self.count, recv_counts=self.received)
        begin = self.lap("all_to_all_v", begin)
        at = np.cumsum(table, axis=0) - table + np.arange(self.local) * self.most  # in windows, by source
        counts = table.ravel()
        self.at = np.repeat(at.ravel() - np.cumsum(counts) + counts, counts) + np.arange(len(rows))
        self.flat.view(np.uint16)[self.at] = rows.view(np.uint16)
        self.rows = rows
        self.lap("spread", begin)
        return self.windows

    def combine(self, windows: Any, weights: Any, out: Any) -> Any:
        begin = time.perf_counter()
        take(windows.reshape(self.flat.shape), self.at, self.rows)
        begin = self.lap("gather", begin)
        self.group.all_to_all_v(self.rows, self.received, out=self.pack, recv_counts=self.count)
        begin = self.lap("all_to_all_v", begin)
        entries = np.empty(weights.size, np.int64)
        entries[self.chosen] = np.arange(weights.size)
        self.add(entries.reshape(weights.shape), weights, out)
        self.lap("sum", begin)
        return out
