"""What a message brings is read before it was waited for."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x = strata.full(5000, g.rank)
    if g.rank == 0:
        g.send(x, 1)
    if g.rank == 1:
        work = g.recv(x, 0, async_op=True)
        x.max()  # BUG
        work.wait()
    g.barrier()


def right(g):
    x = strata.full(5000, g.rank)
    if g.rank == 0:
        g.send(x, 1)
    if g.rank == 1:
        work = g.recv(x, 0, async_op=True)
        work.wait()
        assert x.max() == 0
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
