"""Descriptors of plans as data: kept, and submitted by hand, they do what the plan says."""

import numpy as np
import pytest

import strata
from strata import errors, sdma
from strata._core import lowering
from strata._core.descriptors import BLOCK, RELATIVE, WORLD
from strata._core.planned import PlanHandle
from strata.dtypes import OP_CODES
from strata.plan import Spec, build
from strata.plan.records import DTYPE_NAMES

COUNT = 100_003


def plan_of(group, algorithm, cores):
    spec = Spec("all_reduce", COUNT, 2, DTYPE_NAMES.index("bf16"), OP_CODES["avg"], 0, group.size)
    return build(spec, group.rank, cores, algorithm=algorithm)


def by_hand(group, algorithm, cores, block):
    """An all_reduce of bfloat16 means by submissions to rings; then by the group."""
    import ml_dtypes

    src = strata.empty(COUNT, ml_dtypes.bfloat16)
    src[:] = (np.arange(COUNT) % 251 / 8 + group.rank).astype(ml_dtypes.bfloat16)
    out, wanted = strata.zeros(COUNT, ml_dtypes.bfloat16), strata.empty(COUNT, ml_dtypes.bfloat16)
    plan = plan_of(group, algorithm, cores)
    handle = PlanHandle(plan, group.size, 0, False, 0)
    number, operands = lowering.room(handle, block)
    scratch = strata.empty(max(plan.scratch, 1), "u1")
    flags, counters = strata.zeros(1024, "u8"), strata.zeros(1024, "u8")
    lists = strata.zeros(16 * operands + 16, "u1")
    mine = [strata.address(a) for a in (src, out, scratch, flags)]
    table = group.all_gather(np.array(mine, "u8"))
    made = lowering.lower(group.context, handle, group.rank, table[:, :3], table[:, 3], number=7, space=operands,
                          counters=strata.address(counters), lists=strata.address(lists), block=block)  # fmt: skip
    assert len(made) == cores and sum(d.size for d in made) == number
    assert max(int(d["bytes"][np.isin(d["type"], (1, 2, 3))].max(initial=0)) for d in made) <= block
    rings = [sdma.open_ring(8) for _ in made]
    # All are begun before any is waited for; a ring that is full is gone on with by turns.
    todo, works = [0] * cores, []
    while any(at < d.size for at, d in zip(todo, made, strict=True)):
        for c, (ring, d) in enumerate(zip(rings, made, strict=True)):
            part = d[todo[c] : todo[c] + 4]
            try:
                if part.size:
                    works.append(ring.submit(part, wait=False))
                    todo[c] += part.size
            except errors.RingFull:
                pass
    for work in works:
        work.wait(60)
    for ring in rings:
        ring.close()
    group.all_reduce(src, wanted, op="avg", algorithm=algorithm, path="mte")
    return out.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("algorithm", ["full_mesh", "ring"])
@pytest.mark.parametrize("cores, block", [(1, BLOCK), (3, 4096)])
def test_descriptors_of_a_plan(trio, algorithm, cores, block):
    assert trio.run(by_hand, algorithm, cores, block) == [True] * 3


def bad(group):
    handle = PlanHandle(plan_of(group, "ring", 1), group.size, 0, False, 0)
    bases, flags = np.zeros((group.size, 3), "u8"), np.zeros(group.size, "u8")
    options = {"number": 1, "counters": 0, "lists": 0, "space": 0}
    for block in (0, 63, 100, 65 << 20):
        with pytest.raises(ValueError, match="multiple of 64"):
            lowering.room(handle, block)
    for wrong in ((bases[:1], flags), (bases, flags[:1])):
        with pytest.raises(ValueError, match="members"):
            lowering.lower(group.context, handle, group.rank, *wrong, **options)
    with pytest.raises(errors.StrataError, match="more than 0 operands"):
        lowering.lower(group.context, handle, group.rank, bases, flags, **options)
    made = lowering.lower(group.context, PlanHandle(build(Spec("all_gather", 8, nranks=group.size), group.rank,
                                                          algorithm="ring"), group.size, 0, False, 0),
                          group.rank, bases, flags, flags=WORLD | RELATIVE, wake_at=0, **options)  # fmt: skip
    gates = made[0][made[0]["type"] == 8]
    assert gates.size and (gates["flags"] == WORLD | RELATIVE).all() and (gates["value"] == 1).all()


def test_bad_arguments(trio):
    trio.run(bad)
