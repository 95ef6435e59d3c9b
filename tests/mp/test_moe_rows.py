"""Rows that dies pull from each other's arrays, and weighted sums of them, against numpy."""

import ml_dtypes
import moe_reference as reference
import numpy as np
import pytest
from rowplans import combine, gather

import strata
from strata import errors
from strata._core import moe

HAVE = (40, 0, 7, 200, 1, 33, 64, 12)  # rows of each member


def arrays(group, dtypes, seed):
    """This member's columns, and all members' as numpy has them."""
    have = [HAVE[j % len(HAVE)] for j in range(group.size)]
    all_of = []
    for j, rows in enumerate(have):
        rng = np.random.default_rng([seed, j])
        all_of.append([rng.normal(size=(rows, width)).astype(dtype) for dtype, width in dtypes])
    mine = [strata.array(a) for a in all_of[group.rank]]
    table = group.all_gather(np.array([[strata.address(a) if a.size else 0, a.nbytes] for a in mine], "u8"))
    return have, mine, all_of, table


def pick(group, have, seed):
    rng = np.random.default_rng([seed, group.rank, 99])
    return [rng.integers(0, rows, rng.integers(0, 90)) if rows else np.zeros(0, int) for rows in have]


def gathers(group, cores, path):
    dtypes = [(ml_dtypes.bfloat16, 300), ("f4", 3), ("i8", 8), (ml_dtypes.float8_e4m3fn, 130)]
    for seed in range(3):
        have, mine, all_of, table = arrays(group, dtypes, seed)
        picked = pick(group, have, seed)
        row = sum(a.dtype.itemsize * a.shape[1] for a in mine)
        handle = moe.rows_handle(gather(group.rank, have, picked, row, cores, path=path), group.size)
        out = [strata.empty((sum(map(len, picked)), a.shape[1]), a.dtype) for a in mine]
        columns = [moe.Column(table[:, c, 0], table[:, c, 1], a) for c, a in enumerate(out)]
        run(group, handle, columns, path)
        for c, a in enumerate(out):
            expected = reference.joined([all_of[j][c][picked[j]] for j in range(group.size)])
            assert a.tobytes() == expected.tobytes(), (seed, c)
        group.barrier()
    return True


def run(group, handle, columns, path):
    if path == "sdma":
        moe.run_rows_sdma(group, handle, columns)
    else:
        moe.run_rows(group, handle, columns)


@pytest.mark.parametrize("cores, path", [(1, "mte"), (4, "mte"), (4, "sdma")])
def test_gathers(dies, cores, path):
    assert all(dies.run(gathers, cores, path))


def sums(group, dtype, cores, path):
    """Two columns: rows with weights and biases, and float32 without."""
    for seed in range(3):
        have, mine, all_of, table = arrays(group, [(dtype, 300), ("f4", 4)], seed)
        rng = np.random.default_rng([seed, group.rank])
        tokens, width = 50, 1 + 3 * seed
        member = rng.integers(-1, group.size, (tokens, width))
        member[np.asarray(have)[member] == 0] = -1
        number = rng.integers(0, 1 << 30, (tokens, width)) % np.maximum(np.asarray(have)[member], 1)
        weights = rng.normal(size=(tokens, width)).astype("f4")
        bias = [rng.normal(size=(tokens, 300)).astype(dtype) if k < seed else None for k in range(2)]
        row = sum(a.dtype.itemsize * a.shape[1] for a in mine)
        handle = moe.rows_handle(combine(group.rank, have, member, number, row, cores, path=path), group.size)
        out = [strata.empty((tokens, a.shape[1]), a.dtype) for a in mine]
        columns = [moe.Column(table[:, c, 0], table[:, c, 1], a) for c, a in enumerate(out)]
        columns[0] = columns[0]._replace(weights=weights, bias=tuple(bias))
        run(group, handle, columns, path)
        chosen = [[(member[t, k], number[t, k]) for k in range(width) if member[t, k] >= 0] for t in range(tokens)]
        used = [weights[t][member[t] >= 0] for t in range(tokens)]
        for c, (w, b) in enumerate(((used, bias), (None, (None, None)))):
            rows = [[all_of[j][c][i] for j, i in mine_of] for mine_of in chosen]
            expected = reference.weighted(rows, w, out[c].shape[1], out[c].dtype, b)
            assert reference.same(np.asarray(out[c]), expected), (seed, c)
        group.barrier()
    return True


@pytest.mark.parametrize("path", ["mte", "sdma"])
@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16, "f4", "f8"])
def test_sums(four, dtype, path):
    assert all(four.run(sums, dtype, 3, path))


@pytest.mark.parametrize("path", ["mte", "sdma"])
def test_sums_of_one_and_of_many(dies, path):
    assert all(dies.run(sums, ml_dtypes.bfloat16, 2, path))


