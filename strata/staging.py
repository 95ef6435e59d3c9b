"""Arrays that an operation cannot use as they are: strided ones, and memory outside the fabric."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from strata import errors, registration
from strata._core import heap, memory
from strata.errors import RegistrationError

__all__ = ["check_access", "check_out", "check_overlap", "fabric_copy", "fabric_source", "rows", "run"]


def fabric_copy(group: Any, a: np.ndarray) -> np.ndarray:
    """A C-ordered copy in fabric memory; counted as staged."""
    copy = _fabric_like(group, a)
    copy[...] = a
    return copy


def fabric_source(group: Any, a: np.ndarray) -> np.ndarray:
    """An array's values where peers can read them: its own bytes if they are registered and shared, else a copy."""
    own = registration.alias(group.context, a)
    return fabric_copy(group, a) if own is None else own


def _fabric_like(group: Any, a: np.ndarray) -> np.ndarray:
    """Fabric memory for a copy of an array, of its registration's buffer if it has one; counted as staged."""
    made = registration.lease(group.context, a)
    if made is None:
        made = memory.alloc_array(group.context, a.shape, a.dtype, False, heap.STAGING)
    group.add_staged(a.nbytes)
    return made


def check_access(group: Any, a: np.ndarray, writes: bool) -> None:
    """RegistrationError if the array is fabric memory that may not be read, or written, here (any more)."""
    low, high = byte_bounds(a)
    if a.size and group.context.owner(low) >= 0:
        group.context.ensure(low, high - low, writes)


def run(group: Any, op: str, stage_src: bool, stage_out: bool, mailbox: bool, src: Any, out: Any,
        result: Any, timeout: Any, async_op: bool, redop: str | None, root: int, variant: int) -> Any:  # fmt: skip
    """Runs an operation on temporaries and copies the output back."""
    try:
        if src is not None:
            check_access(group, src, False)
        if out is not None:
            check_access(group, out, True)
        temporary_src, temporary_out, copy_back = _temporaries(group, stage_src, stage_out, mailbox, src, out)
    except (MemoryError, RegistrationError):
        group.abstain(timeout)  # the others must not wait for this die
        raise
    kwargs: dict[str, Any] = {"timeout": timeout, "async_op": async_op}
    if op != "scatter":
        kwargs.update(group.asked(variant)._asdict())
    if redop is not None:
        kwargs["op"] = redop
    if op == "broadcast":
        x = temporary_src if src is not None else temporary_out
        done = group.broadcast(x, root, **kwargs)
    elif op in ("reduce", "gather"):
        done = getattr(group, op)(temporary_src, temporary_out, root, **kwargs)
    elif op == "scatter":
        done = group.scatter_into(temporary_src, temporary_out, root, timeout, async_op, variant)
    else:
        done = getattr(group, op)(temporary_src, temporary_out, **kwargs)
    if async_op:
        return done.deliver(out if copy_back else None, temporary_out, result)
    if copy_back:
        np.copyto(out, temporary_out)
    return result


