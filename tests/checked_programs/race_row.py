"""Each die writes its row of a peer's matrix, and one of them a row too many."""

from common import addresses, main

import strata

KIND = "race"


def wrong(g):
    x = strata.zeros((g.size, 8))
    peer = strata.from_address(addresses(g, x)[0], x.shape)
    last = g.rank + 1 if g.rank else g.rank + 2
    peer[g.rank : last] = 1.0  # BUG
    g.barrier()


def right(g):
    x = strata.zeros((g.size, 8))
    peer = strata.from_address(addresses(g, x)[0], x.shape)
    peer[g.rank : g.rank + 1] = 1.0
    g.barrier()
    assert g.rank or x.sum() == 8 * g.size


if __name__ == "__main__":
    main(wrong, right)
