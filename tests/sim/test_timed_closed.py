"""Closed forms: what an operation takes where that can be said on paper, to the picosecond."""

import math

import pytest
from timed_cases import CM384, FAST_CORES, PLAIN, plans, spec

from strata.exec.timed import Program

MIB = 1 << 20


def run(machine, given, n, cores=24, dies=None, ndies=None, **options):
    program = Program(machine, ndies or n)
    stage = program.operation(plans(given, machine, cores, **options), dies=dies)
    timeline = program.run(check=True)
    return program, stage, timeline


@pytest.mark.parametrize("to,tier", [(1, 1), (2, 2), (16, 3)])
def test_one_unit_from_one_die_to_another(to, tier):
    """alpha + bytes / the core's rate, and the rendezvous, at each distance."""
    machine = CM384.replace(**{"fanout.loss": 0.0, "die.hbm_gbps": 1e6, "core.issue_us": 0.05})
    _, stage, timeline = run(machine, spec("broadcast", MIB, 2), 2, cores=1, dies=[0, to], ndies=to + 1)
    figures = machine.tiers[tier]
    sync = machine.sync.entry_us + machine.sync.poll_us
    busy = machine.core.issue_us + figures.alpha_us + math.ceil(MIB / (figures.core_gbps / 1e3)) / 1e6
    done = sync + figures.seen_us + busy
    # The root was done long before; each sees that the other's core is done.
    expected = [done + sync + figures.seen_us, done + sync + machine.tiers[0].seen_us]
    assert timeline.finish_us(stage) == pytest.approx(expected, abs=2e-6)
    assert timeline.core_times_us(stage)[1, 0] == pytest.approx(busy, abs=2e-6)


def test_a_mesh_fills_its_ports():
    """Of 32 dies, one per node, each pulls 31 x 4 MiB at once: alpha + 31 m / C."""
    n, m = 32, 4 * MIB
    machine = PLAIN.replace(**FAST_CORES, **{
        "topology.nodes": n, "topology.packages_per_node": 1, "topology.dies_per_package": 1,
        "tier.local.alpha_us": 0.0, "tier.l2.alpha_us": 0.2, "tier.l2.unit_bytes": m, "tier.local.unit_bytes": m,
        "tier.l2.read_gbps": 196.0,
    })  # fmt: skip
    _, stage, timeline = run(machine, spec("all_gather", m, n), n, cores=n)
    expected = 0.2 + 31 * m / 196e3
    assert timeline.finish_us(stage) == pytest.approx([expected] * n, abs=2e-6)
