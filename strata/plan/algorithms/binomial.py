"""binomial: trees of log2 n steps for rooted operations, and ``scatter_allgather`` for long broadcasts.

broadcast and reduce move everything along each edge.  scatter and gather move what a subtree needs,
which its members keep in scratch on the way.  ``scatter_allgather`` (van de Geijn) scatters shares of
a broadcast from the root and gathers them round a ring: twice the bytes per member, whatever n is.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.algorithms.collective import Along
from strata.plan.frontends import frontend
from strata.plan.records import OUT, SCRATCH, SRC
from strata.plan.spec import ROOTED, Spec
from strata.plan.topology import Topology


def _low(place: np.ndarray, n: int) -> np.ndarray:
    """Members of the subtree at a place in the tree: the lowest bit, or all for the root."""
    return np.where(place > 0, place & -place, 1 << (n - 1).bit_length())


def tree(n: int, root: int, topology: Topology) -> t.Trees:
    """One block from the root, half of the members away first."""
    place = (np.arange(n)[:, None] - root) % n
    low = place & -place
    step = (n - 1).bit_length() - np.frexp(low)[1]
    return t.Trees(np.where(place > 0, (place - low + root) % n, -1), np.where(place > 0, step, -1))


@lru_cache(4)
def _scatter(n: int, root: int) -> t.Trees:
    """Blocks by place: block p passes every subtree it is in."""
    whole = tree(n, root, Topology())
    place = ((np.arange(n) - root) % n)[:, None]
    block = np.arange(n)[None, :]
    inside = (block >= place) & (block < place + _low(place, n)) & (place > 0)
    return t.Trees(np.where(inside, whole.parent, -1), np.where(inside, whole.step, -1))


@lru_cache(4)
def _gather(n: int, root: int) -> t.Trees:
    """The same backwards: a subtree's blocks come from the child that they are under."""
    place = ((np.arange(n) - root) % n)[:, None]
    block = np.arange(n)[None, :]
    inside = (block > place) & (block < place + _low(place, n))
    top = np.frexp(np.where(inside, block - place, 1))[1] - 1  # the child's bit
    return t.Trees(np.where(inside, (place + (1 << top) + root) % n, -1), np.where(inside, top, -1))


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    n, root = spec.nranks, spec.root
    if spec.operation not in ("scatter", "gather"):
        return _TREE.slices(spec, rank, topology)
    if n == 1 or not spec.part:
        return frontend(spec, rank)
    blocks = t.whole_blocks(spec, n)
    part = spec.part

    def places(at_root: int, at_end: int):
        """A block is in the root's buffer at its member's place, in its member's own at 0, on the way in scratch."""

        def place(member, block):
            top, own = member == root, (block + root) % n == member
            at = np.where(own, 0, (block - (member - root) % n) * part)
            at = np.where(top, (block + root) % n * part, at)
            return np.where(top, at_root, np.where(own, at_end, SCRATCH)), at

        return place

    skip = spec.in_place or rank != root
    if spec.operation == "scatter":
        down = t.spread(_scatter(n, root), rank, blocks, places(SRC, OUT))
        return t.ordered(down, t.own_copy(spec, rank, src=root * part, skip=skip))
    up = t.spread(_gather(n, root), rank, blocks, places(OUT, SRC))
    return t.ordered(up, t.own_copy(spec, rank, dst=root * part, skip=skip))


def _scratch(spec: Spec, rank: int, topology: Topology) -> int:
    if spec.operation not in ("scatter", "gather"):
        return _TREE.scratch(spec, rank, topology)
    place = (rank - spec.root) % spec.nranks
    below = min(int(_low(np.array(place), spec.nranks)), spec.nranks - place)
    return below * spec.part if place and below > 1 else 0


def _depth(spec: Spec, topology: Topology) -> int:
    if spec.operation not in ("scatter", "gather"):
        return _TREE.depth(spec, topology)
    return (spec.nranks - 1).bit_length()


_TREE = Along(one=tree)

BINOMIAL = Algorithm(
    "binomial",
    ROOTED,
    _slices,
    _scratch,
    order="a binomial tree from the root: each member's own operand, then its children's sums by their distance",
    depth=_depth,
)


@lru_cache(4)
def _shares(n: int, root: int, topology: Topology) -> t.Trees:
    """Share s goes from the root to member s, or its right neighbour if that is the root, and on round the ring."""
    member, share = np.indices((n, n))
    first = np.where(share == root, (root + 1) % n, share)
    hops = (member - first) % n
    after = hops > (root - first) % n  # the ring leaves the root out
    step = hops - after
    before = (member - 1) % n
    before = np.where(before == root, (root - 1) % n, before)
    away = member != root
    return t.Trees(np.where(away, np.where(step == 0, root, before), -1), np.where(away, step, -1))


SCATTER_ALLGATHER = Along(one=_shares, most_rooted=4).algorithm("scatter_allgather", "broadcast")
