"""A word is polled as if it were a flag: nothing orders what was written before it."""

import numpy as np
from common import addresses, main

import strata
from strata import sdma

KIND = "race"


def wrong(g):
    x = strata.zeros(2, np.uint64)
    peer = strata.from_address(addresses(g, x)[0], 2, np.uint64)
    if g.rank == 0:
        x[0] = 1  # BUG
    if g.rank == 1:
        for _ in range(100):
            if peer[0] == 1:  # BUG
                break
    g.barrier()


def right(g):
    flag = sdma.flag()
    raised = addresses(g, flag)[0]
    if g.rank == 0:
        sdma.write(flag, 1)
    if g.rank == 1:
        while not sdma.poll(raised, 1):
            pass
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
