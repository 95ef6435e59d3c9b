"""A peer's array is read while its owner writes it."""

from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    if g.rank == 0:
        x[...] = 1.0  # BUG
    if g.rank == 1:
        peer.sum()  # BUG
    g.barrier()


def right(g):
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    if g.rank == 0:
        x[...] = 1.0
    g.barrier()
    if g.rank == 1:
        assert peer.sum() == 64
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
