"""The input of a graph is changed while a replay goes on."""

from common import main

import strata

KIND = "race"


def wrong(g):
    x = strata.ones(5000)
    with strata.capture(g) as graph:
        g.all_reduce(x)
    work = graph.replay(async_op=True)
    x[...] = 1.0  # BUG
    work.wait()
    graph.close()


def right(g):
    x = strata.ones(5000)
    with strata.capture(g) as graph:
        g.all_reduce(x)
    for _ in range(2):
        graph.replay(async_op=True).wait()
        x[...] = 1.0
    graph.close()


if __name__ == "__main__":
    main(wrong, right)
