"""Conversions of f16, bf16 and float8 agree with numpy and ml_dtypes on every code and rounding."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels_reference import SMALL

from strata import dtypes
from strata._core import kernels

NAMES = [dtypes.DTYPES[code][0] for code in SMALL]


def codes(code):
    dtype = dtypes.dtype_of(code)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.arange(1 << (8 * dtype.itemsize), dtype=np.uint64).astype(unsigned)


def narrow(code, values):
    values = np.ascontiguousarray(values, np.float32)
    out = np.empty(len(values), np.uint16)
    kernels.narrow(code, values, out)
    return out


def reference(code, values):
    """Codes by numpy or ml_dtypes, a NaN without its payload."""
    dtype = dtypes.dtype_of(code)
    with np.errstate(all="ignore"):
        small = values.astype(dtype)
    found = small.view(f"u{dtype.itemsize}").astype(np.uint16)
    nan = np.isnan(small.astype(np.float32))
    quiet = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E}[dtype.name]
    sign = np.uint16(1 << (8 * dtype.itemsize - 1))
    return np.where(nan, np.where(np.signbit(values), quiet | sign, quiet), found).astype(np.uint16)


@pytest.mark.parametrize("code", SMALL, ids=NAMES)
def test_widen_every_code(code):
    every = codes(code)
    want = every.view(dtypes.dtype_of(code)).astype(np.float32)
    got = np.array([kernels.widen(code, int(c)) for c in every], np.float32)
    nan = np.isnan(want)
    assert (np.isnan(got) == nan).all()
    assert (got[~nan].view(np.uint32) == want[~nan].view(np.uint32)).all()
    assert nan.any()


@pytest.mark.parametrize("code", SMALL, ids=NAMES)
def test_narrow_gives_every_code_back(code):
    values = codes(code).view(dtypes.dtype_of(code)).astype(np.float32)
    assert (narrow(code, values) == reference(code, values)).all()


@pytest.mark.parametrize("code", SMALL, ids=NAMES)
def test_narrow_around_every_tie(code):
    """The middle of each two neighbours, and the float32 just below and above it."""
    with np.errstate(invalid="ignore"):  # numpy warns of signalling NaNs
        values = codes(code).view(dtypes.dtype_of(code)).astype(np.float64)
    values = np.sort(values[np.isfinite(values)])
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    for direction in (-np.inf, np.inf):
        near = np.nextafter(middle, np.float32(direction))
        assert (narrow(code, near) == reference(code, near)).all()
    assert (narrow(code, middle) == reference(code, middle)).all()


@pytest.mark.parametrize("code", SMALL, ids=NAMES)
def test_narrow_dense_bits(code):
    """Every upper half of a float32 with lower halves on both sides of the ties."""
    high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    for low in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (high | np.uint32(low)).view(np.float32)
        got, want = narrow(code, values), reference(code, values)
        assert (got == want).all(), (low, values[got != want][:5], got[got != want][:5])


@given(bits=st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=50), code=st.sampled_from(SMALL))
def test_narrow_random_bits(bits, code):
    values = np.array(bits, np.uint32).view(np.float32)
    assert (narrow(code, values) == reference(code, values)).all()


@pytest.mark.parametrize("level", kernels.LEVELS[: kernels.LEVELS.index(kernels.level()) + 1])
@pytest.mark.parametrize("code", SMALL, ids=NAMES)
def test_loops_convert_like_single_elements(code, level):
    """The vectorised (for f16: hardware) conversions, through sums with zero."""
    every = codes(code)
    dtype = dtypes.dtype_of(code)
    zero = np.zeros_like(every)
    for nsrc in (2, 9):
        out = np.empty_like(every)
        kernels.reduce([out.view(np.uint8)], [every.view(np.uint8)] + [zero.view(np.uint8)] * (nsrc - 1),
                       code, dtypes.op_code("sum"), level=level)
        want = every.view(dtype).astype(np.float32)
        got = out.view(dtype).astype(np.float32)
        np.testing.assert_array_equal(got, want)


def test_float8_e4m3fn_has_no_infinity():
    code = dtypes.code_of(ml_dtypes.float8_e4m3fn)
    values = np.array([448, 464, np.nextafter(np.float32(464), np.float32(465)), 1e9, np.inf, -np.inf], "f4")
    assert narrow(code, values).tolist() == [0x7E, 0x7E, 0x7F, 0x7F, 0x7F, 0xFF]
