"""What the operations must give, by plain numpy, from data that depends on rank and position."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

PLAIN = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
         "float16", "float32", "float64", "complex64", "complex128")  # fmt: skip
EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
NUMBERS = PLAIN + EXTENDED
REDOPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
RECORD = np.dtype([("a", "<i2"), ("b", "<f8", (2,)), ("c", "S3")])
MOVED = (RECORD, np.dtype(">i4"), np.dtype(">f8"), np.dtype("S5"), np.dtype("U2"), np.dtype("M8[s]"),
         np.dtype("V7"), np.dtype(np.longdouble))  # fmt: skip
KEPT_BYTES = 64 << 10  # largest array that _source keeps


@lru_cache
def dtype_of(name) -> np.dtype:
    """The dtype of a name, ml_dtypes' included; a dtype as it is."""
    if isinstance(name, str) and name in EXTENDED:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def allowed(name) -> tuple[str, ...]:
    """The operators that api.md defines for a type."""
    if dtype_of(name).name in EXTENDED:
        return REDOPS[:5]
    if dtype_of(name) == np.longdouble or not dtype_of(name).isnative:
        return ()
    kind = dtype_of(name).kind
    return {
        "b": tuple(op for op in REDOPS if op != "avg"), "i": REDOPS, "u": REDOPS, "f": REDOPS[:5],
        "c": ("sum", "prod", "avg"),
    }.get(kind, ())  # fmt: skip


