"""The owner goes on to the next step while a peer still reads the last one."""

from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.full(64, g.rank)
    peer = strata.from_address(addresses(g, x)[0], 64, x.dtype)
    if g.rank == 1:
        peer.tolist()  # BUG
    if g.rank == 0:
        x += 1  # BUG
    g.barrier()


def right(g):
    x = strata.full(64, g.rank)
    peer = strata.from_address(addresses(g, x)[0], 64, x.dtype)
    if g.rank == 1:
        peer.tolist()
    g.barrier()
    if g.rank == 0:
        x += 1
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
