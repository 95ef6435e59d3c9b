"""The path by the engine: cores submit and are free, rings move."""

import numpy as np
import pytest
from timed_cases import CM384, PLAIN, plans, spec

from strata.errors import InvalidArgument
from strata.exec.timed import Program
from strata.plan.paths import descriptors

MIB = 1 << 20


def test_one_unit_by_the_engine():
    """Submission, then distance and a hand-over for each block, then the bytes at the pair's rate."""
    machine = PLAIN.replace(**{"tier.l2.read_gbps": 100.0})
    made = plans(spec("broadcast", 2 * MIB, 2), machine, 1, cost=machine.cost)
    program = Program(machine, 17)
    stage = program.operation(made, dies=[0, 16], path="sdma")
    timeline = program.run(check=True)
    [unit] = made[1].units
    blocks = descriptors(made[1], machine.sdma.block_bytes)
    assert blocks == 2 and unit["bytes"] == 2 * MIB
    submission = blocks * machine.sdma.descriptor_us
    flow = 2 * MIB / 100e3
    expected = submission + machine.tiers[3].alpha_us + blocks * machine.sdma.handover_us + flow
    assert timeline.finish_us(stage)[1] == pytest.approx(expected, abs=2e-6)
    assert timeline.core_times_us(stage)[1] == pytest.approx([submission], abs=1e-6)
    parts = timeline.breakdown(stage)["critical"]
    assert parts["submission"] == pytest.approx(submission)
    assert sum(parts.values()) == pytest.approx(expected, abs=2e-6)


def test_the_engine_reaches_its_share_of_the_ports():
    n, nbytes = 8, 64 * MIB
    machine = PLAIN.replace(**{"topology.dies_per_package": 1})
    program = Program(machine, n)
    made = plans(spec("all_gather", nbytes, n), machine, 24)
    stage = program.operation(made, path="sdma")
    took = program.run(check=True).finish_us(stage)
    # Its own block costs the engine what it costs a memory that is so much wider.
    far, own = 7 * nbytes / 196e3, nbytes / 800e3
    assert took == pytest.approx([(far + own) / machine.sdma.share] * n, rel=0.02)


def test_submission_is_what_plans_say():
    """A core is busy for descriptor_us times its descriptors, and no longer."""
    program = Program(CM384, 16)
    made = plans(spec("all_gather", 16 * MIB, 16), CM384, 24, algorithm="ring")
    stage = program.operation(made, path="sdma")
    timeline = program.run()
    opened = timeline.core_times_us(stage)
    total = [descriptors(plan, CM384.sdma.block_bytes) * CM384.sdma.descriptor_us for plan in made]
    assert opened.sum(axis=1) == pytest.approx(total, rel=1e-9)


def test_kernels_have_the_cores_that_sdma_gives_back():
    """Beside an operation by cores a kernel has half the die; beside one by the engine, all but at its start."""
    n, nbytes, took = 8, 64 * MIB, {}
    for path in ("mte", "sdma"):
        program = Program(CM384, n)
        stage = program.operation(plans(spec("all_gather", nbytes, n), CM384, 24), path=path)
        kernel = program.compute(range(n), us=1000.0)
        timeline = program.run()
        took[path] = timeline.finish_us(kernel)
        assert (timeline.finish_us(stage) > 1000).all()
    submission = CM384.sdma.descriptor_us * nbytes * n / MIB / 24
    assert took["sdma"] == pytest.approx([1000 + submission / 2] * n, rel=0.02)
    assert (took["mte"] > 1400).all() and (took["mte"] <= 2000).all()


def test_what_the_engine_cannot_do():
    reduces = plans(spec("all_reduce", 4096, 4), CM384, 4)
    with pytest.raises(InvalidArgument, match="does not reduce"):
        Program(CM384, 4).operation(reduces, path="sdma")
    mailbox = plans(spec("all_gather", 64, 4, mode="mailbox"), CM384, 1)
    with pytest.raises(InvalidArgument, match="mailboxes"):
        Program(CM384, 4).operation(mailbox, path="sdma")
    queues = CM384.replace(**{"sdma.queues": 8})
    with pytest.raises(InvalidArgument, match="8 SDMA queues"):
        Program(queues, 4).operation(plans(spec("all_gather", 4096, 4), CM384, 9), path="sdma")


def test_an_engine_that_reduces():
    machine = CM384.replace(**{"sdma.reduces": True})
    program = Program(machine, 8)
    stage = program.operation(plans(spec("all_reduce", MIB, 8), machine, 8), path="sdma")
    timeline = program.run(check=True)
    assert (timeline.finish_us(stage) > 0).all()
    assert sum(timeline.breakdown(stage)["mean"].values()) == pytest.approx(timeline.finish_us(stage).mean(), rel=1e-6)


def test_plans_of_the_path_go_by_it():
    program = Program(CM384, 4)
    made = plans(spec("all_gather", MIB, 4), CM384, 4, path="sdma")
    mailbox = plans(spec("all_gather", 64, 4, mode="mailbox"), CM384, 4, path="sdma")
    first = program.operation(made)
    second = program.operation(mailbox, after=first)
    table = program.run().table()
    assert (table["core"][table["stage"] == first.index] >= CM384.die.cores).any()
    assert not (table["core"][table["stage"] == second.index] >= CM384.die.cores).any()
    assert np.unique(table["stage"]).tolist() == [0, 1]
