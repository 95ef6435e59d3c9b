"""A message is sent, and never received."""

import numpy as np
from common import main

KIND = "leak"
ENDS = True  # a job of its own


def wrong(g):
    if g.rank == 0:
        g.send(np.ones(4), 1, tag=3)  # BUG
    g.barrier()


def right(g):
    if g.rank == 0:
        g.send(np.ones(4), 1, tag=4)
    if g.rank == 1:
        g.recv(np.ones(4), 0, tag=4)
    g.barrier()


if __name__ == "__main__":
    main(wrong, right)
