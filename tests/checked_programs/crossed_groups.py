"""Two groups are called in different orders: each die waits for the other."""

from common import main

import strata

KIND = "deadlock"
ENDS = True  # a job of its own


def wrong(g):
    first, second = g.split(0), g.split(0)
    order = (first, second) if g.rank == 0 else (second, first)
    for group in order:
        try:
            group.barrier(timeout=3.0)  # BUG
        except strata.StrataError:
            pass


def right(g):
    first, second = g.split(0), g.split(0)
    for group in (first, second):
        group.barrier()


if __name__ == "__main__":
    main(wrong, right)
