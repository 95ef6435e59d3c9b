"""Dispatch and combine at several numbers of dies: each feature once, against the plain reference; what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import moe_dies
import moe_play as play
import moe_reference as ref
from moe_play import Case, Round

import strata
from strata import moe


def case_of(n, *rounds, experts=None, placement=None, **more):
    return Case(tuple(range(n)), experts or 2 * n + 1, placement, rounds, order=tuple(range(len(rounds))), **more)


def _play(group, cases):
    return [moe_dies.play_case(group, case) for case in cases for _ in range(2)]


def check(pool, *cases):
    """Plays cases twice each: the reference's bits, and the same ones again."""
    found = pool.run(_play, cases)
    for k, case in enumerate(cases):
        wanted = play.expected(case)
        for again in range(2):
            assert not play.differences(case, [mine[2 * k + again] for mine in found], wanted)


def tokens(n, most=9):
    return tuple((np.arange(n) * 5 + 4) % most)


HIGH = {
    "plain": {},
    "event": {"wait": "event"},
    "fp8": {"dtype": "float8_e4m3fn", "hidden": 200, "combine_weights": False},
    "fp8 with exponents": {"dtype": "float8_e4m3fn", "hidden": 512, "exponents": True, "cached": True},
    "int8": {"dtype": "int8"},
    "no choices": {"give_idx": False, "cached": True},
    "worst": {"worst": True, "alignment": 4},
    "biases": {"biases": 2, "dtype": "float16"},
    "one expert": {"spread": "one", "masked": 0.0, "topk": 4},
    "nothing": {"spread": "none"},
    "numpy": {"layout": "numpy", "biases": 1, "dtype": "float32"},
    "strided": {"layout": "columns", "cached": True},
    "wide": {"topk": 16, "hidden": 300},
}
LOW = {
    "plain": {"quant": ""},
    "hook": {"wait": "hook"},
    "event": {"wait": "event", "dtype": "float16"},
    "fp8": {"quant": "fp8", "hidden": 256},
    "fp8 of powers of two": {"quant": "fp8r", "hidden": 200, "dtype": "float32"},
    "ue8m0": {"quant": "ue8m0", "hidden": 512},
    "int8": {"quant": "int8", "hidden": 130},
    "out": {"give_out": True, "zero_copy": True, "wait": "hook"},
    "one expert": {"spread": "last", "masked": 0.0, "topk": 3},
    "nothing": {"spread": "none"},
    "strided": {"layout": "strided", "give_out": True},
    "wide": {"topk": 16, "hidden": 300, "dtype": "float32"},
}


def test_high_throughput(dies):
    check(dies, *(case_of(dies.n, Round(tokens=tokens(dies.n), salt=k, **one)) for k, one in enumerate(HIGH.values())))


def test_low_latency(dies):
    rounds = [Round(mode="ll", tokens=tokens(dies.n), salt=k, **one) for k, one in enumerate(LOW.values())]
    check(dies, *(case_of(dies.n, one) for one in rounds))


@pytest.mark.parametrize("path", ["mte", "sdma"])
@pytest.mark.parametrize("partition, cores", [("balanced", 4), ("naive", 4), ("balanced", 1)])
def test_paths_and_partitions(four, path, partition, cores):
    rounds = [Round(mode=mode, tokens=(40, 0, 17, 90), hidden=64, topk=5, salt=3) for mode in ("ht", "ll")]
    check(four, case_of(4, *rounds, experts=11, path=path, partition=partition, cores=cores))


@pytest.mark.parametrize("placement", [
    ((0, 1, 2, 3, 4, 0, 0), (0, 3, 3, 6, 7)), ((1, 0), (0, 0, 1, 1, 2)), ((2, 2, 1, 0, 0, 0, 1, 2, 2), (0, 9, 9, 9, 9)),
], ids=["replicas", "few", "one die"])  # fmt: skip
def test_placements(four, placement):
    rounds = [Round(mode=mode, tokens=(4, 9, 0, 7), topk=3, salt=5, cached=True) for mode in ("ht", "ll")]
    check(four, case_of(4, *rounds, experts=max(placement[0]) + 1, placement=placement))


