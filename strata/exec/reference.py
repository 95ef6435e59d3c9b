"""The reference executor: plans of all members run on numpy byte arrays, in one thread.

What every other executor is compared with.  Slow and plain on purpose; the arithmetic is
numpy's, in the order of a unit's operands, under the rules that the C kernels follow.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from strata.errors import UnsupportedType
from strata.plan.plan import Plan, PlanError
from strata.plan.records import (
    ACCUMULATE,
    BUFFER_NAMES,
    COPY,
    DTYPE_NAMES,
    NONE,
    OP_NAMES,
    PARTIAL,
    SYNC,
    partial_length,
)

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
    a right plan must not be seen to depend on.  PlanError if a buffer is too short, or if the
    cores wait for each other for ever.
    """
    for plan in plans:
        plan.check()
        _enough(plan, members)
    lists = [
        (plan, iter(range(begin, end)))
        for plan in plans
        for begin, end in pairwise(plan.core_begin.tolist())
        if end > begin
    ]
    left = _Flags(plans)
    waiting: list[tuple[Plan, Any, int]] = []
    chance = random.Random(seed)
    done = 0
    while lists or waiting:
        ready = [i for i, (plan, _, unit) in enumerate(waiting) if left.raised(plan.units[unit])]
        if not lists and not ready:
            raise PlanError(left.deadlock(waiting), ranks=sorted({plan.rank for plan, _, _ in waiting}))
        turn = 0 if seed is None else chance.randrange(len(lists) + len(ready))
        if turn < len(ready):
            plan, units, unit = waiting.pop(ready[turn])
        else:
            plan, units = lists.pop(turn - len(ready))
            unit = next(units, None)
            if unit is None:
                continue
            if not left.raised(plan.units[unit]):
                waiting.append((plan, units, unit))
                continue
        run_unit(plan, unit, members)
        left.post(plan, plan.units[unit])
        lists.insert(0, (plan, units))
        done += 1
    return done


def _enough(plan: Plan, members: Sequence[Buffers]) -> None:
    for m, needed in enumerate(plan.buffer_bytes.tolist()):
        for buf, name in enumerate(BUFFER_NAMES):
            if needed[buf] > len(members[m][buf]):
                raise PlanError(
                    f"member {m} {name} has {len(members[m][buf])} bytes, not {needed[buf]}", ranks=[plan.rank]
                )


class _Flags:
    """How many units each flag still waits for before it is raised."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.left = Counter(
            (plan.rank, flag) for plan in plans for flag in plan.units["post_flag"].tolist() if flag != NONE
        )
        self.posted = frozenset(self.left)

    def raised(self, unit: np.void) -> bool:
        """Whether what the unit waits for has been raised."""
        flag = int(unit["wait_peer"]), int(unit["wait_flag"])
        return flag[1] == NONE or (flag in self.posted and not self.left[flag])

    def post(self, plan: Plan, unit: np.void) -> None:
        """The unit is done."""
        if unit["post_flag"] != NONE:
            self.left[plan.rank, int(unit["post_flag"])] -= 1

    def deadlock(self, waiting: Sequence[tuple[Plan, Any, int]]) -> str:
        """Who waits for what, in words."""
        lines = []
        for plan, _, index in waiting[:8]:
            unit = plan.units[index]
            flag = int(unit["wait_peer"]), int(unit["wait_flag"])
            why = "" if flag in self.posted else ", which nobody posts"
            who = f"die {plan.rank} core {unit['core']} unit {index}"
            lines.append(f"{who} waits for flag {flag[1]} of member {flag[0]}{why}")
        more = f"; and {len(waiting) - 8} more" if len(waiting) > 8 else ""
        return "deadlock: " + "; ".join(lines) + more


def run_unit(plan: Plan, index: int, members: Sequence[Buffers]) -> None:
    """Runs one unit; its flags are the caller's."""
    unit = plan.units[index]
    kind = int(unit["kind"])
    if kind == SYNC:
        return
    sources = _places(plan, unit, "src_first", "nsrc", members)
    targets = _places(plan, unit, "dst_first", "ndst", members)
    if kind == COPY:
        result = sources[0][0].copy()
        for target, _ in targets:
            target[:] = result
        return
    dtype, op = numpy_dtype(int(unit["dtype"])), OP_NAMES[int(unit["op"])]
    if kind == ACCUMULATE:
        given = np.frombuffer(sources[0][0].tobytes(), dtype)
        for target, _ in targets:
            target[:] = reduce([np.frombuffer(target.tobytes(), dtype), given], op).view(np.uint8)
        return
    total = int(unit["total"]) or len(sources)
    if not any(partial for _, partial in sources + targets) and total == len(sources):
        result = reduce([np.frombuffer(place.tobytes(), dtype) for place, _ in sources], op).view(np.uint8)
        for target, _ in targets:
            target[:] = result
        return
    sums = accumulate([_wide(place, partial, dtype, op) for place, partial in sources], op)
    for target, partial in targets:
        target[:] = (sums if partial else finish(sums, dtype, op, total)).reshape(-1).view(np.uint8)


