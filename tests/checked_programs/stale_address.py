"""An address is used again after its memory has become another array."""

from common import addresses, main

import strata

KIND = "stale"


def wrong(g):
    x = strata.ones(3000)
    peer = strata.from_address(addresses(g, x)[0], 3000)
    g.barrier()
    del x
    y = strata.zeros(3000)
    g.barrier()
    if g.rank == 1:
        peer[0] = 7.0  # BUG
    g.barrier()
    del y


def right(g):
    x = strata.ones(3000)
    addresses(g, x)
    g.barrier()
    del x
    y = strata.zeros(3000)
    peer = strata.from_address(addresses(g, y)[0], 3000)
    g.barrier()
    if g.rank == 1:
        peer[0] = 7.0
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
