"""Arrays in this die's HBM, made as numpy makes them.

They are plain ``numpy.ndarray`` objects, in C order, at an address that is the
same on every die.  The memory returns when the last view has gone, in any
thread, also after ``finalize()``.  Copies and pickles are ordinary arrays.

Arrays below 2 MiB share pages and begin at a multiple of 64 bytes (from 1 MiB
on: of 4096); larger ones have pages of their own and begin at a multiple of
2 MiB.  An array of no elements has an address too.

Each function joins the job first if that has not been done, and raises

* ``FabricMemoryError`` when there is no room: nothing has changed then;
* ``TypeError`` for a dtype that holds Python objects;
* ``ValueError`` for another order than C, for a negative dimension, and for a
  size that does not fit into 63 bits;
* ``NotInJob`` in a forked child of a die.
"""

from __future__ import annotations

import ctypes
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from strata import bootstrap, errors
from strata._core import memory, space

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = [
    "address",
    "array",
    "empty",
    "empty_like",
    "from_address",
    "full",
    "full_like",
    "is_fabric",
    "ones",
    "ones_like",
    "owner",
    "zeros",
    "zeros_like",
]

FOREIGN = (
    "this object is not in fabric memory; strata.array, strata.empty and their like, and numpy in strata.intercept(), "
    "make arrays that are"
)
Shape = Any  # an integer, or a sequence of integers: what numpy takes


def _new(shape: Shape, dtype: DTypeLike | None, order: str, zero: bool) -> NDArray[Any]:
    if order != "C":
        raise ValueError(f"order={order!r}: fabric arrays are in C order")
    return memory.alloc_array(bootstrap.context(), shape, dtype, zero)


def empty(shape: Shape, dtype: DTypeLike | None = None, order: str = "C") -> NDArray[Any]:
    """An array with arbitrary contents.  ``dtype=None`` is float64."""
    return _new(shape, dtype, order, False)


def zeros(shape: Shape, dtype: DTypeLike | None = None, order: str = "C") -> NDArray[Any]:
    """An array of zeros.  ``dtype=None`` is float64."""
    return _new(shape, dtype, order, True)


def ones(shape: Shape, dtype: DTypeLike | None = None, order: str = "C") -> NDArray[Any]:
    """An array of ones.  ``dtype=None`` is float64."""
    return _filled(_new(shape, dtype, order, False), 1)


def full(
    shape: Shape, fill_value: ArrayLike, dtype: DTypeLike | None = None, order: str = "C"
) -> NDArray[Any]:
    """An array of ``fill_value``, which is broadcast.  ``dtype=None`` is the value's own."""
    if dtype is None:
        dtype = np.asarray(fill_value).dtype
    return _filled(_new(shape, dtype, order, False), fill_value)


def array(
    object: ArrayLike, dtype: DTypeLike | None = None, *, order: str = "C", ndmin: int = 0
) -> NDArray[Any]:
    """A copy of anything that numpy makes an array of, in C order."""
    source = np.asarray(object, dtype)
    shape = (1,) * (ndmin - source.ndim) + source.shape
    made = _new(shape, source.dtype, order, False)
    made[...] = source
    return made


def _like(
    prototype: ArrayLike, dtype: DTypeLike | None, order: str, shape: Shape | None, zero: bool
) -> NDArray[Any]:
    source = prototype if isinstance(prototype, np.ndarray) else np.asarray(prototype)
    return _new(
        source.shape if shape is None else shape,
        source.dtype if dtype is None else dtype,
        order,
        zero,
    )


def empty_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    shape: Shape | None = None,
) -> NDArray[Any]:
    """An array with the shape and dtype of another (in C order all the same), contents arbitrary."""
    return _like(prototype, dtype, order, shape, False)


def zeros_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    shape: Shape | None = None,
) -> NDArray[Any]:
    """An array of zeros with the shape and dtype of another, in C order."""
    return _like(prototype, dtype, order, shape, True)


def ones_like(
    prototype: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    shape: Shape | None = None,
) -> NDArray[Any]:
    """An array of ones with the shape and dtype of another, in C order."""
    return _filled(_like(prototype, dtype, order, shape, False), 1)


