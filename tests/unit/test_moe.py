"""MoE windows against a dispatch token by token, and what the scheduler is given."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidArgument
from strata.machine import load
from strata.plan import moe
from strata.plan.schedule import schedule
from strata.plan.spec import Spec

CM384 = load("cm384")


def routed(chance, dies, tokens, experts, topk, masked=0.2):
    """A routing in which experts differ in popularity and some choices are masked."""
    found = []
    for _ in range(dies):
        n = int(chance.integers(0, tokens + 1))
        liked = chance.random((n, experts)) * chance.random(experts) ** 2
        table = np.argsort(-liked, axis=1)[:, :topk]
        table[chance.random(table.shape) < masked] = -1
        found.append(table)
    return found


def by_token(routing, experts):
    """What every die receives: for each of its experts in turn, from each source in turn, (source, token)."""
    received = [[] for _ in routing]
    for expert, die in enumerate(experts):
        for source, table in enumerate(routing):
            received[die] += [(source, token) for token, row in enumerate(table) if expert in row.tolist()]
    return received


@given(st.integers(0, 1 << 32), st.integers(1, 6), st.integers(0, 30), st.integers(1, 12))
def test_windows_move_what_tokens_one_by_one_would(seed, dies, tokens, experts):
    chance = np.random.default_rng(seed)
    topk = int(chance.integers(1, experts + 1))
    die_of = chance.integers(0, dies, experts)
    routing = routed(chance, dies, tokens, experts, topk)
    found = moe.windows(routing, die_of)
    packs = [moe.pack(table, die_of) for table in routing]
    for rank, expected in enumerate(by_token(routing, die_of)):
        got = [None] * len(expected)
        for s in found.slices(rank, 16):
            src, dst, rows = (int(s[f]) // 16 for f in ("src", "dst", "bytes"))
            for i in range(rows):
                assert got[dst + i] is None
                got[dst + i] = (int(s["peer"]), int(packs[s["peer"]][src + i]))
        assert got == expected
        assert found.peers()[:, rank].sum() == len(expected)
    assert found.peers().sum(axis=1).tolist() == [len(p) for p in packs]


def test_the_schedulers_input_does_not_grow_with_tokens():
    chance = np.random.default_rng(7)
    dies, die_of = 16, np.arange(64) % 16
    sizes = {}
    for tokens in (64, 256, 4096):
        routing = [np.argsort(chance.random((tokens, 64)), axis=1)[:, :8] for _ in range(dies)]
        slices = moe.windows(routing, die_of).slices(3, 7168)
        sizes[tokens] = len(slices)
        spec = Spec("all_to_all_v", itemsize=1, nranks=dies)
        tiers = CM384.place.seen(3, dies)
        made = schedule(slices, spec, 3, 24, policy="balanced", cost=CM384.cost, tiers=tiers, local_first=False)
        assert made.units["bytes"].sum() == slices["bytes"].sum()
        assert 3 * made.makespan_ps <= 4 * made.bound_ps
    assert max(sizes.values()) <= dies * 4  # windows: sources by experts of the die
    assert sizes[4096] == sizes[256]


@pytest.mark.parametrize(
    "routing, experts, what",
    [
        ([[[0, 0]]], [0], "twice"),
        ([[[1]]], [0], "not one of 1"),
        ([[[-2]]], [0], "not one of 1"),
        ([[[0.5]]], [0], "integers"),
        ([[0]], [0], "shape"),
        ([[[0]]], [1], "die 1 of 1"),
        ([[[0]]], [-1], "die -1 of 1"),
        ([], [0], "at least one"),
        ([[[0]]], [], "at least one"),
    ],
)
def test_what_is_no_routing_is_refused(routing, experts, what):
    with pytest.raises(InvalidArgument, match=what):
        moe.windows([np.array(t) for t in routing], np.array(experts))


def test_ranks_and_rows_out_of_range_are_refused():
    found = moe.windows([np.array([[0]])], np.array([0]))
    for rank, nbytes in ((1, 4), (-1, 4), (0, 0), (0, 1 << 61)):
        with pytest.raises(InvalidArgument):
            found.slices(rank, nbytes)
