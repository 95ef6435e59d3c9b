"""Placements from load statistics, and routings as they are drawn, saved and read again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidArgument
from strata.plan.moe import Placement, balance, bound, imbalance, routing


@st.composite
def loads(draw):
    chance = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    experts, dies = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    load = chance.choice([np.zeros(experts), chance.random(experts), chance.pareto(1.0, experts), np.ones(experts)])
    load[chance.random(experts) < 0.2] = 0
    nodes = draw(st.sampled_from([n for n in range(1, dies + 1) if dies % n == 0]))
    return load, experts + draw(st.integers(0, 30)), dies, nodes


@given(loads())
def test_every_placement_is_whole_and_within_what_packing_promises(case):
    load, slots, dies, nodes = case
    place = balance(load, slots, dies, nodes)
    assert place == balance(load.tolist(), slots, dies, nodes)  # the same again
    assert place.experts == len(load) and place.slots == slots and place.replicas.min() >= 1
    assert place.first.tolist() == [0, *np.cumsum([len(a) for a in np.array_split(np.arange(slots), dies)])]
    if not load.any():
        assert place.replicas.max() - place.replicas.min() <= 1
        return
    # no replica would be smaller with as many slots: the largest has no slot to gain from a smaller one
    each = load / place.replicas
    spare = np.where(place.replicas > 1, load / np.maximum(place.replicas - 1, 1), np.inf)
    assert each.max() <= spare.min() + 1e-12 or place.replicas[each.argmax()] >= dies
    assert imbalance(place, load) >= bound(load, slots, dies) - 1e-9
    if nodes == 1 and slots % dies == 0:  # list scheduling with room: the rest fits in a slot each
        assert place.load(load).max() <= load.sum() / dies + each.max() * (slots // dies) + 1e-9


def zipfs(experts, s):
    return np.random.default_rng(5).permutation(1 / np.arange(1, experts + 1) ** s) * 1e6


@pytest.mark.parametrize("s", [0.0, 0.6, 1.2])
@pytest.mark.parametrize("dies, slots", [(8, 256), (32, 288), (64, 320), (48, 300)])
def test_the_fullest_die_is_near_the_bound(s, dies, slots):
    load = zipfs(256, s)
    place, least = balance(load, slots, dies), bound(load, slots, dies)
    assert least <= imbalance(place, load) + 1e-9
    assert imbalance(place, load) <= 1.12 * least  # beside a large replica lie small ones: slots are full
    assert imbalance(place, load) <= imbalance(Placement.default(256, dies), load) + 1e-9 or s == 0


def test_a_hot_expert_is_on_every_die_and_node():
    load = np.array([1000.0] + [1.0] * 15)
    place = balance(load, 32, 8, 4)
    assert place.replicas[0] == 8 and all(0 in place.of_die(d) for d in range(8))
    assert imbalance(place, load) < 1.01
    load = np.array([100.0, 90.0] + [1.0] * 14)
    place = balance(load, 20, 8, 4)
    for e in (0, 1):
        dies = [d for d in range(8) if e in place.of_die(d)]
        assert len(dies) == place.replicas[e] and len({d // 2 for d in dies}) == min(len(dies), 4)


def test_equal_loads_are_spread_evenly():
    place = balance(np.zeros(8), 16, 4)
    assert place.replicas.tolist() == [2] * 8 and imbalance(place, np.ones(8)) == 1.0
    assert all(len(set(place.of_die(d).tolist())) == 4 for d in range(4))
    assert balance([3], 5, 2).logical.tolist() == [0] * 5
    assert imbalance(place, np.zeros(8)) == 1.0


@pytest.mark.parametrize(
    "load, slots, dies, nodes, what",
    [
        ([1, 2, 3], 2, 1, 1, "2 slots for 3 experts"),
        ([1, -1], 2, 1, 1, "non-negative"),
        ([1, np.nan], 2, 1, 1, "non-negative"),
        ([1, np.inf], 2, 1, 1, "non-negative"),
        ([[1]], 1, 1, 1, "shape"),
        ([], 1, 1, 1, "shape"),
        (["a"], 1, 1, 1, "number"),
        ([1], 1, 3, 2, "3 dies on 2 nodes"),
        ([1], 1, 0, 1, "0 dies"),
    ],
)
def test_what_is_no_load_is_refused(load, slots, dies, nodes, what):
    with pytest.raises(InvalidArgument, match=what):
        balance(np.array(load), slots, dies, nodes)


# ---- routings --------------------------------------------------------------------------------


def test_choices_of_a_token_differ_and_draws_repeat():
    for made in (routing.uniform(3, [0, 50, 5000], 8, 16, seed=4), routing.zipf(3, [0, 50, 5000], 8, 16, seed=4)):
        assert made.tokens.tolist() == [[0, 50, 5000]] and (made.ranks, made.topk) == (3, 8)
        for table in made.steps[0]:
            assert table.dtype == np.int32 and (np.diff(np.sort(table, axis=1), axis=1) > 0).all()
    again = routing.zipf(3, [0, 50, 5000], 8, 16, seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(made.steps[0], again.steps[0], strict=True))
    assert not np.array_equal(again.steps[0][1], routing.zipf(3, [0, 50, 50], 8, 16, seed=5).steps[0][1])


def test_loads_follow_the_law():
    even = routing.uniform(2, 20000, 1, 20, seed=1).load()
    assert even.sum() == 40000 and abs(even / 2000 - 1).max() < 0.15
    skewed = np.sort(routing.zipf(2, 20000, 1, 20, s=1.0, seed=1).load())[::-1]
    wanted = 1 / np.arange(1, 21) / (1 / np.arange(1, 21)).sum() * 40000
    assert abs(skewed / wanted - 1).max() < 0.2


def test_statistics_of_a_step():
    tables = [np.array([[0, 1], [0, 3]]), np.array([[2, -1]])]
    found = routing.statistics(tables, Placement.default(4, 2))
    assert found == {"tokens": 3, "choices": 5, "rows": 4, "away": 0.25, "expert": 1.6, "slot": 1.6, "die": 1.0}
    empty = routing.statistics([np.zeros((0, 2), int)] * 2, Placement.default(4, 2))
    assert empty["rows"] == 0 and empty["die"] == 1.0


def test_traces_are_what_was_saved(tmp_path):
    made = routing.zipf(3, [0, 7, 5], 4, 9, seed=2, steps=3)
    steps = tuple(tuple(np.where(t == 0, -1, t) for t in step) for step in made.steps)
    masked = routing.Routing(9, steps, "a gate, ünder load")
    masked.save(tmp_path / "trace.npz")
    again = routing.load(tmp_path / "trace.npz")
    assert (again.experts, again.note, again.ranks, again.topk) == (9, "a gate, ünder load", 3, 4)
    assert again.tokens.tolist() == [[0, 7, 5]] * 3
    for a, b in zip(again.steps, masked.steps, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert again.load().tolist() == masked.load().tolist()


def test_files_that_are_no_traces_are_refused(tmp_path):
    good = {"topk_idx": np.zeros((3, 2), "<i4"), "tokens": np.array([[1, 2]]), "experts": np.int64(4),
            "note": np.zeros(0, np.uint8)}
    np.savez(tmp_path / "good.npz", **good)
    assert routing.load(tmp_path / "good.npz").ranks == 2
    for bad in ({"tokens": np.array([[1, 3]])}, {"tokens": np.array([[-1, 4]])}, {"tokens": np.zeros((0, 2), int)},
                {"topk_idx": np.full((3, 2), 4, "<i4")}, {"topk_idx": np.zeros((3, 2))}, {"experts": np.int64(0)},
                {"topk_idx": np.array([{}], object)}, {"note": np.zeros(1)}):
        np.savez(tmp_path / "bad.npz", **{**good, **bad})
        with pytest.raises(InvalidArgument):
            routing.load(tmp_path / "bad.npz")
    del good["tokens"]
    np.savez(tmp_path / "bad.npz", **good)
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("bad.npz", "text.npz"):
        with pytest.raises(InvalidArgument, match="is no trace"):
            routing.load(tmp_path / name)
    with pytest.raises(OSError):
        routing.load(tmp_path / "none.npz")


@pytest.mark.parametrize(
    "experts, steps, what",
    [
        (4, (), "a step and a rank"),
        (4, ((),), "a step and a rank"),
        (4, ((np.zeros((1, 2), int),), ()), "as many ranks"),
        (4, ((np.zeros((1, 2), int), np.zeros((1, 3), int)),), "rank 1"),
        (4, ((np.full((1, 2), 4),),), "experts 4 to 4 of 4"),
        (4, ((np.zeros((1, 2)),),), "not integers"),
        (0, ((np.zeros((0, 2), int),),), "0 experts"),
    ],
)
def test_what_is_no_routing_is_refused(experts, steps, what):
    with pytest.raises(InvalidArgument, match=what):
        routing.Routing(experts, steps)
    for wrong in ({"topk": 5}, {"topk": 0}, {"tokens": -1}, {"s": -1.0}, {"tokens": [1]}, {"steps": 0}):
        with pytest.raises(InvalidArgument):
            routing.zipf(**{"ranks": 2, "tokens": 3, "topk": 2, "experts": 4, **wrong})


@pytest.mark.parametrize(
    "error, what, asked",
    [
        (InvalidArgument, "ranks is 0: at least 1", {"ranks": 0}),
        (InvalidArgument, "tokens is -1: at least 0", {"tokens": -1}),
        (TypeError, "tokens is 1.5: a whole number", {"tokens": 1.5}),
        (InvalidArgument, "tokens has 1 numbers for 2 ranks", {"tokens": [3]}),
        (InvalidArgument, "topk is 5, and there are 4 experts", {"topk": 5}),
        (InvalidArgument, "experts: 1 to", {"experts": 1 << 40}),
        (InvalidArgument, "exponent.* is -1", {"s": -1.0}),
        (InvalidArgument, "steps is 0", {"steps": 0}),
    ],
)
def test_what_cannot_be_drawn_says_what_is_wrong(error, what, asked):
    with pytest.raises(error, match=what):
        routing.zipf(**{"ranks": 2, "tokens": 3, "topk": 2, "experts": 4, **asked})


def test_numbers_of_slots_and_dies_are_whole():
    for wrong in ({"slots": 4.5}, {"dies": 2.0}, {"nodes": "1"}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} is .*: a whole number is expected"):
            balance(np.ones(4), **{"slots": 4, "dies": 2, "nodes": 1, **wrong})


def test_so_many_experts_are_no_memory_error():
    with pytest.raises(InvalidArgument, match="1 to 1048576"):
        Placement.default(1 << 40, 2)


def test_loads_whose_sums_are_no_numbers_are_balanced():
    """Sums of the largest numbers there are, without a warning and as of smaller ones."""
    loads = np.array([8.0, 1.0, 4.0, 2.0])
    with np.errstate(all="raise"):
        huge = balance(loads * 2.0**1020, slots=6, dies=2)
    assert huge.logical.tolist() == balance(loads, slots=6, dies=2).logical.tolist()
    with pytest.raises(InvalidArgument, match="1048576 at most"):
        balance(loads, slots=1 << 40, dies=2)
