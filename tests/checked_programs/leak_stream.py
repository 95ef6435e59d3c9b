"""A stream still has work that nobody has waited for."""

from common import main

import strata

KIND = "leak"
ENDS = True  # a job of its own


kept = []


def wrong(g):
    x, y, s = strata.ones(16), strata.zeros(16), strata.Stream()
    kept.append(s)
    s.copy(y, x)  # BUG


def right(g):
    x, y, s = strata.ones(16), strata.zeros(16), strata.Stream()
    kept.append(s)
    s.copy(y, x)
    s.synchronize()


if __name__ == "__main__":
    main(wrong, right)
