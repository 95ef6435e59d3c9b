#!/usr/bin/env python3
"""What does an operation cost in a graph, against calls one by one, and against asynchronous ones?

A hundred operations of one kind on two dies, on one buffer each, in ways that take turns: ``sync`` calls them one
after another, ``async`` calls them with async_op=True and waits for the last, ``graph`` replays them as one descriptor
and waits. ``queued`` is a graph of which several replays are begun before the last is waited for. The figure is the
time of the slowest die for an operation, the median over the rounds; ``host_us`` is what the caller's thread spends
to begin it.

    bench/graph.py                                  # 8 B, 1 KiB, 64 KiB
    bench/graph.py -n 4 --ops all_reduce --sizes 8 1K --rounds 31 --json graph.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_lib.lines import ROUNDS, Kind, write

import strata
from strata.config import parse_size

OPS = ("all_reduce", "all_gather")
QUEUED = 4
WAYS = ("sync", "async", "graph", "queued")
KINDS = {"graph": Kind(("operation", "dies", "bytes", "operations"),
                       less=tuple(f"{way}{what}" for way in WAYS for what in ("_us", "_host_us")))}


def ways(group: strata.Group, op: str, nbytes: int, operations: int) -> dict[str, Callable[[], float]]:
    """Each carries the operations out and returns the seconds until all were begun; ``queued``: QUEUED times."""
    x = strata.zeros(max(1, nbytes // 4), "f4")
    out = strata.zeros((group.size, x.size), "f4") if op == "all_gather" else x
    call = getattr(group, op)
    with strata.capture(group) as graph:
        for _ in range(operations):
            call(x, out)

    def sync() -> float:
        begin = time.perf_counter()
        for _ in range(operations):
            call(x, out)
        return time.perf_counter() - begin

    def later(begin_all: Callable[[], Any]) -> Callable[[], float]:
        def run() -> float:
            begin = time.perf_counter()
            work = begin_all()
            begun = time.perf_counter() - begin
            work.wait()
            return begun

        return run

    return {
        "sync": sync,
        "async": later(lambda: [call(x, out, async_op=True) for _ in range(operations)][-1]),
        "graph": later(lambda: graph.replay(async_op=True)),
        "queued": later(lambda: [graph.replay(async_op=True) for _ in range(QUEUED)][-1]),
    }


def measure(ops: list[str], sizes: list[int], operations: int, rounds: int) -> list[dict[str, Any]]:
    """On every die; the rows are those of all dies together."""
    group = strata.world()
    rows = []
    for op in ops:
        for nbytes in sizes:
            found = ways(group, op, nbytes, operations)
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
            for turn in range(rounds + 2):
                names = list(found)
                for name in names[turn % 4 :] + names[: turn % 4]:
                    many = operations * (QUEUED if name == "queued" else 1)
                    group.barrier()
                    begin = time.perf_counter()
                    begun = found[name]()
                    mine = np.array([time.perf_counter() - begin, begun]) / many
                    slowest = group.all_reduce(mine, op="max")
                    if turn >= 2:
                        times[name].append((float(slowest[0]), float(slowest[1])))
            row: dict[str, Any] = {"operation": op, "dies": group.size, "bytes": nbytes, "operations": operations}
            for name, pairs in times.items():
                for what, column in zip(("_us", "_host_us"), zip(*pairs, strict=True), strict=True):
                    row[name + what] = round(statistics.median(column) * 1e6, 3)
                    row[name + what + ROUNDS] = [round(seconds * 1e6, 3) for seconds in column]
            rows.append(row)
    return rows


def main(argv: list[str]) -> int:
    """Measures, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--dies", type=int, default=2)
    parser.add_argument("--ops", nargs="+", default=list(OPS), choices=OPS, metavar="OP")
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[8, 1 << 10, 64 << 10], help="bytes of a source")
    parser.add_argument("--operations", type=int, default=100, help="in a graph")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args(argv)
    rows = strata.spawn(measure, options.dies, options.ops, options.sizes, options.operations, options.rounds)[0]
    names = WAYS
    print(f"us an operation, {options.dies} dies; in brackets what the caller's thread spends")
    print(f"{'operation':>12} {'bytes':>8} " + " ".join(f"{name:>18}" for name in names) + "   graph/sync")
    for r in rows:
        cells = [f"{r[f'{name}_us']:.2f} ({r[f'{name}_host_us']:.2f})" for name in names]
        print(f"{r['operation']:>12} {r['bytes']:>8} " + " ".join(f"{c:>18}" for c in cells)
              + f"   {r['graph_us'] / r['sync_us']:.2f}")  # fmt: skip
    write(options.json, "graph", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
