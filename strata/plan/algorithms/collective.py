"""Operations along trees: what ``ring``, ``rhd``, ``pat`` and others have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontend
from strata.plan.records import OUT, SRC, partial_bytes
from strata.plan.spec import REDUCTIONS, Spec
from strata.plan.topology import Topology

# (members, root, topology) -> trees; blocks are members' for many, one for rooted operations
Shape = Callable[[int, int, Topology], t.Trees]

BY_DISTANCE = "each member's own operand, then its children's sums by their distance (child - member) mod n"


def rootless(shape: Callable[[int], t.Trees]) -> Shape:
    """Trees that depend on the number of members alone."""
    return lambda n, root, topology: shape(n)


class Along:
    """Slices, scratch and depth of the operations along one shape of trees.

    ``many(n, root, topology)``  trees of n blocks, block b starting at member b: all_gather,
                                 reduce_scatter, all_reduce
    ``one(n, root, topology)``   trees whose blocks all start at the root: broadcast, reduce
    ``most``                     chunks of a block at most, and ``most_rooted``
    ``in_out``                   sums on the way of all_reduce lie in OUT where they fit
    """

    def __init__(self, many: Shape | None = None, one: Shape | None = None, most: int = 1, most_rooted: int = 1,
                 in_out: bool = False) -> None:  # fmt: skip
        self.many, self.one, self.most, self.most_rooted, self.in_out = many, one, most, most_rooted, in_out

    def algorithm(self, name: str, *operations: str, order: str = "", chosen_freely: bool = True) -> Algorithm:
        """These operations along the trees, under a name."""
        return Algorithm(name, frozenset(operations), self.slices, self.scratch, self.refuses, order=order,
                         depth=self.depth, chosen_freely=chosen_freely)  # fmt: skip

    def trees(self, spec: Spec, topology: Topology) -> t.Trees:
        """The trees of this operation."""
        shape = self.one if spec.operation in ("broadcast", "reduce") else self.many
        assert shape is not None
        return shape(spec.nranks, spec.root, topology)

    def blocks(self, spec: Spec, trees: t.Trees) -> t.Blocks:
        """The blocks that move, with their chunks."""
        number, steps = trees.parent.shape[1], trees.last + 2
        if spec.operation in ("all_gather", "reduce_scatter"):
            return t.whole_blocks(spec, number, t.chunks(spec.part, self.most, steps))
        most = self.most if spec.operation == "all_reduce" else self.most_rooted
        return t.shares(spec, number, t.chunks(spec.part // number, most, 2 * steps))

    def slices(self, spec: Spec, rank: int, topology: Topology) -> np.ndarray:
        """The die's slices, SLICE_DTYPE."""
        n = spec.nranks
        if n == 1 or not spec.part:
            return frontend(spec, rank)
        trees = self.trees(spec, topology)
        blocks = self.blocks(spec, trees)
        everyone = np.arange(n)
        if spec.operation == "all_gather":
            def place(member, block):
                own = member == block
                return np.where(own, SRC, OUT), np.where(own, 0, blocks.start[block])

            return t.ordered(t.spread(trees, rank, blocks, place), t.own_copy(spec, rank, dst=rank * spec.part))
        if spec.operation == "broadcast":
            def rooted(member, block):
                return np.where(member == spec.root, SRC, OUT), blocks.start[block]

            own = t.own_copy(spec, rank, skip=spec.in_place or rank != spec.root)
            return t.ordered(t.spread(trees, rank, blocks, rooted), own)
        if spec.operation == "reduce":
            origin = np.full(len(blocks.start), spec.root)
            return t.reduced(trees, rank, blocks, spec, origin, target=blocks.start)
        if spec.operation == "reduce_scatter":
            return t.reduced(trees, rank, blocks, spec, everyone, target=everyone * 0)
        up = t.reduced(trees, rank, blocks, spec, everyone, target=blocks.start, in_out=self._in_out(spec))
        ready = (trees.last + 1) * blocks.chunks
        down = t.spread(trees, rank, blocks, lambda member, block: (np.full(len(block), OUT), blocks.start[block]),
                        first=ready + blocks.chunks, ready=ready)  # fmt: skip
        return t.ordered(up, down)

    def _in_out(self, spec: Spec) -> bool:
        return self.in_out and partial_bytes(spec.dtype, spec.redop) == spec.itemsize

    def scratch(self, spec: Spec, rank: int, topology: Topology) -> int:
        """Bytes: room for the whole buffer in partial sums, if there are any on the way."""
        if spec.operation not in REDUCTIONS or spec.nranks < 3:
            return 0
        if spec.operation == "all_reduce" and self._in_out(spec):
            return 0
        return t.scratch(spec, spec.part * (spec.nranks if spec.operation == "reduce_scatter" else 1))

    def depth(self, spec: Spec, topology: Topology) -> int:
        """Synchronisations on the longest way, whose first edge waits for nobody."""
        if spec.nranks == 1 or not spec.part:
            return 0
        trees = self.trees(spec, topology)
        if spec.operation in ("broadcast", "reduce"):
            return longest(trees) + self.blocks(spec, trees).chunks - 2
        return longest(trees) * (2 if spec.operation == "all_reduce" else 1) - 1

    def refuses(self, spec: Spec, topology: Topology) -> str | None:
        """Why not: more steps than members have flags."""
        if spec.nranks == 1:
            return None
        steps = self.trees(spec, topology).last + 2
        if 2 * steps > t.FLAGS:
            return f"{spec.nranks} members would need {2 * steps} flags each, and there are {t.FLAGS}"
        return None


def longest(trees: t.Trees) -> int:
    """Edges of the longest way from an origin to a member."""
    everyone = np.arange(len(trees.parent))[:, None]
    block = np.arange(trees.parent.shape[1])
    up = np.where(trees.parent >= 0, trees.parent, everyone)
    edges = (trees.parent >= 0).astype(np.int64)
    while True:  # each round looks twice as far; an origin is its own parent, and no edge away
        further = edges[up, block]
        if not further.any():
            return int(edges.max(initial=0))
        edges, up = edges + further, up[up, block]