def data(shape, dtype, rank: int, salt: int = 0, rows: tuple[int, int] | None = None) -> np.ndarray:
    """Values that differ by position, rank and salt; ordinary ones with a few odd ones among floats.

    Sums do not come out even, so that another order of the operands gives other bits.
    ``rows``: only those from the first to before the second, as they are in the whole array.
    """
    dtype = dtype_of(dtype)
    whole = int(np.prod(shape, dtype=np.int64))
    each = int(np.prod(shape[1:], dtype=np.int64))
    first, end = (rows[0] * each, rows[1] * each) if rows else (0, whole)
    count, start = end - first, rank * 1_000_003 + salt * 7919
    bits = _mixed(count, start, first)
    if dtype.kind in "iu" and dtype.isnative:
        made = bits.astype(dtype)
    elif dtype.kind == "b":
        made = (bits & 1).astype(bool)
    elif dtype.kind in "fc" and dtype.isnative or dtype.name in EXTENDED:
        values = (bits % 2001).astype(np.float64) / 256 - 3.5
        if dtype.kind == "c":
            values = values + 1j * ((bits >> 16) % 1001 / 128.0 - 4)
        made = values.astype(dtype)
        step = max(1, whole // 5)
        odd = rank % -(-whole // step) * step if whole > 8 else -1
        if first <= odd < end:
            made[odd - first] = [np.nan, np.inf, -np.inf, 0.0][(rank + salt) % 4]
    else:
        raw = _mixed(-(-whole * dtype.itemsize // 8), rank * 1_000_003 + salt).view(np.uint8)
        made = raw[first * dtype.itemsize : end * dtype.itemsize].view(dtype)
        if dtype.kind == "U":
            made = np.repeat((bits % 26 + 97).astype("u4"), dtype.itemsize // 4).view(dtype)
        elif dtype.kind == "M":
            made = (bits % 10**9).astype("i8").view(dtype)
        elif dtype.kind == "f":
            made = (bits % 2001).astype(dtype)
    return made.reshape((rows[1] - rows[0], *shape[1:]) if rows else shape).copy(order="C")


def _mixed(count: int, start: int, first: int = 0) -> np.ndarray:
    """Well mixed 63-bit numbers, each of its position and the start; from position ``first`` on."""
    x = np.arange(first, first + count, dtype=np.uint64) + np.uint64(start % (1 << 40))
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x >> np.uint64(1)


def _source(shape, dtype, rank: int, salt: int, rows: tuple[int, int] | None = None) -> np.ndarray:
    """``data`` that nobody writes to; small ones are kept, since cases of one test often share them."""
    count = int(np.prod(shape if rows is None else (rows[1] - rows[0], *shape[1:]), dtype=np.int64))
    make = _kept if count * dtype_of(dtype).itemsize <= KEPT_BYTES else data
    return make(tuple(shape), dtype_of(dtype), rank, salt, rows)


@lru_cache(maxsize=64)
def _kept(*args) -> np.ndarray:
    made = data(*args)
    made.flags.writeable = False
    return made


# ---- reductions ----------------------------------------------------------------------


def fold(operands, op: str) -> np.ndarray:
    """The operands reduced in their order, by the rules of api.md.

    The bits are those that every die must have, but for NaN: see ``same``.
    """
    flat = [x.reshape(-1) for x in operands]
    with np.errstate(all="ignore"):
        result = flat[0].copy() if len(flat) == 1 else _reduce(flat, flat[0].dtype, op)
    return result.reshape(operands[0].shape)


def _reduce(operands, dtype: np.dtype, op: str) -> np.ndarray:
    if dtype.kind == "b":
        how = {"sum": np.logical_or, "max": np.logical_or, "bor": np.logical_or, "prod": np.logical_and,
               "min": np.logical_and, "band": np.logical_and, "bxor": np.logical_xor}  # fmt: skip
        return _fold(operands, how[op])
    if op == "avg" and dtype.kind in "iu":
        exact = sum(x.astype(object if dtype.itemsize == 8 else np.int64) for x in operands)
        return (exact // len(operands)).astype(dtype)
    wide = np.dtype(np.float32) if dtype.name in (*EXTENDED, "float16") else dtype
    how = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
           "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}  # fmt: skip
    result = _fold([x.astype(wide) for x in operands], _product if op == "prod" and dtype.kind == "c" else how[op])
    if op == "avg":
        parts = result.view(f"f{wide.itemsize // 2}") if dtype.kind == "c" else result
        result = np.divide(parts, parts.dtype.type(len(operands))).view(wide)
    return result.astype(dtype)


def _fold(operands, combine) -> np.ndarray:
    result = operands[0]
    for operand in operands[1:]:
        result = combine(result, operand)
    return result


def _product(x, y) -> np.ndarray:
    """By the schoolbook's formula: numpy's own may contract."""
    made = np.empty_like(x)
    made.real = x.real * y.real - x.imag * y.imag
    made.imag = x.real * y.imag + x.imag * y.real
    return made


def canonical(array: np.ndarray) -> np.ndarray:
    """A copy in which all NaN have the same bits, and -0 is +0."""
    made = np.array(array, order="C", copy=True)
    if made.dtype.names or made.dtype.kind not in "fcV" or not made.dtype.isnative:
        return made
    if made.dtype.kind == "V" and made.dtype.name not in EXTENDED:
        return made
    if made.dtype == np.longdouble:
        return made.astype(np.float64)  # its padding is nobody's; the test data is exact
    parts = made.reshape(-1)
    if made.dtype.kind == "c":
        parts = parts.view(f"f{made.dtype.itemsize // 2}")
    wide = parts.astype(np.float64) if parts.dtype.itemsize < 8 else parts
    parts[np.isnan(wide)] = np.nan
    parts[wide == 0] = 0
    return made


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays agree in shape, dtype and bits, where any NaN is like any other."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return canonical(found).tobytes() == canonical(expected).tobytes()


# ---- operations ----------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a member gives and gets.  None: nothing."""

    src: np.ndarray | None
    out: np.ndarray | None


def operation(name: str, n: int, shape, dtype, redop="sum", root=0, salt=0) -> list[Wanted]:
    """What each member of an operation gives and must get; ``member`` of all of them."""
    return [member(m, name, n, shape, dtype, redop, root, salt) for m in range(n)]


def member(me: int, name: str, n: int, shape, dtype, redop="sum", root=0, salt=0) -> Wanted:
    """What one member of an operation gives and must get.

    ``shape`` is that of the whole source of all_reduce, reduce, broadcast, all_gather and
    gather, and of one member's part for the others, whose sources are (n, *shape).
    No more is made of the others' sources than this member gets.
    """
    if name in ("reduce_scatter", "all_to_all", "scatter"):
        whole, part = (n, *shape), (me, me + 1)
        if name == "scatter":
            mine = _source(whole, dtype, me, salt) if me == root else None
            return Wanted(mine, _source(whole, dtype, root, salt, part)[0, ...])
        mine, parts = _source(whole, dtype, me, salt), [_source(whole, dtype, m, salt, part) for m in range(n)]
        return Wanted(mine, fold(parts, redop)[0, ...] if name == "reduce_scatter" else _joined(parts))
    mine = _source(shape, dtype, me, salt)
    if name == "broadcast":
        return Wanted(mine, _source(shape, dtype, root, salt))
    if name in ("reduce", "gather") and me != root:
        return Wanted(mine, None)
    everyone = [_source(shape, dtype, m, salt) for m in range(n)]
    if name in ("all_reduce", "reduce"):
        return Wanted(mine, fold(everyone, redop))
    if name in ("all_gather", "gather"):
        return Wanted(mine, _joined([source[None] for source in everyone]))
    raise ValueError(name)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """np.concatenate, but of any dtype and byte order as it is."""
    rows = sum(len(part) for part in parts)
    return np.concatenate(parts, out=np.empty((rows, *parts[0].shape[1:]), parts[0].dtype))


def counts(n: int, most: int, salt: int = 0) -> np.ndarray:
    """Rows that member i sends to member j; many are 0, and some members send or get nothing."""
    made = (_mixed(n * n, salt * 7919 + n) % np.uint64(most + 1)).astype(np.int64).reshape(n, n)
    made[_mixed(n * n, salt * 31 + 5).reshape(n, n) % np.uint64(3) == 0] = 0
    if n > 2:
        made[salt % n] = 0
        made[:, (salt + 1) % n] = 0
    return made


def exchange(me: int, table: np.ndarray, row, dtype, salt: int = 0) -> Wanted:
    """What a member of all_to_all_v gives and must get, with these counts and rows of shape ``row``."""
    ends = np.cumsum(table, axis=1)
    parts = [
        _source((int(table[m].sum()), *row), dtype, m, salt, (int(ends[m, me] - table[m, me]), int(ends[m, me])))
        for m in range(len(table))
    ]
    return Wanted(_source((int(table[me].sum()), *row), dtype, me, salt), _joined(parts))
