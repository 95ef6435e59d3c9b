"""Memory is registered, and not deregistered."""

import numpy as np
from common import main

import strata

KIND = "leak"
ENDS = True  # a job of its own


def wrong(g):
    x = np.ones(1000)
    strata.register(x)  # BUG
    g.all_reduce(x)


def right(g):
    x = np.ones(1000)
    with strata.register(x):
        g.all_reduce(x)


if __name__ == "__main__":
    main(wrong, right)
