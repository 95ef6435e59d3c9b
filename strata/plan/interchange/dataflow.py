"""A program of chunk moves as values: what each computes from what, and slices that compute it.

A foreign algorithm says which chunk goes where in which order.  Here each result is a *node*
with a place of its own: OUT if it is the last there, else a slot of scratch, so that no order but
that of the data matters and sums that are not complete keep their accumulators (they are rounded
once, at the end).  A buffer of ``count`` elements is cut as frontends cut shares: at whole lines
and elements, chunks differing by one grain at most; short ones leave some empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends._common import share
from strata.plan.records import (
    NONE,
    OUT,
    PARTIAL_DST,
    PARTIAL_SRC,
    PULL,
    SCRATCH,
    SLICE_DTYPE,
    SRC,
    SYNC_SLICE,
    partial_length,
)
from strata.plan.spec import Spec
from strata.plan.topology import Topology

ALIGN = 64


@dataclass(eq=False)
class Node:
    """``operands`` combined in order, on ``gpu``.  A source has none; its value is SRC chunk ``chunk``."""

    gpu: int
    operands: list[Node]
    parts: frozenset[tuple[int, int]]  # (gpu, SRC chunk) that it holds the sum of
    chunk: int = -1
    out: int = -1  # OUT chunk it is written to
    uses: int = 0
    level: int = 0
    flag: int = NONE
    after: list[Node] = field(default_factory=list)  # readers of what OUT may share memory with

    @property
    def source(self) -> bool:
        return not self.operands


@dataclass(frozen=True, eq=False)
class Program:
    """Nodes that are needed, each after its operands; ``per``: chunks of a part (of ``Spec.part`` bytes)."""

    operation: str
    ngpus: int
    per: int
    nodes: list[Node]
    root: int = 0


def fold(nodes: list[Node]) -> None:
    """A sum whose first operand is a sum of the same die, used nowhere else, takes its operands."""
    for node in nodes:
        first = node.operands[0] if node.operands else node
        if first is not node and len(node.operands) > 1 and len(first.operands) > 1:
            if first.uses == 1 and first.out < 0 and first.gpu == node.gpu:
                node.operands[:1] = first.operands
                first.uses = 0


def needed(ends: list[Node]) -> list[Node]:
    """All nodes that lead to ``ends``, operands first; counts uses."""
    found: dict[int, Node] = {}
    stack = [(node, False) for node in reversed(ends)]
    while stack:
        node, done = stack.pop()
        if done:
            found[id(node)] = node
        elif id(node) not in found:
            stack.append((node, True))
            stack += [(o, False) for o in reversed(node.operands) if id(o) not in found]
    nodes = list(found.values())
    for node in nodes:
        node.uses = 0
    for node in nodes:
        for operand in node.operands:
            operand.uses += 1
    return nodes


def order(nodes: list[Node]) -> None:
    """Levels: a node's operands, and those it comes after, are of lower ones."""
    for node in nodes:
        before = [o.level for o in node.operands] + [o.level for o in node.after]
        node.level = 0 if node.source else 1 + max(before, default=0)


@dataclass(frozen=True, eq=False)
class _Layout:
    place: dict[int, tuple[int, int]]  # id of node -> buffer and offset on its die
    length: dict[int, int]
    scratch: list[int]


