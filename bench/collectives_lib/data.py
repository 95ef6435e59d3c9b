"""Test data that depends on rank and position, and what a reduction of it must be, bit for bit.

Data repeats with a prime period, so that filling and checking gigabytes costs one pass over
them and no block of a power-of-two size looks right in a wrong place. Values are small integers
which every type holds exactly and whose sums fit, so that the order of a sum does not matter.
"""

from functools import cache

import numpy as np

PERIOD = 8191
SMALL = {      # floats: (integers up to this are exact, largest finite value)
    "half": (2048, 65504), "float": (1 << 24, 3e38), "double": (1 << 24, 1e308), "bfloat16": (256, 3e38),
    "f8e4m3": (16, 448), "f8e5m2": (8, 57344),
}
NUMPY = {"half": "f2", "float": "f4", "double": "f8"}
ML_DTYPES = {"bfloat16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
POISON = 0xEE


@cache
def dtype(name):
    """numpy's dtype of a type of nccl-tests."""
    if name in ML_DTYPES:
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, ML_DTYPES[name]))
    return np.dtype(NUMPY.get(name, name))


def _mixed(rank, salt):
    """64 well mixed bits per position; rank and salt move all of them."""
    x = np.arange(PERIOD, dtype=np.uint64) + np.uint64(rank * 1000003 + salt * 7919)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x >> np.uint64(33)


def _span(name, op, n):
    """(lowest value, number of values) that suit a type, an operation and n operands."""
    if name in SMALL:
        exact, largest = SMALL[name]
        if op == "prod":        # powers of two, at most 2**7 of them all together, and signs
            return 0, 2
        reach = exact if op in ("none", "min", "max") else min(exact, largest // n)
        reach = max(1, int(min(reach, 125)))
        return -reach, 2 * reach + 1
    info = np.iinfo(dtype(name))
    if op == "avg":             # the plain sum must fit: what a wrapped average is, nobody says
        reach = min(125, info.max // n)
        return (-reach, 2 * reach + 1) if info.min < 0 else (0, reach + 1)
    return (-127, 255) if info.min < 0 else (0, 251)


def _integers(name, op, rank, n, salt):
    """One period of a rank's operand as int64."""
    bits = _mixed(rank, salt)
    if name in SMALL and op == "prod":
        sign = 1 - 2 * (bits & np.uint64(1)).astype(np.int64)
        return sign << ((bits >> np.uint64(1)) & np.uint64(1 if rank < 7 else 0)).astype(np.int64)
    low, count = _span(name, op, n)
    return low + (bits % np.uint64(count)).astype(np.int64)


def operand(name, op, rank, n, salt):
    """One period of what `rank` sends."""
    values = _integers(name, op, rank, n, salt)
    return (values.astype(np.float32) if name in SMALL else values).astype(dtype(name))


def reduced(name, op, n, salt):
    """One period of the reduction of all ranks' operands, rounded once."""
    rows = np.stack([_integers(name, op, rank, n, salt) for rank in range(n)])
    with np.errstate(over="ignore"):        # integers wrap
        if op == "avg":
            if name not in SMALL:
                return (rows.sum(axis=0) // n).astype(dtype(name))
            wide = np.float64 if name == "double" else np.float32
            return (rows.sum(axis=0).astype(wide) / wide(n)).astype(dtype(name))
        ufunc = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
        whole = ufunc.reduce(rows, axis=0)
    return (whole.astype(np.float64) if name in SMALL else whole).astype(dtype(name))


def pour(out, pattern):
    """Fill the flat array `out` with repetitions of `pattern`."""
    full = len(out) // PERIOD
    out[: full * PERIOD].reshape(full, PERIOD)[:] = pattern
    out[full * PERIOD:] = pattern[: len(out) - full * PERIOD]


def _bits(a):
    return a.view(f"u{a.dtype.itemsize}")


def _ordered(bits):
    """Bits of floats as integers in the order of the values, so that neighbours differ by one."""
    wide = bits.astype(np.int64)
    top = np.int64(-1) << np.int64(8 * bits.dtype.itemsize - 1)
    return np.where(wide & top, -(wide & ~top), wide)


def wrong(got, pattern, start=0, slack=0):
    """Elements of the flat array `got` that differ from `pattern` repeated, read from `start`.

    `slack`: units in the last place by which a value may differ.
    """
    want, got = np.roll(_bits(pattern), -(start % PERIOD)), _bits(got)
    count = 0
    for at in range(0, len(got), 64 * PERIOD):      # pieces that stay in the cache
        piece = got[at: at + 64 * PERIOD]
        full = len(piece) // PERIOD
        for part, ref in ((piece[: full * PERIOD].reshape(full, PERIOD), want),
                          (piece[full * PERIOD:], want[: len(piece) - full * PERIOD])):
            bad = part != ref
            if slack and bad.any():
                bad &= np.abs(_ordered(part) - _ordered(ref)) > slack
            count += int(np.count_nonzero(bad))
    return count


def slack(name, op, n):
    """An average over n ranks that is no power of two may be a multiplication by 1/n: one ulp."""
    return 1 if op == "avg" and name in SMALL and n & (n - 1) else 0
