"""full_mesh: every member pulls what it needs from every other, in one step (StrataCL, full-mesh abstraction)."""

from __future__ import annotations

import numpy as np

from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontend, frontends
from strata.plan.spec import OPERATIONS, Spec
from strata.plan.topology import Topology


def slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    return frontend(spec, rank)


def many(spec: Spec, ranks: np.ndarray, topology: Topology) -> list[np.ndarray]:
    """The slices of each die."""
    return frontends(spec, ranks)


FULL_MESH = Algorithm(
    "full_mesh",
    frozenset(OPERATIONS),
    slices,
    exposes_out=False,
    order="rank order, one unit takes all operands: the same bits on every die",
    mailbox=True,
    rank_order=True,
    many=many,
)
