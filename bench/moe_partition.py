#!/usr/bin/env python3
"""What does planning a dispatch and a combine cost a die, over members and tokens?

Nothing moves: one die of CloudMatrix384 plans its part, for routings drawn by Zipf's law, again and again; medians of
microseconds. *layout* are the passes over its own tokens (counts, lists, positions), *lists* what puts the others'
lists together and makes combine's entries and prices: both grow with tokens. *windows* and *plan* are the partition,
from counts to units on cores: these do not, beyond a bound on units for each core.

    bench/moe_partition.py                                   # 32 and 256 ranks, 128 and 16384 tokens
    bench/moe_partition.py --ranks 8 --tokens 4096 --json moe_partition.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_lib.lines import Kind, write

from strata._core import routing as passes
from strata.machine import load
from strata.plan import Plan
from strata.plan.moe import Placement, combine_plan, dispatch_plan, routing, tariff, windows
from strata.plan.records import DTYPE_NAMES

CM384 = load("cm384")
MACHINE: dict[str, Any] = {"cost": CM384.cost, "topology": CM384.place}
BF16 = DTYPE_NAMES.index("bf16")
TABLES = 4  # dies share so many routings in turn: only counts matter, and drawing takes long
COLUMNS = ("layout", "windows", "lists", "plan")
KINDS = {"moe_partition": Kind(("ranks", "tokens", "mode", "operation", "cores"),
                               less=tuple(f"{c}_us" for c in COLUMNS))}


def median(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of one call, the median over ``seconds``."""
    call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


