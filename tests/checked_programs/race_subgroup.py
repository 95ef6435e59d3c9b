"""A barrier of the wrong group: the reader is not in it."""

from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros(16)
    peer = strata.from_address(addresses(g, x)[0], 16)
    alone = g.split(g.rank)
    if g.rank == 0:
        x[3] = 1.0  # BUG
    alone.barrier()
    if g.rank == 1:
        float(peer[3])  # BUG
    g.barrier()


def right(g):
    x = strata.zeros(16)
    peer = strata.from_address(addresses(g, x)[0], 16)
    pair = g.split(0)
    if g.rank == 0:
        x[3] = 1.0
    pair.barrier()
    if g.rank == 1:
        assert float(peer[3]) == 1.0
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
