"""An operation is begun, and nobody ever waits for it."""

from common import main

import strata

KIND = "leak"
ENDS = True  # a job of its own


def wrong(g):
    x = strata.ones(16)
    g.all_reduce(x, async_op=True)  # BUG
    g.barrier()


def right(g):
    x = strata.ones(16)
    g.all_reduce(x, async_op=True).wait()
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
