"""Sharing a die's units among its cores, so that the last core is done as early as possible.

``balanced`` is LPT list scheduling: units by falling cost, each to the core that is free
first.  Units of one cost are dealt out in a staggered order, round the peers, since order
matters as much as balance: a burst of cores on one peer is slow, however even the loads.
``naive`` gives each peer its own cores, whatever there is to move and how far.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import NamedTuple

import numpy as np

POLICIES = ("balanced", "naive")
FEW = 256  # units of one cost, up to which a heap is faster than array operations


class Placement(NamedTuple):
    """``order``: unit numbers, core by core, in the order in which each core runs them;
    ``core`` and ``stripe`` of each of these; ``loads`` of the cores in picoseconds."""

    order: np.ndarray
    core: np.ndarray
    stripe: np.ndarray
    loads: np.ndarray


def one_core(cost: np.ndarray) -> Placement:
    """Everything on one core, in the order given."""
    order = np.arange(len(cost))
    return Placement(order, np.zeros(len(cost), np.int64), order, cost.sum(keepdims=True))


def balanced(cost, peer, turn, share, cores: int, cap) -> Placement:
    """LPT over ``cores``; all arguments but ``cores`` are int64 arrays over the units.

    ``cost``   picoseconds
    ``peer``   member on the far side; -1: many, and no cap counts
    ``turn``   place of the peer in the die's staggered order
    ``share``  how far through the peer's payload the unit lies, in [0, 1)
    ``cap``    H_t of the peer's tier
    """
    dealt = np.lexsort((turn, share, -cost))
    loads = [(0, core) for core in range(cores)]  # a heap: the core that is free first, on top
    core = np.empty(len(cost), np.int64)
    falling = cost[dealt]
    inner = np.flatnonzero(falling[1:] != falling[:-1]) + 1
    edges: list[int] = [0, *inner.tolist(), len(cost)]
    for start, end in pairwise(edges):
        if start == end:
            continue
        each = int(falling[start])
        if end - start <= FEW:
            for i in range(start, end):
                load, c = loads[0]
                core[i] = c
                heapq.heapreplace(loads, (load + each, c))
        else:
            core[start:end], loads = _deal(loads, end - start, each)
    return _in_order(dealt, core, cost, peer, cap, cores)


def _deal(loads: list[tuple[int, int]], units: int, each: int):
    """What the heap would do with ``units`` units of one cost, without a step for each:
    core c takes them at loads L_c, L_c + each, ...; the ``units`` lowest of all are used."""
    by_core = sorted(loads, key=lambda pair: pair[1])
    load = np.array([pair[0] for pair in by_core])
    if each == 0:
        first = min(loads)[1]  # a free unit leaves its core on top
        return np.full(units, first, np.int64), loads

    def taken(level: int) -> np.ndarray:
        """Starts below ``level`` on each core."""
        return np.maximum(-(-(level - load) // each), 0)

    low, high = int(load.min()), int(load.min()) + units * each
    while low < high:  # the highest level below which at most `units` start
        middle = (low + high + 1) // 2
        if taken(middle).sum() <= units:
            low = middle
        else:
            high = middle - 1
    number = taken(low)
    level = np.flatnonzero((load + number * each) == low)  # who could start at the level itself
    number[level[: units - int(number.sum())]] += 1
    owner = np.repeat(np.arange(len(load)), number)
    nth = np.arange(units) - np.repeat(np.cumsum(number) - number, number)
    sequence = np.lexsort((owner, load[owner] + nth * each))
    after = load + number * each
    heap = [(total, core) for core, total in enumerate(after.tolist())]
    heapq.heapify(heap)
    return owner[sequence], heap


def naive(cost, peer, turn, share, cores: int, cap) -> Placement:
    """Cores dealt to peers evenly and peers to cores in turn; arguments as ``balanced``."""
    peers, which = np.unique(turn, return_inverse=True)
    order = np.lexsort((share, which))
    which = which[order]
    if len(peers) >= cores or not len(peers):
        core = which % cores
    else:
        first = np.arange(len(peers) + 1) * cores // len(peers)
        starts = np.searchsorted(which, np.arange(len(peers)))
        nth = np.arange(len(which)) - starts[which]
        core = first[which] + nth % (first[which + 1] - first[which])
    return _in_order(order, core, cost, peer, np.full(len(cost), cores), cores)


def _in_order(dealt, core, cost, peer, cap, cores: int) -> Placement:
    by_core = np.argsort(core, kind="stable")
    order, core = dealt[by_core], core[by_core]
    place = np.arange(len(core)) - np.searchsorted(core, core)
    loads = np.zeros(cores, np.int64)
    np.add.at(loads, core, cost[order])
    stripe = _stripes(core, place, peer[order], cap[order], cores)
    return Placement(order, core, stripe, loads)


def _stripes(core, place, peer, cap, cores: int) -> np.ndarray:
    """Stripe of each unit, such that a core has one unit in a stripe, in its order, and at
    most ``cap`` cores are on one peer in it.  Units are put off until both hold, first those
    of later stripes and higher cores, so the earliest never moves and this ends."""
    stripe = place.copy()
    counted = np.flatnonzero((peer >= 0) & (cap < cores))
    if not len(counted):
        return stripe
    while True:
        chosen = counted[np.lexsort((core[counted], stripe[counted], peer[counted]))]
        who = peer[chosen]
        nth = np.arange(len(chosen)) - np.searchsorted(who, who)
        lane = nth % cap[chosen]
        lanes = np.lexsort((nth, lane, who))
        rows, step = chosen[lanes], (nth // cap[chosen])[lanes]
        pushed = step + _running_max(stripe[rows] - step, who[lanes] * (len(core) + 1) + lane[lanes])
        moved = (pushed != stripe[rows]).any()
        stripe[rows] = pushed
        stripe = place + _running_max(stripe - place, core)
        if not moved:
            return stripe


def _running_max(value, segment) -> np.ndarray:
    """Running maximum within runs of equal ``segment``."""
    run = np.cumsum(np.concatenate(([0], segment[1:] != segment[:-1])))
    lift = run * (int(value.max() - value.min()) + 1)
    return np.maximum.accumulate(value + lift) - lift
