"""Objects of ``strata.vmm``: address ranges, handles, and what keeps each alive."""

from __future__ import annotations

import itertools
import os
import struct
import sys
import threading
import weakref
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from strata import bootstrap, errors
from strata._core import limits, space
from strata._core import vmm as core

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

__all__ = ["ACCESS", "MAGIC", "PAGE", "TOKEN", "AddressRange", "Handle", "Piece", "Span", "new_handle", "new_range",
           "pages"]  # fmt: skip

PAGE = space.PAGE_BYTES
ACCESS = ("none", "read", "read_write")
TOKEN = struct.Struct("<8s16sIIQQ")  # magic, job, die, slot, use, pages
MAGIC = b"strataH1"

lock = threading.RLock()
spans: weakref.WeakSet[Span] = weakref.WeakSet()
handles: weakref.WeakSet[Handle] = weakref.WeakSet()
physical: weakref.WeakSet[core.Frames] = weakref.WeakSet()
offers: weakref.WeakValueDictionary[tuple[str, int, int], core.Frames] = weakref.WeakValueDictionary()
stuck: list[Span] = []  # ranges that the kernel would not unmap: tried again at the next reservation


def _after_fork() -> None:
    global lock
    lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def pages(what: str, nbytes: Any, least: int = 1) -> int:
    """Whole pages of a number of bytes."""
    try:
        number = nbytes.__index__()
    except AttributeError:
        raise TypeError(f"{what}: a whole number of bytes is expected, not {type(nbytes).__name__}") from None
    if isinstance(nbytes, bool) or number < least * PAGE or number % PAGE or number >> 63:
        raise errors.InvalidArgument(
            f"{what}={number}: {'a positive' if least else 'a'} multiple of {PAGE} bytes (granularity()) is expected"
        )
    return number // PAGE


class Piece:
    """Pages of a span over contiguous pages of one handle's memory."""

    __slots__ = ("begin", "end", "first", "frames")

    def __init__(self, begin: int, end: int, frames: core.Frames, first: int) -> None:
        self.begin, self.end, self.frames, self.first = begin, end, frames, first


def _begin(piece: Piece) -> int:
    return piece.begin


