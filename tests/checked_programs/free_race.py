"""The owner gives memory back while a peer reads it."""

from common import addresses, main

import strata

KIND = "use after free"


def wrong(g):
    x = strata.ones(1000)
    peer = strata.from_address(addresses(g, x)[0], 1000)
    if g.rank == 0:
        del x
        strata.zeros(1)  # BUG
    if g.rank == 1:
        peer.sum()  # BUG
    g.barrier()


def right(g):
    x = strata.ones(1000)
    peer = strata.from_address(addresses(g, x)[0], 1000)
    if g.rank == 1:
        peer.sum()
    g.barrier()
    if g.rank == 0:
        del x
        strata.zeros(1)
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
