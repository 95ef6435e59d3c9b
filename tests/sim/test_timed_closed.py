"""Closed forms: what an operation takes where that can be said on paper, to the picosecond."""

import math

import numpy as np
import pytest
from timed_cases import CM384, FAST_CORES, PLAIN, plans, spec

from strata.exec.timed import Program
from strata.plan.build import build_all

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


ONE_DIE_NODES = {
    "topology.nodes": 64, "topology.packages_per_node": 1, "topology.dies_per_package": 1, "tier.l2.alpha_us": 0.5,
    "tier.l2.read_gbps": 196.0, "tier.l2.unit_bytes": MIB, "tier.local.unit_bytes": MIB,
}  # fmt: skip
FAR = PLAIN.replace(**FAST_CORES, **ONE_DIE_NODES)


@pytest.mark.parametrize("operation", ["broadcast", "gather"])
@pytest.mark.parametrize("k", [1, 3, 16])
def test_many_to_one_port(operation, k):
    """k peers at the root's port, out or in: k m / C, and with k busy peers C is less."""
    machine = FAR.replace(**{"fanout.loss": 0.1, "fanout.backlog_bytes": float(3 * MIB), "tier.l2.alpha_us": 0.5})
    _, stage, timeline = run(machine, spec(operation, MIB, k + 1), k + 1, cores=k + 1, policy="naive")
    slow = 1 + 0.1 * math.log2(k) * 0.25  # m / (m + 3 m)
    expected = 0.5 + k * MIB * slow / 196e3
    busy = timeline.core_times_us(stage)
    assert busy[0 if operation == "gather" else 1].max() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dies", [[0, 1, 16, 32], [0, 16, 32, 33]])  # one node's way up, and down
def test_a_nodes_link_is_shared_by_its_dies(dies):
    machine = PLAIN.replace(**FAST_CORES, **{"die.node_gbps": 50.0, "tier.l2.unit_bytes": MIB})
    made = spec("all_to_all_v", 0, 4, counts=np.array([[0, 0, 1, 0], [0, 0, 0, 1], [0] * 4, [0] * 4]) * MIB)
    _, stage, timeline = run(machine, made, 4, cores=1, dies=dies, ndies=34)
    expected = machine.tiers[3].alpha_us + 2 * MIB / 50e3
    assert timeline.core_times_us(stage)[2:, 0] == pytest.approx([expected] * 2, abs=1e-5)


def test_what_one_die_gives_one_other_limits_its_cores():
    """48 cores that read, and 48 that write: the pair's rates, which are below the ports'."""
    machine = PLAIN.replace(**FAST_CORES, **{f"tier.{t}.alpha_us": 0.0 for t in ("local", "l1")},
                            **{"die.hbm_gbps": 1e6, "core.accumulate_weight": 1.0})  # fmt: skip
    nbytes = 48 * MIB
    _, stage, timeline = run(machine, spec("broadcast", nbytes, 2), 2, cores=48, dies=[0, 2], ndies=3)
    read = timeline.core_times_us(stage)[1].max()
    _, stage, timeline = run(machine, spec("reduce", nbytes, 2), 2, cores=48, dies=[0, 2], ndies=3, algorithm="atomic")
    table = timeline.table()
    pushed = table[(table["die"] == 2) & (table["kind"] == 1)]
    wrote = (pushed["done"].max() - pushed["flowing"].min()) / 1e6
    assert read == pytest.approx(nbytes / 170e3, rel=1e-3)
    assert wrote == pytest.approx(nbytes / 138e3, rel=1e-3)


def test_a_memory_that_is_slower_than_its_port():
    """A member writes what 8 peers give it; nobody reads there."""
    k = 8
    machine = FAR.replace(**{"die.hbm_gbps": 100.0})
    counts = np.zeros((k + 1, k + 1), int)
    counts[1:, 0] = MIB
    _, stage, timeline = run(machine, spec("all_to_all_v", 0, k + 1, counts=counts), k + 1, cores=k, policy="naive")
    assert timeline.core_times_us(stage)[0] == pytest.approx([0.5 + k * MIB / 100e3] * k, rel=1e-6)


def test_atomic_additions_cost_the_targets_memory_twice():
    """Three peers add to one target: each byte is read and written there."""
    machine = FAR.replace(**{"die.hbm_gbps": 100.0, "tier.l2.alpha_us": 0.0, "tier.l2.write_gbps": 196.0})
    _, stage, timeline = run(machine, spec("reduce", MIB, 4), 4, cores=1, algorithm="atomic", policy="naive")
    copy, add = 2 * MIB / 100e3, 3 * 2 * MIB / 100e3
    alpha = machine.tiers[0].alpha_us
    assert timeline.core_times_us(stage)[1:, 0] == pytest.approx([alpha + copy + add] * 3, rel=1e-6)


def test_a_reduction_reads_all_its_sources_at_once():
    """One unit of four sources: its core takes the sum of what each takes, ports what goes through them."""
    n, m = 4, 1 << 16
    slow_cores = PLAIN.replace(**ONE_DIE_NODES)
    _, stage, timeline = run(slow_cores, spec("reduce_scatter", m, n), n, cores=1, policy="naive")
    tier, local = slow_cores.tiers[3], slow_cores.tiers[0]
    expected = tier.alpha_us + 3 * m / tier.core_gbps / 1e3 + m / local.core_gbps / 1e3
    assert timeline.core_times_us(stage)[:, 0] == pytest.approx([expected] * n, rel=1e-6)
    _, stage, timeline = run(FAR, spec("reduce_scatter", m, n), n, cores=1, policy="naive")
    assert timeline.core_times_us(stage)[:, 0] == pytest.approx([0.5 + 3 * m / 196e3] * n, rel=1e-6)


def test_digests_are_what_they_were():
    """The same events in the same order on every host: a change of model, order or plans is a change of these."""
    digests = []
    # What is fitted may be fitted anew.
    machine = CM384.replace(**{"fanout.loss": 0.08, "fanout.backlog_bytes": 3.5e6, "sync.entry_us": 0.3,
                               "sync.poll_us": 0.4, "sdma.descriptor_us": 1.1, "sdma.share": 0.9,
                               **{f"tier.{t}.core_gbps": 6.5 for t in ("sio", "l1", "l2")}})  # fmt: skip
    for operation, algorithm, path in (("all_gather", "full_mesh", "mte"), ("all_reduce", "ring", "mte"),
                                       ("all_to_all", "full_mesh", "sdma")):  # fmt: skip
        program = Program(machine, 16)
        made = plans(spec(operation, MIB, 16), machine, 8, algorithm=algorithm)
        program.operation(made, path=path, after=program.delay([1], 5.0))
        program.compute(range(16), us=30.0, nbytes=MIB)
        digests.append(program.run().digest)
    assert digests == DIGESTS


DIGESTS = ["207413ec6416339a", "d8e8ca2e50657aeb", "d28a68d0093aeedc"]


def test_a_mesh_of_512_dies():
    n = 512
    program = Program(CM384, n)
    made = build_all(spec("all_gather", 4 * MIB, n), 48, policy="naive", cost=CM384.cost, topology=CM384.place)
    stage = program.operation(made)
    timeline = program.run()
    core = timeline.core_times_us(stage)
    assert core.shape == (n, 48) and len(timeline.table()) >= 512 * 512
    assert core.max() >= 510 * 4 * MIB / 196e3
    parts = timeline.breakdown(stage)["critical"]
    assert sum(parts.values()) == pytest.approx(timeline.finish_us(stage).max(), rel=1e-3)
