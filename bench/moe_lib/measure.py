"""What the dies of bench/moe.py do."""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import bfloat16

import strata
from strata import moe
from strata._core.array import dtype_code
from strata.plan import moe as plans
from strata.plan.records import ROWS

from . import staged

TOKENS = {"high": 4096, "low": 128, "partition": 512, "rounds": 512}
ROUNDS = {"high": 5, "low": 30, "partition": 5, "rounds": 300}


class Task(NamedTuple):
    tokens: int
    hidden: int
    topk: int
    experts: int
    rounds: int
    zipf: float
    cores: int
    seed: int

    @classmethod
    def of(cls, question: str, options: Any) -> Task:
        return cls(
            options.tokens or TOKENS[question], options.hidden, options.topk, options.experts,
            options.rounds or ROUNDS[question], options.zipf, options.cores, options.seed,
        )  # fmt: skip


def choices(task: Task, rank: int, step: int = 0, zipf: float = 0.0) -> np.ndarray:
    """(tokens, topk): experts without repetition; by Zipf's law if asked, the same experts popular on all dies."""
    rng = np.random.default_rng((task.seed, rank, step))
    score = rng.gumbel(size=(task.tokens, task.experts))
    if zipf:
        popular = np.random.default_rng(task.seed).permutation(task.experts) + 1
        score -= zipf * np.log(popular)
    return np.ascontiguousarray(np.argpartition(-score, task.topk - 1, axis=1)[:, : task.topk], dtype=np.int64)


def rows_of(task: Task, rank: int, dtype: Any = bfloat16) -> Any:
    """x: small integers, so that sums are exact."""
    x = strata.empty((task.tokens, task.hidden), dtype)
    x[:] = np.random.default_rng((task.seed, rank)).integers(-4, 5, (1, task.hidden)).astype(x.dtype)
    x[:, 0] = (np.arange(task.tokens) % 16).astype(x.dtype)
    return x


