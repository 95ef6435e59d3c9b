"""What is wrong with a machine slows what it should, and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_cases import CM384, PLAIN, plans, spec

from strata.errors import InvalidArgument
from strata.exec.timed import Effects, Program

MIB = 1 << 20
SERIAL = PLAIN.replace(**{"core.outstanding": 1, "tier.local.alpha_us": 0.0})


def gather(effects=None, n=8, cores=24, machine=SERIAL, nbytes=MIB, **options):
    program = Program(machine, n, effects)
    stage = program.operation(plans(spec("all_gather", nbytes, n), machine, cores), **options)
    return stage, program.run(check=True)


def busy(stage, timeline):
    return np.nanmax(timeline.core_times_us(stage), axis=1)


def test_a_slow_die_is_slow_and_the_others_are_not():
    ideal = busy(*gather(cores=7))  # one for each peer
    slow = busy(*gather(Effects(slow_dies={3: 2.0}), cores=7))
    assert slow[3] == pytest.approx(2 * ideal[3], rel=0.05)  # distance is as it was
    assert np.delete(slow, 3) == pytest.approx(np.delete(ideal, 3), rel=1e-9)  # its ports are wide enough for them


def test_a_slow_link_is_slow_in_its_direction():
    """All that die 2 gives die 5 takes three times as long: die 5 waits, die 2 does not."""
    cores = 7  # one for each peer
    stage, timeline = gather(Effects(slow_links={(2, 5): 3.0}), cores=cores)
    ideal = gather(cores=cores)
    table = timeline.table()
    unit = table[(table["die"] == 5) & (table["kind"] == 1)]
    flow = (unit["done"] - unit["flowing"]) / unit["work"]
    assert busy(stage, timeline)[5] > 1.5 * busy(*ideal)[5]
    assert np.delete(busy(stage, timeline), 5) == pytest.approx(np.delete(busy(*ideal), 5), rel=1e-9)
    assert np.isclose(flow, 3e3 / SERIAL.tiers[2].core_gbps, rtol=1e-6).any()


def test_a_pair_that_is_shared_slows_by_its_factor():
    """24 cores of one die on one peer are limited by what that gives it."""
    one = plans(spec("broadcast", 32 * MIB, 2), SERIAL, 48)
    times = []
    for effects in (None, Effects(slow_links={(0, 1): 4.0})):
        program = Program(SERIAL, 3, effects)
        stage = program.operation(one, dies=[0, 1])
        times.append(busy(stage, program.run(check=True))[1])
    flow = 32 * MIB / SERIAL.tiers[1].read_gbps / 1e3
    assert times == pytest.approx([flow, 4 * flow], rel=0.02)


def test_dead_planes_narrow_the_port():
    machine = SERIAL.replace(**{"tier.l1.core_gbps": 100.0, "tier.sio.core_gbps": 100.0})
    n, nbytes = 8, 8 * MIB
    ideal = busy(*gather(n=n, machine=machine, nbytes=nbytes))
    dead = busy(*gather(Effects(dead_planes={1: 5}), n=n, machine=machine, nbytes=nbytes))
    far = 6 * nbytes / 1e3  # all but itself and its sibling, microseconds at 1 GB/s
    assert dead[1] >= far / (196 * 2 / 7)
    assert dead[1] == pytest.approx(ideal[1] * 3.5, rel=0.1)
    assert (dead[2:] >= 3 * ideal[2:]).all()  # which pull from it
    assert dead[0] < 1.05 * ideal[0]  # its sibling does not


@settings(max_examples=25)
@given(st.data())
def test_effects_slow_down(data):
    """Where nothing is shared, no effect makes any die faster."""
    n = data.draw(st.integers(2, 8), "members")
    factor = st.floats(1.0, 8.0)
    die = st.integers(0, n - 1)
    effects = Effects(
        slow_dies=data.draw(st.dictionaries(die, factor, max_size=2)),
        slow_links=data.draw(st.dictionaries(st.tuples(die, die).filter(lambda p: p[0] != p[1]), factor, max_size=3)),
        dead_planes=data.draw(st.dictionaries(die, st.integers(0, 6), max_size=2)),
        jitter=data.draw(st.floats(0, 1)), seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip
    wide = SERIAL.replace(**{"die.ub_gbps": 1e6, "die.sio_gbps": 1e6, "die.hbm_gbps": 1e6})
    algorithm = data.draw(st.sampled_from(["full_mesh", "ring", "zerocopy_ring"]))
    made = plans(spec("all_gather", 40_000, n), wide, 4, algorithm=algorithm)
    found = []
    for given_effects in (None, effects):
        program = Program(wide, n, given_effects)
        stage = program.operation(made)
        found.append(program.run().finish_us(stage))
    assert (found[1] >= found[0] - 1e-4).all()


def test_jitter_is_the_same_each_time_and_within_bounds():
    runs = [gather(Effects(jitter=0.5, seed=seed))[1] for seed in (1, 1, 2)]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    table = runs[0].table()
    moves = table[(table["kind"] == 1) & (table["tier"] == 2)]
    latency = (moves["flowing"] - moves["begun"]) / 1e6
    assert latency.min() >= SERIAL.tiers[2].alpha_us and latency.max() <= 1.5 * SERIAL.tiers[2].alpha_us + 1e-6
    assert len(np.unique(latency)) > 10


@pytest.mark.parametrize("wrong", [
    {"slow_dies": {8: 2.0}}, {"slow_dies": {0: 0.5}}, {"slow_links": {(0, 0): 2.0}}, {"slow_links": {(0, 9): 2.0}},
    {"slow_links": {3: 2.0}}, {"dead_planes": {0: 7}}, {"dead_planes": {0: -1}}, {"jitter": -0.1}, {"seed": -1},
    {"slow_dies": {0: float("nan")}}, {"slow_dies": {0.5: 2.0}}, {"slow_links": {(0, 1.5): 2.0}},
    {"slow_dies": {"0": 2.0}}, {"dead_planes": {0: 1.5}}, {"seed": 1.5},
])  # fmt: skip
def test_effects_that_make_no_sense(wrong):
    with pytest.raises(InvalidArgument):
        Program(CM384, 8, Effects(**wrong))