def test_eight_rounds_in_flight(four):
    rounds = [Round(mode=("ll", "ht")[k % 2], wait=("hook", "event")[k % 2], tokens=(3, k, 8 - k, 1), salt=k)
              for k in range(8)]  # fmt: skip
    check(four, case_of(4, *rounds)._replace(order=(5, 2, 7, 0, 1, 6, 3, 4)))


def test_more_rounds_than_may_be_in_flight(four):
    """Further calls wait for room."""
    rounds = [Round(mode="ll", wait="hook", tokens=(1, 2, 0, k % 3), salt=k) for k in range(19)]
    check(four, case_of(4, *rounds)._replace(order=tuple(range(18, -1, -1))))


def _two_buffers(group, mode, case, small):
    """Rounds of two Buffers, of the group and of a part of it, while both have one in progress."""
    pair = group.subgroup([group.rank // 2 * 2, group.rank // 2 * 2 + 1])
    kind = moe_dies.High if mode == "ht" else moe_dies.Low
    all_of, part = (kind(moe_dies.buffer_of(g, c), c, c.rounds[0], g.rank) for g, c in ((group, case), (pair, small)))
    for one in (all_of, part):
        one.dispatch()
    for one in (part, all_of) if group.rank % 2 else (all_of, part):
        one.wait()
        one.received()
    for one in (part, all_of):
        one.combine()
    for one in (part, all_of) if group.rank % 2 else (all_of, part):
        one.wait()
        one.summed()
    return [all_of.found], [part.found]


@pytest.mark.parametrize("mode", ["ht", "ll"])
def test_two_buffers_at_once(four, mode):
    case = case_of(4, Round(mode=mode, wait="event", tokens=(5, 3, 0, 8), salt=1, topk=3))
    small = case_of(2, Round(mode=mode, wait="event", tokens=(4, 6), salt=2, dtype="float32"))
    found = four.run(_two_buffers, mode, case, small)
    assert not play.differences(case, [mine for mine, _ in found], play.expected(case))
    for first in (0, 2):
        assert not play.differences(small, [mine for _, mine in found[first : first + 2]], play.expected(small))


def _kept(group, cases):
    """Rounds of one Buffer; every other one's results are let go, so that later ones may have their memory."""
    buffer, held, found = moe_dies.buffer_of(group, cases[-1]), [], []
    for k, case in enumerate(cases):
        kind = moe_dies.High if case.rounds[0].mode == "ht" else moe_dies.Low
        one = kind(buffer, case, case.rounds[0], group.rank)
        for step in (one.dispatch, one.wait, one.received, one.combine, one.wait, one.summed):
            step()
        found.append([one.found])
        held += [one] * (k % 2)
    for one in held:
        one.unchanged()
    return found


@pytest.mark.parametrize("mode", ["ht", "ll"])
def test_memory_is_used_again_only_when_nobody_has_it(trio, mode):
    """Arrays above 1 MiB, which the Buffer keeps."""
    shape = {"hidden": 14_000, "dtype": "float32", "topk": 1, "masked": 0.0, "give_idx": False}
    cases = [case_of(3, Round(mode=mode, wait=("now", "event")[k % 2], tokens=(30, 20, 22), salt=k, **shape), experts=3,
                     kept=1 << 23) for k in range(5)]  # fmt: skip
    found = trio.run(_kept, cases)
    for k, case in enumerate(cases):
        assert not play.differences(case, [mine[k] for mine in found], play.expected(case))


# ---- what DeepEP's own tests ask ------------------------------------------------------


def _formula(group, tokens, hidden, experts, topk):
    """Its formulas: identity between dispatch and combine gives the input back, scaled."""
    rng = np.random.default_rng(group.rank)
    x = strata.empty((tokens, hidden), "bfloat16")
    x[:] = rng.normal(size=x.shape).astype(x.dtype)
    idx = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk].astype(np.int64)
    weights = rng.random((tokens, topk), np.float32)
    size = moe.Buffer.get_low_latency_rdma_size_hint(tokens, hidden, group.size, experts)
    buffer = moe.Buffer(group, 0, size, low_latency_mode=True)
    per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, experts)
    got, _, w, counts, handle, _ = buffer.dispatch(
        x, topk_idx=idx, topk_weights=weights, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
    )  # fmt: skip
    sums, w, _ = buffer.combine(got, handle, topk_weights=w)
    assert _apart(sums.astype(float) / in_rank.sum(axis=1)[:, None], x) < 5e-6
    assert _apart(w, weights) < 1e-9
    assert sum(counts) == group.all_reduce(np.array(per_expert))[_mine(group, experts)].sum()
    for fp8, most in ((False, 1e-5), (True, 9e-4)):
        got, count, handle, _, hook = buffer.low_latency_dispatch(
            x, idx, tokens, experts, use_fp8=fp8, return_recv_hook=True
        )
        hook()
        if fp8:
            flat = [part.reshape(-1, part.shape[-1]) for part in got]
            got = ref.back(*flat).reshape(got[0].shape)
        sums, _, hook = buffer.low_latency_combine(got, idx, weights, handle, return_recv_hook=True)
        hook()
        assert _apart(sums, x.astype(float) * weights.sum(axis=1, keepdims=True)) < most
        assert count.sum() == sum(counts)


