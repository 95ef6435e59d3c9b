"""Plans as messages between ranks, for simulators that know sends, receives and computation but no memory of others.

Of each transfer unit, in the order of its core:

* a pull is a request of 8 bytes to the peer, which answers it with the bytes;
* a push is a send, and a receive on the peer's side;
* a copy within a die, a reduction, an accumulation is a computation;
* a flag is a dependence; to a rank that waits for another's, a message of 8 bytes, but where that rank received the
  bytes of all units that raise it.

What a rank does for others (answers to requests, receiving pushes) is on a CPU of its own for each core that asks,
after those of its cores.  Not said: the synchronisations that open and close an operation, distance, ports, paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.plan import Plan
from strata.plan.records import ACCUMULATE, NONE, PARTIAL, REDUCE, SYNC, UNIT_NAMES, partial_length

CONTROL_BYTES = 8  # of a request, or a flag
SEND, RECV, CALC = "send", "recv", "calc"


@dataclass(slots=True)
class Node:
    """A step of a rank.  ``peer``, ``tag`` (one for each message of a pair) and ``nbytes`` of messages; ``nbytes``
    that a computation reads and writes; ``after``: steps of the same rank that come before it, by index."""

    kind: str
    name: str
    cpu: int
    nbytes: int
    peer: int = NONE
    tag: int = 0
    after: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Unit:
    """What became of a unit: its step that waits for a flag, if it does; its last steps on its own rank; the last on
    ranks that it has pushed to."""

    first: int
    tail: list[int]
    pushed: dict[int, list[int]]


def ranks(plans: Sequence[Plan], what: str = "messages") -> list[list[Node]]:
    """The steps of each rank.  InvalidArgument unless the plans are those of all members of one operation that goes
    by memory."""
    spec = plans[0].spec
    if [plan.rank for plan in plans] != list(range(spec.nranks)) or any(
        plan.spec._replace(counts=None) != spec._replace(counts=None) or plan.algorithm != plans[0].algorithm
        or not np.array_equal(plan.spec.counts, spec.counts) for plan in plans
    ):  # fmt: skip
        raise InvalidArgument(f"{what} are of the plans of all members of one operation, in rank order")
    if spec.mode != "zero_copy":
        raise InvalidArgument(f"{what} are not made of operations that go by mailboxes")
    return _Maker(plans).made()


class _Maker:
    def __init__(self, plans: Sequence[Plan]) -> None:
        self.plans, self.cores = plans, max(plan.cores for plan in plans)
        self.nodes: list[list[Node]] = [[] for _ in plans]
        self.tags: dict[tuple[int, int], int] = {}
        self.posted: dict[tuple[int, int], list[_Unit]] = {}
        self.notices: dict[tuple[int, int, int], list[int]] = {}

    def made(self) -> list[list[Node]]:
        waiting = []
        for plan in self.plans:
            for core in range(plan.cores):
                before: list[int] = []
                for index in range(plan.core_begin[core], plan.core_begin[core + 1]):
                    unit = plan.units[index]
                    done = self.unit(plan, index, unit, core, before)
                    if unit["post_flag"] != NONE:
                        self.posted.setdefault((plan.rank, int(unit["post_flag"])), []).append(done)
                    if unit["wait_flag"] != NONE:
                        waiting.append((plan.rank, int(unit["wait_peer"]), int(unit["wait_flag"]), done.first))
                    before = done.tail
        for rank, peer, flag, first in waiting:
            known = self.nodes[rank][first].after
            known += [n for n in self.notice(rank, peer, flag) if n not in known]
        return self.nodes

    def add(self, rank: int, kind: str, name: str, cpu: int, nbytes: int, after: Sequence[int], **more: int) -> int:
        self.nodes[rank].append(Node(kind, name, cpu, nbytes, after=list(after), **more))
        return len(self.nodes[rank]) - 1

    def message(self, src: int, dst: int, nbytes: int, name: str, cpus: tuple[int, int], src_after: Sequence[int],
                dst_after: Sequence[int]) -> tuple[int, int]:  # fmt: skip
        """The send and the receive."""
        tag = self.tags[src, dst] = self.tags.get((src, dst), -1) + 1
        send = self.add(src, SEND, name, cpus[0], nbytes, src_after, peer=dst, tag=tag)
        return send, self.add(dst, RECV, name, cpus[1], nbytes, dst_after, peer=src, tag=tag)

    def unit(self, plan: Plan, index: int, unit: Any, core: int, before: list[int]) -> _Unit:
        rank, other = plan.rank, self.cores + core
        name = f"{UNIT_NAMES[int(unit['kind'])]} {rank}.{index}"
        first = NONE
        if unit["wait_flag"] != NONE:  # one step waits, since there may be several after it
            first = self.add(rank, CALC, f"{name} begins", core, 0, before)
        begin = before if first == NONE else [first]
        here = list(begin)
        local = 0
        sources = _operands(plan, unit, "src")
        for peer, nbytes in sources:
            if peer == rank:
                local += nbytes
                continue
            request, asked = self.message(rank, peer, CONTROL_BYTES, f"{name} asks", (core, other), begin, [])
            _, got = self.message(peer, rank, nbytes, name, (other, core), [asked], [request])
            here.append(got)
        targets = _operands(plan, unit, "dst")
        local += sum(nbytes for peer, nbytes in targets if peer == rank)
        combines = int(unit["kind"]) in (REDUCE, ACCUMULATE)
        if int(unit["kind"]) != SYNC and (combines or all(peer == rank for peer, _ in sources)):
            touched = local + (sum(n for p, n in sources if p != rank) if combines else 0)
            here = [self.add(rank, CALC, name, core, touched, here)]
        pushed: dict[int, list[int]] = {}
        sent = []
        for peer, nbytes in targets:
            if peer != rank:
                send, got = self.message(rank, peer, nbytes, name, (core, other), here, [])
                if unit["kind"] == ACCUMULATE:
                    got = self.add(peer, CALC, f"{name} there", other, 2 * nbytes, [got])
                sent.append(send)
                pushed.setdefault(peer, []).append(got)
        return _Unit(first, sent or here, pushed)

    def notice(self, rank: int, peer: int, flag: int) -> list[int]:
        """Steps of ``rank`` after which it knows that a flag is raised."""
        units = self.posted.get((peer, flag))
        if units is None:
            raise InvalidArgument(f"rank {rank} waits for flag {flag} of rank {peer}, which nothing raises")
        if peer == rank:
            return [step for unit in units for step in unit.tail]
        known = self.notices.get((rank, peer, flag))
        if known is None:
            if all(rank in unit.pushed for unit in units):
                known = [step for unit in units for step in unit.pushed[rank]]
            else:
                tails = [step for unit in units for step in unit.tail]
                cpus = (2 * self.cores, 2 * self.cores)
                known = [self.message(peer, rank, CONTROL_BYTES, f"flag {peer}.{flag}", cpus, tails, [])[1]]
            self.notices[rank, peer, flag] = known
        return known


def _operands(plan: Plan, unit: Any, side: str) -> list[tuple[int, int]]:
    """(Member, bytes) of each source or destination."""
    first = int(unit[f"{side}_first"])
    found = []
    for operand in plan.operands[first : first + int(unit[f"n{side}"])]:
        nbytes = int(unit["bytes"])
        if operand["flags"] & PARTIAL:
            nbytes = partial_length(nbytes, int(unit["dtype"]), int(unit["op"]))
        found.append((int(operand["member"]), nbytes))
    return found
