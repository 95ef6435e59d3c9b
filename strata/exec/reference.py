"""The reference executor: plans of all members run on numpy byte arrays, in one thread.

What every other executor is compared with.  Slow and plain on purpose; the arithmetic is
numpy's, in the order of a unit's operands, under the rules that the C kernels follow.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from strata.errors import UnsupportedType
from strata.plan.plan import Plan, PlanError
from strata.plan.records import BUFFER_NAMES, COPY, DTYPE_NAMES, OP_NAMES

NUMPY_NAMES = {
    "bool": "?", "i8": "i1", "u8": "u1", "i16": "<i2", "u16": "<u2", "i32": "<i4", "u32": "<u4",
    "i64": "<i8", "u64": "<u8", "f16": "<f2", "f32": "<f4", "f64": "<f8", "c64": "<c8", "c128": "<c16",
}  # fmt: skip
SMALL_FLOATS = {"bf16": "bfloat16", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}


class Buffers(NamedTuple):
    """A member's buffers as flat uint8 arrays; OUT and SRC may share memory."""

    src: np.ndarray
    out: np.ndarray
    scratch: np.ndarray


def buffers(src: np.ndarray, out: np.ndarray, scratch: int = 0) -> Buffers:
    """Buffers over the memory of contiguous arrays, of any dtype; ``scratch`` in bytes."""
    return Buffers(_flat(src), _flat(out), np.zeros(scratch, np.uint8))


def _flat(array: np.ndarray) -> np.ndarray:
    if not array.flags.c_contiguous:
        raise ValueError("a buffer must be contiguous")
    return array.reshape(-1).view(np.uint8)


def numpy_dtype(code: int) -> np.dtype:
    """The numpy dtype of a dtype code (native byte order is little-endian everywhere here)."""
    name = DTYPE_NAMES[code]
    if name in SMALL_FLOATS:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, SMALL_FLOATS[name]))
    if name not in NUMPY_NAMES:
        raise UnsupportedType(f"no arithmetic on {name}")
    return np.dtype(NUMPY_NAMES[name])


def run(plans: Sequence[Plan], members: Sequence[Buffers], seed: int | None = None) -> int:
    """Runs all plans; returns the number of units run.

    ``members[m]``: the buffers of member m.  Each core runs its units in order, whichever
    order the cores and dies take turns in: die by die without ``seed``, else at random, which
    a right plan must not be seen to depend on.  PlanError if a buffer is too short.
    """
    lists = []
    for plan in plans:
        plan.check()
        for m, needed in enumerate(plan.buffer_bytes.tolist()):
            for buf, name in enumerate(BUFFER_NAMES):
                if needed[buf] > len(members[m][buf]):
                    raise PlanError(
                        f"member {m} {name} has {len(members[m][buf])} bytes, not {needed[buf]}",
                        ranks=[plan.rank],
                    )
        for begin, end in pairwise(plan.core_begin.tolist()):
            lists += [(plan, iter(range(begin, end)))] if end > begin else []
    chance = random.Random(seed)
    done = 0
    while lists:
        turn = 0 if seed is None else chance.randrange(len(lists))
        plan, units = lists[turn]
        unit = next(units, None)
        if unit is None:
            del lists[turn]
            continue
        run_unit(plan, unit, members)
        done += 1
    return done


def run_unit(plan: Plan, index: int, members: Sequence[Buffers]) -> None:
    """Runs one unit."""
    unit = plan.units[index]
    length = int(unit["bytes"])

    def places(first: str, number: str) -> list[np.ndarray]:
        found = plan.operands[int(unit[first]) :][: int(unit[number])].tolist()
        return [members[m][buf][at : at + length] for m, buf, _, _, at in found]

    sources, targets = places("src_first", "nsrc"), places("dst_first", "ndst")
    if unit["kind"] == COPY:
        result = sources[0].copy()
    else:
        dtype = numpy_dtype(int(unit["dtype"]))
        operands = [np.frombuffer(source.tobytes(), dtype) for source in sources]
        result = reduce(operands, OP_NAMES[int(unit["op"])]).view(np.uint8)
    for target in targets:
        target[:] = result


def reduce(operands: Sequence[np.ndarray], op: str) -> np.ndarray:
    """The operands combined elementwise in their order, in their dtype.

    Small floats are accumulated in f32 and rounded once; integers wrap, and their avg is the
    floor of the exact mean; NaN propagates through min and max and comes out as the positive
    quiet one; of equal operands (-0 and +0) min and max take the earlier; bools are or-ed
    (sum, max) or and-ed (prod, min).  UnsupportedType if ``op`` does not go with the dtype.
    """
    dtype = operands[0].dtype
    kind = "f" if dtype.kind in "fV" else "i" if dtype.kind in "iu" else dtype.kind
    allowed = {
        "b": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
        "i": OP_NAMES[1:],
        "f": ("sum", "prod", "min", "max", "avg"),
        "c": ("sum", "prod", "avg"),
    }
    if op not in allowed.get(kind, ()):
        raise UnsupportedType(f"{op} does not go with {dtype}")
    if len(operands) == 1:
        return operands[0].copy()
    if kind == "b":
        return _fold(operands, _BOOL[op])
    if kind == "i":
        return _mean(operands) if op == "avg" else _fold(operands, _INTEGER[op])
    if kind == "c":
        return _complex(operands, op)
    return _float(operands, op)


def _fold(operands, combine) -> np.ndarray:
    result = operands[0]
    for operand in operands[1:]:
        result = combine(result, operand)
    return result


def _mean(operands) -> np.ndarray:
    exact = _fold([operand.astype(object) for operand in operands], np.add)
    return (exact // len(operands)).astype(operands[0].dtype)


def _float(operands, op: str) -> np.ndarray:
    dtype = operands[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
    with np.errstate(all="ignore"):
        result = _fold([operand.astype(wide) for operand in operands], _FLOAT[op])
        if op == "avg":
            result = result / wide.type(len(operands))
        return np.where(np.isnan(result), wide.type(np.nan), result).astype(dtype)


def _complex(operands, op: str) -> np.ndarray:
    dtype = operands[0].dtype
    real = np.dtype(f"f{dtype.itemsize // 2}")
    pairs = [operand.view(real).reshape(-1, 2) for operand in operands]
    if op != "prod":
        return _float([pair.reshape(-1) for pair in pairs], op).view(dtype)

    def product(x, y):
        (a, b), (c, d) = x.T, y.T
        return np.stack((a * c - b * d, a * d + b * c), axis=1)

    with np.errstate(all="ignore"):
        result = _fold(pairs, product)
    return np.where(np.isnan(result), real.type(np.nan), result).reshape(-1).view(dtype)


def _least(a, b):
    return np.where((b < a) | (b != b), b, a)


def _most(a, b):
    return np.where((b > a) | (b != b), b, a)


_BOOL = dict.fromkeys(("sum", "max", "bor"), np.logical_or)
_BOOL |= dict.fromkeys(("prod", "min", "band"), np.logical_and)
_BOOL["bxor"] = np.logical_xor
_INTEGER = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_FLOAT = {"sum": np.add, "avg": np.add, "prod": np.multiply, "min": _least, "max": _most}
