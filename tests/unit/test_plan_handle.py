"""What the core looks at before it takes a plan."""

import dataclasses

import numpy as np
import plan_cases as cases
import pytest

from strata._core.descriptors import BLOCK
from strata._core.planned import PlanHandle
from strata.errors import InvalidArgument
from strata.plan import Plan, build
from strata.plan.records import REDUCE

N = 3


def made(cores: int = 2) -> Plan:
    return build(cases.spec("all_reduce", 100_000, N), 1, cores, algorithm="ring")


def take(plan: Plan, nranks: int = N) -> PlanHandle:
    return PlanHandle(plan, nranks, 0, False, False)


def test_a_plan_is_taken_as_it_is():
    plan = made()
    handle = take(plan)
    assert handle.plan is plan and handle.digest == plan.digest and handle.scratch == plan.scratch


def test_who_carries_a_plan_out():
    spec = cases.spec("all_reduce", 1_000_000, N)
    plan = build(spec, 1, 2, algorithm="ring", path="sdma")
    handle = take(plan)
    assert handle.sdma and not handle.insists and handle.shape == (N, 3)
    assert not PlanHandle(plan, N, 0, True, False).sdma, "cores copy from mailboxes"
    reduce = plan.units[plan.units["kind"] == REDUCE]
    blocks = -(-reduce["bytes"].astype("i8") // BLOCK)
    assert handle.listed == (blocks * (reduce["nsrc"].astype("i8") + reduce["ndst"])).sum() > 0
    assert not take(build(spec, 1, 2, algorithm="ring")).sdma


@pytest.mark.parametrize("begin", [[], [0]])
def test_a_plan_is_on_one_core_at_least(begin):
    with pytest.raises(InvalidArgument, match=rf"core_begin has {len(begin)} entries"):
        take(dataclasses.replace(made(), core_begin=np.array(begin, "u4")))


@pytest.mark.parametrize("wrong", [[0, 1], [1, None], [0, None, 1, None], [0, -1]])
def test_cores_span_the_units_in_order(wrong):
    plan = made()
    begin = [len(plan.units) if b is None else b for b in wrong]
    with pytest.raises(InvalidArgument, match="out of bounds"):
        take(dataclasses.replace(plan, core_begin=np.array(begin, "i8").astype("u4")))


def test_a_plan_is_for_the_members_that_there_are():
    with pytest.raises(InvalidArgument, match=f"plan for {N} members in a group of {N + 1}"):
        take(made(), N + 1)


def test_a_member_has_so_many_flags():
    plan = made()
    units = plan.units.copy()
    units["post_flag"][0] = 1023
    take(dataclasses.replace(plan, units=units))
    units = units.copy()
    units["post_flag"][0] = 1024
    with pytest.raises(InvalidArgument, match="has 1025 flags, and a member has 1024"):
        take(dataclasses.replace(plan, units=units))
