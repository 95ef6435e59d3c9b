"""Where nothing is shared, every algorithm takes what the longest way through its plans takes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_cases import CM384, every_case, plans, spec
from timed_paths import finishes

from strata.exec.timed import Program

# Ports and memories that never limit, cores that are far slower than them, one unit at a time.
WIDE = CM384.replace(
    **{
        "die.ub_gbps": 1e9, "die.sio_gbps": 1e9, "die.hbm_gbps": 1e9, "core.outstanding": 1, "fanout.loss": 0.0,
        **{f"tier.{t}.{way}_gbps": 1e9 for t in ("local", "sio", "l1", "l2") for way in ("read", "write")},
    }
)  # fmt: skip


def assert_longest_way(case, dies, cores, algorithm, machine=WIDE):
    made = plans(case, machine, cores, algorithm=algorithm)
    program = Program(machine, 64)
    stage = program.operation(made, dies=dies)
    timeline = program.run(check=True)
    last, done = finishes(made, machine, list(dies))
    found = timeline.finish_us(stage) * 1e6
    # A unit of several tiers has a rate of several roundings: a picosecond each, along the way.
    assert np.abs(found - done).max() <= 2 + max(len(p.units) for p in made), (case, algorithm)
    busy = np.nanmax(timeline.core_times_us(stage), axis=1) * 1e6
    opened = np.array(last) - busy
    assert (opened >= -1).all()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_every_algorithm_of_every_operation(n):
    for case, algorithm in every_case(n, 96 << 10, WIDE):
        assert_longest_way(case, range(n), 2, algorithm)


@settings(max_examples=40)
@given(st.data())
def test_members_on_any_dies(data):
    n = data.draw(st.integers(2, 8), "members")
    dies = data.draw(st.lists(st.integers(0, 63), min_size=n, max_size=n, unique=True), "dies")
    cases = every_case(n, data.draw(st.integers(1, 200_000), "bytes") // 4 * 4 + 4, WIDE)
    case, algorithm = data.draw(st.sampled_from(cases), "case")
    assert_longest_way(case, dies, data.draw(st.integers(1, 6), "cores"), algorithm)


def test_a_ring_is_a_walk_through_a_lattice():
    """Step k of die d follows its own step k - 1 and step k - 1 of its neighbour: the slow hop sets the pace."""
    n, m = 4, 64 << 10
    machine = WIDE
    dies = [0, 1, 2, 16]  # sio, l1, l2, l2
    made = plans(spec("all_gather", m, n), machine, 1, algorithm="zerocopy_ring")
    program = Program(machine, 17)
    stage = program.operation(made, dies=dies)
    timeline = program.run()
    tier = [3, 1, 2, 3]  # of the hop to d from d - 1
    figures = [machine.tiers[t] for t in tier]
    poll, entry = machine.sync.poll_us, machine.sync.entry_us
    unit = [f.alpha_us + machine.core.issue_us + m / f.core_gbps / 1e3 for f in figures]
    own = machine.tiers[0].alpha_us + machine.core.issue_us + m / machine.tiers[0].core_gbps / 1e3
    opened = entry + poll + 2.1
    done = np.full((n, n), opened)
    for k in range(1, n):
        for d in range(n):
            neighbour = done[(d - 1) % n, k - 1] + figures[d].seen_us + poll if k > 1 else 0
            # Its own block it copies after the first step.
            done[d, k] = max(done[d, k - 1] + (own if k == 2 else 0), neighbour) + unit[d]
    found = timeline.core_times_us(stage)[:, 0] + opened
    assert np.abs(found - done[:, -1]).max() < 1e-4
