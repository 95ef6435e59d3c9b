"""Runs an algorithm that was read from another library's file, and compares every byte."""

import numpy as np
import plan_cases as cases

from strata.exec import reference
from strata.plan import operations, verify
from strata.plan.interchange import dataflow
from strata.plan.records import OP_NAMES


def arrays(spec, rank, chance, dtype):
    """Source and result of a member, which share memory if it works in place; the source is filled."""
    sent, received = (size // dtype.itemsize for size in operations.sizes(spec, rank))
    place = operations.own_place(spec, rank)
    if place is None:
        src, out = np.zeros(sent, dtype), np.zeros(received, dtype)
    else:
        both, place = np.zeros(max(sent, received), dtype), place // dtype.itemsize
        src, out = both[max(place, 0) :][:sent], both[max(-place, 0) :][:received]
    src[:] = chance.integers(-8, 8, sent).astype(dtype)
    return src, out


def wanted(spec, rank, sources, dtype):
    """What the member's result must be, by the operation's definition; sums are exact before rounding."""
    made = np.zeros(operations.sizes(spec, rank)[1], np.uint8)
    for dst, length, member, src in zip(*operations.result(spec, rank), strict=True):
        if member >= 0:
            made[dst : dst + length] = sources[member].view(np.uint8)[src : src + length]
            continue
        parts = [s.view(np.uint8)[src : src + length].view(dtype).astype(np.float32) for s in sources]
        total = np.sum(parts, axis=0, dtype=np.float32)
        mean = total / np.float32(spec.nranks) if OP_NAMES[spec.redop] == "avg" else total
        made[dst : dst + length] = mean.astype(dtype).view(np.uint8)
    return made.view(dtype)


def deliver(algorithm, count, dtype="f32", op="sum", in_place=0, cores=1, seed=None):
    """Builds and runs the algorithm on all members, in any order of the cores; proves them, and compares every byte."""
    (operation,) = algorithm.operations
    spec = cases.spec(operation, count, dataflow.ranks(algorithm), dtype)
    if spec.redop:
        spec = spec._replace(redop=OP_NAMES.index(op))
    plans = cases.plans(spec, in_place, cores, algorithm=algorithm.name)
    verify(plans)
    kind, chance = reference.numpy_dtype(spec.dtype), np.random.default_rng(count)
    pairs = [arrays(p.spec, p.rank, chance, kind) for p in plans]
    sources = [src.copy() for src, _ in pairs]
    members = [reference.buffers(*pair, p.scratch) for pair, p in zip(pairs, plans, strict=True)]
    for member in members:
        member.scratch[:] = 0xEE
    reference.run(plans, members, seed)
    for plan, (_, out) in zip(plans, pairs, strict=True):
        assert np.array_equal(out, wanted(plan.spec, plan.rank, sources, kind)), (plan, seed)
