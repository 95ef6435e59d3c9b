"""Which bytes an array, or what an index means of it, covers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from strata._core import memory

__all__ = ["of", "picked"]

PIECES = 1 << 16  # of one range
ROWS = 512  # ranges of a strided view that are told; one with more is not told at all, rather than wrong
MOST = 1 << 20  # elements of an array of which it is found out what a list of indices means
Range = tuple[int, ...]  # first and last address, the last exclusive; pieces of this size, and from each to the next


def of(a: np.ndarray) -> list[Range]:
    """The bytes of an array; [] if it has none, or is in too many pieces."""
    if a.flags.c_contiguous:
        lo = memory.pointer(a) or 0
        return [(lo, lo + a.nbytes)] if a.nbytes else []
    if not a.size:
        return []
    lo = memory.pointer(a) or 0
    axes = []
    for n, step in zip(a.shape, a.strides, strict=True):
        if step < 0:
            lo += (n - 1) * step
            step = -step
        if n > 1 and step:  # broadcast axes show the same bytes again
            axes.append((step, n))
    width = a.dtype.itemsize
    axes.sort()
    while axes and axes[0][0] <= width:  # touching, or overlapping
        step, n = axes.pop(0)
        width += (n - 1) * step
    if not axes:
        return [(lo, lo + width)]
    most = max(range(len(axes)), key=lambda i: axes[i][1])
    pitch, rows = axes.pop(most)
    if rows > PIECES or math.prod(n for _, n in axes) > ROWS:
        return []
    starts = [lo]
    for step, n in axes:
        starts = [s + k * step for s in starts for k in range(n)]
    return [(s, s + width, rows, pitch) for s in starts]


def picked(a: np.ndarray, key: Any) -> list[Range]:
    """The bytes of a[key] where that is no view; [] if it cannot be found out cheaply."""
    plain = a.view(np.ndarray)
    if a.size > MOST:
        return []
    offsets = np.zeros(a.shape, np.int64)
    for axis, (n, step) in enumerate(zip(a.shape, a.strides, strict=True)):
        shape = [1] * a.ndim
        shape[axis] = n
        offsets += (np.arange(n, dtype=np.int64) * step).reshape(shape)
    if a.dtype.names and isinstance(key, list) and all(isinstance(k, str) for k in key):
        return of(plain)
    found = np.unique(offsets[key])
    if not found.size:
        return []
    size = a.dtype.itemsize
    cuts = np.flatnonzero(np.diff(found) != size) + 1
    if len(cuts) >= ROWS:
        return []
    lo = memory.pointer(a) or 0
    first, last = found[np.r_[0, cuts]], found[np.r_[cuts - 1, len(found) - 1]]
    return [(lo + int(f), lo + int(e) + size) for f, e in zip(first, last, strict=True)]
