"""Arrays of a die that is checked: what is read and written through them is told.

They are ``numpy.ndarray`` in all but that; views of them are told of, too.  What takes their memory by another way is
not seen: ``np.asarray(x)`` and ``x.view(np.ndarray)``, C extensions, ``memoryview(x)``, ``x.flat``, ``np.array(x)``.
Copies, and the results of operations, are ordinary arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from strata._core import memory
from strata.checking import ranges, recorder

__all__ = ["Traced", "plain", "traced"]

# numpy's functions that only look at shapes, or make views
VIEWS = {
    getattr(np, name) for name in (
        "reshape", "ravel", "transpose", "swapaxes", "moveaxis", "rollaxis", "squeeze", "expand_dims", "atleast_1d",
        "atleast_2d", "atleast_3d", "broadcast_to", "broadcast_arrays", "split", "array_split", "hsplit", "vsplit",
        "dsplit", "flip", "fliplr", "flipud", "rot90", "diagonal", "real", "imag", "permute_dims", "matrix_transpose",
        "unstack",
    ) if hasattr(np, name)
}  # fmt: skip
BLIND = {
    getattr(np, name) for name in (
        "shape", "ndim", "size", "may_share_memory", "shares_memory", "result_type", "can_cast", "min_scalar_type",
        "common_type", "iscomplexobj", "isrealobj", "empty_like", "zeros_like", "ones_like", "full_like", "nditer",
    ) if hasattr(np, name)
}  # fmt: skip
INTO = {getattr(np, name) for name in ("copyto", "put", "place", "putmask", "put_along_axis", "fill_diagonal")}
READS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "choose", "clip", "compress", "conj", "conjugate",
    "copy", "cumprod", "cumsum", "dot", "dump", "dumps", "flatten", "item", "max", "mean", "min", "nonzero", "prod",
    "repeat", "round", "searchsorted", "std", "sum", "take", "tobytes", "tofile", "tolist", "trace", "var",
    "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__int__", "__float__", "__complex__", "__bool__",
    "__index__", "__str__", "__repr__", "__format__",
)  # fmt: skip
WRITES = ("fill", "put", "setfield")
BOTH = ("partition", "sort")


def traced(a: Any) -> Any:
    """The array, told of from now on; unless the die is not checked."""
    if type(a) is np.ndarray and recorder.current() is not None:
        return a.view(Traced)
    return a


def plain(x: Any) -> Any:
    """The same, as numpy's own array."""
    if isinstance(x, Traced):
        return x.view(np.ndarray)
    if isinstance(x, tuple | list) and any(isinstance(y, Traced | tuple | list) for y in x):
        return type(x)(plain(y) for y in x) if type(x) in (tuple, list) else x
    return x


def parts(x: Any) -> Iterator[Traced]:
    """The arrays that are told of, in an argument."""
    if isinstance(x, Traced):
        yield x
    elif isinstance(x, tuple | list):
        for y in x:
            yield from parts(y)


def tell(a: Any, write: bool, what: str) -> None:
    """All of an array is read, or written."""
    told = recorder.current()
    if told is not None:
        found = ranges.of(a)
        if found and told.inside(found[0][0]):
            told.access(found, write, what, a.number)


def tell_picked(a: Any, key: Any, write: bool, what: str) -> None:
    """What an index picks of an array is read, or written."""
    told = recorder.current()
    if told is not None and told.inside(memory.pointer(a) or 0):
        found = ranges.picked(a, plain(key))
        if found:
            told.access(found, write, what, a.number)


def _rewrap(result: Any) -> Any:
    """Views of fabric memory are told of; other results are ordinary."""
    told = recorder.current()
    if type(result) is np.ndarray and told is not None and result.nbytes and told.inside(memory.pointer(result) or 0):
        return result.view(Traced)
    if type(result) in (tuple, list):
        return type(result)(_rewrap(r) for r in result)
    return result


