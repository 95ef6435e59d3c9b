"""broadcast is taken for a barrier: its root does not wait for the others."""

import numpy as np
from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros(16)
    peer = strata.from_address(addresses(g, x)[1], 16)
    if g.rank == 1:
        x[...] = 1.0  # BUG
    g.broadcast(np.ones(1), root=0)
    if g.rank == 0:
        peer.sum()  # BUG
    g.barrier()


def right(g):
    x = strata.zeros(16)
    peer = strata.from_address(addresses(g, x)[1], 16)
    if g.rank == 1:
        x[...] = 1.0
    g.broadcast(np.ones(1), root=1)
    if g.rank == 0:
        assert peer.sum() == 16
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
