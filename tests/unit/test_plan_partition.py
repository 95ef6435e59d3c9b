"""Units shared among cores: LPT as defined, within its bound, caps kept, order staggered."""

import heapq

import numpy as np
import plan_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.plan import build, partition, verify
from strata.plan.cost import NO_CAP, Cost
from strata.plan.topology import Topology

# A supernode: latencies and rates by distance, 24 cores fill a port
MACHINE = Cost(
    alpha_us=(0.1, 0.2, 0.7, 2.1),
    gbps=(33.0, 8.75, 7.1, 6.25),
    unit_bytes=(1 << 20,) * 4,
)


TWO_NODES = Topology(2, 16)  # 32 dies: two per package, 16 per node


def columns(data, units, peers):
    """cost, peer, turn, share, cap of units of a few costs."""
    costs = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=4))
    chance = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    cost = chance.choice(np.array(costs, np.int64), units)
    peer = chance.integers(0, peers, units)
    cap = np.full(units, data.draw(st.sampled_from([1, 2, 3, NO_CAP])))
    return cost, peer, peer.copy(), chance.random(units).round(2), cap


def plain_lpt(cost, dealt, cores):
    heap = [(0, c) for c in range(cores)]
    core = {}
    for unit in dealt.tolist():
        load, c = heap[0]
        core[unit] = c
        heapq.heapreplace(heap, (load + int(cost[unit]), c))
    return core, max(heap)[0]


@given(st.data())
def test_balanced_is_lpt(data):
    units, cores = data.draw(st.integers(0, 3000)), data.draw(st.integers(2, 60))
    cost, peer, turn, share, cap = columns(data, units, data.draw(st.integers(1, 40)))
    placed = partition.balanced(cost, peer, turn, share, cores, cap)
    core, makespan = plain_lpt(cost, np.lexsort((turn, share, -cost)), cores)
    assert placed.loads.max() == makespan
    assert sorted(placed.order.tolist()) == list(range(units))
    assert all(core[u] == c for u, c in zip(placed.order.tolist(), placed.core.tolist(), strict=True))
    assert cores * makespan <= int(cost.sum()) + (cores - 1) * int(cost.max(initial=0))


@given(st.data())
def test_a_cap_holds_in_every_stripe(data):
    units, cores = data.draw(st.integers(0, 700)), data.draw(st.integers(2, 24))
    cost, peer, turn, share, cap = columns(data, units, data.draw(st.integers(1, 12)))
    peer[peer == 3] = -1  # no one peer's: not counted
    placed = partition.balanced(cost, peer, turn, share, cores, cap)
    stripe, who = placed.stripe, peer[placed.order]
    same_core = placed.core[1:] == placed.core[:-1]
    assert (stripe[1:][same_core] > stripe[:-1][same_core]).all()
    counted = who >= 0
    _, number = np.unique(np.stack((stripe, who))[:, counted], axis=1, return_counts=True)
    assert number.max(initial=0) <= (cap[0] if units else 0)


@given(st.data())
def test_naive_places_every_unit_and_keeps_peers_apart(data):
    units, cores, peers = (data.draw(st.integers(*r)) for r in ((0, 500), (2, 30), (1, 30)))
    cost, peer, turn, share, cap = columns(data, units, peers)
    placed = partition.naive(cost, peer, turn, share, cores, cap)
    assert sorted(placed.order.tolist()) == list(range(units))
    assert (np.diff(placed.core) >= 0).all() and placed.loads.sum() == cost.sum()
    met = np.unique(peer)
    used = [set(placed.core[peer[placed.order] == p].tolist()) for p in met]
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


@pytest.mark.parametrize("policy", partition.POLICIES)
@pytest.mark.parametrize("operation", ["all_gather", "all_reduce", "reduce_scatter", "all_to_all_v"])
def test_plans_of_many_cores_are_proved(operation, policy):
    spec = cases.spec(operation, 1 << 20, 32)
    cost = Cost(MACHINE.alpha_us, MACHINE.gbps, (1 << 18,) * 4, (2,) * 4)
    made = cases.plans(spec, cores=48, policy=policy, cost=cost, topology=TWO_NODES)
    verify(made)
    assert all(len(plan.core_begin) == 49 for plan in made)
