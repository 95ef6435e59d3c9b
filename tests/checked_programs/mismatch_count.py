"""Members bring different numbers of elements."""

from common import main

import strata

KIND = "mismatch"


def wrong(g):
    x = strata.ones(16 + g.rank)
    try:
        g.all_reduce(x)  # BUG
    except strata.CollectiveMismatch:
        pass


def right(g):
    x = strata.ones(16)
    g.all_reduce(x)


if __name__ == "__main__":
    main(wrong, right)
