"""Two dies add to one place by descriptors that are not atomic."""

from common import addresses, main

import strata
from strata import sdma

KIND = "race"


def wrong(g):
    add(g, atomic=False)


def right(g):
    add(g, atomic=True)


def add(g, atomic):
    total, mine, ring = strata.zeros(64), strata.ones(64), sdma.open_ring()
    there = strata.from_address(addresses(g, total)[0], 64)
    ring.submit(sdma.Batch().reduce(there, mine, atomic=atomic)).wait()  # BUG
    g.barrier()
    ring.close()


if __name__ == "__main__":
    main(wrong, right)
