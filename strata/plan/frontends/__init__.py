"""Frontends: an operation's slices for one die, one small file each.

A frontend states what moves and knows no cores: ``slices(spec, rank)`` returns an array of
``SLICE_DTYPE``, and of a column of ranks all theirs (``_common``).  Slices of no bytes are left out
later.  Operands of a reduction are listed in the order in which they are combined.
"""

from __future__ import annotations

import numpy as np

from strata.plan.frontends import (
    all_gather,
    all_reduce,
    all_to_all,
    all_to_all_v,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from strata.plan.spec import Spec

FULL_MESH = {
    "all_gather": all_gather.slices,
    "all_reduce": all_reduce.slices,
    "reduce_scatter": reduce_scatter.slices,
    "all_to_all": all_to_all.slices,
    "all_to_all_v": all_to_all_v.slices,
    "broadcast": broadcast.slices,
    "reduce": reduce.slices,
    "gather": gather.slices,
    "scatter": scatter.slices,
    "barrier": barrier.slices,
}


def frontend(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices under full mesh, in rank order of the peers, none of them empty.

    ``spec`` has been checked (``spec.check``), and 0 <= rank < nranks.
    """
    return _moving(FULL_MESH[spec.operation](spec, int(rank)))


def frontends(spec: Spec, ranks: np.ndarray) -> list[np.ndarray]:
    """``frontend`` of each of ``ranks``, int64; they may share memory."""
    made = FULL_MESH[spec.operation](spec, ranks[:, None])
    if isinstance(made, np.ndarray) and made.ndim == 1:
        return [_moving(made)] * len(ranks)
    if isinstance(made, np.ndarray) and (made["bytes"] != 0).all():
        return list(made)
    return [_moving(row) for row in made]


def _moving(slices: np.ndarray) -> np.ndarray:
    moving = slices["bytes"] != 0
    return slices if moving.all() else slices[moving]
