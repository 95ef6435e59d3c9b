"""Any collective of anything on any group gives what numpy gives, and the same bits on every die.

    pytest tests/model/test_collectives_model.py                               # a sample, in seconds
    pytest tests/model/test_collectives_model.py --hypothesis-profile=deep     # 10,000 examples a test
"""

import pytest
from collectives_play import in_step, play
from collectives_strategies import cases, members
from hypothesis import given
from hypothesis import strategies as st

from strata import testing

_groups = {}  # in a die: groups made so far


def group_of(world, ranks):
    """A group of world ranks in their order; made once."""
    key = (world.context.token, ranks)
    if key not in _groups:
        _groups[key] = world.subgroup(ranks)
    return _groups[key]


def play_in(world, ranks, sequence):
    """Plays cases in a group of some dies, the others look on."""
    if world.rank not in ranks:
        return None
    group = group_of(world, ranks)
    digests = [play(group, case) for case in sequence]
    in_step(group)
    return digests


@st.composite
def examples(draw):
    n = draw(st.integers(2, 4))
    ranks = draw(members(n))
    return n, ranks, draw(st.lists(cases(len(ranks)), min_size=1, max_size=3))


@given(examples())
@pytest.mark.hard_timeout(3600)
def test_collectives_give_what_numpy_gives(example):
    n, ranks, sequence = example
    found = testing.pool(n).run(play_in, ranks, sequence)
    digests = [found[rank] for rank in ranks]
    assert all(d == digests[0] for d in digests), "not the same bits on every die"