class Traced(np.ndarray):
    """An array in the fabric, of a die that is checked.  ``number``: of the address it was made from, as a view."""

    number = -1

    def __array_finalize__(self, of: Any) -> None:
        number = getattr(of, "number", -1)
        if number >= 0:
            self.number = number

    def __getitem__(self, key: Any) -> Any:
        for a in parts(key):
            tell(a, False, "x[index]")
        found = super().__getitem__(plain(key))
        if not isinstance(found, np.ndarray):
            if type(key) is int and self.ndim == 1:
                lo = (memory.pointer(self) or 0) + (key if key >= 0 else key + len(self)) * self.strides[0]
                told = recorder.current()
                if told is not None and told.inside(lo):
                    told.access(((lo, lo + self.itemsize),), False, "x[...]", self.number)
            else:
                at = key if isinstance(key, tuple) else (key,)
                tell(super().__getitem__((*at, ...) if Ellipsis not in at else at), False, "x[...]")
            return found
        if isinstance(key, str) or _basic(key):
            return found
        told = recorder.current()
        if told is None or not told.inside(memory.pointer(found) or 0):  # a copy: by lists of indices, or a mask
            tell_picked(self, key, False, "x[...]")
            return found.view(np.ndarray)
        return found  # names of fields

    def __setitem__(self, key: Any, value: Any) -> None:
        for a in parts((key, value)):
            tell(a, False, "... = x")
        at, what = plain(key), "x[...] = "
        if not isinstance(at, str) and _basic(at):
            view = super().__getitem__((*at, ...) if isinstance(at, tuple) and Ellipsis not in at
                                       else (at, ...) if not isinstance(at, tuple) and at is not Ellipsis else at)
            tell(view, True, what)
        elif isinstance(at, str):
            tell(super().__getitem__(at), True, what)
        else:
            tell_picked(self, at, True, what)
        super().__setitem__(at, plain(value))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        name = f"numpy.{ufunc.__name__}"
        if method == "at":
            first = inputs[0]
            for a in parts(inputs[1:]):
                tell(a, False, name)
            if isinstance(first, Traced):
                tell_picked(first, inputs[1], False, name)
                tell_picked(first, inputs[1], True, name)
            return getattr(ufunc, method)(*plain(inputs), **kwargs)
        for a in parts(inputs):
            tell(a, False, name)
        for a in parts(tuple(kwargs.values())):
            tell(a, False, name)
        kwargs = {k: plain(v) for k, v in kwargs.items()}
        if out is None:
            return getattr(ufunc, method)(*plain(inputs), **kwargs)
        given = out if isinstance(out, tuple) else (out,)
        for a in parts(given):
            tell(a, True, name)
        found = getattr(ufunc, method)(*plain(inputs), out=plain(given), **kwargs)
        if isinstance(found, tuple):
            return tuple(f if o is None else o for f, o in zip(found, given, strict=True))
        return found if given[0] is None else given[0]

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = f"numpy.{func.__name__}"
        if func in BLIND:
            return func(*plain(args), **{k: plain(v) for k, v in kwargs.items()})
        if func in VIEWS:
            return _rewrap(func(*plain(args), **{k: plain(v) for k, v in kwargs.items()}))
        out = kwargs.get("out")
        inputs = [v for k, v in kwargs.items() if k != "out"]
        for a in parts([*(args[1:] if func in INTO else args), *inputs]):
            tell(a, False, name)
        for a in parts([*(args[:1] if func in INTO else ()), out]):
            tell(a, True, name)
        found = func(*plain(args), **{k: plain(v) for k, v in kwargs.items()})
        if out is not None and not isinstance(out, tuple):
            return out
        return _rewrap(found)

    def astype(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        tell(self, False, "x.astype")
        return _rewrap(self.view(np.ndarray).astype(*args, **kwargs))

    def byteswap(self, inplace: bool = False) -> Any:
        tell(self, False, "x.byteswap")
        if inplace:
            tell(self, True, "x.byteswap")
            self.view(np.ndarray).byteswap(True)
            return self
        return self.view(np.ndarray).byteswap()

    @property
    def data(self) -> Any:  # type: ignore[override]
        tell(self, False, "x.data")
        return self.view(np.ndarray).data


def _basic(key: Any) -> bool:
    """Whether an index makes views."""
    if isinstance(key, tuple):
        return all(_basic(k) for k in key)
    return key is None or key is Ellipsis or isinstance(key, slice) or (
        isinstance(key, int | np.integer) and not isinstance(key, bool | np.bool_))


def _method(name: str, reads: bool, writes: bool) -> Callable[..., Any]:
    own = getattr(np.ndarray, name)

    def method(self: Traced, *args: Any, **kwargs: Any) -> Any:
        what = f"x.{name}"
        if reads:
            tell(self, False, what)
        if writes:
            tell(self, True, what)
        out = kwargs.get("out")
        for a in parts([*args, *(v for k, v in kwargs.items() if k != "out")]):
            tell(a, False, what)
        for a in parts(out):
            tell(a, True, what)
        found = own(self.view(np.ndarray), *(plain(a) for a in args), **{k: plain(v) for k, v in kwargs.items()})
        return found if out is None else out

    method.__name__, method.__doc__ = name, own.__doc__
    return method


for _names, _reads, _writes in ((READS, True, False), (WRITES, False, True), (BOTH, True, True)):
    for _name in _names:
        setattr(Traced, _name, _method(_name, _reads, _writes))
