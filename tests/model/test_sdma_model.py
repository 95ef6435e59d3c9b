"""Rings, chains, gates, flags and poison in any order, against a plain model."""

import pytest
from hypothesis import example, given, settings
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

nop = ("nop", 0, 0, 0, 0, 0)
# Ring 2, which would be the first, is closed: ring 0 is.  Then it is ring 1, and ring 0 has the last word.
closed = [("open", 0, 0)] * 3 + [("submit", 1, False, [nop]), ("submit", 2, False, [nop]), ("step",), ("close", 2)]
closed += [("submit", ring, False, [nop]) for ring in (0, 1)] + [("step",)]
closed += [("submit", ring, False, [("fill", 0, 0, 8, ring, 0)]) for ring in (0, 1)] + [("step",)]


@pytest.mark.hard_timeout(7200)
def test_programs():
    with testing.Pool(1, hbm="64M", poll_ms=1.0) as pool:  # many looks for cycles, which are to find none
        pool.start()

        @settings(max_examples=3 * settings.default.max_examples)
        @given(programs)
        @example(closed)
        def check(program):
            pool.run(play, program)

        check()
