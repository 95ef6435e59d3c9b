"""Members name different roots."""

from common import main

import strata

KIND = "mismatch"


def wrong(g):
    x = strata.ones(16)
    try:
        g.broadcast(x, root=min(g.rank, 1))  # BUG
    except strata.CollectiveMismatch:
        pass


def right(g):
    x = strata.ones(16)
    g.broadcast(x, root=1)


if __name__ == "__main__":
    main(wrong, right)
