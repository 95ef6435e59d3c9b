"""Fabric memory of a die that is checked: what it gets and gives back, and arrays over it that are told of."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from strata._core import memory as core
from strata.checking import ranges, recorder
from strata.checking.traced import traced
from strata.fabric import mappings
from strata.fabric.mappings import PAGE, AddressRange, Span
from strata.registration import Registration

__all__ = ["CheckedMemory", "alloc_array", "owned", "places", "watch", "wrap"]

places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # where something was made


def owned(made: np.ndarray) -> np.ndarray:
    """Memory that this die has just got; it is told of, and accesses by this array are not."""
    told = recorder.current()
    if told is not None:
        lo = core.pointer(made) or 0
        told.own(made, lo, lo + made.nbytes)
    return made


def wrap(made: np.ndarray) -> np.ndarray:
    """Memory that a program has just got, as an array that is told of."""
    found: np.ndarray = traced(owned(made))
    return found


def over(made: np.ndarray) -> np.ndarray:
    """An array over an address, of this die or a peer: it keeps nothing alive."""
    told = recorder.current()
    found: np.ndarray = traced(made)
    if told is not None and made.nbytes:
        lo = core.pointer(made) or 0
        found.number = told.view(made, lo, lo + made.nbytes)  # type: ignore[attr-defined]
    return found


def alloc_array(*args: Any, **kwargs: Any) -> np.ndarray:
    """What the library makes for its callers: outputs, and copies of what is outside the fabric."""
    return wrap(core.alloc_array(*args, **kwargs))


CheckedMemory = types.SimpleNamespace(**{**vars(core), "alloc_array": alloc_array})


def _placed(own: Callable[..., Any]) -> Callable[..., Any]:
    """Remembers where something is made that must be given back."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        told = recorder.current()
        if told is not None:
            places[self] = told.sites.here()

    return make


def _made(own: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        found, told = own(*args, **kwargs), recorder.current()
        if told is not None:
            places[found] = told.sites.here()
        return found

    return make


def _map(self: AddressRange, handle: Any, offset: int = 0, handle_offset: int = 0, nbytes: int | None = None) -> None:
    _own_map(self, handle, offset, handle_offset, nbytes)
    told = recorder.current()
    if told is not None:
        size = handle.nbytes - handle_offset if nbytes is None else nbytes
        told.alloc(self.address + offset, self.address + offset + size)


def _pieces(span: Span, begin: int, end: int) -> None:
    """Parts of a span are unmapped: what was mapped there in whole, or in part, is given back."""
    told = recorder.current()
    if told is None or not span.address:
        return
    low, high = span.address + begin * PAGE, span.address + end * PAGE
    with told.lock:
        for lo in [lo for lo, (hi, _) in told.owned.items() if lo < high and low < hi]:
            hi, site = told.owned[lo]
            told.free(lo)
            for a, b in ((lo, low), (high, hi)):
                if a < b:  # mapped still
                    told.owned[a] = b, site
                    told.event("alloc", lo=a, hi=b, site=site)


def _unmap(self: AddressRange, offset: int = 0, nbytes: int | None = None) -> None:
    span = self._span
    _own_unmap(self, offset, nbytes)
    if span is not None:
        begin = offset // PAGE
        _pieces(span, begin, span.npages if nbytes is None else begin + nbytes // PAGE)


def _clear(self: Span) -> None:
    told = recorder.current()
    if told is not None and self.address and self.context is told.context:  # in a finalizer, at any place
        low, high = self.address, self.address + self.npages * PAGE
        told.frees.extend(lo for lo in tuple(told.owned) if low <= lo < high)
    _own_clear(self)


_own_map, _own_unmap, _own_clear = AddressRange.map, AddressRange.unmap, Span.clear


def watch(set_: Callable[[Any, str, Any], None]) -> None:
    """Puts these in the place of what they stand for."""
    set_(AddressRange, "map", _map)
    set_(AddressRange, "unmap", _unmap)
    set_(Span, "clear", _clear)
    array = AddressRange.array
    set_(AddressRange, "array", lambda self, *args, **kwargs: traced(array(self, *args, **kwargs)))
    set_(Registration, "__init__", _placed(Registration.__init__))
    set_(mappings, "new_range", _made(mappings.new_range))


def read(a: np.ndarray, what: str) -> None:
    """An array that a round or the like reads."""
    told = recorder.current()
    if told is not None:
        found = ranges.of(a)
        if found and told.inside(found[0][0]):
            told.access(found, False, what)
