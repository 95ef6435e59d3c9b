"""What frontends share: making slices, and shares of a buffer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from strata.plan.records import NONE, OUT, PULL, PUSH, SLICE_DTYPE, SRC
from strata.plan.spec import Spec

LINE = 64  # cache line, bytes

# What a frontend is asked for, and what it returns.  A member's rank: its slices, SLICE_DTYPE.  An int64 column of
# ranks, (members, 1): an array with a row for each member, or a list of rows; or one row that all have.
Ranks = Any
Slices = Any


def _template(kind: int, src_buf: int, dst_buf: int) -> np.ndarray:
    made = np.zeros(1, SLICE_DTYPE)
    made["kind"], made["src_buf"], made["dst_buf"] = kind, src_buf, dst_buf
    for field in ("wait_peer", "wait_flag", "post_flag"):
        made[field] = NONE
    return made


_PULL = _template(PULL, SRC, OUT)
_PUSH = _template(PUSH, OUT, OUT)


def _fill(template, peers, src, dst, nbytes, op) -> np.ndarray:
    many = [x for x in (src, dst, nbytes) if getattr(x, "ndim", 0) == 2]
    if many:
        shape = (len(many[0]), np.shape(peers)[-1])
        slices = template.repeat(math.prod(shape)).reshape(shape)
    else:
        slices = template.repeat(len(peers))
    slices["peer"] = peers
    if src is not None:  # else the template's 0
        slices["src"] = src
    if dst is not None:
        slices["dst"] = dst
    slices["bytes"] = nbytes
    if op:
        slices["op"] = op
    return slices


def pulls(peers, nbytes, *, src=None, dst=None, op: int = 0) -> np.ndarray:
    """One pull per peer, from its SRC at ``src`` into own OUT at ``dst`` (default 0).

    Peers along the last axis; columns, (members, 1), for many members.
    """
    return _fill(_PULL, peers, src, dst, nbytes, op)


def pushes(peers, nbytes, *, src=None, dst=None) -> np.ndarray:
    """One push per peer, from own OUT at ``src`` into its OUT at ``dst`` (default 0); shapes as of ``pulls``."""
    return _fill(_PUSH, peers, src, dst, nbytes, 0)


def nothing() -> np.ndarray:
    """No slices."""
    return np.zeros(0, SLICE_DTYPE)


def joined(*parts: np.ndarray) -> np.ndarray:
    """Slices one after the other, along the last axis."""
    return np.concatenate([part.view(np.uint64) for part in parts], axis=-1).view(SLICE_DTYPE)  # fields take far longer


def others(nranks: int, rank: Ranks) -> np.ndarray:
    """A member's peers without itself, in rank order."""
    peers = np.arange(nranks - 1)
    return peers + (peers >= rank)


def unless(there: Any, value: Any) -> Any:
    """``value``, or 0 where ``there``; slices of no bytes are none."""
    if isinstance(there, bool):
        return 0 if there else value
    return np.where(there, 0, value)


def at_root(spec: Spec, rank: Ranks, slices: Callable[[Spec, Ranks], np.ndarray]) -> Slices:
    """Slices that only the root has."""
    if isinstance(rank, int):
        return slices(spec, rank) if rank == spec.root else nothing()
    return [at_root(spec, r, slices) for r in rank[:, 0].tolist()]


def grain(itemsize: int) -> int:
    """Bytes at multiples of which a buffer may be cut: whole lines and whole elements."""
    return math.lcm(LINE, itemsize) if itemsize else LINE


def share(nbytes: int, itemsize: int, nranks: int, rank: Ranks) -> tuple[Any, Any]:
    """Start and length of a member's share of a buffer: shares tile it in rank order, start
    at lines, split no element, and differ by one grain at most; short buffers leave some empty."""
    unit = grain(itemsize)
    grains = -(-nbytes // unit)
    start, end = grains * rank // nranks * unit, grains * (rank + 1) // nranks * unit
    if not isinstance(rank, int):
        start, end = np.minimum(start, nbytes), np.minimum(end, nbytes)
        return start, end - start
    start = min(start, nbytes)
    return start, min(end, nbytes) - start
