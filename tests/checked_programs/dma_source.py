"""The source of a descriptor chain is changed while the chain goes on."""

from common import main

import strata
from strata import sdma

KIND = "race"


def wrong(g):
    x, y, flag, ring = strata.ones(1000), strata.zeros(1000), sdma.flag(), sdma.open_ring()
    ring.submit(sdma.Batch().copy(y, x).write(flag, 1))
    x[...] = 2.0  # BUG
    sdma.wait(flag, 1)
    ring.close()


def right(g):
    x, y, flag, ring = strata.ones(1000), strata.zeros(1000), sdma.flag(), sdma.open_ring()
    ring.submit(sdma.Batch().copy(y, x).write(flag, 1))
    sdma.wait(flag, 1)
    x[...] = 2.0
    ring.close()


if __name__ == "__main__":
    main(wrong, right)