def full_like(
    prototype: ArrayLike,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: str = "C",
    *,
    shape: Shape | None = None,
) -> NDArray[Any]:
    """An array of ``fill_value`` with the shape and dtype of another, in C order."""
    return _filled(_like(prototype, dtype, order, shape, False), fill_value)


def _filled(made: NDArray[Any], value: ArrayLike) -> NDArray[Any]:
    np.copyto(made, value, casting="unsafe")  # as numpy.full does
    return made


def _owner(x: object) -> int:
    """World rank, or -1: not in the fabric, or this process is in no job."""
    try:
        return memory.owner(space.current(), x)
    except errors.NotInJob:
        return -1


def is_fabric(x: object) -> bool:
    """Whether an array, a view or another buffer lies in the fabric, of this die or a peer.

    Its address alone decides, so views, slices and arrays without elements count.
    """
    return _owner(x) >= 0


def owner(x: object) -> int:
    """World rank of the die whose HBM holds the array.  ValueError if it is not in the fabric."""
    rank = _owner(x)
    if rank < 0:
        raise ValueError(FOREIGN)
    return rank


def address(x: object) -> int:
    """The array's address, the same on every die.  ValueError if it is not in the fabric."""
    va = memory.pointer(x)
    if va is None or _owner(x) < 0:
        raise ValueError(FOREIGN)
    return va


def from_address(
    address: int, shape: Shape, dtype: DTypeLike | None = None, writeable: bool = True
) -> NDArray[Any]:
    """An array, in C order, over memory that is at an address of the fabric: this die's, or a peer's.

    ``address``: what ``strata.address(x)`` gave on the die that has the memory; ``dtype=None`` is float64.  Nothing is
    copied, and a peer's bytes are read and written where they lie, by plain loads and stores: when the peer may do so
    as well is for barriers, messages and flags to say (docs/memory-model.md).

    It keeps nothing alive.  The memory must stay as long as the array is used, on the die that has it as well: what is
    given back may be another array a moment later.  ``strata-run --check`` reports an access that comes too late.

    RegistrationError: nothing is allocated there (any more), or (``writeable``) it may not be written;
    ValueError: the address is not in the fabric, not aligned for the dtype, or the array would go beyond the memory of
    its die; TypeError: an address that is no whole number, or a dtype that holds Python objects.
    """
    try:
        va = operator.index(address)
    except TypeError:
        raise TypeError(f"from_address: address={address!r}: a whole number, as strata.address() gives it, is "
                        "expected") from None  # fmt: skip
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise TypeError(f"from_address: dtype {kind} holds Python objects, which mean nothing on another die")
    dims = tuple(operator.index(n) for n in ((shape,) if hasattr(shape, "__index__") else shape))
    if any(n < 0 for n in dims):
        raise ValueError(f"from_address: shape {dims}: negative dimensions are not allowed")
    nbytes = math.prod(dims) * kind.itemsize
    context = bootstrap.context()
    owner = context.owner(va) if 0 <= va < 1 << 64 else -1
    if owner < 0:
        raise ValueError(f"from_address: {va:#x} is no address in the fabric; strata.address(x), on the die that has "
                         "x, gives one")  # fmt: skip
    if va % kind.alignment:
        raise ValueError(f"from_address: {va:#x} is no multiple of {kind.alignment}, as {kind} needs it")
    if nbytes and (va + nbytes > 1 << 64 or context.owner(va + nbytes - 1) != owner):
        raise ValueError(f"from_address: {nbytes} bytes from {va:#x} on go beyond the memory of rank {owner}")
    if nbytes:
        try:
            context.ensure(va, nbytes, writeable)
        except errors.RegistrationError as error:
            raise errors.RegistrationError(
                f"from_address: {nbytes} bytes at {va:#x}, of rank {owner}: nothing is allocated there (any more), or "
                f"it may not be {'written' if writeable else 'read'} here; see that the array lives until all have "
                "used it",
                ranks=(owner,),
            ) from error
    return _over(va, dims, kind, nbytes, writeable)


def _over(va: int, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int, writeable: bool) -> NDArray[Any]:
    memory = (ctypes.c_char * nbytes).from_address(va)
    made: NDArray[Any] = np.ndarray(shape, dtype, memory)
    made.flags.writeable = writeable
    return made
