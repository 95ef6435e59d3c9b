"""A message in progress, whose buffer is used again."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x = strata.ones(5000)
    if g.rank == 0:
        work = g.send(x, 1, async_op=True)
        x.fill(2.0)  # BUG
        work.wait()
    if g.rank == 1:
        g.recv(x, 0)
    g.barrier()


def right(g):
    x = strata.ones(5000)
    if g.rank == 0:
        work = g.send(x, 1, async_op=True)
        work.wait()
        x.fill(2.0)
    if g.rank == 1:
        g.recv(x, 0)
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
