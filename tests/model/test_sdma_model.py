"""Rings, chains, gates, flags and poison in any order, against a plain model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sdma_model import KINDS
from sdma_play import play

from strata import testing

numbers = st.integers(0, 1000)
values = st.one_of(st.integers(0, 3), st.integers(0, 40), st.sampled_from([2**32, 2**62, 2**63 - 1]))
descriptors = st.tuples(st.sampled_from(KINDS), numbers, numbers, st.integers(0, 40), values, st.integers(0, 7))
opened = st.tuples(st.just("open"), numbers, numbers)
steps = st.one_of(
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
    st.tuples(st.just("submit"), st.integers(0, 3), st.booleans(), st.lists(descriptors, max_size=6)),
    st.tuples(st.just("submit"), st.integers(0, 3), st.booleans(), st.lists(descriptors, min_size=1, max_size=3)),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("host"), numbers, values),
    opened,
    st.tuples(st.just("close"), numbers),
)
programs = st.builds(
    lambda first, rest: first + rest,
    st.lists(opened, min_size=2, max_size=4),
    st.integers(1, 60).flatmap(lambda n: st.lists(steps, min_size=n, max_size=60)),
)


@pytest.mark.hard_timeout(7200)
def test_programs():
    with testing.Pool(1, hbm="64M", poll_ms=60000.0) as pool:  # no looks for cycles: they go by the clock
        pool.start()

        @settings(max_examples=3 * settings.default.max_examples, derandomize=True)
        @given(programs)
        def check(program):
            pool.run(play, program)

        check()
