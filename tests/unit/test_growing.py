"""What Group.grow says and refuses before it waits for anybody."""

from types import SimpleNamespace

import pytest

from strata import growing


@pytest.mark.parametrize(
    ("name", "grown"),
    [
        ("world", "world.grow1"),
        ("world.shrink1", "world.grow1"),
        ("world.grow1", "world.grow2"),
        ("world.grow1.shrink1", "world.grow2"),
        ("world.grow9.shrink1.shrink2", "world.grow10"),
        ("world.grow3.split1(0)", "world.grow3.split1(0).grow1"),
        ("world.subgroup(0,1)#1.shrink2", "world.subgroup(0,1)#1.grow1"),
    ],
)
def test_names_do_not_get_longer(name, grown):
    assert growing._name(name) == grown


def group(*ranks):
    return SimpleNamespace(context=SimpleNamespace(ndies=5), ranks=ranks, name="g", lives=(0,) * len(ranks))


def test_wanted():
    assert growing._wanted(group(0, 3), None) == [1, 2, 4]
    assert growing._wanted(group(0, 3), [4, 1]) == [1, 4]
    assert growing._wanted(group(0, 1, 2, 3, 4), None) == []


@pytest.mark.parametrize("ranks", [[3], [1, 1], [5], [-1]], ids=str)
def test_refused(ranks):
    with pytest.raises(ValueError, match="ranks="):
        growing._wanted(group(0, 3), ranks)


def test_members_are_ordered_by_world_rank():
    assert growing._union(group(3, 0), [4, 1], [7, 2]) == ([0, 1, 3, 4], [0, 2, 0, 7])
