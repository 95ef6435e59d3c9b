#!/usr/bin/env python3
"""What does a program gain from SDMA: a compute loop beside a large all_gather?

Each die runs a loop of numpy (a multiply-add over arrays that stay in its cache), and gathers `--bytes` from each
member. Apart: each alone. Together, by turns in one run:

    mte        gather, then compute: the caller moves the bytes
    async mte  the gather on the group's thread, path mte, beside the loop
    async sdma the same by the DMA thread
    stream     the gather on a stream, beside the loop

*call* is the caller's time inside the collective's call, *compute* the loop's, *total* until both are done; medians
over rounds of the slowest die. Dies, their DMA threads and group threads share the host's CPUs: what overlaps on an NPU
takes turns here, unless CPUs are idle.

    bench/overlap.py                     # two dies
    bench/overlap.py -n 4 --bytes 16M --json overlap.jsonl
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

import numpy as np
from bench_lib.lines import ROUNDS, Kind, write

import strata
from strata.config import parse_size

FIELDS = ("call_us", "compute_us", "total_us")
KINDS = {"overlap": Kind(("mode", "n", "bytes", "cpus"), less=FIELDS)}


def now_us() -> float:
    return time.perf_counter_ns() / 1e3


class Work:
    """A loop that computes for some milliseconds, on memory of its own."""

    def __init__(self, passes: int) -> None:
        self.passes = passes
        self.a, self.b = np.ones(1 << 15), np.full(1 << 15, 0.5)

    def run(self) -> None:
        for _ in range(self.passes):
            np.multiply(self.a, self.b, out=self.a)
            np.add(self.a, self.b, out=self.a)


def measure(mode: str, group: Any, stream: Any, work: Work, src: Any, out: Any) -> tuple[float, float, float]:
    """(call, compute, total) of one round, in microseconds."""
    group.barrier()
    begin, handle = now_us(), None
    if mode == "stream":
        with strata.stream(stream):
            group.all_gather(src, out)
    elif mode.startswith("async"):
        handle = group.all_gather(src, out, async_op=True, path=mode.split()[1])
    elif mode != "compute":
        group.all_gather(src, out, path="mte")
    called = now_us()
    if mode not in ("gather mte", "gather sdma"):
        work.run()
    computed = now_us()
    if handle is not None:
        handle.wait()
    if mode == "stream":
        stream.synchronize()
    return called - begin, computed - called, now_us() - begin


def gather_sdma(group: Any, src: Any, out: Any) -> tuple[float, float, float]:
    group.barrier()
    begin = now_us()
    group.all_gather(src, out, path="sdma")
    took = now_us() - begin
    return took, 0.0, took


def die(nbytes: int, rounds: int, milliseconds: float) -> list[dict[str, Any]]:
    """All modes by turns; what the slowest die took, on every die."""
    group, work = strata.world(), Work(1)
    src = strata.full(nbytes, group.rank, "u1")
    out = strata.zeros((group.size, nbytes), "u1")
    stream = strata.Stream()
    begin = now_us()
    for _ in range(200):
        work.run()
    work.passes = max(1, round(milliseconds * 1e3 / ((now_us() - begin) / 200)))
    modes = ("compute", "gather mte", "gather sdma", "mte", "async mte", "async sdma", "stream")
    found: dict[str, list[Any]] = {mode: [] for mode in modes}
    for _ in range(rounds + 1):
        for mode in modes:
            mine = gather_sdma(group, src, out) if mode == "gather sdma" else \
                measure(mode, group, stream, work, src, out)
            times = np.array(mine)
            group.all_reduce(times, op="max")
            found[mode].append(times)
        assert (out == np.arange(group.size, dtype="u1")[:, None]).all()
    stream.close()
    rows = []
    for mode in modes:
        row: dict[str, Any] = {"mode": mode}
        for k, field in enumerate(FIELDS):
            row[field + ROUNDS] = [float(t[k]) for t in found[mode][1:]]
            row[field] = statistics.median(row[field + ROUNDS])
        rows.append(row)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="dies (default 2)")
    parser.add_argument("--bytes", type=parse_size, default=64 << 20, help="that each member gives (default 64M)")
    parser.add_argument("--rounds", type=int, default=15, help="of each mode (default 15)")
    parser.add_argument("--compute", type=float, default=40.0, help="milliseconds of computing (default 40)")
    parser.add_argument("--json", metavar="FILE", help="all figures, one JSON object a line")
    options = parser.parse_args()
    rows = strata.spawn(die, options.n, options.bytes, options.rounds, options.compute)[0]
    by = {row["mode"]: row for row in rows}
    alone, gather = by["compute"]["compute_us"], by["gather mte"]["call_us"]
    cpus = len(os.sched_getaffinity(0))
    print(f"{options.n} dies, {cpus} CPUs, all_gather of {options.bytes} bytes a member; medians")
    print("                  call us   of gather   compute us   slowdown    total us   of the sum")
    for row in rows:
        row |= {"n": options.n, "bytes": options.bytes, "cpus": cpus}
        slow = f"{row['compute_us'] / alone:8.2f}" if row["compute_us"] else " " * 8
        print(f"  {row['mode']:12} {row['call_us']:10.0f} {row['call_us'] / gather:11.2%} {row['compute_us']:12.0f}"
              f" {slow}   {row['total_us']:11.0f} {row['total_us'] / (alone + gather):10.2f}")  # fmt: skip
    write(options.json, "overlap", KINDS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
