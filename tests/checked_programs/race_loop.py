"""A loop over elements, of which the last belongs to a neighbour."""

from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    begin = 16 * g.rank
    for i in range(begin, begin + 17):
        if i < 16 * g.size:
            peer[i] = i  # BUG
    g.barrier()


def right(g):
    x = strata.zeros(64)
    peer = strata.from_address(addresses(g, x)[0], 64)
    begin = 16 * g.rank
    for i in range(begin, begin + 16):
        peer[i] = i
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
