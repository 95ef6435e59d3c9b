"""The reference of strata.moe itself: it keeps what DeepEP's own tests ask of a dispatch and a combine."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import moe_reference as ref


def routing(rng, tokens, topk, experts):
    """Choices without repetition, some of them none."""
    idx = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk].astype(np.int64)
    idx[rng.random(idx.shape) < 0.2] = -1
    return idx


PLACEMENTS = [
    ref.even(8, 4), ref.even(7, 3), ref.even(2, 3),
    ref.Placement(np.array([0, 1, 2, 0, 1, 0]), np.array([0, 3, 3, 6])),
]  # fmt: skip


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_dispatch_then_combine_gives_the_input_times_its_dies(placement):
    rng = np.random.default_rng(3)
    experts, n = int(placement.logical.max()) + 1, placement.dies
    idx = [routing(rng, rng.integers(0, 9), min(3, experts), experts) for _ in range(n)]
    x = [rng.integers(-8, 9, (len(i), 5)).astype(ml_dtypes.bfloat16) for i in idx]
    weights = [rng.random(i.shape, np.float32) for i in idx]
    got = ref.dispatch(placement, [[a] for a in x], idx, weights)
    layouts = [ref.layout(placement, i, r) for r, i in enumerate(idx)]
    for die, mine in enumerate(got):
        assert len(mine.token) == sum(made.per_rank[die] for made in layouts) == mine.prefix[-1, die]
        for slot, count in enumerate(mine.per_slot):
            assert (mine.topk_idx == slot).sum() == count
        for row in range(len(mine.token)):
            assert (mine.columns[0][row] == x[mine.source[row]][mine.token[row]]).all()
    back = ref.combine(got, [g.columns[0] for g in got], [made.in_rank for made in layouts],
                       [g.topk_weights for g in got])  # fmt: skip
    for rank, (sums, w) in enumerate(back):
        dies = layouts[rank].in_rank.sum(axis=1, keepdims=True)
        assert (sums.astype(np.float32) == x[rank].astype(np.float32) * dies).all()
        assert (w == np.where(idx[rank] >= 0, weights[rank], 0)).all()


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_low_latency_identity_gives_the_input_times_its_weights(placement):
    rng = np.random.default_rng(4)
    experts, n = int(placement.logical.max()) + 1, placement.dies
    idx = [routing(rng, rng.integers(0, 9), min(3, experts), experts) for _ in range(n)]
    x = [rng.integers(-8, 9, (len(i), 6)).astype(np.float32) for i in idx]
    weights = [rng.integers(0, 5, i.shape).astype(np.float32) / 4 for i in idx]
    windows = ref.low_latency_dispatch(placement, [[a] for a in x], idx)
    y = [np.zeros((len(mine), 100, 6), np.float32) for mine in windows]
    for die, mine in enumerate(windows):
        for nth, window in enumerate(mine):
            y[die][nth, : len(window.token)] = window.columns[0]
            assert (window.range & 0xFFFFFFFF).sum() == len(window.token)
    sums = ref.low_latency_combine(placement, windows, y, idx, weights)
    for rank in range(n):
        assert (sums[rank] == x[rank] * np.where(idx[rank] >= 0, weights[rank], 0).sum(axis=1, keepdims=True)).all()


def test_small_types():
    """Numbers come back within half a step of their type; scales of powers of two; those packed into bytes."""
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(7, 1024)) * 10.0 ** rng.integers(-3, 4, (7, 1))).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    for rounded in (False, True):
        q, scales = ref.fp8(x, rounded)
        assert q.shape == x.shape and scales.shape == (7, 8)
        # half a step of 3 bits of mantissa for ordinary numbers, half of 2^-9 scales for those below
        off = np.abs(ref.back(q, scales, np.float32) - wide)
        assert (off <= np.abs(wide) / 16 + scales.repeat(128, 1) / 1024).all()
    packed = ref.ue8m0(scales)
    assert packed.shape == (7, 2) and (ref.back(q, packed, np.float32) == ref.back(q, scales, np.float32)).all()
    assert (np.log2(scales) % 1 == 0).all()
    q, scales = ref.int8(x)
    assert (np.abs(q.astype(np.int32)).max(axis=1) == 127).all()
    assert (np.abs(ref.back(q, scales, np.float32) - wide) <= scales * 0.501).all()
    short, scales = ref.fp8(x[:, :130])
    assert short.shape == (7, 130) and scales.shape == (7, 2)
    zeros, scales = ref.fp8(np.zeros((2, 128), np.float32))
    assert not zeros.astype(np.float32).any() and (scales == np.float32(1e-4) / np.float32(448)).all()
