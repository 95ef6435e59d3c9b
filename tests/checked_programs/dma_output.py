"""What a descriptor chain writes is read, and nobody has waited for the chain."""

from common import main

import strata
from strata import sdma

KIND = "race"


def wrong(g):
    x, y, ring = strata.ones(1000), strata.zeros(1000), sdma.open_ring()
    work = ring.submit(sdma.Batch().copy(y, x))
    y.sum()  # BUG
    work.wait()
    ring.close()


def right(g):
    x, y, ring = strata.ones(1000), strata.zeros(1000), sdma.open_ring()
    work = ring.submit(sdma.Batch().copy(y, x))
    work.wait()
    assert y.sum() == 1000
    ring.close()


if __name__ == "__main__":
    main(wrong, right)
