"""hierarchical: by package, node and the whole, each block crossing a boundary once per group behind it.

In every package and node one member has a block from outside, the one at the place of the block's
origin within its own; the others have it from there, package mates from package mates.  Reductions
are the same trees backwards.  all_to_all: in each node the members collect, for the members at their
place in other nodes, what their node mates send there, so that one transfer between two nodes
carries a node's worth of parts.  Groups at the end may be short.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.algorithms.collective import Along
from strata.plan.frontends import frontend
from strata.plan.records import OUT, SCRATCH, SRC
from strata.plan.spec import Spec
from strata.plan.topology import Topology


def levels(n: int, topology: Topology) -> list[int]:
    """Sizes of the groups from the inside out, the whole last."""
    return [*sorted({size for size in (topology.package, topology.node) if 1 < size < n}), n]


@lru_cache(16)
def nested(n: int, package: int, node: int) -> t.Trees:
    """All blocks' trees: from an origin to one member of every group next to its own, and inwards."""
    sizes = levels(n, Topology(package, node))
    member, block = np.indices((n, n))
    parent = block.copy()  # who has the block on the way to `member`, as far as is known
    found = np.full((n, n), -1)
    step = np.full((n, n), -1)
    for depth, inner in enumerate(reversed([1, *sizes[:-1]])):
        # parent and member are in one group of the level; go on to the member's own inner group
        begin = member // inner * inner
        size = np.minimum(inner, n - begin)
        entry = begin + parent % inner % size
        crosses = parent // inner != member // inner
        here = crosses & (entry == member) & (found < 0)
        found[here], step[here] = parent[here], depth
        parent = np.where(crosses, entry, parent)
    own = member == block
    return t.Trees(np.where(own, -1, found), np.where(own, -1, step))


def _many(n: int, root: int, topology: Topology) -> t.Trees:
    return nested(n, topology.package, topology.node)


def _one(n: int, root: int, topology: Topology) -> t.Trees:
    whole = nested(n, topology.package, topology.node)
    return t.Trees(whole.parent[:, root : root + 1], whole.step[:, root : root + 1])


_NESTED = Along(_many, _one, most=4, most_rooted=16)


class _Exchange:
    """all_to_all: who collects what.  ``node``: members of a full node."""

    def __init__(self, spec: Spec, topology: Topology) -> None:
        self.n, self.part = spec.nranks, spec.part
        self.node = levels(self.n, topology)[-2]

    def mates(self, member: int) -> np.ndarray:
        begin = member // self.node * self.node
        return np.arange(begin, min(begin + self.node, self.n))

    def collector(self, node: int, target: np.ndarray) -> np.ndarray:
        """Who of a node collects for a member of another."""
        begin = node * self.node
        return begin + target % self.node % min(self.node, self.n - begin)

    def targets(self, member: int) -> np.ndarray:
        """For whom a member collects, in the order of its scratch."""
        node, everyone = member // self.node, np.arange(self.n)
        return everyone[(everyone // self.node != node) & (self.collector(node, everyone) == member)]

    def slices(self, spec: Spec, rank: int) -> np.ndarray:
        part, mates = self.part, self.mates(rank)
        direct = t.made(peer=mates, src_buf=SRC, src=rank * part, dst_buf=OUT, dst=mates * part, bytes=part)
        targets = self.targets(rank)
        peer, target = np.tile(mates, len(targets)), np.repeat(targets, len(mates))
        slot = np.arange(len(targets) * len(mates))
        collected = t.made(peer=peer, src_buf=SRC, src=target * part, dst_buf=SCRATCH, dst=slot * part, bytes=part,
                           post_flag=target // self.node)  # fmt: skip
        rows = []
        for node in range(-(-self.n // self.node)):
            if node == rank // self.node:
                continue
            by = int(self.collector(node, np.array(rank)))
            many = len(self.mates(by))
            where = int(np.searchsorted(self.targets(by), rank)) * many * part
            rows.append((by, where, node * self.node * part, many * part))
        by, where, dst, size = np.array(rows, np.int64).T
        far = t.made(peer=by, src_buf=SCRATCH, src=where, dst_buf=OUT, dst=dst, bytes=size, wait_peer=by,
                     wait_flag=rank // self.node, step=1)  # fmt: skip
        return t.ordered(t.merged(collected), direct, far)


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    if spec.operation != "all_to_all":
        return _NESTED.slices(spec, rank, topology)
    if spec.nranks == 1 or not spec.part:
        return frontend(spec, rank)
    return _Exchange(spec, topology).slices(spec, rank)


def _scratch(spec: Spec, rank: int, topology: Topology) -> int:
    if spec.operation != "all_to_all":
        return _NESTED.scratch(spec, rank, topology)
    exchange = _Exchange(spec, topology)
    return len(exchange.targets(rank)) * len(exchange.mates(rank)) * spec.part


def _refuses(spec: Spec, topology: Topology) -> str | None:
    if len(levels(spec.nranks, topology)) < 2:
        return (f"{spec.nranks} members in packages of {topology.package} and nodes of {topology.node} "
                "have only one level")  # fmt: skip
    if spec.operation == "all_to_all" and spec.nranks // levels(spec.nranks, topology)[-2] >= t.FLAGS:
        return f"more than {t.FLAGS} nodes"
    return None


def _depth(spec: Spec, topology: Topology) -> int:
    return 1 if spec.operation == "all_to_all" else _NESTED.depth(spec, topology)


HIERARCHICAL = Algorithm(
    "hierarchical",
    frozenset(("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all")),
    _slices,
    _scratch,
    _refuses,
    order="for block b, a tree with member b (the root) at its root: package mates, then one member of each package "
    "of the node, then one of each node; each member's own operand, then its children's sums by (child - member) mod n",
    depth=_depth,
)