def many(group, tokens, hidden):
    """More rows than a ring has room for, and more than scratch has."""
    n, me = group.size, group.rank
    x = strata.empty((tokens, hidden), ml_dtypes.bfloat16)
    x[:] = (np.arange(tokens)[:, None] % 97 + me).astype(x.dtype)
    table = group.all_gather(np.array([strata.address(x), x.nbytes], "u8"))
    have, row = [tokens] * n, 2 * hidden
    rng = np.random.default_rng(me)
    picked = [rng.permutation(tokens) for _ in range(n)]
    out = strata.empty((n * tokens, hidden), x.dtype)
    column = moe.Column(table[:, 0], table[:, 1], out)
    moe.run_rows_sdma(group, moe.rows_handle(gather(me, have, picked, row, 8, 7, "sdma"), n), [column])
    value = np.concatenate([picked[j] % 97 + j for j in range(n)])
    assert (np.asarray(out).astype("f4") == value[:, None]).all()
    member, number = rng.integers(0, n, (tokens, 8)), rng.integers(0, tokens, (tokens, 8))
    handle = moe.rows_handle(combine(me, have, member, number, row, 4, path="sdma"), n)
    moe.run_rows_sdma(group, handle, [column._replace(out=out[:tokens])])
    total = (number % 97 + member).sum(axis=1).astype("f4").astype(x.dtype).astype("f4")
    assert (np.asarray(out[:tokens]).astype("f4") == total[:, None]).all()
    group.barrier()
    return True


def test_more_than_rings_and_scratch_hold(pair):
    assert pair.run(many, 3000, 1024) == [True, True]


def refusals(group):
    n, me = group.size, group.rank
    x, out = strata.ones((8, 4), "f4"), strata.zeros((3, 4), "f4")
    table = group.all_gather(np.array([strata.address(x), x.nbytes], "u8"))
    src, limit = table[:, 0].copy(), table[:, 1].copy()
    picked = [np.arange(3) if j == 1 - me else np.zeros(0, int) for j in range(n)]
    handle = moe.rows_handle(gather(me, [8, 8], picked, 16), n)
    sums_of = moe.rows_handle(combine(me, [8, 8], np.ones((3, 2), int), np.ones((3, 2), int), 16), n)
    good = moe.Column(src, limit, out)
    for bad, words in (
        ([], "0 columns"),
        ([good] * 9, "9 columns"),
        ([good, good], "do not go with the plan"),
        ([good._replace(src=src[:1])], "one of each of 2 members"),
        ([good._replace(out=np.zeros((3, 8), "f4")[:, ::2])], "contiguous"),
        ([good._replace(out=np.zeros((3, 3), "f4"))], "12 bytes a row do not go"),
        ([good, good._replace(out=np.zeros((4, 4), "f4"))], "of 3 rows"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            moe.run_rows(group, handle, bad)
    for bad, words in (
        (good._replace(bias=(np.zeros((3, 4)), None)), "float64: a contiguous one of"),
        (good._replace(weights=np.zeros((3, 3), "f4")), r"contiguous ones of \(3, 2\)"),
        (good._replace(weights=np.zeros((3, 2))), "float64"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            moe.run_rows(group, sums_of, [bad])
    with pytest.raises(errors.UnsupportedType, match="not of int32"):
        moe.run_rows(group, sums_of, [good._replace(out=np.zeros((3, 4), "i4"))])
    with pytest.raises(errors.InvalidArgument, match="index or offset"):
        moe.rows_handle(gather(me, [2, 2], picked, 16), n)
    with pytest.raises(errors.RegistrationError, match="beyond an array's end"):
        moe.run_rows(group, handle, [good._replace(limit=np.array([16, 16]))])
    with pytest.raises(errors.RegistrationError, match=f"rank {1 - me} cannot be read") as caught:
        moe.run_rows(group, handle, [good._replace(src=np.where(np.arange(n) == me, src, src + (1 << 34)))])
    assert caught.value.ranks == (1 - me,)
    with pytest.raises(errors.RegistrationError, match="beyond an array's end"):
        moe.run_rows(group, handle, [good._replace(out=out[:2])])
    out[:] = 0
    moe.run_rows(group, handle, [good])
    assert (out == 1).all()
    return True


def test_refusals(pair):
    assert pair.run(refusals) == [True, True]


def engine_refusals(group):
    n, me = group.size, group.rank
    x, out = strata.ones((8, 4), "f4"), strata.zeros((3, 4), "f4")
    table = group.all_gather(np.array([strata.address(x), x.nbytes], "u8"))
    picked = [np.arange(3) if j == 1 - me else np.zeros(0, int) for j in range(n)]
    handle = moe.rows_handle(gather(me, [8, 8], picked, 16), n)
    good = moe.Column(table[:, 0], table[:, 1], out)
    with pytest.raises(errors.InvalidArgument, match="fabric memory alone"):
        moe.run_rows_sdma(group, handle, [good._replace(out=np.zeros((3, 4), "f4"))])
    gone = np.where(np.arange(n) == me, table[:, 0], table[:, 0] + (1 << 34)).astype("u8")
    for _ in range(2):
        with pytest.raises(errors.RegistrationError, match=f"rank {1 - me} cannot be read"):
            moe.run_rows_sdma(group, handle, [good._replace(src=gone)])
        with pytest.raises(errors.RegistrationError, match="beyond an array's end"):
            moe.run_rows_sdma(group, handle, [good._replace(limit=np.array([16, 16], "u8"))])
        out[:] = 0
        moe.run_rows_sdma(group, handle, [good])
        assert (out == 1).all()
    sums_of = moe.rows_handle(combine(me, [8, 8], np.ones((3, 2), int), np.ones((3, 2), int), 16), n)
    plain = np.zeros((3, 4), "f4")  # sums are written by the caller, which may write anywhere
    moe.run_rows_sdma(group, sums_of, [good._replace(out=plain)])
    assert (plain == 2).all()
    group.barrier()
    return True


def test_refusals_of_the_engine(pair):
    assert pair.run(engine_refusals) == [True, True]
