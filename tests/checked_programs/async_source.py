"""The source of an operation in progress is changed before it was waited for."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x, y = strata.ones(5000), strata.empty(5000)
    work = g.all_reduce(x, y, async_op=True)
    x[...] = 0.0  # BUG
    work.wait()


def right(g):
    x, y = strata.ones(5000), strata.empty(5000)
    work = g.all_reduce(x, y, async_op=True)
    work.wait()
    x[...] = 0.0


if __name__ == "__main__":
    main(wrong, right)
