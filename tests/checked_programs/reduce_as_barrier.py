"""reduce is taken for a barrier: only its root knows that the others have come."""

import numpy as np
from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros(16)
    peer = strata.from_address(addresses(g, x)[0], 16)
    if g.rank == 0:
        x[...] = 1.0  # BUG
    g.reduce(np.ones(1), root=0)
    if g.rank == 1:
        peer.sum()  # BUG
    g.barrier()


def right(g):
    x = strata.zeros(16)
    peer = strata.from_address(addresses(g, x)[0], 16)
    if g.rank == 0:
        x[...] = 1.0
    g.all_reduce(np.ones(1))
    if g.rank == 1:
        assert peer.sum() == 16
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
