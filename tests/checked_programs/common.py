"""What the programs of this directory share.

Each has ``wrong(g)``, with one bug, in lines that say BUG, and ``right(g)``, its twin without it; ``KIND`` is the kind
of report that the first must get, and the second must get none.  By hand: strata-run -n 2 --check race_read.py [right]
"""

import sys

import numpy as np

import strata


def addresses(g, x):
    """Where x is on each member."""
    return [int(a) for a in g.all_gather(np.array([strata.address(x)], np.int64)).ravel()]


def main(wrong, right):
    """As a program."""
    (right if sys.argv[1:] == ["right"] else wrong)(strata.world())
