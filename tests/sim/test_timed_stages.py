"""Stages of a program: their order, kernels, mapping, cores that several operations want, and what is refused."""

import numpy as np
import pytest
from timed_cases import CM384, PLAIN, every_case, plans, spec

from strata import machine
from strata.errors import Deadlock, InvalidArgument
from strata.exec.timed import Program
from strata.plan import Plan
from strata.plan.plan import SCALARS

MIB = 1 << 20


def test_kernels_alone():
    """As given, or as long as operations or bytes take, whichever is more."""
    program = Program(CM384, 1)
    c, hbm = CM384.compute, CM384.die.hbm_gbps
    dense, bytes_, few = 1e12, 10 ** 9, 10 ** 6
    peak = c.bf16_tflops * c.efficiency
    given = program.compute([0], us=12.5)
    flops = program.compute([0], flops=dense, after=given)
    streams = program.compute([0], nbytes=bytes_, after=flops)
    both = program.compute([0], flops=dense, nbytes=few, after=streams)
    half = program.compute([0], flops=dense, cores=24, after=both)
    core = program.compute([0], nbytes=bytes_, cores=4, after=half)
    waits = program.delay([0], 3.0, after=core)
    timeline = program.run(check=True)
    took = [float((timeline.finish_us(s) - timeline.start_us(s))[0]) for s in program.stages]
    copies = 2 * CM384.tiers[0].core_gbps  # a core reads and writes
    expected = [12.5, dense / peak / 1e6, bytes_ / hbm / 1e3, dense / peak / 1e6, 2 * dense / peak / 1e6,
                bytes_ / (4 * copies) / 1e3, 3.0]  # fmt: skip
    assert took == pytest.approx(expected, abs=1e-5)
    assert timeline.finish_us(waits)[0] == pytest.approx(sum(expected), abs=1e-4) == timeline.end_us


def test_kernels_share_cores_and_memory():
    program = Program(CM384, 2)
    two = [program.compute([0], us=100.0) for _ in range(2)] + [program.compute([1], nbytes=10 ** 8) for _ in range(2)]
    timeline = program.run(check=True)
    ends = [timeline.finish_us(stage)[0] for stage in two]
    alone = 10 ** 8 / CM384.die.hbm_gbps / 1e3
    assert ends == pytest.approx([200.0, 200.0, 2 * alone, 2 * alone], abs=1e-5)


def test_a_kernel_stands_still_while_no_core_is_free():
    n = 4
    program = Program(CM384, n)
    stage = program.operation(plans(spec("all_gather", 16 * MIB, n), CM384, 48))
    kernel = program.compute(range(n), us=50.0)
    timeline = program.run(check=True)
    core = timeline.core_times_us(stage)
    opened = timeline.finish_us(kernel) - 50.0 - 0.99 * core.min(axis=1)
    assert (timeline.finish_us(kernel) > 0.9 * core.min()).all() and (opened > -10).all()


@pytest.mark.parametrize("peers", [1, 7, 31])
def test_mapping_is_serial_in_peers(peers):
    program = Program(CM384, 32)
    stage = program.map([31], range(peers), 1 << 30)
    timeline = program.run()
    each = CM384.registration.map_us + CM384.registration.map_us_per_gib
    assert timeline.finish_us(stage) == pytest.approx([peers * each])
    assert timeline.start_us(stage) == pytest.approx([0.0])


def test_a_page_table_has_one_lock():
    program = Program(CM384, 4)
    a, b = program.map(range(4), range(4), 0), program.map([2], [0], 0)
    timeline = program.run()
    each = CM384.registration.map_us
    assert timeline.finish_us(a) == pytest.approx([3 * each] * 4)
    assert timeline.finish_us(b) == pytest.approx([4 * each])
    assert (timeline.table()["kind"] == 4).sum() == 13


def test_stages_come_after_others_on_their_dies_alone():
    program = Program(CM384, 4)
    a = program.delay([0, 1], [10.0, 20.0])
    b = program.delay([1, 2], 5.0, after=a)
    c = program.delay(range(4), 1.0, after=[a, b])
    d = program.delay(range(4), 1.0, after=[a, b, c, program.delay([3], 50.0)])
    timeline = program.run()
    assert timeline.finish_us(b) == pytest.approx([25.0, 5.0])
    assert timeline.finish_us(c) == pytest.approx([11.0, 26.0, 6.0, 1.0])
    assert timeline.finish_us(d) == pytest.approx([12.0, 27.0, 7.0, 51.0])
    assert c.over(a).tolist() == [True, True, False, False] and c.over(b).tolist() == [False, True, True, False]


