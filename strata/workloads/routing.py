"""How much goes where: counts of an all_to_all_v from a routing, with a seed."""

from __future__ import annotations

import functools

import numpy as np

from strata.errors import InvalidArgument
from strata.workloads.steps import Routing


@functools.lru_cache(64)
def counts(routing: Routing, ranks: int) -> np.ndarray:
    """(ranks, ranks) rows from each die to each, i64, not to be changed."""
    if routing.model == "experts":
        found = _experts(routing, ranks)
    elif routing.model == "tables":
        found = _tables(routing, ranks)
    else:
        raise InvalidArgument(f"routing model {routing.model!r} is not known; there are experts, tables")
    found = found.T.copy() if routing.back else found
    found.setflags(write=False)
    return found


def busiest(routing: Routing, ranks: int) -> int:
    """Rows that the die gets that gets most."""
    return int(counts(routing, ranks).sum(axis=0).max())


def _experts(routing: Routing, ranks: int) -> np.ndarray:
    """Each of a die's tokens draws ``topk`` experts by their popularity (with replacement); which experts are popular
    is drawn too, and experts are dealt to dies by number."""
    if routing.parts < ranks:
        raise InvalidArgument(f"{routing.parts} experts on {ranks} dies: at least one each is expected")
    random = np.random.default_rng(routing.seed)
    popularity = 1.0 / np.arange(1, routing.parts + 1) ** routing.skew
    popularity = random.permutation(popularity / popularity.sum())
    drawn = random.multinomial(routing.rows * routing.topk, popularity, size=ranks)
    found = np.zeros((ranks, ranks), np.int64)
    np.add.at(found.T, np.arange(routing.parts) * ranks // routing.parts, drawn.T)
    return found


def _tables(routing: Routing, ranks: int) -> np.ndarray:
    """Shards of tables are dealt to dies in turn; of each, a die sends ``rows`` rows to every die."""
    shards = np.bincount(np.arange(routing.parts) % ranks, minlength=ranks)
    return np.repeat(shards[:, None] * routing.rows, ranks, axis=1).astype(np.int64)
