"""Blocks that are gathered and computed on in turn, so that nobody computes while bytes move (docs/profiling.md).

    strata-run -n 4 --trace exposed.json.gz examples/exposed.py
    strata-run -n 4 --trace overlapped.json.gz examples/exposed.py --overlap
    strata trace exposed.json.gz

``--overlap`` gathers the next block while it computes on this one.
"""

from __future__ import annotations

import argparse

import numpy as np

import strata

BLOCKS, ROWS, WIDTH = 48, 256, 1024


def compute(block: np.ndarray) -> float:
    """Something that takes about as long as gathering the block."""
    return float(np.square(block[::8]).sum(dtype="f8"))


def rows(rank: int, block: int, kept: list[np.ndarray]) -> np.ndarray:
    """A die's rows of a block, in one of two arrays."""
    found = kept[block % 2]
    found[:] = 1.0 + rank + block
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    args = parser.parse_args()
    g = strata.world()
    buffers = [strata.empty((g.size * ROWS, WIDTH), "f4") for _ in range(2)]
    kept = [strata.zeros((ROWS, WIDTH), "f4") for _ in buffers]
    sums = []
    for buffer, part in zip(buffers, kept, strict=True):  # so that all of this is mapped by all
        g.all_gather(part, buffer)
    work = None
    if args.overlap:
        work = g.all_gather(rows(g.rank, 0, kept), buffers[0], async_op=True)
    for block in range(args.blocks):
        with strata.tag(block=block):
            here = buffers[block % 2]
            if work is not None:
                work.wait()
                if block + 1 < args.blocks:
                    following = rows(g.rank, block + 1, kept)
                    work = g.all_gather(following, buffers[(block + 1) % 2], async_op=True)
            else:
                g.all_gather(rows(g.rank, block, kept), here)
            with strata.probe("compute"):
                sums.append(compute(here))
    for block, found in enumerate(sums):
        wanted = ROWS / 8 * WIDTH * sum((1.0 + die + block) ** 2 for die in range(g.size))
        assert found == wanted, (block, found, wanted)
    if g.rank == 0:
        how = "overlapped" if args.overlap else "in turn"
        print(f"{args.blocks} blocks of {buffers[0].nbytes >> 20} MiB on {g.size} dies, gathered and computed on {how}")


if __name__ == "__main__":
    main()