class Die:
    """One die of a round, and the steps of its planning."""

    def __init__(self, mode: str, ranks: int, tokens: int, options: argparse.Namespace) -> None:
        self.mode, self.ranks, self.tokens = mode, ranks, tokens
        self.rank, self.cores, self.row, self.policy = ranks // 2, options.cores, options.hidden * 2, options.policy
        self.place = Placement.default(max(options.experts, ranks), ranks)
        drawn = routing.zipf(TABLES, tokens, options.topk, self.place.experts, options.zipf, options.seed)
        self.tables = [table.astype(np.int64) for table in drawn.steps[0]]
        made = [self._passed(table) for table in self.tables]
        self.counts = np.stack([made[r % TABLES][1] for r in range(ranks)])
        self.lists: list[np.ndarray | None] = [made[r % TABLES][2] for r in range(ranks)]
        self.slot, _, _, self.position = made[self.rank % TABLES]
        self.all_tokens = np.full(ranks, tokens)

    def _passed(self, table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        slot = self.place.physical(table, self.rank)
        if self.mode == "low_latency":
            return slot, *passes.by_slot(slot, self.place.slots)
        return slot, *passes.by_rank(passes.layout(slot, self.place.first)[2])

    def layout(self) -> object:
        return self._passed(self.tables[self.rank % TABLES])

    def windows(self) -> windows.Windows:
        if self.mode == "low_latency":
            return windows.low_latency(self.counts, self.place.first, self.rank, self.window)
        return windows.high_throughput(self.counts, self.rank)

    def sums(self) -> windows.Sums:
        if self.mode == "low_latency":
            return windows.low_latency_sums(self.counts, self.place.first, self.rank, self.window)
        return windows.high_throughput_sums(self.counts, self.rank)

    @property
    def window(self) -> int:
        return self.ranks * self.tokens

    def entries(self, sums: windows.Sums) -> tuple[np.ndarray, np.ndarray]:
        if self.mode == "low_latency":
            rows = passes.ll_entries(self.slot, self.position, sums.base, self.place.logical)[0]
        else:
            rows = passes.ht_entries(self.position, sums.base)
        return rows, passes.prices(rows, *tariff(sums.members, self.rank, self.ranks, **MACHINE))

    def dispatch(self, mine: windows.Windows, rows: np.ndarray) -> Plan:
        return dispatch_plan(mine, rows, self.row, self.all_tokens, self.cores, policy=self.policy, **MACHINE)

    def combine(self, mine: windows.Sums, rows: np.ndarray, prices: np.ndarray) -> Plan:
        return combine_plan(mine, rows, self.row, BF16, self.cores, prices=prices, policy=self.policy, **MACHINE)

    def rows(self, seconds: float) -> list[dict[str, Any]]:
        """Two results: dispatch and combine."""
        mine, sums = self.windows(), self.sums()
        gathered, entries = windows.gathered(self.lists, mine), self.entries(sums)
        what = {"ranks": self.ranks, "tokens": self.tokens, "mode": self.mode, "cores": self.cores}
        plans = {"dispatch": self.dispatch(mine, gathered).check(), "combine": self.combine(sums, *entries).check()}
        steps: dict[str, tuple[Callable[[], Any] | None, ...]] = {
            "dispatch": (self.layout, self.windows, lambda: windows.gathered(self.lists, mine),
                         lambda: self.dispatch(mine, gathered)),
            "combine": (None, self.sums, lambda: self.entries(sums), lambda: self.combine(sums, *entries)),
        }  # fmt: skip
        found = []
        for name, plan in plans.items():
            times = [0.0 if step is None else median(step, seconds) for step in steps[name]]
            row = {**what, "operation": name, "units": len(plan.units), "windows": len(plan.slices)}
            found.append({**row, **{f"{c}_us": t for c, t in zip(COLUMNS, times, strict=True)}})
        return found


def report(rows: list[dict[str, Any]]) -> str:
    """A line for each result."""
    lines = [f"{'ranks':>6}{'tokens':>8}  {'mode':<16}{'operation':<10}{'units':>7}"
             + "".join(f"{c:>10}" for c in COLUMNS)]  # fmt: skip
    for r in rows:
        cells = "".join(f"{r[f'{c}_us']:10.0f}" if r[f"{c}_us"] else f"{'-':>10}" for c in COLUMNS)
        lines.append(f"{r['ranks']:>6}{r['tokens']:>8}  {r['mode']:<16}{r['operation']:<10}{r['units']:>7}{cells}")
    return "\n".join(lines)


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """How the partition's time grows from the fewest tokens to the most."""
    least, most = (f(r["tokens"] for r in rows) for f in (min, max))
    found = []
    for r in rows:
        key = ("ranks", "mode", "operation")
        more = [s for s in rows if s["tokens"] == most and all(s[k] == r[k] for k in key)]
        if r["tokens"] == least and most > least:
            ratio = (more[0]["windows_us"] + more[0]["plan_us"]) / (r["windows_us"] + r["plan_us"])
            found.append(f"{r['ranks']} ranks, {r['mode']}, {r['operation']}: {most // least} times the tokens, "
                         f"{ratio:.2f} times the time of the partition")  # fmt: skip
    return found


def main(argv: list[str]) -> int:
    """Plans, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--tokens", nargs="+", type=int, default=[128, 16384], help="of each rank")
    parser.add_argument("--modes", nargs="+", choices=("high_throughput", "low_latency"),
                        default=["high_throughput", "low_latency"])  # fmt: skip
    parser.add_argument("--experts", type=int, default=256, help="at least one a rank is taken")
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=7168, help="bf16 elements of a row")
    parser.add_argument("--cores", type=int, default=24)
    parser.add_argument("--policy", choices=("balanced", "naive"), default="balanced")
    parser.add_argument("--zipf", type=float, default=1.2, help="exponent of the routing; 0 is uniform")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each timing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args(argv)
    if min(options.ranks) < 1 or min(options.tokens) < 1 or options.seconds < 0:
        parser.error("--ranks and --tokens are 1 or more, --seconds not negative")
    rows = []
    for ranks in options.ranks:
        for tokens in options.tokens:
            for mode in options.modes:
                rows += Die(mode, ranks, tokens, options).rows(options.seconds)
    print(report(rows), "", *growth(rows), sep="\n")
    write(options.json, "moe_partition", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
