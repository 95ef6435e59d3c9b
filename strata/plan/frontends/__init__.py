"""Frontends: an operation's slices for one die, one small file each.

A frontend states what moves and knows no cores: ``slices(spec, rank)`` returns an array of
``SLICE_DTYPE``.  Operands of a reduction are listed in the order in which they are combined.
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
    slices = FULL_MESH[spec.operation](spec, rank)
    moving = slices["bytes"] != 0
    return slices if moving.all() else slices[moving]