def rows(
    group: Any, src: np.ndarray, out: np.ndarray | None, total: int, exposed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Source and target of all_to_all_v as the executor takes them.  ``exposed``: peers, or the DMA engine, write into
    the target, so that it must be in the fabric."""
    check_access(group, src, False)
    if out is not None:
        check_access(group, out, True)
    shape = (total, *src.shape[1:])
    if not src.flags.c_contiguous or (group.size > 1 and src.nbytes and group.context.owner(src.ctypes.data) < 0):
        src = fabric_source(group, src)
    straight = out is not None and out.flags.c_contiguous
    outside = out is not None and out.nbytes > 0 and group.context.owner(out.ctypes.data) < 0
    if out is None or (exposed and group.size > 1 and (outside or not straight)):
        out = memory.alloc_array(group.context, shape, src.dtype, False)
    elif not straight:
        out = np.empty(shape, src.dtype)
    return src, out


def _temporaries(
    group: Any, stage_src: bool, stage_out: bool, mailbox: bool, src: Any, out: Any
) -> tuple[Any, Any, bool]:
    """What an operation takes instead of its arrays, and whether its output must be copied back."""
    temporary_src, temporary_out, copy_back = src, out, False
    same = src is out or (src is not None and out is not None and _same(src, out))
    own = None if mailbox or not (stage_out or (same and stage_src)) else registration.alias(group.context, out)
    if stage_src or (same and stage_out):
        if same and own is not None:
            temporary_src = own
        else:
            temporary_src = np.ascontiguousarray(src) if mailbox else fabric_source(group, src)
    if stage_out or (same and stage_src):
        copy_back = own is None
        if same:
            temporary_out = temporary_src
        elif own is not None:
            temporary_out = own
        elif mailbox:
            temporary_out = np.empty(out.shape, out.dtype)
        else:
            temporary_out = _fabric_like(group, out)
    return temporary_src, temporary_out, copy_back


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.shape == b.shape
        and a.strides == b.strides
    )


def _part(part: np.ndarray, whole: np.ndarray, size: int, rank: int) -> bool:
    """Whether ``part`` is member ``rank``'s of the ``size`` parts of ``whole``, stacked or joined along axis 0."""
    if whole.shape == (size, *part.shape):
        return _same(part, whole[rank, ...])
    if not part.ndim or whole.shape != (size * part.shape[0], *part.shape[1:]):
        return False
    return _same(part, whole[rank * part.shape[0] : (rank + 1) * part.shape[0]])


def check_overlap(op: str, src: np.ndarray, out: np.ndarray, size: int, rank: int) -> None:
    """ValueError if the arrays share memory in another than a natural in-place way."""
    if _same(src, out) and op in ("all_reduce", "reduce", "broadcast", "all_to_all"):
        return
    if op in ("all_gather", "gather") and _part(src, out, size, rank):
        return
    if op in ("reduce_scatter", "scatter") and _part(out, src, size, rank):
        return
    if np.shares_memory(src, out):
        raise ValueError(
            f"{op}: input and output overlap in part; use arrays apart from each other, or in place "
            "(out is src; for all_gather and gather src = out[rank], for reduce_scatter and scatter out = src[rank])"
        )


def check_out(group: Any, op: str, src: Any, out: Any, k: int) -> np.ndarray:
    """The output array of an operation, made or checked.

    k > 0: k times the source (one part per member); k < 0: a -k-th part of it; 0: the same
    shape, whose axis 0 the members share; 1 with "reduce": the same shape.
    """
    if not isinstance(src, np.ndarray):
        raise TypeError(f"{op}: a numpy array is expected, not {type(src).__name__}")
    n, shape = group.size, src.shape
    if op == "reduce":
        shapes = [shape]
    elif k > 0:
        shapes = [(n, *shape)]
        if shape:
            shapes.append((n * shape[0], *shape[1:]))
    else:
        if not shape or shape[0] % n:
            raise ValueError(f"{op}: src has shape {shape}; axis 0 must be divisible by the {n} members")
        if k == 0:
            shapes = [shape]
        else:
            shapes = [(shape[0] // n, *shape[1:])]
            if shape[0] == n:
                shapes.append(shape[1:])
    if out is None:
        return memory.alloc_array(group.context, shapes[0], src.dtype, False)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{op}: out must be a numpy array, not {type(out).__name__}")
    if out.dtype != src.dtype:
        raise ValueError(f"{op}: out has dtype {out.dtype}, src {src.dtype}")
    if out.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{op}: out has shape {out.shape}; {wanted} is expected for src {shape} and {n} members")
    if not out.flags.writeable:
        raise ValueError(f"{op}: the output array is read-only")
    return out


# ---- how scatter's members learn what a part is --------------------------------------------

HEADER = 48  # int64 words


def write_header(record: np.ndarray, a: np.ndarray) -> None:
    """Shape and dtype in a record of int64 words; the first is 1."""
    dtype: Any = np.lib.format.dtype_to_descr(a.dtype) if a.dtype.isbuiltin != 2 else a.dtype.name
    text = json.dumps([a.shape, dtype]).encode()
    if len(text) > (HEADER - 2) * 8:
        raise TypeError(f"scatter: dtype {a.dtype} is too long to describe")
    record[0], record[1] = 1, len(text)
    record[2:].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)


def read_header(record: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype, as ``write_header`` wrote them.  CorruptSpace: the record is none."""
    try:
        shape, found = _read_header(record)
        if found.hasobject or any(type(extent) is not int or extent < 0 for extent in shape):
            raise ValueError(f"{found} of shape {shape}")
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, SyntaxError) as error:
        raise errors.CorruptSpace(f"scatter: what a member says of its part is no shape and dtype: {error}") from None
    return shape, found


def _read_header(record: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
    shape, dtype = json.loads(record[2:].view(np.uint8)[: record[1]].tobytes())
    if isinstance(dtype, list):
        dtype = [tuple(tuple(x) if isinstance(x, list) else x for x in f) for f in dtype]
    elif not dtype.startswith(("|", "<", ">", "=")):
        import ml_dtypes

        return tuple(shape), np.dtype(getattr(ml_dtypes, dtype))
    return tuple(shape), np.dtype(dtype)
