#!/usr/bin/env python3
"""What does interception cost where numpy makes an array, and from which size does it pay?

First table: microseconds to make an array and let it go (``empty``, ``zeros``), and to
write to all of it in between (``written``), as numpy does it and inside
``strata.intercept(min_bytes=0)``.  Second table: a step of a program, by size: an array is
made, filled and all-reduced.  Ordinary arrays travel through mailboxes while they are small,
and are copied when they are not; the last column is how much faster the fabric's are.  What
it shows is where option intercept_min_bytes should be.  Medians; the two take turns.

    strata-run -n 2 bench/intercept.py
    strata-run -n 4 bench/intercept.py --sizes 256 1K 2K 4K 64K --seconds 1
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import strata
from strata.config import parse_size

MADE = {
    "empty": lambda n: np.empty(n, "u1"),
    "zeros": lambda n: np.zeros(n, "u1"),
    "written": lambda n: np.empty(n, "u1").fill(1),
}


def batches(call: Callable[[int], object], n: int, count: int) -> float:
    """Seconds of a call, of ``count`` in a row."""
    begin = time.perf_counter()
    for _ in range(count):
        call(n)
    return (time.perf_counter() - begin) / count


def both(call: Callable[[int], object], n: int, rounds: int, count: int) -> tuple[float, float]:
    """Median seconds of a call without and with interception."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 1):
        for times, block in zip(found, (contextlib.nullcontext(), strata.intercept(0)), strict=True):
            with block:
                call(n)
                seconds = batches(call, n, count)
            if turn:  # the first has everything to do for the first time
                times.append(seconds)
    return statistics.median(found[0]), statistics.median(found[1])


def step(group: strata.Group) -> Callable[[int], object]:
    """A step of a program, on an array of n bytes."""

    def one(n: int) -> None:
        x = np.empty(n // 4, "f4")
        x.fill(1)
        group.all_reduce(x)

    return one


def main(argv: list[str]) -> int:
    """Prints both tables, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--made", nargs="+", type=parse_size, default=[1 << 10, 64 << 10, 8 << 20],
                        help="bytes of the arrays of the first table")
    parser.add_argument("--sizes", nargs="+", type=parse_size,
                        default=[256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 64 << 10, 1 << 20],
                        help="bytes of those of the second")
    parser.add_argument("--rounds", type=int, default=9, help="of which the median counts")
    args = parser.parse_args(argv)
    group = strata.world()
    say = print if group.rank == 0 else lambda *_, **__: None
    say(f"# {group.size} dies, numpy {np.__version__}; microseconds, medians, taking turns")
    if group.rank == 0:
        say(f"# {'made':>8} {'bytes':>10} {'numpy':>10} {'fabric':>10}")
        for name, call in MADE.items():
            for n in args.made:
                off, on = both(call, n, args.rounds, max(20, min(10_000, (16 << 20) // n)))
                say(f"  {name:>8} {n:>10} {off * 1e6:>10.2f} {on * 1e6:>10.2f}", flush=True)
    group.barrier()
    say(f"# {'step':>8} {'bytes':>10} {'numpy':>10} {'fabric':>10} {'faster':>7}")
    for n in args.sizes:
        off, on = both(step(group), n, args.rounds, max(20, min(1000, (8 << 20) // n)))
        say(f"  {'reduce':>8} {n:>10} {off * 1e6:>10.2f} {on * 1e6:>10.2f} {off / on:>7.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