def _places(plan: Plan, unit: np.void, first: str, number: str, members: Sequence[Buffers]) -> list[tuple[Any, bool]]:
    """The memory of a unit's operands, and whether each is partial."""
    length = int(unit["bytes"])
    found = plan.operands[int(unit[first]) :][: int(unit[number])].tolist()
    places = []
    for m, buf, flags, _, at in found:
        partial = bool(flags & PARTIAL)
        size = partial_length(length, int(unit["dtype"]), int(unit["op"])) if partial else length
        places.append((members[m][buf][at : at + size], partial))
    return places


def _wide(place: np.ndarray, partial: bool, dtype: np.dtype, op: str) -> np.ndarray:
    """An operand in memory, in accumulators: (count,); of means of 64-bit integers (count, 2), low halves first."""
    if not partial:
        return _widened(np.frombuffer(place.tobytes(), dtype), op)
    like = _widened(np.zeros(1, dtype), op)
    return np.frombuffer(place.tobytes(), like.dtype).reshape(-1, *like.shape[1:])


def _widened(whole: np.ndarray, op: str) -> np.ndarray:
    """Elements in accumulators: see ``records.partial_bytes``."""
    dtype = whole.dtype
    if dtype.kind in "fV" and dtype.itemsize < 4:
        return whole.astype(np.float32)
    if op != "avg" or dtype.kind not in "iu":
        return whole
    if dtype.itemsize < 8:
        return whole.astype(np.int64)
    return np.stack([whole & dtype.type(0xFFFFFFFF), whole >> dtype.type(32)], axis=1).astype(np.int64)


def accumulate(operands: Sequence[np.ndarray], op: str) -> np.ndarray:
    """Operands in accumulators combined in their order; a mean is a sum still."""
    kind = operands[0].dtype.kind
    with np.errstate(all="ignore"):
        if kind == "b":
            return _fold(operands, _BOOL[op])
        if kind in "iu":
            return _fold(operands, np.add if op == "avg" else _INTEGER[op])
        if kind == "c" and op == "prod":
            return _fold(operands, _product)
        return _fold([_reals(operand) for operand in operands], _FLOAT[op]).view(operands[0].dtype)


def finish(sums: np.ndarray, dtype: np.dtype, op: str, total: int) -> np.ndarray:
    """Whole elements of a partial reduction of ``total`` operands."""
    with np.errstate(all="ignore"):
        if dtype.kind in "iu" and op == "avg":
            exact = sums.astype(object)
            exact = exact[:, 0] + (exact[:, 1] << 32) if sums.ndim == 2 else exact
            return (exact // total).astype(dtype)
        if dtype.kind in "fcV":
            real = _reals(sums)
            real = real / real.dtype.type(total) if op == "avg" else real
            sums = np.where(np.isnan(real), real.dtype.type(np.nan), real).view(sums.dtype)
        return sums.astype(dtype)


def _reals(array: np.ndarray) -> np.ndarray:
    """Complex numbers as pairs of real ones; others as they are."""
    return array.view(f"f{array.dtype.itemsize // 2}") if array.dtype.kind == "c" else array


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
    return finish(accumulate([_widened(operand, op) for operand in operands], op), dtype, op, len(operands))


def _fold(operands, combine) -> np.ndarray:
    result = operands[0]
    for operand in operands[1:]:
        result = combine(result, operand)
    return result


def _product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of complex numbers, four products each: numpy's own may contract."""
    (a, b), (c, d) = _reals(x).reshape(-1, 2).T, _reals(y).reshape(-1, 2).T
    return np.stack((a * c - b * d, a * d + b * c), axis=1).reshape(-1).view(x.dtype)


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