def test_late_members_and_launches():
    n = 4
    program = Program(PLAIN, n)
    made = plans(spec("all_gather", MIB, n), PLAIN, 4)
    late = program.operation(made, launch_us=2.0, arrivals_us=[0, 0, 7.0, 0])
    prompt = program.operation(made, after=late)
    timeline = program.run()
    assert timeline.start_us(late) == pytest.approx([2.0, 2.0, 9.0, 2.0])
    first = timeline.finish_us(late) - 9.0
    assert timeline.finish_us(prompt) - timeline.finish_us(late) == pytest.approx(first, abs=1e-3)
    assert timeline.breakdown(late)["mean"]["launch"] == pytest.approx(2.0 + 7.0 / 4)


def held(table, die, stage):
    rows = table[(table["die"] == die) & (table["stage"] == stage.index) & (table["core"] >= 0)]
    return {int(c): (rows["begun"][rows["core"] == c].min(), rows["done"][rows["core"] == c].max())
            for c in np.unique(rows["core"])}  # fmt: skip


@pytest.mark.parametrize("cores,shared", [(24, 0), (30, 12), (48, 48)])
def test_operations_at_once_share_the_cores_of_a_die(cores, shared):
    """Two of no more cores than there are run side by side; else the later one waits, core by core."""
    n = 4
    program = Program(CM384, n)
    made = plans(spec("all_gather", 4 * MIB, n), CM384, cores)
    a, b = program.operation(made), program.operation(made)
    kernel = program.compute(range(n), us=1.0, after=a)
    table = program.run(check=True).table()
    for die in range(n):
        first, second = held(table, die, a), held(table, die, b)
        assert max([*first, *second]) < 48
        both = set(first) & set(second)
        assert len(both) == shared
        assert all(second[c][0] >= first[c][1] for c in both)
    assert (table["done"][table["stage"] == kernel.index] > 0).all()


def test_a_chain_takes_the_same_cores_again():
    n = 4
    program = Program(CM384, n)
    made = plans(spec("all_gather", MIB, n), CM384, 24)
    chains = [program.operation(made), program.operation(made)]
    for _ in range(2):
        chains = [program.operation(made, after=before) for before in chains]
    table = program.run().table()
    assert set(table["core"][table["core"] >= 0]) == set(range(48))
    for die in range(n):
        cores = [set(held(table, die, stage)) for stage in program.stages]
        assert cores[0] == cores[2] == cores[4] and cores[1] == cores[3] == cores[5] and not cores[0] & cores[1]


def test_groups_on_other_dies_do_not_meet():
    """Two halves of a machine take what one takes alone; the members are on the dies that are said."""
    made = plans(spec("all_gather", MIB, 4), CM384, 24)
    alone = Program(CM384, 32)
    stage = alone.operation(made, dies=[0, 1, 16, 17])
    single = alone.run().finish_us(stage)
    both = Program(CM384, 32)
    a, b = both.operation(made, dies=[0, 1, 16, 17]), both.operation(made, dies=[2, 3, 18, 19])
    timeline = both.run()
    assert (timeline.finish_us(a) == single).all() and (timeline.finish_us(b) == single).all()
    near = Program(CM384, 32)
    stage = near.operation(made)
    assert near.run().finish_us(stage).max() < single.max()


def test_nothing_to_move():
    sync = CM384.sync.entry_us + CM384.sync.poll_us + CM384.tiers[2].seen_us
    for case in (spec("barrier", 0, 4), spec("all_gather", 0, 4), spec("broadcast", 0, 4)):
        program = Program(CM384, 4)
        stage = program.operation(plans(case, CM384, 4))
        timeline = program.run()
        assert timeline.finish_us(stage) == pytest.approx([sync] * 4)
        assert (timeline.core_times_us(stage) == 0).all()
        assert timeline.breakdown(stage)["critical"]["opening"] == pytest.approx(sync)
    program = Program(CM384, 4)
    stage = program.operation(plans(spec("all_gather", 0, 1), CM384, 4), dies=[3])
    assert program.run().finish_us(stage) == 0.0
    assert Program(CM384, 1).run().end_us == 0.0


