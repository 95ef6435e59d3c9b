"""Units shared among cores: LPT as defined, within its bound, caps kept, order staggered."""

import heapq

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.plan import build, verify
from strata.plan.cost import NO_CAP, Cost
from strata.plan.schedule import POLICIES
from strata.plan.topology import Topology

# A supernode: latencies and rates by distance, 24 cores fill a port
MACHINE = Cost(
    alpha_us=(0.1, 0.2, 0.7, 2.1),
    gbps=(33.0, 8.75, 7.1, 6.25),
    unit_bytes=(1 << 20,) * 4,
)


TWO_NODES = Topology(2, 16)  # 32 dies: two per package, 16 per node


def costs(plan, cost):
    """Picoseconds of each copy of a plan, exactly as the model has them."""
    tier, nbytes = plan.units["tier"], plan.units["bytes"].astype(np.int64)
    return cost.alpha_ps[tier] + np.rint(nbytes * cost.ps_per_byte[tier]).astype(np.int64)


def skewed(data):
    """An all_to_all_v of random sizes, a machine and a number of cores."""
    n = data.draw(st.integers(1, 12))
    chance = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    top = data.draw(st.sampled_from([3, 5000, 1 << 20, 1 << 26]))
    counts = chance.integers(0, top, (n, n)) * (chance.random((n, n)) < 0.7)
    spec = cases.spec("all_to_all_v", 1, n, itemsize=1, counts=counts)
    cap = data.draw(st.sampled_from([1, 2, 3, NO_CAP]))
    cost = Cost(MACHINE.alpha_us, MACHINE.gbps, (data.draw(st.sampled_from([1 << 14, 1 << 20])),) * 4, (cap,) * 4)
    return spec, cost, data.draw(st.integers(1, 40)), Topology(2, 4)