@lru_cache(16)
def _layout(program: Program, part: int, itemsize: int, dtype: int, redop: int) -> _Layout:
    cuts = [share(part, itemsize, program.per, i) for i in range(program.per)]

    def offset(chunk: int) -> int:
        return chunk // program.per * part + cuts[chunk % program.per][0]

    place: dict[int, tuple[int, int]] = {}
    length: dict[int, int] = {}
    scratch = [0] * program.ngpus
    for node in program.nodes:
        size = length[id(node)] = cuts[next(iter(node.parts))[1] % program.per][1]
        if node.source:
            place[id(node)] = SRC, offset(node.chunk)
        elif node.out >= 0:
            place[id(node)] = OUT, offset(node.out)
        else:
            place[id(node)] = SCRATCH, scratch[node.gpu]
            room = partial_length(size, dtype, redop) if partial(program, node) else size
            scratch[node.gpu] += -(-room // ALIGN) * ALIGN
    return _Layout(place, length, scratch)


def partial(program: Program, node: Node) -> bool:
    """Whether the node is a sum that lacks members."""
    return 1 < len(node.parts) < program.ngpus


def _laid(program: Program, spec: Spec) -> _Layout:
    return _layout(program, spec.part, spec.itemsize, spec.dtype, spec.redop)


def scratch(program: Program, spec: Spec, rank: int) -> int:
    """Bytes of scratch of a die."""
    return _laid(program, spec).scratch[rank]


def slices(program: Program, spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, by level; a node waits for its operands' flags."""
    laid = _laid(program, spec)
    waited: set[tuple[int, int]] = set()
    rows: list[dict[str, int]] = []
    mine = [n for n in program.nodes if n.gpu == rank and not n.source and laid.length[id(n)]]
    for node in sorted(mine, key=lambda n: n.level):
        own = len(node.operands) == 1 and node.operands[0].source and node.operands[0].gpu == rank
        if own and spec.in_place and _in_place(program, node):
            if node.flag != NONE:  # it is there already, and peers wait for it
                rows.append({"kind": SYNC_SLICE, "post_flag": node.flag, "step": node.level})
            continue
        waits = {(o.gpu, o.flag): None for o in node.operands if not o.source}
        if spec.in_place:
            waits |= {(o.gpu, o.flag): None for o in node.after}
        left = [w for w in waits if w not in waited]
        for wait in left[:-1]:
            rows.append({"kind": SYNC_SLICE, "wait_peer": wait[0], "wait_flag": wait[1], "step": node.level})
            waited.add(wait)
        rows += _pulls(program, spec, laid, node, left[-1] if left else (NONE, NONE))
    made = np.zeros(len(rows), SLICE_DTYPE)
    for name in ("wait_peer", "wait_flag", "post_flag"):
        made[name] = NONE
    for i, row in enumerate(rows):
        for name, value in row.items():
            made[i][name] = value
    return made


def _in_place(program: Program, node: Node) -> bool:
    """Whether the node's OUT chunk is its operand's SRC chunk when the die works in place."""
    return shared(program.operation, node.gpu, program.per, node.out) == node.operands[0].chunk


def shared(operation: str, gpu: int, per: int, out: int) -> int:
    """SRC chunk that OUT chunk ``out`` shares memory with when the member works in place; -1: none."""
    if operation == "all_gather":
        return out - gpu * per if 0 <= out - gpu * per < per else -1
    return {"all_reduce": out, "reduce": out, "broadcast": out, "reduce_scatter": out + gpu * per}.get(operation, -1)


def _pulls(program: Program, spec: Spec, laid: _Layout, node: Node, wait: tuple[int, int]) -> list[dict[str, int]]:
    buf, at = laid.place[id(node)]
    sums = len(node.operands) > 1 or partial(program, node)
    rows = []
    for operand in node.operands:
        src_buf, src = laid.place[id(operand)]
        flags = PARTIAL_SRC if partial(program, operand) else 0
        rows.append({
            "peer": operand.gpu, "kind": PULL, "op": spec.redop if sums else 0, "src_buf": src_buf, "src": src,
            "dst_buf": buf, "dst": at, "bytes": laid.length[id(node)], "wait_peer": wait[0], "wait_flag": wait[1],
            "post_flag": node.flag, "flags": flags | (PARTIAL_DST if partial(program, node) else 0),
            "step": node.level,
        })  # fmt: skip
    return rows


_PROGRAMS: dict[str, Program] = {}


def algorithm(name: str, program: Program, reduces: str) -> Algorithm:
    """The program as an algorithm, for ``algorithms.register``; ``reduces``: the order of its sums, in words."""

    def refuses(spec: Spec, topology: Topology) -> str | None:
        return None if spec.nranks == program.ngpus else f"it is for {program.ngpus} ranks, not {spec.nranks}"

    _PROGRAMS[name] = program
    return Algorithm(
        name,
        frozenset((program.operation,)),
        lambda spec, rank, topology: slices(program, spec, rank),
        lambda spec, rank, topology: scratch(program, spec, rank),
        refuses,
        order=reduces,
        chosen_freely=False,
    )


def ranks(algorithm: Algorithm) -> int:
    """Members that an algorithm which was read from a file is for."""
    return _PROGRAMS[algorithm.name].ngpus
