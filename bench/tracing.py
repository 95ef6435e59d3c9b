#!/usr/bin/env python3
"""What does a trace cost: an event, and an operation while the job is traced against one while it is not?

The same calls on the same buffers, in rounds that take turns: tracing is switched off and on within the job, for all
dies. A figure is the time of the slowest die for a call, the median over the rounds; *on/off* is the median of the
rounds' own ratios. Everything is written that a job writes that is traced from its start. An event's cost is that
of a loop in C that writes a span (a look at the counter, and the event), on every die at once.

What the probes cost while tracing is off is counted by bench/callpath.py: compare it with an older strata's.

    bench/tracing.py                                  # 2 dies; 8 B to 16 MiB
    bench/tracing.py -n 4 --ops all_reduce --sizes 8 64K --rounds 31 --json tracing.jsonl
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
from strata._core import space, tracing
from strata.config import parse_size

OPS = ("all_reduce", "all_gather", "sendrecv")
SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20]
WAYS = {"off": tracing.OFF, "on": tracing.RING}
KINDS = {"tracing": Kind(("operation", "dies", "bytes"), less=("off_us", "on_us", "ratio")),
         "event": Kind(("dies",), less=("span_ns", "emit_ns"))}


def call_of(group: strata.Group, op: str, nbytes: int) -> Callable[[], Any]:
    """A call that every die makes."""
    x = strata.zeros(max(1, nbytes // 4), "f4")
    if op == "sendrecv":
        return lambda: (group.send(x, 1), group.recv(x, 1)) if group.rank == 0 else (group.recv(x, 0), group.send(x, 0))
    out = strata.zeros((group.size, x.size), "f4") if op == "all_gather" else x
    function = getattr(group, op)
    return lambda: function(x, out)


def times_of(call: Callable[[], Any], group: strata.Group, seconds: float) -> int:
    """How many calls take about that long; the same on all dies."""
    for _ in range(5):
        call()
    begin = time.perf_counter()
    for _ in range(10):
        call()
    each = float(group.all_reduce(np.array([time.perf_counter() - begin]), op="max")[0]) / 10
    return max(3, int(seconds / each))


def round_of(call: Callable[[], Any], group: strata.Group, times: int, mode: int) -> float:
    """Seconds of a call, of the slowest die."""
    context = space.current()
    group.barrier()
    tracing.set_mode(context, mode, context.rank)
    group.barrier()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    mine = (time.perf_counter() - begin) / times
    tracing.set_mode(context, tracing.OFF, context.rank)
    return float(group.all_reduce(np.array([mine]), op="max")[0])


def measure(ops: list[str], sizes: list[int], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """On every die; the rows are those of all dies together."""
    group, context, rows = strata.world(), space.current(), []
    for op in ops:
        if op == "sendrecv" and group.size != 2:
            continue
        for nbytes in sizes:
            call = call_of(group, op, nbytes)
            times = times_of(call, group, seconds)
            found: dict[str, list[float]] = {way: [] for way in WAYS}
            for turn in range(rounds + 1):
                for way in sorted(WAYS, reverse=turn % 2 == 1):
                    took = round_of(call, group, times, WAYS[way])
                    if turn:
                        found[way].append(took)
            ratios = [on / off for on, off in zip(found["on"], found["off"], strict=True)]
            row: dict[str, Any] = {"record": "tracing", "operation": op, "dies": group.size, "bytes": nbytes,
                                   "calls": times, "ratio": round(statistics.median(ratios), 4),
                                   "ratio" + ROUNDS: [round(r, 4) for r in ratios]}
            for way, each in found.items():
                row[way + "_us"] = round(statistics.median(each) * 1e6, 4)
                row[way + "_us" + ROUNDS] = [round(s * 1e6, 4) for s in each]
            rows.append(row)
    tracing.set_mode(context, tracing.RING, context.rank)
    group.barrier()
    spans = [tracing.event_ns(context, 100_000) for _ in range(rounds)]
    begin = time.perf_counter()
    for _ in range(100_000):
        tracing.emit(context, 3, 1, 1)
    emit = (time.perf_counter() - begin) * 1e4
    tracing.set_mode(context, tracing.OFF, context.rank)
    mine = np.array([statistics.median(spans), emit])
    slowest = group.all_reduce(mine, op="max")
    rows.append({"record": "event", "dies": group.size, "span_ns": round(float(slowest[0]), 2),
                 "emit_ns": round(float(slowest[1]), 1)})  # fmt: skip
    return rows


def main(argv: list[str]) -> int:
    """Measures, prints, writes what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--dies", type=int, default=2)
    parser.add_argument("--ops", nargs="+", default=["all_reduce"], choices=OPS, metavar="OP")
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=SIZES, help="bytes of a source")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a round, about (0.02)")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args(argv)
    if options.dies < 1 or options.rounds < 1:
        parser.error("at least one die and one round are needed")
    rows = strata.spawn(measure, options.dies, options.ops, options.sizes, options.rounds, options.seconds)[0]
    print(f"us a call, {options.dies} dies\n{'operation':>12} {'bytes':>9} {'off':>10} {'on':>10}   on/off")
    for r in rows[:-1]:
        print(f"{r['operation']:>12} {r['bytes']:>9} {r['off_us']:10.2f} {r['on_us']:10.2f}   {r['ratio']:.3f}")
    print(f"an event: {rows[-1]['span_ns']:.1f} ns; from Python, by emit(): {rows[-1]['emit_ns']:.0f} ns")
    write(options.json, "tracing", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
