"""bruck: ceil(log2 n) steps for any n (Bruck, Ho, Kipnis, Upfal and Weathersby, 1997).

all_gather: member r takes what member r + 2^k has, which is 2^k members' blocks.  all_to_all: a part
travels the bits of its distance, lowest first, and lies in scratch between; n / 2 parts per step.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms import trees as t
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.algorithms.collective import Along, rootless
from strata.plan.frontends import frontend
from strata.plan.records import NONE, OUT, SCRATCH, SRC
from strata.plan.spec import Spec
from strata.plan.topology import Topology


@lru_cache(16)
def dissemination(n: int) -> t.Trees:
    """The last leg of a block that is d members to the right is the highest bit of d."""
    member, block = np.indices((n, n))
    away = (block - member) % n
    step = np.frexp(away)[1] - 1
    return t.Trees(np.where(away > 0, (member + (1 << np.maximum(step, 0))) % n, -1), np.where(away > 0, step, -1))


_GATHER = Along(rootless(dissemination))


@lru_cache(16)
def _legs(n: int) -> tuple[np.ndarray, ...]:
    """Of all distances' legs, by step: distance, step, the leg before's step and place in scratch (-1: at the
    origin), own place in scratch (-1: at the target)."""
    rows, slots = [], 0
    place: dict[tuple[int, int], int] = {}
    for step in range((n - 1).bit_length()):
        for away in range(1, n):
            if not away >> step & 1:
                continue
            before = (away & ((1 << step) - 1)).bit_length() - 1
            slot = -1
            if away >> step + 1:
                slot = place[away, step] = slots
                slots += 1
            rows.append((away, step, before, place.get((away, before), -1), slot))
    return tuple(np.array(rows, np.int64).reshape(-1, 5).T)


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    if spec.operation != "all_to_all":
        return _GATHER.slices(spec, rank, topology)
    n, part = spec.nranks, spec.part
    if n == 1 or not part:
        return frontend(spec, rank)
    away, step, before, given, slot = _legs(n)
    peer = (rank - (1 << step)) % n
    origin = (rank - (away & ((2 << step) - 1))) % n
    moved = t.made(
        peer=peer,
        src_buf=np.where(given < 0, SRC, SCRATCH),
        src=np.where(given < 0, (origin + away) % n, given) * part,
        dst_buf=np.where(slot < 0, OUT, SCRATCH),
        dst=np.where(slot < 0, origin, slot) * part,
        bytes=part,
        wait_peer=np.where(before < 0, NONE, peer),
        wait_flag=np.where(before < 0, NONE, before),
        post_flag=step,
        step=step,
    )
    return t.ordered(t.merged(moved), t.own_copy(spec, rank, src=rank * part, dst=rank * part))


def _scratch(spec: Spec, rank: int, topology: Topology) -> int:
    if spec.operation != "all_to_all" or spec.nranks == 1:
        return 0
    return (int(_legs(spec.nranks)[4].max(initial=-1)) + 1) * spec.part


def _depth(spec: Spec, topology: Topology) -> int:
    return (spec.nranks - 1).bit_length() if spec.operation == "all_to_all" else _GATHER.depth(spec, topology)


BRUCK = Algorithm("bruck", frozenset(("all_gather", "all_to_all")), _slices, _scratch, depth=_depth)
