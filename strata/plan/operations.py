"""What each operation means, whatever the algorithm: sizes of the buffers, where they
may share memory, and what must be in OUT afterwards.  The verifier's side of the bargain;
frontends state the same facts as transfers, and do not look here for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.spec import MOE, REDUCTIONS, Spec


def sizes(spec: Spec, rank: int) -> tuple[int, int]:
    """Bytes of the member's SRC and OUT; InvalidArgument of operations on rows, whose places are not said by counts."""
    if spec.operation in MOE:
        raise InvalidArgument("rows lie wherever the plan's windows say, so no sizes follow from counts alone",
                              operation=spec.operation)  # fmt: skip
    name, part = spec.operation, spec.part
    whole = part * spec.nranks
    at_root = rank == spec.root
    if name == "all_to_all_v":
        sent, received = spec.counts[rank].sum(), spec.counts[:, rank].sum()
        return int(sent) * spec.itemsize, int(received) * spec.itemsize
    return {
        "all_gather": (part, whole),
        "all_reduce": (part, part),
        "reduce_scatter": (whole, part),
        "all_to_all": (whole, whole),
        "broadcast": (part if at_root else 0, part),
        "reduce": (part, part if at_root else 0),
        "gather": (part, whole if at_root else 0),
        "scatter": (whole if at_root else 0, part),
        "barrier": (0, 0),
    }[name]


def own_place(spec: Spec, rank: int) -> int | None:
    """Where the member's array of sources starts in OUT when it works in place, in bytes
    (negative: OUT starts within it); None if they are apart."""
    if not spec.in_place:
        return None
    name, part = spec.operation, spec.part
    if name in ("all_reduce", "all_gather", "reduce_scatter"):
        return {"all_reduce": 0, "all_gather": rank * part, "reduce_scatter": -rank * part}[name]
    if rank != spec.root:
        return None
    places = {"broadcast": 0, "reduce": 0, "gather": rank * part, "scatter": -rank * part}
    return places.get(name)


def remote(spec: Spec) -> bool:
    """Whether any byte crosses from one member to another; the same answer on all of them."""
    if spec.operation == "all_to_all_v" or spec.operation in MOE:
        moved = int(spec.counts.sum()) - int(np.trace(spec.counts))
        return moved * spec.itemsize > 0
    return spec.nranks > 1 and spec.part > 0 and spec.operation != "barrier"


class Result(NamedTuple):
    """What OUT of one member holds, in segments: [dst, dst + bytes) is a copy of SRC of
    ``member`` from ``src`` on; or, with member -1, the reduction of all members' SRC from
    ``src`` on, in rank order.  int64 arrays, by dst; segments of no bytes are left out."""

    dst: np.ndarray
    bytes: np.ndarray
    member: np.ndarray
    src: np.ndarray


def result(spec: Spec, rank: int) -> Result:
    """The operation's postcondition for this member."""
    name, n, part = spec.operation, spec.nranks, spec.part
    everyone = np.arange(n, dtype=np.int64)
    none = np.zeros(0, np.int64)
    at_root = rank == spec.root
    if name in REDUCTIONS:
        if name == "reduce" and not at_root:
            return Result(none, none, none, none)
        start = rank * part if name == "reduce_scatter" else 0
        found = _segments([0], [part], [-1], [start])
    elif name == "all_gather" or (name == "gather" and at_root):
        found = _segments(everyone * part, part, everyone, 0)
    elif name == "all_to_all":
        found = _segments(everyone * part, part, everyone, rank * part)
    elif name == "all_to_all_v":
        received = spec.counts[:, rank] * spec.itemsize
        before = spec.counts[:, :rank].sum(axis=1) * spec.itemsize
        found = _segments(received.cumsum() - received, received, everyone, before)
    elif name == "broadcast":
        found = _segments([0], [part], [spec.root], [0])
    elif name == "scatter":
        found = _segments([0], [part], [spec.root], [rank * part])
    else:  # barrier; gather off the root
        return Result(none, none, none, none)
    return found


def _segments(dst, length, member, src) -> Result:
    columns = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in (dst, length, member, src)))
    kept = columns[1] > 0
    return Result(*(column[kept] for column in columns))
