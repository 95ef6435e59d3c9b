"""Gathers the next block on a stream while numpy computes on this one.

    strata-run -n 2 examples/overlap.py

Each die has its own rows of every block; a step needs all rows.  Two buffers take turns: while one is computed on,
the next block comes into the other.  Events say when a block is there, and nothing else is waited for.
"""

from __future__ import annotations

import time

import numpy as np

import strata

BLOCKS, ROWS, WIDTH = 12, 256, 512


def rows(rank: int, block: int) -> np.ndarray:
    """What a die has of a block."""
    return np.full((ROWS, WIDTH), 1.0 + rank + 10 * block, "f4")


def main() -> None:
    g = strata.world()
    weights = np.eye(WIDTH, dtype="f4") * 2
    mine = [strata.array(rows(g.rank, block)) for block in range(BLOCKS)]
    buffers = [strata.empty((g.size * ROWS, WIDTH), "f4") for _ in range(2)]
    sums = []

    g.barrier()
    begin = time.perf_counter()
    with strata.Stream() as s:

        def fetch(block: int) -> strata.Event:
            with strata.stream(s):
                g.all_gather(mine[block], buffers[block % 2])
            return s.record_event()

        there = fetch(0)
        for block in range(BLOCKS):
            there.synchronize()
            if block + 1 < BLOCKS:
                # Into the buffer of the step before: nobody writes there before this die takes part, that is, now.
                there = fetch(block + 1)
            sums.append(float((buffers[block % 2] @ weights).sum(dtype="f8")))
    took = time.perf_counter() - begin

    for block, got in enumerate(sums):
        wanted = 2.0 * ROWS * WIDTH * sum(1 + rank + 10 * block for rank in range(g.size))
        assert got == wanted, (block, got, wanted)
    total = np.array([sum(sums)])
    g.all_reduce(total, op="max")
    assert total[0] == sum(sums)  # the same on all dies
    if g.rank == 0:
        size = buffers[0].nbytes / 2**20
        print(f"{BLOCKS} blocks of {size} MiB from {g.size} dies in {took * 1e3:.1f} ms, all sums right")


if __name__ == "__main__":
    main()
