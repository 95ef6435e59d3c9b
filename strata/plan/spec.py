"""What is asked for: one operation's parameters, equal on all members but for ``in_place``."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.records import DTYPE_BYTES, DTYPE_NAMES, OP_NAMES

REDUCTIONS = frozenset(("all_reduce", "reduce_scatter", "reduce"))
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
PARTED = frozenset(("reduce_scatter", "all_to_all", "scatter"))  # whose count is of one of a source's parts
OPERATIONS = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
MOE = ("moe_dispatch", "moe_combine")  # of plans whose units move rows (``plan.moe``); no group has them
MODES = ("zero_copy", "mailbox")
MAX_RANKS = 65535  # nsrc and ndst of a unit are 16-bit
MAX_BYTES = 1 << 61  # sums of two offsets stay in 64-bit signed integers


class Spec(NamedTuple):
    """An operation of ``nranks`` members.

    ``count`` is in elements of ``itemsize`` bytes, as the public interface counts:
    of each member's source (all_gather, all_reduce, broadcast, reduce, gather), or
    of one part (reduce_scatter, all_to_all, scatter).  all_to_all_v takes ``counts``
    instead, an (nranks, nranks) integer matrix: counts[i, j] elements go from member
    i to member j, and both sides are packed.  So do moe_dispatch and moe_combine: rows of ``itemsize`` bytes that
    member j reads from member i, wherever they lie.

    ``mode`` says what buffer SRC is: the members' own arrays, read and written where
    they lie ("zero_copy"), or their mailboxes, into which each has put its source
    ("mailbox"; nobody then reads or writes a peer's array).

    ``dtype`` and ``redop`` are codes, and needed by reductions alone: indices in ``records.DTYPE_NAMES`` ("f32")
    and ``records.OP_NAMES`` ("sum").

    ``in_place`` is this member's own: OUT and SRC share memory in the operation's
    natural way (``operations.own_place``).
    """

    operation: str
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, on purpose
    itemsize: int = 1
    dtype: int = 0
    redop: int = 0
    root: int = 0
    nranks: int = 1
    mode: str = "zero_copy"
    counts: Any = None
    in_place: bool = False

    @property
    def part(self) -> int:
        """Bytes of ``count`` elements."""
        return self.count * self.itemsize


def check(spec: Spec) -> Spec:
    """The spec itself if it makes sense, its counts as an int64 matrix; else InvalidArgument."""
    name = spec.operation
    if name not in OPERATIONS and name not in MOE:
        raise InvalidArgument(f"unknown operation {name!r}; there are {', '.join(OPERATIONS)}")
    if not 1 <= spec.nranks <= MAX_RANKS:
        raise InvalidArgument(f"nranks is {spec.nranks}, not 1 to {MAX_RANKS}", operation=name)
    if not 0 <= spec.root < spec.nranks:
        raise InvalidArgument(f"root is {spec.root} of {spec.nranks} members", operation=name)
    if spec.mode not in MODES:
        raise InvalidArgument(f"mode is {spec.mode!r}, not one of {MODES}", operation=name)
    if spec.count < 0 or spec.itemsize < 0:
        raise InvalidArgument(f"count {spec.count} or itemsize {spec.itemsize} is negative", operation=name)
    if not 0 <= spec.dtype < len(DTYPE_NAMES):
        raise InvalidArgument(f"unknown dtype code {spec.dtype}", operation=name)
    if name in REDUCTIONS:
        _check_reduction(spec)
    elif spec.redop:
        raise InvalidArgument(f"redop {spec.redop} given, but {name} does not reduce")
    if name == "all_to_all_v" or name in MOE:
        spec = spec._replace(counts=_matrix(spec))
    elif spec.counts is not None:
        raise InvalidArgument("counts given, but only all_to_all_v takes them", operation=name)
    if name in MOE and spec.mode != "zero_copy":
        raise InvalidArgument(f"mode is {spec.mode!r}, and rows lie in members' own arrays: zero_copy", operation=name)
    if spec.in_place and (name in ("all_to_all", "all_to_all_v") or name in MOE):
        raise InvalidArgument("not possible in place: copy the source first", operation=name)
    if spec.part * spec.nranks >= MAX_BYTES:
        raise InvalidArgument(f"{spec.count} elements are too many", operation=name)
    return spec


def _check_reduction(spec: Spec) -> None:
    if not 0 < spec.redop < len(OP_NAMES):
        raise InvalidArgument(
            f"redop {spec.redop} is no operator: records.OP_NAMES.index('sum') and its like are expected",
            operation=spec.operation,
        )
    if spec.itemsize != DTYPE_BYTES[spec.dtype] or not spec.dtype:
        raise InvalidArgument(
            f"itemsize is {spec.itemsize}, but elements are {DTYPE_NAMES[spec.dtype] if spec.dtype else 'raw bytes'}; "
            "a reduction needs both, as 4 and records.DTYPE_NAMES.index('f32')",
            operation=spec.operation,
        )


def _matrix(spec: Spec) -> np.ndarray:
    counts = np.asarray(spec.counts)
    n = spec.nranks
    if counts.shape != (n, n) or counts.dtype.kind not in "iu":
        raise InvalidArgument(
            f"counts are {counts.dtype} of shape {counts.shape}, not integers of shape {(n, n)}",
            operation=spec.operation,
        )
    if n and (counts.min() < 0 or int(counts.max()) * spec.itemsize * n >= MAX_BYTES):
        raise InvalidArgument("a count is negative or too large", operation=spec.operation)
    if spec.count:
        raise InvalidArgument("counts take the place of count", operation=spec.operation)
    mine = counts.base is None and not counts.flags.writeable and counts.flags.c_contiguous
    if counts.dtype == np.int64 and mine:
        return counts  # made below, of an earlier check
    counts = counts.astype(np.int64, order="C")  # a copy: the caller may change his
    counts.setflags(write=False)
    return counts


def normal(spec: Spec) -> Spec:
    """``check(spec)`` with plain integers throughout, so that equal specs are equal keys."""
    if all(type(value) is int for value in spec[1:7]) and type(spec.in_place) is bool:
        return check(spec)
    for what, code, names in (("dtype", spec.dtype, "DTYPE_NAMES"), ("redop", spec.redop, "OP_NAMES")):
        if isinstance(code, str):
            raise InvalidArgument(f"{what} is {code!r}, and a code is expected: records.{names}.index({code!r})")
    integers = {
        name: operator.index(getattr(spec, name)) for name in ("count", "itemsize", "dtype", "redop", "root", "nranks")
    }
    return check(spec._replace(in_place=bool(spec.in_place), **integers))  # type: ignore[arg-type]
