"""Chains of descriptors: what they read and write, and which flags they raise and wait for."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata._core import descriptors as d
from strata.checking.recorder import Recorder

__all__ = ["chain", "flag_key", "flag_seen", "flag_written"]

MOST_CALLED = 4096  # descriptors of a call that are looked at
WORD = 8


def flag_key(va: int) -> str:
    """The name that posts of a flag, and waits for it, have."""
    return f"flag:{va:x}"


def flag_seen(told: Recorder, va: int, value: int, task: int | None = None, site: int | None = None) -> None:
    """A flag was read, or waited for, and held so much."""
    told.touch(task, ((va, va + WORD),), False, "flag", told.sites.here() if site is None else site, True)
    if 0 < value < d.POISON:
        told.take(flag_key(va), value, task)


def flag_written(told: Recorder, va: int, value: int, task: int | None = None, site: int | None = None,
                 add: bool = False) -> None:  # fmt: skip
    """A flag is raised; what went before is seen by whoever sees that."""
    told.touch(task, ((va, va + WORD),), True, "flag", told.sites.here() if site is None else site, True)
    if add:
        told.event("post", task, key=flag_key(va), add=value)
    else:
        told.post(flag_key(va), value, task)


def chain(told: Recorder, task: int, batch: np.ndarray, site: int, base: int = 0, depth: int = 0) -> None:
    """Descriptors that a task executes, in order; ``base``: what a call adds to the values of relative ones."""

    def touch(va: int, nbytes: int, write: bool, what: str, atomic: bool = False) -> None:
        if nbytes and told.inside(va):
            told.touch(task, ((va, va + nbytes),), write, what, site, atomic)

    for x in batch:
        kind, src, dst = int(x["type"]), int(x["src"]), int(x["dst"])
        nbytes, value, flags = int(x["bytes"]), int(x["value"]), int(x["flags"])
        if flags & d.RELATIVE:
            value += base
        if kind == d.COPY:
            touch(src, nbytes, False, "dma copy src")
            touch(dst, nbytes, True, "dma copy dst")
        elif kind == d.REDUCE:
            touch(src, nbytes, False, "dma reduce src")
            touch(dst, nbytes, True, "dma reduce dst")
        elif kind == d.ACCUMULATE:
            touch(src, nbytes, False, "dma accumulate src")
            touch(dst, nbytes, True, "dma accumulate dst", True)
        elif kind == d.FILL:
            touch(dst, nbytes, True, "dma fill dst")
        elif kind in (d.WRITE, d.ADD) and told.inside(dst):
            flag_written(told, dst, value, task, site, kind == d.ADD)
        elif kind == d.GATE and told.inside(src):
            flag_seen(told, src, value, task, site)
        elif kind == d.CALL and depth == 0 and nbytes <= MOST_CALLED:
            touch(src, nbytes * d.DESCRIPTOR.itemsize, False, "dma call")
            called = _called(told, src, nbytes)
            if called is not None:
                chain(told, task, called, site, value, 1)


def _called(told: Recorder, va: int, count: int) -> Any:
    """A copy of descriptors in the fabric, if they can be read here now."""
    import ctypes

    nbytes = count * d.DESCRIPTOR.itemsize
    if not told.context.ready(va, nbytes):
        return None
    return np.frombuffer(ctypes.string_at(va, nbytes), d.DESCRIPTOR)
