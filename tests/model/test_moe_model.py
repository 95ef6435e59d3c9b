"""Any dispatch and combine gives what a plain reference gives, bit for bit, in any order of waiting.

    pytest tests/model/test_moe_model.py                               # a sample, in seconds
    pytest tests/model/test_moe_model.py --hypothesis-profile=deep     # 10,000 examples a test
"""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

sys.path.insert(0, str(Path(__file__).parents[1]))

from moe_dies import differences, play_case
from moe_strategies import cases

from strata import testing

N = 4
_groups = {}  # in a die: groups made so far


def group_of(world, ranks):
    """A group of world ranks in their order; made once."""
    key = (world.context.token, ranks)
    if key not in _groups:
        _groups[key] = world.subgroup(ranks)
    return _groups[key]


def play_in(world, case):
    """Plays a case in a group of some dies, the others look on."""
    return play_case(group_of(world, case.members), case) if world.rank in case.members else None


@settings(max_examples=60 if settings().max_examples <= 100 else settings().max_examples)
@given(cases(N))
@pytest.mark.hard_timeout(3600)
def test_any_rounds_give_what_the_reference_gives(case):
    found = testing.pool(N).run(play_in, case)
    assert not differences(case, [found[rank] for rank in case.members])