@given(st.data())
def test_balanced_is_lpt_within_its_bounds(data):
    """A heap over the units by falling cost gives the same loads; Graham's bound holds."""
    spec, cost, cores, topology = skewed(data)
    plan = build(spec, 0, cores, cost=cost, topology=topology)
    each = costs(plan, cost)
    loads = np.zeros(cores, np.int64)
    np.add.at(loads, plan.units["core"], each)
    heap = [0] * cores
    for c in sorted(each.tolist(), reverse=True):
        heapq.heapreplace(heap, heap[0] + c)
    assert sorted(loads.tolist()) == sorted(heap)
    average = -(-int(each.sum()) // cores)
    largest = int(each.max(initial=0))
    assert plan.makespan_ps == loads.max() and max(average, largest) <= plan.bound_ps <= plan.makespan_ps
    assert cores * plan.makespan_ps <= int(each.sum()) + (cores - 1) * largest
    if 3 * largest <= average:
        assert 3 * plan.makespan_ps <= 4 * plan.bound_ps
    assert build(spec, 0, cores, cost=cost, topology=topology).hash() == plan.hash()


def test_equal_units_leave_no_lone_rest():
    """One unit more than cores: cut finer, so that the last core is done near the average."""
    for cores in range(2, 49):
        spec = cases.spec("all_to_all", 1 << 20, cores + 1, itemsize=1)
        plan = build(spec, 0, cores, cost=Cost((0.2,) * 4, (10,) * 4, (1 << 20,) * 4))
        assert 3 * plan.makespan_ps <= 4 * -(-int(costs(plan, Cost((0.2,) * 4, (10,) * 4, (1,) * 4)).sum()) // cores)


@given(st.data())
def test_a_cap_holds_in_every_stripe(data):
    spec, cost, cores, topology = skewed(data)
    policy = data.draw(st.sampled_from(POLICIES))
    plan = build(spec, 0, cores, cost=cost, topology=topology, policy=policy)
    units = plan.units
    same = units["core"][1:] == units["core"][:-1]
    assert (units["stripe"][1:][same] > units["stripe"][:-1][same]).all()
    who = plan.operands["member"][units["src_first"]]
    _, number = np.unique(np.stack((units["stripe"], who)), axis=1, return_counts=True)
    assert number.max(initial=0) <= cost.cap[0]


@given(st.data())
def test_naive_keeps_peers_apart(data):
    spec, cost, cores, topology = skewed(data)
    plan = build(spec, 0, cores, cost=cost, topology=topology, policy="naive")
    who = plan.operands["member"][plan.units["src_first"]]
    met = np.unique(who)
    used = [set(plan.units["core"][who == p].tolist()) for p in met]
    if len(met) >= cores:
        assert all(len(cores_of) == 1 for cores_of in used)
    else:  # no core serves two peers
        assert sum(map(len, used)) == len(set().union(*used))


@pytest.mark.parametrize("cores", [2, 8, 16, 19, 24, 31, 48])
def test_makespan_is_near_the_bound(cores):
    """32 ranks in two nodes, 128 MiB each: LPT within 2 % of its bound, never worse than naive."""
    spec = cases.spec("all_gather", 32 << 20, 32)
    for rank in (0, 17):
        plan = build(spec, rank, cores, cost=MACHINE, topology=TWO_NODES)
        worse = build(spec, rank, cores, cost=MACHINE, topology=TWO_NODES, policy="naive")
        assert plan.bound_ps <= plan.makespan_ps <= 1.02 * plan.bound_ps
        assert plan.makespan_ps <= worse.makespan_ps
        assert plan.bound_ps == worse.bound_ps
    if cores == 24:
        assert worse.makespan_ps > 1.2 * plan.makespan_ps


def test_loads_are_what_the_model_says():
    plan = build(cases.spec("all_gather", 1 << 20, 4), 1, 3, cost=MACHINE, topology=TWO_NODES)
    tier, nbytes = plan.units["tier"], plan.units["bytes"].astype(np.int64)
    expected = MACHINE.alpha_ps[tier] + np.rint(nbytes * MACHINE.ps_per_byte[tier]).astype(np.int64)
    loads = np.bincount(plan.units["core"], expected, minlength=3)
    assert plan.makespan_ps == loads.max()
    assert plan.bound_ps == max(expected.max(), -(-int(expected.sum()) // 3))
    peers = plan.operands["member"][plan.units["src_first"]]
    assert (tier == TWO_NODES.tiers(1, peers)).all()


def test_reduction_costs_each_leg():
    plan = build(cases.spec("all_reduce", 4096, 4), 0, cost=MACHINE, topology=TWO_NODES)
    legs = [0, 1, 2, 2, 1, 2, 2]  # four sources, then pushes
    each = round(4096 * sum(1e3 / MACHINE.gbps[t] for t in legs))
    assert plan.makespan_ps == 700_000 + each
    assert plan.units["tier"][0] == 2


def test_cores_start_on_different_peers():
    """In the first stripe, the cores of a die spread over its peers as evenly as they can."""
    spec = cases.spec("all_gather", 32 << 20, 32)
    for rank in range(0, 32, 5):
        plan = build(spec, rank, cores=24)
        first = plan.operands["member"][plan.units["src_first"][plan.core_begin[:-1]]]
        assert len(set(first.tolist())) == 24
        assert sorted((first - rank - 1) % 32) == list(range(24))


def test_skew_is_spread_over_stripes():
    counts = np.full((8, 8), 1 << 20)
    counts[3, 0] = 40 << 20
    spec = cases.spec("all_to_all_v", 1, 8)._replace(counts=counts, itemsize=1)
    cost = Cost(MACHINE.alpha_us, MACHINE.gbps, MACHINE.unit_bytes, (4,) * 4)
    plan = build(spec, 0, cores=6, cost=cost)
    peer = plan.operands["member"][plan.units["src_first"]]
    stripe = plan.units["stripe"][peer == 3]
    assert np.bincount(stripe).max() <= 4
    assert plan.makespan_ps <= 1.05 * plan.bound_ps  # 47 units on 6 cores


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all_v"])
def test_plans_of_many_cores_are_proved(operation, policy):
    spec = cases.spec(operation, 1 << 20, 32)
    cost = Cost(MACHINE.alpha_us, MACHINE.gbps, (1 << 18,) * 4, (2,) * 4)
    made = cases.plans(spec, cores=48, policy=policy, cost=cost, topology=TWO_NODES)
    verify(made)
    assert all(len(plan.core_begin) == 49 for plan in made)
