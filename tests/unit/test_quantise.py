"""Casts with scales against numpy and ml_dtypes, at every level of this processor."""

import ml_dtypes
import moe_reference as reference
import numpy as np
import pytest

from strata import errors
from strata._core import kernels, quantise

BF16, FP8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
LEVELS = kernels.LEVELS[: kernels.LEVELS.index(kernels.level()) + 1]
HIDDEN = (1, 7, 127, 128, 129, 300, 1024)


def rows(dtype, hidden, seed, odd=False):
    """Rows of very different sizes; with ``odd``, NaNs and infinities among them."""
    rng = np.random.default_rng([seed, hidden])
    x = rng.normal(size=(23, hidden)) * np.exp(rng.uniform(-12, 9, (23, 1)))
    x[3], x[4] = 0, 1e-9
    x[5, rng.integers(0, hidden)] = -60000
    x[6] = np.where(rng.random(hidden) < 0.5, -0.0, 2.0**-20)
    x[7] = 448 * 2.0 ** rng.integers(-3, 4)
    if odd:
        x[8, rng.integers(0, hidden)] = np.nan
        x[9, rng.integers(0, hidden)] = np.inf
        x[10, rng.integers(0, hidden)] = -np.inf
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def fp8(x, round_scale, level):
    q, scales = np.empty(x.shape, FP8), np.empty((len(x), quantise.groups(x.shape[1])), "f4")
    quantise.cast_fp8(x, q, scales, round_scale, level=level)
    return q, scales


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2"), np.dtype("f4")], ids=str)
@pytest.mark.parametrize("round_scale", [False, True])
def test_fp8(dtype, round_scale, level):
    for seed, hidden in enumerate(HIDDEN):
        x = rows(dtype, hidden, seed, odd=True)
        found, expected = fp8(x, round_scale, level), reference.fp8(x, round_scale)
        assert reference.same(found[1], expected[1].astype("f4")) and reference.same(found[0], expected[0]), hidden
        if round_scale:
            assert (np.frexp(found[1])[0] == 0.5).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2"), np.dtype("f4")], ids=str)
def test_int8(dtype, level):
    for seed, hidden in enumerate(HIDDEN):
        x = rows(dtype, hidden, seed)
        x = x[np.isfinite(x.astype("f4")).all(axis=1)]
        q, scales = np.empty(x.shape, "i1"), np.empty((len(x), 1), "f4")
        quantise.cast_int8(x, q, scales, level=level)
        expected = reference.int8(x)
        assert scales.tobytes() == expected[1].tobytes() and q.tobytes() == expected[0].tobytes(), hidden
        back = np.empty(x.shape, dtype)
        quantise.cast_back(q, scales, back, level=level)
        assert reference.same(back, reference.back(q, scales, dtype))


def test_int8_of_what_is_no_number():
    x = np.array([[1, np.nan, 2], [1, np.inf, -3], [0, 0, 0]], "f4")
    q, scales = np.empty(x.shape, "i1"), np.empty((3, 1), "f4")
    quantise.cast_int8(x, q, scales)
    assert q.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert np.isnan(scales[0, 0]) and np.isinf(scales[1, 0]) and scales[2, 0] == np.float32(1e-4) / np.float32(127)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2"), np.dtype("f4")], ids=str)
def test_back(dtype, level):
    """Every code of float8, and scales of any size."""
    for hidden in HIDDEN:
        rng = np.random.default_rng(hidden)
        q = rng.integers(0, 256, (40, hidden)).astype("u1").view(FP8)
        scales = np.exp(rng.uniform(-20, 20, (40, quantise.groups(hidden)))).astype("f4")
        scales[0, 0], scales[1, 0] = np.inf, np.nan
        out = np.empty(q.shape, dtype)
        quantise.cast_back(q, scales, out, level=level)
        with np.errstate(all="ignore"):
            assert reference.same(out, reference.back(q, scales, dtype)), hidden


def test_nothing():
    for shape in ((0, 64), (5, 0)):
        x, q = np.empty(shape, "f4"), np.empty(shape, FP8)
        scales = np.empty((shape[0], quantise.groups(shape[1])), "f4")
        quantise.cast_fp8(x, q, scales)
        quantise.cast_back(q, scales, x)


def test_refusals():
    x, q, scales = np.zeros((4, 130), "f4"), np.zeros((4, 130), FP8), np.zeros((4, 2), "f4")
    read_only = q.copy()
    read_only.setflags(write=False)
    for bad, words in (
        ((x, q[:3], scales), "out of shape"),
        ((x[:, ::2], q[:, ::2], scales[:, :1]), "C-contiguous"),
        ((x, q, scales[:, :1]), "scales of shape"),
        ((x, read_only, scales), "can be written"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            quantise.cast_fp8(*bad)
    for call, words in (
        (lambda: quantise.cast_fp8(x.astype("f8"), q, scales), "rows of float64"),
        (lambda: quantise.cast_fp8(x, q.view("u1"), scales), "float8_e4m3fn is expected"),
        (lambda: quantise.cast_fp8(x, q, scales.astype("f8")), "float32 is expected"),
        (lambda: quantise.cast_int8(x, q, scales[:, :1].copy()), "int8 is expected"),
        (lambda: quantise.cast_back(x, scales, x), "int8 or float8_e4m3fn"),
        (lambda: quantise.cast_back(q, scales, x.astype("i4")), "rows of int32"),
    ):
        with pytest.raises(errors.UnsupportedType, match=words):
            call()
