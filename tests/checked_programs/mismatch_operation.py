"""Members call different operations."""

from common import main

import strata

KIND = "mismatch"


def wrong(g):
    x = strata.ones(16)
    try:
        if g.rank:
            g.all_reduce(x)  # BUG
        else:
            g.broadcast(x)  # BUG
    except strata.CollectiveMismatch:
        pass


def right(g):
    x = strata.ones(16)
    g.all_reduce(x)
    g.broadcast(x)


if __name__ == "__main__":
    main(wrong, right)
