"""Two dies write the same bytes of a third place."""

from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    peer[:40] = g.rank  # BUG
    g.barrier()


def right(g):
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    if g.rank < 2:
        peer[32 * g.rank : 32 * g.rank + 32] = g.rank
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
