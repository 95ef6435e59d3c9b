"""Proves, with no process and no data, that the plans of all members deliver an operation.

For plans of any algorithm, of one step or many, at any number of dies.  What is proved:

* no deadlock, whatever the speed of cores and dies;
* no race: two accesses to a byte of which one is a write are ordered by cores and flags, unless both
  are accumulations;
* what is read has been written, within the buffers, and never SRC is;
* at the end every byte of every OUT is what the operation promises (``operations.result``): the copy of
  the right byte, or the reduction of the right bytes of every member, each taken once, by the right
  operator, rounded and divided once; under full_mesh in rank order in one unit; and in an all_reduce
  made in the same way on all members, so that all get the same bits.

Two rules besides: a byte of OUT may be written again, in order, by another value, but not by the same; a
flag that nobody waits for is allowed.  Not proved: that a plan is fast, or that the executor and the kernels are right.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from strata.plan import operations
from strata.plan.plan import Plan, PlanError
from strata.plan.proving import Proof
from strata.plan.records import COMBINE, OUT, ROWS
from strata.plan.spec import MOE


def verify(plans: list[Plan]) -> dict[str, int]:
    """PlanError that names the first violation found by die, core, unit and bytes, if any.

    ``plans``: one of each member, in rank order, each at any number of cores.  Returns how many
    ``units``, ``reads``, ``writes`` (operands), written ``bytes`` and ``flags`` were proved.

    Of plans that move rows (``plan.moe``), whose counts do not say where each belongs: that as many come from each
    member as counts say, and none is written twice; ``plan.moe.verify`` proves the rest, given the routings.
    """
    _agree(plans)
    if plans[0].spec.operation in MOE:
        from strata.plan.moe.proof import verify_counts  # above this layer's other units

        return verify_counts(plans)
    proof = Proof(plans)
    _closing(plans)
    proof.run()
    _promised(plans, proof)
    _claims(plans, proof)
    return {
        "units": sum(len(plan.units) for plan in plans), "reads": proof.reads, "writes": proof.writes,
        "bytes": proof.bytes, "flags": len(proof.posts),
    }  # fmt: skip


def _agree(plans: list[Plan]) -> None:
    if not plans:
        raise PlanError("no plans given")
    first = plans[0].spec
    if len(plans) != first.nranks or [p.rank for p in plans] != list(range(first.nranks)):
        ranks = [p.rank for p in plans]
        raise PlanError(f"plans of {ranks} given, in a group of {first.nranks}")
    for plan in plans:
        plan.check()
        spec = plan.spec._replace(in_place=first.in_place, counts=None)
        same = spec == first._replace(counts=None) and plan.algorithm == plans[0].algorithm
        if same and first.counts is not None:
            same = np.array_equal(plan.spec.counts, first.counts)
        if not same:
            raise PlanError(f"die {plan.rank} plans another operation than die 0", ranks=[plan.rank])
        if first.operation not in MOE and np.isin(plan.units["kind"], (ROWS, COMBINE)).any():
            raise PlanError(f"die {plan.rank} moves rows, which {first.operation} has none of", ranks=[plan.rank])


def _closing(plans: list[Plan]) -> None:
    """Every plan says whether a closing synchronisation is due."""
    zero_copy = plans[0].spec.mode == "zero_copy"
    afar = [(plan.operands["member"] != plan.rank).any() for plan in plans]
    due = zero_copy and bool(any(afar) or any((plan.units["wait_flag"] >= 0).any() for plan in plans))
    for plan in plans:
        if plan.needs_done != due:
            said = "is due" if due else "is not due"
            raise PlanError(f"die {plan.rank}: needs_done is wrong, a synchronisation {said}")


def _claims(plans: list[Plan], proof: Proof) -> None:
    """Executors go by what plans say they reach."""
    size = np.array(proof.size, np.int64)
    for plan in plans:
        beyond = plan.buffer_bytes.astype(np.int64) > size
        if beyond.any():
            member = int(np.argwhere(beyond)[0][0])
            raise PlanError(f"die {plan.rank} claims more of a buffer of member {member} than there is")


def _promised(plans: list[Plan], proof: Proof) -> None:
    """Every byte of OUT is what the operation promises."""
    spec = plans[0].spec
    made: dict[int, list[tuple[int, int, int]]] = {}
    for m, plan in enumerate(plans):
        line, base = proof.lines[m], proof.base[m][OUT]
        found = operations.result(plan.spec, m)
        for dst, length, member, src in zip(*(column.tolist() for column in found), strict=True):
            parts = line.read(base + dst, base + dst + length)
            for i, (offset, value, at) in enumerate(parts):
                end = parts[i + 1][0] if i + 1 < len(parts) else length
                place = m, dst + offset, dst + end
                if member >= 0 or spec.nranks == 1:
                    _copied(proof, place, value, at, max(member, 0), src + offset)
                else:
                    _reduced(proof, place, value, at, src + offset, plan.algorithm == "full_mesh")
            if member < 0:
                made[m] = parts
    if spec.operation == "all_reduce" and len(made) > 1:
        _same_bits(proof, made)


def _copied(proof: Proof, place: tuple[int, int, int], value: int, at: int, member: int, source: int) -> None:
    if value != proof.values.source(member) or at != source:
        what = f"byte {at} of {proof.values.name(value)}" if value else "nothing"
        _wrong(proof, place, f"byte {source} of SRC of member {member}", what)


def _reduced(proof: Proof, place: tuple[int, int, int], value: int, at: int, source: int, rank_order: bool) -> None:
    problem = proof.values.problem(value, rank_order)
    if problem or at != source:
        what = problem or f"it is that of byte {at} on"
        _wrong(proof, place, f"the reduction of all members' SRC from byte {source} on", what)


def _wrong(proof: Proof, place: tuple[int, int, int], wanted: str, found: str) -> None:
    m, begin, end = place
    line, start = proof.lines[m], proof.base[m][OUT] + begin
    piece = line.pieces[bisect_right(line.starts, start) - 1]
    last = piece.adders[-1] if piece.adders else piece.writer
    who = f"; last written by {proof._by(*last)}" if last else "; no unit writes it"
    raise PlanError(
        f"member {m} OUT bytes [{begin}, {end}) should be {wanted}, and found is: {found}{who}",
        ranks=[proof.cores[last[0]].die if last else m], operation=proof.spec.operation,
    )  # fmt: skip


def _same_bits(proof: Proof, made: dict[int, list[tuple[int, int, int]]]) -> None:
    """The members' results were made in the same way."""
    first = min(made)
    for m, parts in made.items():
        if parts != made[first]:
            at = next((b[0] for a, b in zip(made[first], parts, strict=False) if a != b), 0)
            raise PlanError(
                f"members {first} and {m} reduce in different orders, from byte {at} of OUT on: not the same bits",
                ranks=[first, m], operation=proof.spec.operation,
            )  # fmt: skip
