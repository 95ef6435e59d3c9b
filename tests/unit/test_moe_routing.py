"""Placement tables, and the passes over tokens, against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata._core import routing
from strata.errors import InvalidArgument
from strata.plan.moe import Placement

NO_ROW = (1 << 64) - 1


def placed(chance, dies, experts, slots):
    """A table in which every expert is somewhere, and dies have unequal numbers of slots, also none."""
    logical = np.concatenate([np.arange(experts), chance.integers(0, experts, slots - experts)])
    ends = np.sort(chance.integers(0, slots + 1, dies - 1))
    return Placement(chance.permutation(logical), np.concatenate([[0], ends, [slots]]), experts)


@st.composite
def cases(draw):
    chance = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    experts = draw(st.integers(1, 12))
    place = placed(chance, draw(st.integers(1, 6)), experts, experts + draw(st.integers(0, 8)))
    topk = chance.integers(-1, experts, (draw(st.integers(0, 20)), draw(st.integers(1, 16))))
    return place, topk, int(chance.integers(0, place.dies)), chance


@given(cases())
def test_replicas_take_turns(case):
    place, topk, rank, _ = case
    slots = place.physical(topk, rank)
    assert slots.dtype == np.int64 and slots.shape == topk.shape
    for t, (row, found) in enumerate(zip(topk.tolist(), slots.tolist(), strict=True)):
        for e, s in zip(row, found, strict=True):
            mine = np.flatnonzero(place.logical == e)
            assert s == (mine[(rank + t) % len(mine)] if e >= 0 else -1)


@given(cases())
def test_layout_lists_and_positions(case):
    place, topk, rank, _ = case
    slot = place.physical(topk, rank)
    die = np.repeat(np.arange(place.dies), np.diff(place.first))
    per_rank, per_slot, in_rank = routing.layout(slot, place.first)
    went = [{int(die[s]) for s in row if s >= 0} for row in slot]
    assert [[d in w for d in range(place.dies)] for w in went] == in_rank.tolist()
    assert per_rank.tolist() == [sum(d in w for w in went) for d in range(place.dies)]
    assert per_slot.tolist() == [int((slot == s).sum()) for s in range(place.slots)]
    assert (per_rank.dtype, per_slot.dtype, in_rank.dtype) == (np.int32, np.int32, np.bool_)

    counts, listed, position = routing.by_rank(in_rank)
    tokens = [[t for t, w in enumerate(went) if d in w] for d in range(place.dies)]
    assert counts.tolist() == per_rank.tolist() and listed.tolist() == sum(tokens, [])
    assert position.tolist() == [
        [tokens[d].index(t) if d in w else -1 for d in range(place.dies)] for t, w in enumerate(went)
    ]

    counts, listed, position = routing.by_slot(slot, place.slots)
    choices = [[(t, j) for t, row in enumerate(slot) for j, s in enumerate(row) if s == p] for p in range(place.slots)]
    assert counts.tolist() == per_slot.tolist() and listed.tolist() == [t for c in choices for t, _ in c]
    assert position.tolist() == [
        [choices[s].index((t, j)) if s >= 0 else -1 for j, s in enumerate(row)] for t, row in enumerate(slot.tolist())
    ]


@given(cases())
def test_entries_by_rank_and_by_logical_expert(case):
    place, topk, rank, chance = case
    slot = place.physical(topk, rank)
    _, _, in_rank = routing.layout(slot, place.first)
    _, _, position = routing.by_rank(in_rank)
    base = chance.integers(0, 1 << 20, place.dies) + (np.arange(place.dies) << 32)
    base[chance.random(place.dies) < 0.2] = -1  # a member that is left out
    rows = routing.ht_entries(position, base)
    wanted = [[int(base[d]) + p for d, p in enumerate(row) if p >= 0 and base[d] >= 0] for row in position.tolist()]
    width = max([1, *map(len, wanted)])
    assert rows.shape == (len(topk), width)
    assert rows.tolist() == [w + [NO_ROW] * (width - len(w)) for w in wanted]

    _, _, position = routing.by_slot(slot, place.slots)
    base = chance.integers(0, 1 << 40, place.slots)
    base[chance.random(place.slots) < 0.2] = -1
    rows, which = routing.ll_entries(slot, position, base, place.logical)
    for t, row in enumerate(slot.tolist()):
        known = [j for j, s in enumerate(row) if s >= 0 and base[s] >= 0]
        known.sort(key=lambda j: (place.logical[row[j]], j))
        assert which[t].tolist() == known + [-1] * (len(row) - len(known))
        assert rows[t].tolist() == [int(base[row[j]]) + int(position[t, j]) for j in known] + [NO_ROW] * (
            len(row) - len(known)
        )


def test_prices_are_prefix_sums():
    rows = np.array([[1 << 32 | 5, NO_ROW], [7, 2 << 32], [NO_ROW, NO_ROW]], np.uint64)
    assert routing.prices(rows, np.array([1, 10, 100])).tolist() == [0, 10, 111, 111]
    assert routing.prices(rows[:0], np.array([1])).tolist() == [0]
    with pytest.raises(ValueError, match="row 1 has an entry of operand 2 of 2"):
        routing.prices(rows, np.array([1, 10]))


@pytest.mark.parametrize(
    "slot, first, what",
    [
        ([[4]], [0, 2, 4], "token 0, choice 0: 4 is no slot"),
        ([[0, 1], [3, -2]], [0, 2, 4], "token 1, choice 1: -2 is no slot"),
        ([[0]], [0, 3, 2], "falls"),
        ([[0]], [1, 2], "begin with 0"),
        ([[0]], [0], "one die"),
        ([0], [0, 1], "2 dimensions"),
    ],
)
def test_slots_that_are_none_are_refused(slot, first, what):
    with pytest.raises(ValueError, match=what):
        routing.layout(np.array(slot), np.array(first, np.int32))


def test_arrays_of_another_layout_are_refused():
    slot, first = np.array([[0, 1], [1, 0]]), np.array([0, 2], np.int32)
    for bad in (slot.astype(np.int32), slot.T.copy().T, slot.astype(">i8"), [[0, 1]]):
        with pytest.raises(ValueError, match="expected"):
            routing.layout(bad, first)
    with pytest.raises(ValueError, match="65 choices"):
        routing.layout(np.zeros((1, 65), np.int64), first)
    with pytest.raises(ValueError, match="no slot"):
        routing.by_slot(np.array([[2]]), 2)
    with pytest.raises(ValueError, match="entries"):
        routing.ht_entries(np.zeros((1, 2), np.int32), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="no slot"):
        routing.ll_entries(slot, slot.astype(np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32))


def test_default_placement_is_that_of_array_split():
    place = Placement.default(10, 4)
    assert [place.of_die(d).tolist() for d in range(4)] == [a.tolist() for a in np.array_split(np.arange(10), 4)]
    assert Placement.default(2, 4).first.tolist() == [0, 1, 2, 2, 2]
    assert (place.dies, place.slots, place.experts) == (4, 10, 10)
    assert place == Placement(np.arange(10), [0, 3, 6, 8, 10]) and hash(place) == Placement.default(10, 4).digest()
    assert place != Placement.default(10, 5)


def test_eplbs_tables_go_both_ways():
    place = Placement.from_eplb(np.array([0, 1, 2, 0, 1, 0]), 2)
    to_logical, to_physical, counts = place.to_eplb()
    assert to_logical.tolist() == [0, 1, 2, 0, 1, 0] and counts.tolist() == [3, 2, 1]
    assert to_physical.tolist() == [[0, 3, 5], [1, 4, -1], [2, -1, -1]]
    assert Placement.from_eplb(to_logical, 2) == place
    assert place.load([3.0, 4.0, 5.0]).tolist() == [1 + 2 + 5, 1 + 2 + 1]
    with pytest.raises(InvalidArgument, match="as many on each"):
        Placement.from_eplb(np.arange(5), 2)


@pytest.mark.parametrize(
    "logical, first, experts, what",
    [
        ([0, 1], [0, 1], None, "up to 2"),
        ([0, 1], [0, 3, 2], None, "end of each die"),
        ([0, 1], [1, 2], None, "0, then"),
        ([0, 1], [0], None, "0, then"),
        ([0, 3], [0, 2], 3, "3 experts"),
        ([0, -1], [0, 2], None, "-1 to 0"),
        ([[0]], [0, 1], None, "one dimension"),
        ([0.5], [0, 1], None, "integers"),
        ([], [0, 0], None, "0 experts"),
    ],
)
def test_what_is_no_placement_is_refused(logical, first, experts, what):
    with pytest.raises(InvalidArgument, match=what):
        Placement(np.array(logical), np.array(first), experts)


def test_choices_that_are_no_expert_are_refused():
    place = Placement(np.array([0, 2]), np.array([0, 2]), 4)
    for topk, what in (([[4]], "expert 4"), ([[0, -2]], "choice 1: expert -2"), ([[1]], "no die has it"),
                       ([0], "tokens, k"), ([[0.0]], "integers")):
        with pytest.raises(InvalidArgument, match=what):
            place.physical(np.array(topk), 0)
