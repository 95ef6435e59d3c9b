"""The kernels compute what numpy, ml_dtypes and exact integers do, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels_reference import PAIRS, canonical, fold, operands, pair_id, raw

from strata import dtypes, errors
from strata._core import kernels

LEVELS = kernels.LEVELS[: kernels.LEVELS.index(kernels.level()) + 1]
NSRC = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17)  # a fold takes up to 8, or 5, or 2
# Around vectors of 16 to 64 elements and blocks of 256 to 8192.
COUNTS = (0, 1, 2, 7, 15, 16, 17, 33, 63, 64, 65, 100, 255, 256, 257, 511, 1023, 1025, 2049, 4099, 8193)


def run(code, op, srcs, **options):
    out = np.empty_like(srcs[0])
    kernels.reduce([raw(out)], [raw(s) for s in srcs], code, op, **options)
    return out


def expect(op, srcs):
    return srcs[0] if len(srcs) == 1 else fold(op, srcs)


def same(got, want, **context):
    if got.tobytes() != want.tobytes():
        size = got.dtype.itemsize
        bad = (raw(got).reshape(-1, size) != raw(want).reshape(-1, size)).any(axis=1)
        at = np.flatnonzero(bad)
        pytest.fail(f"{len(at)} of {len(got)} differ, first at {at[0]}: {got[at[0]]} instead of "
                    f"{want[at[0]]} {context}")


@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_matrix(pair):
    code, op = pair
    for nsrc in NSRC:
        for count in COUNTS if nsrc in (2, 8) else COUNTS[::3]:
            srcs = operands(code, nsrc, count, seed=1)
            want = expect(op, srcs)
            for nt in (False, True):
                same(run(code, op, srcs, nt=nt), want, nsrc=nsrc, count=count, nt=nt)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pair", PAIRS, ids=pair_id)
def test_levels_agree(pair, level):
    code, op = pair
    for nsrc, count in ((2, 301), (3, 45), (4, 71), (5, 67), (6, 1101), (7, 33), (8, 93), (9, 40), (16, 19)):
        srcs = operands(code, nsrc, count, seed=2)
        same(run(code, op, srcs, level=level), fold(op, srcs), nsrc=nsrc, count=count)


@given(
    pair=st.sampled_from(PAIRS),
    nsrc=st.integers(2, 18),
    count=st.integers(1, 700),
    cuts=st.lists(st.integers(0, 700), max_size=6),
    level=st.sampled_from(LEVELS),
    nt=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_any_partition_gives_the_same_bits(pair, nsrc, count, cuts, level, nt, seed):
    code, op = pair
    srcs = operands(code, nsrc, count, seed)
    whole = run(code, op, srcs)
    pieces = np.empty_like(whole)
    edges = sorted({0, count, *(c for c in cuts if c < count)})
    for a, b in zip(edges, edges[1:], strict=False):
        parts = [raw(s[a:b].copy()) for s in srcs]
        kernels.reduce([raw(pieces[a:b])], parts, code, op, nt=nt, level=level)
    same(pieces, whole, cuts=edges)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2"])
def test_nan_of_any_operand_wins(name, op):
    code = [n for n, _, _ in dtypes.DTYPES].index(name)
    for nsrc in (2, 3, 5, 8):
        for rank in range(nsrc):
            srcs = [np.full(70, r + 1, dtypes.dtype_of(code)) for r in range(nsrc)]
            srcs[rank][13] = srcs[rank][69] = np.nan
            got = run(code, dtypes.op_code(op), srcs).astype(np.float64)
            assert np.flatnonzero(np.isnan(got)).tolist() == [13, 69]
            assert got[0] == (1 if op == "min" else nsrc)


def test_min_max_agree_with_numpy():
    """Up to the sign of zero, where the earlier operand counts, and the kind of NaN."""
    for dtype in (np.float16, np.float32, np.float64):
        code = dtypes.code_of(dtype)
        a, b = operands(code, 2, 5000, seed=3)
        a[:4], b[:4] = [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 0.0, -0.0]
        for op, function in (("min", np.minimum), ("max", np.maximum)):
            got = run(code, dtypes.op_code(op), [a, b])
            np.testing.assert_array_equal(got, function(a, b))
            assert np.signbit(got[:4]).tolist() == [False, True, False, True]


def test_integer_mean_is_the_floor_of_the_exact_one():
    for name in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"):
        code = [n for n, _, _ in dtypes.DTYPES].index(name)
        info = np.iinfo(dtypes.dtype_of(code))
        edge = [info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max]
        values = np.array([max(v, info.min) for v in edge for _ in edge], info.dtype)
        other = np.array([max(v, info.min) for _ in edge for v in edge], info.dtype)
        for nsrc in (2, 3, 5, 7, 8, 64, 1000, 1024):
            srcs = [values if r % 3 else other for r in range(nsrc)]
            exact = [sum(int(s[i]) for s in srcs) // nsrc for i in range(len(values))]
            for level in LEVELS:
                assert run(code, dtypes.op_code("avg"), srcs, level=level).tolist() == exact


def test_small_floats_round_once():
    """1 + 2^-9 + 2^-9 + ... is lost in bf16 step by step, and must not be here."""
    bf16 = dtypes.dtype_of(dtypes.code_of("f2") + 1)
    srcs = [np.full(40, 1.0, bf16)] + [np.full(40, 2.0**-9, bf16)] * 1023
    got = run(dtypes.code_of(bf16), dtypes.op_code("sum"), srcs)
    assert got.astype(np.float32).tolist() == [3.0] * 40  # 1 + 1023/512 = 2.998, to bf16


def test_bool_takes_any_nonzero_byte():
    code = dtypes.code_of(bool)
    a = np.arange(256, dtype=np.uint8)
    b = np.where(a % 3 == 0, a, 0).astype(np.uint8)
    for name, want in (("sum", (a != 0) | (b != 0)), ("band", (a != 0) & (b != 0)),
                       ("bxor", (a != 0) ^ (b != 0))):
        assert run(code, dtypes.op_code(name), [a, b]).tolist() == want.astype(int).tolist()
        assert run(code, dtypes.op_code(name), [a]).tolist() == (a != 0).astype(int).tolist()


def test_one_operand_keeps_its_bits():
    for code, op in PAIRS:
        (src,) = operands(code, 1, 97, seed=4)
        same(run(code, op, [src]), src)


def test_result_nan_is_canonical():
    a = np.array([0x7F800001, 0xFFC12345, 0x7F800000] * 30, np.uint32).view(np.float32)
    b = np.array([0xFF923456, 0x3F800000, 0xFF800000] * 30, np.uint32).view(np.float32)
    for level in LEVELS:
        for name in ("sum", "prod", "min", "max", "avg"):
            got = run(dtypes.code_of("f4"), dtypes.op_code(name), [a, b], level=level)
            same(got, canonical(got))
            assert np.isnan(got[::3]).all() and np.isnan(got[1::3]).all()


def test_unsupported_and_wrong_arguments():
    x = np.zeros(16, np.uint8)
    names = [n for n, _, _ in dtypes.DTYPES]
    for name, op in (("bool", "avg"), ("f32", "band"), ("bf16", "bxor"), ("c64", "min"), ("c128", "max"),
                     ("raw", "sum"), ("f64", "bor")):
        with pytest.raises(errors.UnsupportedType):
            kernels.reduce([x], [x], names.index(name), dtypes.op_code(op))
    with pytest.raises(errors.UnsupportedType):
        kernels.reduce([x], [x], names.index("f32"), 0)
    for dtype, op in ((-1, 1), (len(names), 1), (1, -1), (1, len(dtypes.OPS)), (10**6, 1)):
        with pytest.raises(errors.InvalidArgument):
            kernels.reduce([x], [x], dtype, op)
    with pytest.raises(errors.InvalidArgument):
        kernels.reduce([x], [], 3, 1)
    with pytest.raises(errors.InvalidArgument):
        kernels.reduce([x], [x] * (kernels.MAX_OPERANDS + 1), 3, 1)
    kernels.reduce([], [x], 3, 1)
    kernels.reduce([x] * 3, [x] * kernels.MAX_OPERANDS, 3, 1)


def test_level_beyond_the_processor_is_refused():
    x = np.zeros(8, np.uint8)
    for level in kernels.LEVELS[len(LEVELS) :]:
        with pytest.raises(errors.InvalidArgument):
            kernels.reduce([x], [x], 3, 1, level=level)
    with pytest.raises(ValueError):
        kernels.reduce([x], [x], 3, 1, level="sse9")