class Clock:
    """Seconds by name, of the slowest die each, over rounds."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rounds: dict[str, list[float]] = {}

    def add(self, **seconds: float) -> None:
        slowest = self.group.all_reduce(np.array(list(seconds.values())), op="max")
        for name, value in zip(seconds, slowest, strict=True):
            self.rounds.setdefault(name, []).append(float(value))

    def medians(self, skip: int = 1) -> dict[str, float]:
        return {name: statistics.median(values[skip:]) for name, values in self.rounds.items()}


def lap(group: Any, call: Any) -> tuple[Any, float]:
    """What a call returns, and its seconds; dies begin together."""
    group.barrier()
    begin = time.perf_counter()
    found = call()
    return found, time.perf_counter() - begin


# ---- high throughput -----------------------------------------------------------------


def high(task: Task) -> list[dict[str, Any]]:
    group = strata.world()
    buffer, x = moe.Buffer(group), rows_of(task, group.rank)
    idx, weights = choices(task, group.rank), np.full((task.tokens, task.topk), 0.5, np.float32)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, task.experts)
    table = group.all_gather(per_rank)
    old, out = staged.High(group, int(per_rank.sum()), task.hidden, task.topk), strata.empty_like(x)
    fresh, baseline = Clock(group), Clock(group)
    times_as_often = in_rank.sum(axis=1).astype(x.dtype)
    for _ in range(task.rounds + 1):
        (rows, *_, handle, _), down = lap(group, lambda: buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=idx, topk_weights=weights))  # fmt: skip
        (sums, *_), up = lap(group, lambda rows=rows, handle=handle: buffer.combine(rows, handle))
        fresh.add(dispatch=down, combine=up)
        assert (sums[:, 0] == x[:, 0] * times_as_often).all() and (sums[:, -1] == x[:, -1] * times_as_often).all()
        del rows, handle, sums
        old.times.clear()
        (rows, got), down = lap(group, lambda: old.dispatch(x, idx, weights, in_rank))
        _, up = lap(group, lambda rows=rows: old.combine(rows, table[:, group.rank], out))
        baseline.add(dispatch=down, combine=up, **old.times)
        assert (out[:, 0] == x[:, 0] * times_as_often).all() and (out[:, -1] == x[:, -1] * times_as_often).all()
        del rows, got
    spread, row = float(table.sum()) / group.size / task.tokens, task.hidden * 2
    return [
        {"system": "strata", **fresh.medians(), **_bytes(row, [(spread, spread)], [(spread, 1)])},
        {"system": "staged", **baseline.medians(),
         **_bytes(row, [(spread, spread)] * 2, [(spread, spread), (spread, 1)])},
    ]


def _bytes(row: int, dispatch: Any, combine: Any) -> dict[str, float]:
    """Bytes read and written per token, by the rows that each pass reads and writes for a token."""
    found = {}
    for name, passes in (("dispatch", dispatch), ("combine", combine)):
        found[f"{name}_read"] = row * sum(read for read, _ in passes)
        found[f"{name}_written"] = row * sum(written for _, written in passes)
    return found


# ---- low latency ---------------------------------------------------------------------


def low(task: Task) -> list[dict[str, Any]]:
    group = strata.world()
    size = moe.Buffer.get_low_latency_rdma_size_hint(task.tokens, task.hidden, group.size, task.experts)
    buffer, x = moe.Buffer(group, 0, size, low_latency_mode=True), rows_of(task, group.rank)
    idx, weights = choices(task, group.rank), np.full((task.tokens, task.topk), 0.5, np.float32)
    old, out = staged.Low(group, task.tokens, task.hidden, task.topk, task.experts), strata.empty_like(x)
    clocks = {name: Clock(group) for name in ("bfloat16", "float8", "staged")}
    half = (task.topk / 2) * x[:, 0].astype(np.float32)
    for _ in range(task.rounds + 1):
        old.times.clear()
        results, down = lap(group, lambda: old.dispatch(x, idx))
        _, up = lap(group, lambda results=results: old.combine(results, weights, out))
        clocks["staged"].add(dispatch=down, combine=up, **old.times)
        assert (out[:, 0] == half).all()
        for name in ("bfloat16", "float8"):
            (got, counts, handle, _, _), down = lap(group, lambda name=name: buffer.low_latency_dispatch(
                x, idx, task.tokens, task.experts, use_fp8=name == "float8"))  # fmt: skip
            if name == "bfloat16":  # experts' results lie as what they received, in the same place in both systems
                assert all((got[e, :c, 0] == results[e, :c, 0]).all() for e, c in enumerate(counts))
            del got
            (sums, *_), up = lap(group, lambda results=results, handle=handle: buffer.low_latency_combine(
                results, idx, weights, handle))  # fmt: skip
            clocks[name].add(dispatch=down, combine=up)
            assert (sums[:, 0] == half).all()
    k, row = task.topk, task.hidden * 2
    eighth = task.hidden + 4 * -(-task.hidden // 128)
    back = _bytes(row, [], [(k, 1)])
    small = {"dispatch_read": row + k * eighth, "dispatch_written": (1 + k) * eighth}
    return [
        {"system": "strata bfloat16", **clocks["bfloat16"].medians(), **_bytes(row, [(k, k)], [(k, 1)])},
        {"system": "strata float8", **clocks["float8"].medians(), **back, **small},
        {"system": "staged bfloat16", **clocks["staged"].medians(),
         **_bytes(row, [(k, k)] * 3, [(k, k), (k, k), (k, 1)])},
    ]  # fmt: skip


# ---- partition -----------------------------------------------------------------------


def partition(task: Task) -> list[dict[str, Any]]:
    """By mode and policy: loads of cores in the plans of all dies, and times."""
    group, found = strata.world(), []
    for mode in ("high_throughput", "low_latency"):
        if mode == "low_latency":  # whose windows have room for all tokens at each expert
            task = task._replace(tokens=-(-task.tokens // 8))
        idx = choices(task, group.rank, zipf=task.zipf)
        tables, x, weights = list(group.all_gather(idx)), rows_of(task, group.rank), np.ones(idx.shape, np.float32)
        size = moe.Buffer.get_low_latency_rdma_size_hint(task.tokens, task.hidden, group.size, task.experts)
        played = plans.played(tables, plans.Placement.default(task.experts, group.size), mode)
        buffers = {policy: moe.Buffer(group, 0, size, low_latency_mode=True, partition=policy, cores=task.cores)
                   for policy in ("naive", "balanced")}  # fmt: skip
        clocks = {policy: Clock(group) for policy in buffers}
        for _ in range(task.rounds + 1):
            for policy, buffer in buffers.items():
                clocks[policy].add(**_round(task, group, buffer, mode, x, idx, weights))
        for policy in buffers:
            pull = plans.dispatch_plans(played, 2 * task.hidden, task.cores, policy=policy)
            back = plans.combine_plans(played, 2 * task.hidden, dtype_code(x.dtype), task.cores, policy=policy)
            found.append({"mode": mode, "tokens": task.tokens, "system": policy, **clocks[policy].medians(),
                          **_spread("dispatch", pull), **_spread("combine", back)})  # fmt: skip
    return found


def _round(task: Task, group: Any, buffer: Any, mode: str, x: Any, idx: Any, weights: Any) -> dict[str, float]:
    """Seconds of a dispatch and a combine."""
    if mode == "low_latency":
        (rows, _, handle, *_), down = lap(group, lambda: buffer.low_latency_dispatch(
            x, idx, task.tokens, task.experts, use_fp8=False))  # fmt: skip
        _, up = lap(group, lambda: buffer.low_latency_combine(rows, idx, weights, handle))
        return {"dispatch": down, "combine": up}
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, task.experts)
    (rows, *_, handle, _), down = lap(group, lambda: buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert))  # fmt: skip
    _, up = lap(group, lambda: buffer.combine(rows, handle))
    return {"dispatch": down, "combine": up}


def _spread(name: str, made: list[Any]) -> dict[str, float]:
    """Bytes of the busiest core over the mean of its die's: of the worst die, and the median; and of the die that is
    slowest by the cost model, how long it takes, and the bound."""
    loads = [np.bincount(plan.units["core"], _moved(plan), minlength=plan.cores) for plan in made]
    over = [float(load.max() / load.mean()) for load in loads if load.any()] or [1.0]
    slowest = max(made, key=lambda plan: int(plan.makespan_ps))
    return {f"{name}_spread": max(over), f"{name}_spread_median": statistics.median(over),
            f"{name}_model_us": slowest.makespan_ps / 1e6, f"{name}_bound_us": slowest.bound_ps / 1e6}  # fmt: skip


def _moved(plan: Any) -> np.ndarray:
    """Bytes that each unit reads; of a sum, of all its entries."""
    units = plan.units
    if not len(units) or units["kind"][0] == ROWS:
        return units["bytes"].astype(float)
    entries = np.cumsum(np.append(0, plan.rows != ~np.uint64(0)))
    end = units["index"] + units["bytes"] // units["row"] * units["total"]
    return (entries[end.astype(int)] - entries[units["index"].astype(int)]) * units["row"].astype(float)


# ---- rounds whose routing changes ----------------------------------------------------


def rounds(task: Task) -> list[dict[str, Any]]:
    """Every round has other tokens, other experts and so other sizes; results are held for a round, as programs do."""
    group = strata.world()
    buffer, held = moe.Buffer(group), None
    waited, wait_ns, memory = 0, 0, []
    for step in range(task.rounds):
        rng = np.random.default_rng((task.seed, step, group.rank))
        mine = task._replace(tokens=int(rng.integers(task.tokens // 2, task.tokens + 1)))
        idx = choices(mine, group.rank, step, zipf=float(rng.choice((0.0, 0.8, 1.2))))
        x = rows_of(mine, group.rank)
        before = strata.stats()
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, task.experts)
        rows, *_, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
            topk_idx=idx, topk_weights=np.ones(idx.shape, np.float32))  # fmt: skip
        sums = buffer.combine(rows, handle)[0]
        after = strata.stats()
        assert (sums[:, 0] == x[:, 0] * in_rank.sum(axis=1).astype(x.dtype)).all()
        late = after["late_maps"] - before["late_maps"]
        waited, wait_ns = waited + bool(late), wait_ns + after["late_map_ns"] - before["late_map_ns"]
        memory.append(after["memory"])
        held = (x, rows, handle, sums)
    del held
    return _everyone(group, {"waited": waited / task.rounds, "wait_us": wait_ns / 1e3 / task.rounds, **_growth(memory)})


def _growth(memory: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes of the fabric that the die had in use, and reserved: the most in each third of the rounds."""
    third, found = len(memory) // 3, {}
    for name, key in (("used", "allocated_bytes.all.peak"), ("reserved", "reserved_bytes.all.current")):
        values = [m[key] for m in memory]
        found |= {f"{name}_{k}": max(values[k * third : (k + 1) * third]) for k in range(3)}
    return found


def _everyone(group: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Each die's row, on all dies."""
    table = group.all_gather(np.array(list(row.values()), float))
    return [{"system": f"die {die}", **dict(zip(row, map(float, mine), strict=True))} for die, mine in enumerate(table)]
