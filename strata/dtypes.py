"""Element types and reduction operators: numpy's and ml_dtypes' on one side, codes on the other.

The codes are those of ``st_types.h``: they travel in plans and arrival records.
Any fixed-size dtype has one, since data movement takes them all: what has no code
of its own is RAW, bytes.  Reductions take the pairs that ``reduction`` accepts.
ml_dtypes is not imported to recognise one of its arrays, only to make one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from strata.errors import InvalidArgument, UnsupportedType

__all__ = [
    "DTYPES",
    "EXTENDED",
    "OPS",
    "OP_CODES",
    "RAW",
    "allowed_ops",
    "code_of",
    "dtype_of",
    "op_code",
    "reduction",
    "supported",
]

RAW = 0

# Code -> (name in messages and plans, numpy's or ml_dtypes' name, bytes).
DTYPES: tuple[tuple[str, str, int], ...] = (
    ("raw", "uint8", 1),
    ("bool", "bool", 1),
    ("i8", "int8", 1),
    ("u8", "uint8", 1),
    ("i16", "int16", 2),
    ("u16", "uint16", 2),
    ("i32", "int32", 4),
    ("u32", "uint32", 4),
    ("i64", "int64", 8),
    ("u64", "uint64", 8),
    ("f16", "float16", 2),
    ("bf16", "bfloat16", 2),
    ("f32", "float32", 4),
    ("f64", "float64", 8),
    ("c64", "complex64", 8),
    ("c128", "complex128", 16),
    ("f8e4m3fn", "float8_e4m3fn", 1),
    ("f8e5m2", "float8_e5m2", 1),
)

# Code -> operator.
OPS: tuple[str, ...] = ("none", "sum", "prod", "min", "max", "avg", "band", "bor", "bxor")

OP_CODES = {name: code for code, name in enumerate(OPS) if code}
_CODE = {name: code for code, (_, name, _) in enumerate(DTYPES) if code}
# ml_dtypes' names -> code.
EXTENDED = {name: _CODE[name] for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}

_REAL = frozenset({"sum", "prod", "min", "max", "avg"})
_BITS = frozenset({"band", "bor", "bxor"})


def _allowed(code: int) -> frozenset[str]:
    kind = DTYPES[code][0][0]
    if code == RAW:
        return frozenset()
    if DTYPES[code][0] == "bool":
        return (_REAL | _BITS) - {"avg"}
    if kind in "iu":
        return _REAL | _BITS
    return _REAL - {"min", "max"} if kind == "c" else _REAL


_ALLOWED: tuple[frozenset[str], ...] = tuple(_allowed(code) for code in range(len(DTYPES)))


def code_of(dtype: Any) -> int:
    """Code of a numpy dtype, or of anything that ``np.dtype`` takes.

    RAW for a fixed-size dtype that only moves: structured, strings, dates,
    long double, foreign byte order.  TypeError (UnsupportedType) for one that
    holds Python objects or has no size.
    """
    if not isinstance(dtype, np.dtype):
        dtype = np.dtype(dtype)
    if dtype.hasobject or dtype.itemsize == 0:
        why = "holds Python objects" if dtype.hasobject else "has elements of no size"
        raise UnsupportedType(f"dtype {dtype} {why}: only fixed-size data can move between dies")
    if not dtype.isnative or dtype.fields is not None or dtype.subdtype is not None:
        return RAW
    name = dtype.name
    if (name in EXTENDED) != (dtype.type.__module__ == "ml_dtypes"):
        return RAW
    return _CODE.get(name, RAW)


def dtype_of(code: int) -> np.dtype[Any]:
    """The numpy dtype of a code; RAW gives uint8.  InvalidArgument for another number."""
    if not 0 <= code < len(DTYPES):
        raise InvalidArgument(f"dtype code {code}: there are 0 to {len(DTYPES) - 1}")
    name = DTYPES[code][1]
    if name in EXTENDED:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def op_code(op: str) -> int:
    """Code of an operator's name.  InvalidArgument (a ValueError) for an unknown one."""
    code = OP_CODES.get(op) if isinstance(op, str) else None
    if code is None:
        import difflib  # here, since a die that starts well does not need it

        near = difflib.get_close_matches(op, OP_CODES, 1) if isinstance(op, str) else []
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidArgument(f"op={op!r} is no reduction: allowed are {', '.join(OP_CODES)}{hint}")
    return code


def supported(dtype: int, op: int) -> bool:
    """Whether a pair of codes can be reduced."""
    return 0 <= dtype < len(DTYPES) and 0 < op < len(OPS) and OPS[op] in _ALLOWED[dtype]


def allowed_ops(dtype: int) -> tuple[str, ...]:
    """Names of the operators of a dtype code, in the order of their codes."""
    return tuple(name for name in OP_CODES if name in _ALLOWED[dtype])


def reduction(dtype: Any, op: str) -> tuple[int, int]:
    """Codes of a dtype and an operator's name that can be reduced together.

    TypeError (UnsupportedType), naming both and what is allowed, if they cannot.
    """
    number = op_code(op)
    dtype = np.dtype(dtype)
    code = code_of(dtype)
    if op in _ALLOWED[code]:
        return code, number
    if code == RAW:
        names = ", ".join(name for _, name, _ in DTYPES[1:])
        raise UnsupportedType(f"op {op!r} cannot reduce dtype {dtype}; dtypes that can be reduced: {names}")
    raise UnsupportedType(f"op {op!r} does not go with dtype {dtype}; allowed are {', '.join(allowed_ops(code))}")
