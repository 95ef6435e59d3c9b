"""The output of an operation in progress is read before it was waited for."""

import numpy as np
from common import main

import strata

KIND = "race"


def wrong(g):
    x, y = strata.ones(5000), strata.zeros(5000)
    work = g.all_reduce(x, y, async_op=True)
    np.add(y, 1.0)  # BUG
    work.wait()


def right(g):
    x, y = strata.ones(5000), strata.zeros(5000)
    work = g.all_reduce(x, y, async_op=True)
    while not work.done():
        pass
    assert np.add(y, 1.0)[0] == g.size + 1


if __name__ == "__main__":
    main(wrong, right)
