"""A placement from load statistics: redundant experts, packed onto dies (the idea of DeepSeek's EPLB).

*Replicate.*  Each slot beyond one an expert goes to the expert whose replicas have most to do, so that the largest
replica is as small as so many slots allow.  *Pack.*  Replicas by falling load, each to the die that has least and room
for it (LPT with room), on a node that has fewest replicas of its expert, and not on a die that has one; then pairs are
swapped with the fullest die as long as that lowers it.
"""

from __future__ import annotations

import heapq

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.moe.placement import MAX_SLOTS, Placement, even

SWAPS = 1000  # at most; each lowers the fullest die


def balance(load: np.ndarray, slots: int, dies: int, nodes: int = 1) -> Placement:
    """A placement on ``dies`` dies, in groups of dies / nodes that follow each other, under which they have about as
    much to do.

    ``load``   non-negative numbers (experts): what each expert has to do, tokens for instance; all zero: they are alike
    ``slots``  physical experts, as many as experts or more; shared out as numpy.array_split does
    ``nodes``  replicas of an expert are spread over as many nodes as can be

    Equal loads give equal placements on every host.  InvalidArgument for what is no load, or does not fit.
    """
    weights = _checked(load, slots, dies, nodes)
    replicas = replicate(weights, slots, dies)
    first = even(slots, dies)
    expert = np.repeat(np.arange(len(weights)), replicas)
    each = weights[expert] / replicas[expert]
    die = _packed(expert, each, np.diff(first), nodes)
    _swapped(expert, each, die, dies, nodes)
    return Placement(expert[np.lexsort((expert, die))], first, len(weights))


def bound(load: np.ndarray, slots: int, dies: int) -> float:
    """No placement of so many slots has less than this on its fullest die, in averages of a die: 1, or the largest
    replica."""
    weights = _checked(load, slots, dies, 1)
    return max(1.0, float((weights / replicate(weights, slots, dies)).max() * dies / weights.sum()))


def imbalance(placement: Placement, load: np.ndarray) -> float:
    """What the fullest die has to do, in averages of a die; 1.0 if there is nothing to do."""
    each = placement.load(load)
    return float(each.max() / each.mean()) if each.sum() > 0 else 1.0


def _checked(load: np.ndarray, slots: int, dies: int, nodes: int) -> np.ndarray:
    weights = np.asarray(load)
    if weights.ndim != 1 or weights.dtype.kind not in "iuf" or not len(weights):
        raise InvalidArgument(f"load is {weights.dtype} of shape {weights.shape}: a number of each expert is expected")
    weights = weights.astype(np.float64)
    if not np.isfinite(weights).all() or weights.min() < 0:
        raise InvalidArgument(f"load has {weights.min()} to {weights.max()}: non-negative numbers are expected")
    for name, value in (("slots", slots), ("dies", dies), ("nodes", nodes)):
        if not isinstance(value, int | np.integer):
            raise TypeError(f"{name} is {value!r}: a whole number is expected")
    if not len(weights) <= slots <= MAX_SLOTS:
        raise InvalidArgument(f"{slots} slots for {len(weights)} experts: each needs one, and there are {MAX_SLOTS} "
                              "at most")
    if dies < 1 or nodes < 1 or dies % nodes:
        raise InvalidArgument(f"{dies} dies on {nodes} nodes: at least one, and as many on each, are expected")
    most = float(weights.max())
    if most > np.finfo(np.float64).max / slots:  # sums would be infinite
        weights /= most
    return weights if most else np.ones(len(weights))


def replicate(weights: np.ndarray, slots: int, dies: int) -> np.ndarray:
    """How many slots each expert gets, i64; more than one a die only where all have that."""
    replicas = np.ones(len(weights), np.int64)
    heap = [(-float(w), 1, e) for e, w in enumerate(weights)]
    heapq.heapify(heap)
    full: list[tuple[float, int, int]] = []
    for _ in range(slots - len(weights)):
        if not heap:
            heap, full, dies = full, [], 2 * dies
        _, number, e = heapq.heappop(heap)
        replicas[e] = number = number + 1
        entry = (-float(weights[e]) / number, number, e)
        if number < dies:
            heapq.heappush(heap, entry)
        else:
            heapq.heappush(full, entry)
    return replicas


def _packed(expert: np.ndarray, each: np.ndarray, room: np.ndarray, nodes: int) -> np.ndarray:
    """The die of each replica."""
    dies = len(room)
    node = np.arange(dies) * nodes // dies
    room, load = room.copy(), np.zeros(dies)
    here = np.zeros((int(expert.max()) + 1, dies), np.int64)  # replicas of an expert on a die
    there = np.zeros((len(here), nodes), np.int64)
    found = np.empty(len(expert), np.int64)
    for i in np.lexsort((expert, -each)).tolist():
        e = expert[i]
        keys = (np.arange(dies), room, load, here[e], there[e][node], room == 0)
        d = int(np.lexsort(keys)[0])
        found[i] = d
        room[d] -= 1
        load[d] += each[i]
        here[e, d] += 1
        there[e, node[d]] += 1
    return found


def _swapped(expert: np.ndarray, each: np.ndarray, die: np.ndarray, dies: int, nodes: int) -> None:
    """Swaps replicas of the fullest die and another of its node, in place: each time those that lower the higher of the
    two most."""
    load = np.bincount(die, each, dies)
    node = np.arange(dies) * nodes // dies
    for _ in range(SWAPS):
        top = int(load.argmax())
        mine, others = np.flatnonzero(die == top), np.flatnonzero((die != top) & (node[die] == node[top]))
        if not len(mine) or not len(others):
            return
        gain = each[mine][:, None] - each[others]  # what the fullest would lose
        after = np.maximum(load[top] - gain, load[die[others]] + gain)
        has = np.zeros((dies, int(expert.max()) + 1), bool)
        has[die, expert] = True
        after[has[die[others]][:, expert[mine]].T | has[top, expert[others]]] = np.inf  # none gets an expert twice
        i, j = np.unravel_index(int(after.argmin()), after.shape)
        if not after[i, j] < load[top] * (1 - 1e-9):
            return
        a, b = mine[i], others[j]
        load[top] -= gain[i, j]
        load[die[b]] += gain[i, j]
        die[a], die[b] = die[b], die[a]