def altered(plan, **fields):
    """A plan with a field of its first unit, or another member's number, changed."""
    units = plan.units.copy()
    for name, value in fields.items():
        units[name][0] = value
    arrays = {name: getattr(plan, name).copy() for name in ("slices", "operands", "core_begin", "buffer_bytes")}
    return Plan(spec=plan.spec, units=units, **arrays, **{name: getattr(plan, name) for name in SCALARS})


@pytest.mark.parametrize("fields", [
    {"kind": 9}, {"op": 77}, {"nsrc": 60000}, {"dst_first": 1 << 30}, {"bytes": 0}, {"wait_flag": 3},
    {"wait_peer": 99, "wait_flag": 0}, {"post_flag": 1 << 25}, {"dtype": 200}, {"kind": 3},
])  # fmt: skip
def test_plans_that_are_malformed(fields):
    made = plans(spec("all_gather", MIB, 4), CM384, 4)
    made[2] = altered(made[2], **fields)
    with pytest.raises(InvalidArgument, match="member 2"):
        Program(CM384, 4).operation(made)


def test_a_flag_that_nobody_posts():
    made = plans(spec("all_gather", MIB, 4), CM384, 4)
    made[1] = altered(made[1], wait_peer=3, wait_flag=5)
    program = Program(CM384, 4)
    program.operation(made)
    with pytest.raises(Deadlock, match="die 1"):
        program.run()


def test_what_is_no_operation():
    made = plans(spec("all_gather", MIB, 4), CM384, 4)
    other = plans(spec("all_gather", MIB // 2, 4), CM384, 4)
    many = plans(spec("all_gather", MIB, 4), CM384, 49)
    for wrong in ([], made[:3], made[::-1], [*made[:3], other[3]], many, [1, 2]):
        with pytest.raises(InvalidArgument):
            Program(CM384, 8).operation(wrong)
    for dies in ([0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 8], [-1, 0, 1, 2], [0.0, 1.0, 2.5, 3.0], [[0, 1], [2]], "0123"):
        with pytest.raises(InvalidArgument):
            Program(CM384, 8).operation(made, dies=dies)
    with pytest.raises(InvalidArgument, match="2 dies"):
        Program(CM384, 2).operation(made)
    with pytest.raises(InvalidArgument, match="path"):
        Program(CM384, 4).operation(made, path="rdma")
    with pytest.raises(InvalidArgument, match="arrivals_us"):
        Program(CM384, 4).operation(made, arrivals_us=[1.0, 2.0])
    for ndies in (769, 0, 1.5, True, "4"):
        with pytest.raises(InvalidArgument, match="768 dies"):
            Program(CM384, ndies)
    with pytest.raises(InvalidArgument, match="'cm384'"):
        Program("cm384", 4)


@pytest.mark.parametrize("name", machine.names())
def test_every_machine_that_there_is(name):
    """Every operation by every algorithm, on each machine that comes with the library."""
    on = machine.load(name)
    with np.errstate(all="raise"):
        for case, algorithm in every_case(4, 1 << 18, on):
            program = Program(on, 4)
            stage = program.operation(plans(case, on, min(4, on.die.cores), algorithm=algorithm))
            kernel = program.compute([0], flops=1e9, nbytes=1 << 20)
            timeline = program.run(check=True)
            assert (timeline.finish_us(stage) > 0).all() and timeline.finish_us(kernel) > 0


def test_what_is_no_stage():
    program, other = Program(CM384, 2), Program(CM384, 2)
    theirs = other.delay([0], 1.0)
    for wrong in (
        lambda: program.delay([0], 1.0, after=theirs), lambda: program.delay([0], -1.0),
        lambda: program.delay([], 1.0), lambda: program.compute([0], us=1.0, flops=1.0),
        lambda: program.compute([0], flops=1.0, dtype="f64"), lambda: program.compute([0], us=1.0, cores=49),
        lambda: program.map([0], [1], -1), lambda: program.run(window_us=-1.0), lambda: program.run().start_us(theirs),
        lambda: program.run(window_us=1e300), lambda: program.run(window_us=1e10), lambda: program.delay([0], "soon"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            wrong()
    with pytest.raises(InvalidArgument, match="us is 10000000000.0: .* 9e.09"):
        program.delay([0], 1e10)
