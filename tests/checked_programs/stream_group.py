"""A collective on a stream, whose input is changed before its turn may have come."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x = strata.ones(5000)
    with strata.Stream() as s:
        with strata.stream(s):
            g.all_reduce(x)
        x *= 0.5  # BUG


def right(g):
    x = strata.ones(5000)
    with strata.Stream() as s:
        with strata.stream(s):
            g.all_reduce(x)
        s.synchronize()
        x *= 0.5


if __name__ == "__main__":
    main(wrong, right)
