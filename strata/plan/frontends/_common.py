"""What frontends share: making slices, and shares of a buffer."""

from __future__ import annotations

import math

import numpy as np

from strata.plan.records import NONE, OUT, PULL, PUSH, SLICE_DTYPE, SRC

LINE = 64  # cache line, bytes


def _template(kind: int, src_buf: int, dst_buf: int) -> np.ndarray:
    made = np.zeros(1, SLICE_DTYPE)
    made["kind"], made["src_buf"], made["dst_buf"] = kind, src_buf, dst_buf
    for field in ("wait_peer", "wait_flag", "post_flag"):
        made[field] = NONE
    return made


_PULL = _template(PULL, SRC, OUT)
_PUSH = _template(PUSH, OUT, OUT)


def _fill(template, peers, src, dst, nbytes, op) -> np.ndarray:
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
    """One pull per peer, from its SRC at ``src`` into own OUT at ``dst`` (default 0)."""
    return _fill(_PULL, peers, src, dst, nbytes, op)


def pushes(peers, nbytes, *, src=None, dst=None) -> np.ndarray:
    """One push per peer, from own OUT at ``src`` into its OUT at ``dst`` (default 0)."""
    return _fill(_PUSH, peers, src, dst, nbytes, 0)


def nothing() -> np.ndarray:
    """No slices."""
    return np.zeros(0, SLICE_DTYPE)


def grain(itemsize: int) -> int:
    """Bytes at multiples of which a buffer may be cut: whole lines and whole elements."""
    return math.lcm(LINE, itemsize) if itemsize else LINE


def share(nbytes: int, itemsize: int, nranks: int, rank: int) -> tuple[int, int]:
    """Start and length of a member's share of a buffer: shares tile it in rank order, start
    at lines, split no element, and differ by one grain at most; short buffers leave some empty."""
    unit = grain(itemsize)
    grains = -(-nbytes // unit)
    start = min(grains * rank // nranks * unit, nbytes)
    end = min(grains * (rank + 1) // nranks * unit, nbytes)
    return start, end - start