def _mine(group, experts):
    first = ref.even(experts, group.size).first
    return slice(first[group.rank], first[group.rank + 1])


def _apart(x, y):
    """How unlike two arrays are, as its tests measure it."""
    x, y = np.asarray(x, float) + 1, np.asarray(y, float) + 1
    return 1 - 2 * (x * y).sum() / (x * x + y * y).sum()


def test_the_formulas_of_deep_ep(dies):
    dies.run(_formula, 60, 256, 16, 4)


# ---- what is refused ------------------------------------------------------------------


def _too_small(group, what):
    hint = moe.Buffer.get_low_latency_rdma_size_hint
    buffer = moe.Buffer(group, 0, hint(8, 64, group.size, 8) // (2 if what == "buffer" else 1), low_latency_mode=True)
    x = strata.ones((8, 64), "bfloat16")
    idx = np.zeros((8, 2), np.int64)  # 16 rows a source for expert 0
    if what != "window":
        idx[:, 1] = 1
    with pytest.raises(strata.StrataError) as caught:
        buffer.low_latency_dispatch(x, idx, 4 if what == "tokens" else 8, 8, use_fp8=False)
    idx[:, 0], idx[:, 1] = np.arange(8), -1  # the Buffer stays usable
    small = 2 if what == "buffer" else 8
    got, count, *_ = buffer.low_latency_dispatch(x[:small], idx[:small], small, 8, use_fp8=False)
    assert group.all_reduce(np.array(count.sum())) == group.size * small
    return str(caught.value)


@pytest.mark.parametrize("what, needed", [("buffer", None), ("tokens", "8"), ("window", "16")])
def test_what_is_too_small_says_what_is_needed(dies, what, needed):
    text = dies.run(_too_small, what)
    if needed is None:
        needed = str(moe.Buffer.get_low_latency_rdma_size_hint(8, 64, dies.n, 8))
    assert all(needed in said for said in text), text


# ---- memory ---------------------------------------------------------------------------


PERIOD = 20  # rounds, after which routing is what it was


def _memory(group, rounds):
    """Fabric memory after each round of changing routing: in use, and reserved."""
    buffer, held, found = moe.Buffer(group), None, []
    for step in range(rounds):
        rng = np.random.default_rng((step % PERIOD, group.rank))
        idx = rng.integers(0, 1 + step % PERIOD % 16, (int(rng.integers(0, 200)), 4))
        x = strata.ones((len(idx), 512), "bfloat16")
        per_rank, _, per_expert, in_rank, _ = buffer.get_dispatch_layout(idx, 16)
        rows, *_, handle, _ = buffer.dispatch(
            x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert
        )
        held = (rows, buffer.combine(rows, handle)[0])
        assert (held[1] == in_rank.sum(axis=1)[:, None].astype(x.dtype)).all()
        memory = strata.stats()["memory"]
        found.append((memory["allocated_bytes.all.current"], memory["reserved_bytes.all.current"]))
    return found


def test_memory_does_not_grow(four):
    for mine in four.run(_memory, 4 * PERIOD):
        used, reserved = zip(*mine, strict=True)
        assert used[-PERIOD:] == used[PERIOD : 2 * PERIOD], mine
        assert max(reserved[-PERIOD:]) <= max(reserved[: 2 * PERIOD]), mine