class Span:
    """Reserved addresses and what is mapped there: what an AddressRange, and arrays over it, keep alive."""

    __slots__ = ("__weakref__", "address", "context", "face", "npages", "pieces", "views")

    def __init__(self, context: space.Context, address: int, npages: int) -> None:
        self.context, self.address, self.npages = context, address, npages
        self.pieces: list[Piece] = []  # in order of addresses
        self.views: weakref.WeakSet[core.View] = weakref.WeakSet()
        self.face: weakref.ref[AddressRange] | None = None

    def between(self, begin: int, end: int) -> Iterator[tuple[int, int, Piece]]:
        """(begin, end, piece) of what is mapped of pages [begin, end), in order."""
        for piece in itertools.islice(self.pieces, max(0, bisect(self.pieces, begin, key=_begin) - 1), None):
            if piece.begin >= end:
                return
            if begin < piece.end:
                yield max(begin, piece.begin), min(end, piece.end), piece

    def add(self, piece: Piece) -> None:
        """What has been mapped where nothing was."""
        self.pieces.insert(bisect(self.pieces, piece.begin, key=_begin), piece)

    def cut(self, begin: int, end: int) -> None:
        """Forgets what is mapped at pages [begin, end)."""
        at = max(0, bisect(self.pieces, begin, key=_begin) - 1)
        to = bisect_left(self.pieces, end, key=_begin)
        kept = []
        for p in self.pieces[at:to]:
            if p.begin < begin:
                kept.append(Piece(p.begin, min(begin, p.end), p.frames, p.first))
            if end < p.end:
                kept.append(Piece(end, p.end, p.frames, p.first + end - p.begin))
        self.pieces[at:to] = kept

    def view(self, offset: int, nbytes: int) -> core.View:
        """For arrays over bytes that are mapped, with access."""
        last = -(-(offset + nbytes) // PAGE) if nbytes else 0
        kinds = {core.look(self.context, self.address + page * PAGE)[0]
                 for page in range(offset // PAGE, last)}  # fmt: skip
        if "free" in kinds:
            raise errors.InvalidArgument(f"{nbytes} bytes at offset {offset}: nothing is mapped in a part of them")
        if "none" in kinds:
            raise errors.InvalidArgument(
                f"{nbytes} bytes at offset {offset}: a part of them has no access; set_access() gives it"
            )
        view = core.View(self, self.address + offset, nbytes, "read" in kinds)
        self.views.add(view)
        return view

    def check_unused(self, begin: int, end: int, what: str, writers: bool = False) -> None:
        """InvalidArgument if arrays over the pages are alive (``writers``: that may be written to)."""
        low, high = self.address + begin * PAGE, self.address + end * PAGE
        alive = sum(v.nbytes for v in self.views
                    if v.address < high and low < v.address + v.nbytes and not (writers and v.readonly))  # fmt: skip
        if alive:
            raise errors.InvalidArgument(
                f"{what}: {'writable ' if writers else ''}arrays over {limits.human(alive)} of this memory are alive "
                "(vmm.array, and views of them); drop them first"
            )

    def clear(self) -> None:
        """Gives everything back.  May be called again after it has failed."""
        while self.pieces:
            p = self.pieces[-1]
            core.unmap(self.context, self.address + p.begin * PAGE, p.end - p.begin)
            self.pieces.pop()
        if self.address:
            core.free(self.context, self.address, self.npages)
            self.address = 0

    def __del__(self, _finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.address and not _finalizing() and self.context.here:
            try:
                self.clear()
            except errors.StrataError:
                stuck.append(self)  # the kernel has no room for one mapping more: later


class Handle:
    """Physical memory, made by ``create_handle`` or ``import_handle``.

    ``nbytes``; ``rank``: world rank of the die whose HBM it is; ``imported``: whether that is another die, or
    another handle's export; ``released``.  As a context manager it is released at the end.
    """

    __slots__ = ("__weakref__", "_frames", "imported", "nbytes", "rank")
    _frames: core.Frames | None

    def __init__(self) -> None:
        raise TypeError("use vmm.create_handle() or vmm.import_handle()")

    def _get(self, what: str) -> core.Frames:
        if self._frames is None:
            raise errors.InvalidArgument(f"{what}: the handle has been released")
        return self._frames

    @property
    def released(self) -> bool:
        return self._frames is None

    def release(self) -> None:
        """See ``release``."""
        with lock:
            frames = self._get("release")
            self._frames = None
            frames.unhand()

    def export(self) -> bytes:
        """See ``export_handle``."""
        with lock:
            frames = self._get("export_handle")
            context = bootstrap.context()
            slot, use = frames.export()
            if not frames.imported:
                offers[context.token, slot, use] = frames
            return TOKEN.pack(MAGIC, bytes.fromhex(context.token), frames.die, slot, use, frames.npages)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        if self._frames is not None:
            self.release()

    def __del__(self) -> None:
        frames = getattr(self, "_frames", None)  # without the lock: garbage may be collected anywhere
        if frames is not None:
            self._frames = None
            frames.unhand()

    def __repr__(self) -> str:
        what = "released" if self._frames is None else f"of rank {self.rank}, imported" if self.imported else "own"
        return f"<strata.vmm.Handle {limits.human(self.nbytes)}, {what}>"


def new_handle(frames: core.Frames, imported: bool) -> Handle:
    """A handle that holds these frames; ``imported``: another die's."""
    handle = object.__new__(Handle)
    handle.nbytes, handle.rank, handle.imported = frames.npages * PAGE, frames.die, imported
    handle._frames = frames
    frames.hand()
    handles.add(handle)
    physical.add(frames)
    return handle


class AddressRange:
    """Reserved addresses, the same on every die, made by ``reserve_address``.

    ``address``, ``nbytes``; ``freed``.  Its methods are the module's functions.  As a context manager it is
    closed at the end.
    """

    __slots__ = ("__weakref__", "_span", "address", "nbytes")
    _span: Span | None

    def __init__(self) -> None:
        raise TypeError("use vmm.reserve_address()")

    def _get(self, what: str) -> Span:
        if self._span is None:
            raise errors.InvalidArgument(f"{what}: the address range has been freed")
        return self._span

    def _mapped(self, what: str, offset: int, nbytes: int | None) -> tuple[Span, int, int]:
        """Span and pages [begin, end) of a part in which all is mapped, or, without nbytes, something."""
        span, begin, end = self._part(what, offset, nbytes)
        total = sum(b - a for a, b, _ in span.between(begin, end))
        if total == 0 or (nbytes is not None and total < end - begin):
            raise errors.InvalidArgument(
                f"{what}: {'nothing' if total == 0 else f'only {limits.human(total * PAGE)}'} is mapped in the "
                f"{limits.human((end - begin) * PAGE)} at offset {offset}"
            )
        return span, begin, end

    def _part(self, what: str, offset: int, nbytes: int | None) -> tuple[Span, int, int]:
        span = self._get(what)
        begin = pages(f"{what}: offset", offset, 0)
        end = span.npages if nbytes is None else begin + pages(f"{what}: nbytes", nbytes)
        if begin >= span.npages or end > span.npages:
            raise errors.InvalidArgument(
                f"{what}: bytes {begin * PAGE} to {end * PAGE} do not lie in a range of {span.npages * PAGE}"
            )
        return span, begin, end

    @property
    def freed(self) -> bool:
        return self._span is None

    def map(self, handle: Handle, offset: int = 0, handle_offset: int = 0, nbytes: int | None = None) -> None:
        """See ``map``."""
        if not isinstance(handle, Handle):
            raise TypeError(f"map: a Handle is expected, not {type(handle).__name__}")
        with lock:
            frames = handle._get("map")
            first = pages("map: handle_offset", handle_offset, 0)
            n = frames.npages - first if nbytes is None else pages("map: nbytes", nbytes)
            if first >= frames.npages or n > frames.npages - first:
                raise errors.InvalidArgument(
                    f"map: bytes {first * PAGE} to {(first + n) * PAGE} do not lie in a handle of {handle.nbytes}"
                )
            span, begin, end = self._part("map", offset, n * PAGE)
            if next(span.between(begin, end), None) is not None:
                raise errors.InvalidArgument(f"map: a part of the {n * PAGE} bytes at offset {offset} is mapped "
                                             "already; unmap it first")  # fmt: skip
            core.map(span.context, span.address + begin * PAGE, frames, first, n)
            span.add(Piece(begin, end, frames, first))

    def set_access(self, access: str, offset: int = 0, nbytes: int | None = None) -> None:
        """See ``set_access``."""
        if access not in ACCESS:
            raise errors.InvalidArgument(f"set_access: access={access!r}: one of {', '.join(ACCESS)} is expected")
        with lock:
            span, begin, end = self._mapped("set_access", offset, nbytes)
            if access != "read_write":
                span.check_unused(begin, end, f"set_access to {access!r}", writers=access == "read")
            for a, b in joined(span.between(begin, end)):
                core.access(span.context, span.address + a * PAGE, b - a, access)

    def unmap(self, offset: int = 0, nbytes: int | None = None) -> None:
        """See ``unmap``."""
        with lock:
            span, begin, end = self._mapped("unmap", offset, nbytes)
            span.check_unused(begin, end, "unmap")
            for a, b in joined(span.between(begin, end)):
                core.unmap(span.context, span.address + a * PAGE, b - a)
                span.cut(a, b)

    def array(self, shape: Any, dtype: DTypeLike = None, offset: int = 0) -> NDArray[Any]:
        """See ``array``."""
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise TypeError(f"dtype {kind} holds references to Python objects, which mean nothing on another die")
        if kind.itemsize == 0:
            kind = np.empty(0, kind).dtype  # numpy's rule: "S" is "S1"
        dims = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        dims = tuple(d.__index__() for d in dims)
        if any(d < 0 for d in dims):
            raise ValueError(f"shape {dims}: negative dimensions are not allowed")
        nbytes = kind.itemsize
        for d in dims:
            nbytes *= d
        with lock:
            span = self._get("array")
            if not 0 <= offset <= self.nbytes or offset % kind.alignment or nbytes > self.nbytes - offset:
                raise errors.InvalidArgument(
                    f"array: {nbytes} bytes at offset {offset} do not lie in a range of {self.nbytes}, "
                    f"at a multiple of {kind.alignment} bytes"
                )
            return np.ndarray(dims, kind, buffer=span.view(offset, nbytes))

    def free(self) -> None:
        """See ``free_address``."""
        with lock:
            span = self._get("free_address")
            if span.pieces:
                mapped = sum(p.end - p.begin for p in span.pieces) * PAGE
                raise errors.InvalidArgument(
                    f"free_address: {limits.human(mapped)} are still mapped; unmap them first, or close() the range"
                )
            span.clear()
            self._span = None

    def close(self) -> None:
        """Lets go of the range: all is unmapped and freed, now or, if arrays over it are alive, with the last."""
        if self._span is not None:
            self._span.face = None
        self._span = None

    def __enter__(self) -> AddressRange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<strata.vmm.AddressRange {limits.human(self.nbytes)} at {self.address:#x}{', freed' * self.freed}>"


def new_range(context: space.Context, address: int, npages: int) -> AddressRange:
    """A range over addresses that have been reserved."""
    made = object.__new__(AddressRange)
    made.address, made.nbytes = address, npages * PAGE
    made._span = Span(context, address, npages)
    made._span.face = weakref.ref(made)
    spans.add(made._span)
    return made


def joined(parts: Iterator[tuple[int, int, Piece]]) -> list[tuple[int, int]]:
    """Pages [begin, end) of parts in order, those that touch as one."""
    out: list[tuple[int, int]] = []
    for a, b, _ in parts:
        if out and out[-1][1] == a:
            out[-1] = (out[-1][0], b)
        else:
            out.append((a, b))
    return out
