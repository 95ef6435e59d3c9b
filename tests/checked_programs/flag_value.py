"""A flag is waited for that is raised before what is read."""

from common import addresses, main

import strata
from strata import sdma

KIND = "race"


def wrong(g):
    step(g, 1)


def right(g):
    step(g, 2)


def step(g, value):
    x, flag = strata.zeros(32), sdma.flag()
    peer, raised = strata.from_address(addresses(g, x)[0], 32), addresses(g, flag)[0]
    if g.rank == 0:
        x[:16] = 1.0
        sdma.write(flag, 1)
        x[16:] = 2.0  # BUG
        sdma.write(flag, 2)
    if g.rank == 1:
        sdma.wait(raised, value)
        peer.sum()  # BUG
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
