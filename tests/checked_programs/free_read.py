"""A peer reads what its owner has given back."""

from common import addresses, main

import strata

KIND = "use after free"


def wrong(g):
    x = strata.ones(1000)
    peer = strata.from_address(addresses(g, x)[0], 1000)
    g.barrier()
    del x
    g.barrier()
    if g.rank == 1:
        peer.sum()  # BUG
    g.barrier()


def right(g):
    x = strata.ones(1000)
    peer = strata.from_address(addresses(g, x)[0], 1000)
    g.barrier()
    if g.rank == 1:
        peer.sum()
    g.barrier()
    del x


if __name__ == "__main__":
    main(wrong, right)
