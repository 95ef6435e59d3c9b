"""What bytes hold, in symbols: a member's source, or a reduction of several, and where in it.

For the verifier.  A value is a number; ``Values`` knows what it stands for.  Equal values are equal
numbers, so that the same bits on two dies can be told by comparing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from strata.plan.records import DTYPE_NAMES, OP_NAMES, partial_bytes

GARBAGE = 0  # memory that nobody has written


class Node(NamedTuple):
    """``members`` that are in it, as bits; ``op`` 0: a source as it is.  ``partial``: in accumulators that
    are to be rounded, or divided, once all are there.  ``children``: what it was made from, in order."""

    members: int
    op: int
    dtype: int
    partial: bool
    width: int  # bytes of an element
    children: tuple[int, ...]
    free: Any = None  # accumulated atomically, in free order: where, if that order shows in the bits, else ()


class Wrong(Exception):
    """What is wrong with a combination, in words."""


class Values:
    """All values of one proof.  ``itemsize``, ``nranks``, ``dtype``, ``redop`` are the spec's."""

    def __init__(self, nranks: int, itemsize: int, dtype: int, redop: int) -> None:
        self.nranks, self.dtype, self.redop = nranks, dtype, redop
        size = max(itemsize, 1)
        self.nodes: list[Node] = [Node(0, 0, 0, False, 1, ())]
        self.nodes += [Node(1 << m, 0, dtype, False, size, ()) for m in range(nranks)]
        self._numbers: dict[Node, int] = {}
        self.mean = bool(redop) and OP_NAMES[redop] == "avg"
        self.wide = partial_bytes(dtype, redop) if redop else size
        self.size = size
        self.exact = DTYPE_NAMES[dtype][0] in "iu" or DTYPE_NAMES[dtype] == "bool"  # no order shows in the bits
        self.rounds = self.mean or self.wide != size  # whole and partial are not the same

    def source(self, member: int) -> int:
        """A member's SRC."""
        return 1 + member

    def reduce(self, op: int, dtype: int, operands: list[tuple[int, bool]], partial: bool, total: int) -> int:
        """The operands (value, read as partial) combined in their order; Wrong if that makes no sense."""
        if op != self.redop or dtype != self.dtype:
            raise Wrong(f"reduces {DTYPE_NAMES[dtype]} by {OP_NAMES[op]}, and {self._what()} is asked for")
        members = 0
        for value, flagged in operands:
            members |= self._operand(value, flagged, members)
        if self.mean and not partial and (total or len(operands)) != self.nranks:
            raise Wrong(f"divides by {total or len(operands)}, and there are {self.nranks} members")
        children = tuple(value for value, _ in operands)
        form = partial and self.rounds
        return self._number(Node(members, op, dtype, form, self.wide if form else self.size, children))

    def accumulate(self, op: int, dtype: int, target: int, given: int, where: tuple[Any, ...]) -> int:
        """``given`` added to ``target``, in whatever order such steps come.  ``where``: tells the target from
        others, which take their steps in an order of their own and so may get other bits."""
        if op != self.redop or dtype != self.dtype:
            raise Wrong(f"accumulates {DTYPE_NAMES[dtype]} by {OP_NAMES[op]}, and {self._what()} is asked for")
        members = self._operand(target, False, 0, free=True)
        members |= self._operand(given, False, members, free=True)
        base = self.nodes[target].children if self.nodes[target].free is not None else (target,)
        children = tuple(sorted((*base, given)))
        return self._number(Node(members, op, dtype, False, self.size, children, () if self.exact else where))

    def _operand(self, value: int, flagged: bool, before: int, free: bool = False) -> int:
        node = self.nodes[value]
        if value == GARBAGE:
            raise Wrong("reads memory that nobody has written")
        if node.op and (node.op, node.dtype) != (self.redop, self.dtype):
            raise Wrong("mixes reductions")
        if node.op and self.rounds and not node.partial and not (free and not self.mean):
            raise Wrong("takes a result that has been rounded or divided already")
        if self.wide != self.size and flagged != node.partial:
            is_, taken = ("partial", "whole") if node.partial else ("whole", "partial")
            raise Wrong(f"takes a {is_} operand for a {taken} one")
        twice = members_of(node.members & before)
        if twice:
            raise Wrong(f"takes member {twice[0]} twice")
        return node.members

    def problem(self, value: int, rank_order: bool) -> str | None:
        """Why a value is not the reduction of all members, or None.  ``rank_order``: in one unit, by rank."""
        node = self.nodes[value]
        missing = members_of(~node.members & (1 << self.nranks) - 1)
        if value == GARBAGE:
            return "nothing was written"
        if missing:
            return f"member {missing[0]} is missing" + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
        if self.nranks > 1 and not node.op:
            return "nothing was reduced"
        if node.partial:
            return "it is partial still"
        if rank_order and node.children != tuple(range(1, self.nranks + 1)):
            return "the operands are not in rank order, in one unit"
        return None

    def name(self, value: int) -> str:
        """A value in words."""
        node = self.nodes[value]
        if value == GARBAGE:
            return "nothing"
        who = members_of(node.members)
        if not node.op:
            return f"SRC of member {who[0]}"
        some = ", ".join(map(str, who[:6])) + (", ..." if len(who) > 6 else "")
        return f"the {'partial ' if node.partial else ''}{OP_NAMES[node.op]} of members {some}"

    def _what(self) -> str:
        return f"{OP_NAMES[self.redop]} of {DTYPE_NAMES[self.dtype]}" if self.redop else "no reduction"

    def _number(self, node: Node) -> int:
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return found


def members_of(bits: int) -> list[int]:
    """The members whose bits are set."""
    return [m for m in range(bits.bit_length()) if bits >> m & 1]
