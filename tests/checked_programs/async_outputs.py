"""Two operations in progress have the same output."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x, y = strata.ones(5000), strata.zeros(5000)
    other = g.split(0)
    first = g.all_reduce(x, y, async_op=True)  # BUG
    second = other.all_reduce(x, y, op="max", async_op=True)  # BUG
    first.wait()
    second.wait()


def right(g):
    x, y, z = strata.ones(5000), strata.zeros(5000), strata.zeros(5000)
    other = g.split(0)
    first = g.all_reduce(x, y, async_op=True)
    second = other.all_reduce(x, z, op="max", async_op=True)
    first.wait()
    second.wait()


if __name__ == "__main__":
    main(wrong, right)
