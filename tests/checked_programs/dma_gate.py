"""Two rings, of which one goes on with what the other makes: there is no gate between them."""

from common import main

import strata
from strata import sdma

KIND = "race"


def wrong(g):
    chains(gate=False)


def right(g):
    chains(gate=True)


def chains(gate):
    a, b, c, flag = strata.ones(1000), strata.zeros(1000), strata.zeros(1000), sdma.flag()
    first, second = sdma.open_ring(), sdma.open_ring()
    batch = sdma.Batch().gate(flag, 1) if gate else sdma.Batch()
    works = [first.submit(sdma.Batch().copy(b, a).write(flag, 1)),  # BUG
             second.submit(batch.copy(c, b))]  # BUG
    for work in works:
        work.wait()
    first.close()
    second.close()


if __name__ == "__main__":
    main(wrong, right)
