"""What a stream copies is read, and nobody has synchronised with it."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x, y = strata.ones(1000), strata.zeros(1000)
    with strata.Stream() as s:
        s.copy(y, x)
        y.sum()  # BUG


def right(g):
    x, y = strata.ones(1000), strata.zeros(1000)
    with strata.Stream() as s:
        s.copy(y, x)
        s.synchronize()
        assert y.sum() == 1000


if __name__ == "__main__":
    main(wrong, right)
