"""Arguments of rounds: what they must be, and how they come where other dies can read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from strata import errors, staging
from strata._core import array as codes
from strata._core import memory
from strata.errors import InvalidArgument
from strata.moe.config import groups

__all__ = ["Rows", "fabric", "rows_of", "topk_of", "weights_of"]

FLOATS = ("bfloat16", "float16", "float32", "float64")
SMALL = ("float8_e4m3fn", "int8")
MOST_TOPK = 64


class Rows(NamedTuple):
    """A dispatch's data: ``x`` (tokens, hidden), ``scales`` (tokens, groups) or None."""

    x: np.ndarray
    scales: np.ndarray | None

    @property
    def tokens(self) -> int:
        return self.x.shape[0]

    @property
    def hidden(self) -> int:
        return self.x.shape[1]

    @property
    def code(self) -> int:
        return codes.dtype_code(self.x.dtype)

    @property
    def scale_bytes(self) -> int:
        return 0 if self.scales is None else self.scales.shape[1] * self.scales.dtype.itemsize


def matrix(name: str, a: Any, dtypes: tuple[str, ...] | None = None) -> np.ndarray:
    """An argument that must be an array of two dimensions, of one of these dtypes; TypeError, InvalidArgument."""
    if not isinstance(a, np.ndarray):
        raise TypeError(f"{name}: a numpy array is expected, not {type(a).__name__}")
    if dtypes is not None and a.dtype.name not in dtypes:
        raise errors.UnsupportedType(f"{name} is {a.dtype}; {' or '.join(dtypes)} is expected")
    if a.ndim != 2:
        raise InvalidArgument(f"{name} has shape {a.shape}; two dimensions are expected")
    return a


def rows_of(x: Any, name: str = "x") -> Rows:
    """``x`` of a dispatch: an array of floats, or (float8_e4m3fn or int8, scales)."""
    if not isinstance(x, tuple):
        if isinstance(x, np.ndarray) and x.dtype.name in SMALL:
            raise errors.UnsupportedType(f"{name} is {x.dtype} without scales; ({name}, scales) is expected")
        found = Rows(matrix(name, x, FLOATS), None)
    else:
        if len(x) != 2:
            raise TypeError(f"{name} is a tuple of {len(x)}; (values, scales) is expected")
        q, scales = matrix(f"{name}[0]", x[0], SMALL), matrix(f"{name}[1]", x[1], ("float32", "int32"))
        each = 1 if q.dtype == np.int8 else groups(q.shape[1])
        if scales.dtype == np.int32:  # exponents, four in one
            each = -(-each // 4)
        if scales.shape != (q.shape[0], each):
            raise InvalidArgument(f"{name}[1] has shape {scales.shape}; {(q.shape[0], each)} is expected for "
                                  f"{q.dtype} of shape {q.shape}")
        if scales.dtype == np.int32 and (q.dtype == np.int8 or q.shape[1] % 512):
            raise InvalidArgument(f"{name}[1] is int32, that is four exponents in one: float8_e4m3fn with a "
                                  f"multiple of 512 elements is expected, not {q.dtype} with {q.shape[1]}")
        found = Rows(q, scales)
    if not 1 <= found.hidden < 1 << 31 or found.tokens >= 1 << 31:
        raise InvalidArgument(f"{name} has shape {found.x.shape}; rows of at least one element are expected")
    return found


def topk_of(topk_idx: Any, tokens: int | None = None) -> np.ndarray:
    """``topk_idx``: int64 (tokens, topk)."""
    matrix("topk_idx", topk_idx, ("int64",))
    found: np.ndarray = topk_idx
    if not 1 <= found.shape[1] <= MOST_TOPK:
        raise InvalidArgument(f"topk_idx has shape {found.shape}; 1 to {MOST_TOPK} choices of a token are expected")
    if tokens is not None and len(found) != tokens:
        raise InvalidArgument(f"topk_idx has shape {found.shape}, and there are {tokens} tokens")
    return np.ascontiguousarray(found)


def weights_of(topk_weights: Any, shape: tuple[int, ...]) -> np.ndarray:
    """``topk_weights``: float32, of this shape."""
    matrix("topk_weights", topk_weights, ("float32",))
    if topk_weights.shape != shape:
        raise InvalidArgument(f"topk_weights has shape {topk_weights.shape}; {shape} is expected")
    found: np.ndarray = topk_weights
    return found


def exactly(name: str, a: Any, dtype: Any, shape: tuple[int, ...], writes: bool = False) -> np.ndarray:
    """An argument that must be of one dtype and shape."""
    if not isinstance(a, np.ndarray):
        raise TypeError(f"{name}: a numpy array is expected, not {type(a).__name__}")
    if a.dtype != dtype or a.shape != shape:
        raise InvalidArgument(f"{name} is {a.dtype} of shape {a.shape}; {np.dtype(dtype)} of shape {shape} is expected")
    if writes and not a.flags.writeable:
        raise InvalidArgument(f"{name} is read-only")
    return a


def fabric(group: Any, a: np.ndarray) -> np.ndarray:
    """The array where other dies can read it: itself, or a copy, which is counted as staged."""
    staging.check_access(group, a, False)
    if a.flags.c_contiguous and (not a.nbytes or group.context.owner(a.ctypes.data) == group.context.rank):
        return a
    return staging.fabric_source(group, a)


def empty(group: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Fabric memory of this die."""
    made: np.ndarray = memory.alloc_array(group.context, shape, np.dtype(dtype), False)
    return made
