"""CloudMatrix384's costs, what ports allow, and the model against the facts that it was fitted to."""

import plan_cases as cases
import pytest

from strata import selection
from strata.errors import InvalidArgument
from strata.machine import load
from strata.plan import algorithms, build
from strata.plan import cost as costs
from strata.plan.model import estimate
from strata.plan.ports import IN, OUT, SIO_PORT, UB_PORT, port_ps, predicted_ps, traffic

MACHINE = load("cm384")
CM384, CM384_COST = MACHINE.place, MACHINE.cost

ALL_GATHER = cases.spec("all_gather", 128 << 20, 32, itemsize=1)


@pytest.mark.parametrize("nbytes, ratio", [(64 << 10, 4.5), (16 << 20, 1.0), (1 << 30, 0.94)])
def test_ring_against_full_mesh_as_published(nbytes, ratio):
    """32 dies: 4.5 times at 64 KiB a rank, even at 16 MiB, 6 % faster at 1 GiB; fitted to, so no validation."""
    machine = selection.machine("cm384")
    spec = ALL_GATHER._replace(count=nbytes)
    ring, mesh = (estimate(algorithms.find(name), spec, 48, machine.topology, machine.cost, machine.model)
                  for name in ("zerocopy_ring", "full_mesh"))  # fmt: skip
    assert ring / mesh == pytest.approx(ratio, rel=0.03)


def _us(operation, nbytes, n, names):
    machine = selection.machine("cm384")
    spec = cases.spec(operation, nbytes // 4, n, itemsize=4)
    return [estimate(algorithms.find(name), spec, 48, machine.topology, machine.cost, machine.model) for name in names]


@pytest.mark.parametrize("n", [8, 32])
def test_who_serves_many_shares_its_port(n):
    """1 GiB: the root's port sends n - 1 copies in a full mesh, one in a pipeline."""
    names = "full_mesh", "ring", "scatter_allgather", "binomial", "hierarchical"
    mesh, ring, *others = _us("broadcast", 1 << 30, n, names)
    once = (1 << 30) / (selection.machine("cm384").model.port_gbps * 1e3)
    assert mesh > (n - 2) * once  # one other is in its package
    assert once < ring < 2 * once
    assert all(once < us < mesh for us in others)
    for us in _us("scatter", 1 << 26, n, ("full_mesh", "binomial")):
        assert us > (n - 2) * once / 16


def test_members_with_empty_shares_do_not_wait_longer():
    """64 bytes have two shares: a ring of eight waits 14 times, whether a member has a share or not."""
    for name in ("ring", "rhd", "hierarchical"):
        (small,), (larger,) = (_us("all_reduce", nbytes, 8, (name,)) for nbytes in (64, 8192))
        assert small < 1.5 * larger


def test_units_of_a_large_operation_and_their_start_ups():
    plan = build(ALL_GATHER, 5, 24, cost=CM384_COST, topology=CM384)
    assert 20 * 24 <= len(plan.units) <= 64 * 24
    for alpha, gbps, nbytes in zip(CM384_COST.alpha_us, CM384_COST.gbps, CM384_COST.unit_bytes, strict=True):
        assert alpha < 0.004 * nbytes / (gbps * 1e3)
    assert plan.makespan_ps <= 1.02 * plan.bound_ps


def test_bytes_through_ports():
    plans = [build(ALL_GATHER, r, 48, cost=CM384_COST, topology=CM384) for r in range(32)]
    found = traffic(plans, CM384)
    assert (found[:, SIO_PORT] == 128 << 20).all() and (found[:, UB_PORT] == 30 * (128 << 20)).all()
    mine = traffic(plans[:1], CM384)
    assert mine[0, UB_PORT].tolist() == [30 * (128 << 20), 0] and mine[1, SIO_PORT, OUT] == 128 << 20
    assert mine[1:, :, IN].sum() == 0
    us = 30 * (128 << 20) / 196e3
    assert port_ps(plans, CM384_COST, CM384) == pytest.approx(us * 1e6, rel=1e-9)
    assert predicted_ps(plans, CM384_COST, CM384) / 1e6 == pytest.approx(us, rel=1e-9)  # 48 cores: ports are full
    few = [build(ALL_GATHER, r, 8, cost=CM384_COST, topology=CM384) for r in range(2)]
    assert predicted_ps(few, CM384_COST, CM384) == max(p.makespan_ps for p in few)
    assert port_ps(plans, costs.HOST, CM384).max() == 0


def test_partial_operands_are_as_wide_as_accumulators():
    """bf16 sums on their way are f32: twice the bytes."""
    spec = cases.spec("reduce_scatter", 1024, 4, "bf16")
    whole, partial = (sum(traffic([build(spec, r, algorithm=name)], CM384)[:, :, IN].sum() for r in range(4))
                      for name in ("full_mesh", "zerocopy_ring"))  # fmt: skip
    assert whole == 4 * 3 * 2048  # everybody's SRC
    assert partial == 4 * (2048 + 2 * 4096)  # one whole, two sums


@pytest.mark.parametrize("rate", [-1.0, float("nan"), 1e-9])
def test_a_port_without_a_rate_is_refused(rate):
    with pytest.raises(InvalidArgument, match="ub_gbps"):
        costs.Cost((0.2,) * 4, (10.0,) * 4, (1 << 20,) * 4, ub_gbps=rate)
