"""pairwise: pairwise exchange; every member takes from two others at a time, and serves two.

In step s member i pulls from i + 2s + 1 and i + 2s + 2, so that ports have two busy peers each and not all:
where fan-out costs a port bandwidth (``Model.loss``) this is the faster for large messages, and unlike a ring it
waits for nobody.  No flags: steps are an order, and members need not be in the same one.
"""

from __future__ import annotations

import numpy as np

from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.frontends import frontend
from strata.plan.spec import Spec
from strata.plan.topology import Topology

WIDTH = 2  # peers at a time: two pairs fill a port that one does not


def _slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
    made = frontend(spec, rank)
    away = (made["peer"].astype(np.int64) - rank) % spec.nranks
    made["step"] = np.where(away, (away - 1) // WIDTH, (spec.nranks - 2) // WIDTH)  # its own part last
    return made[np.lexsort((away, made["step"]))]


PAIRWISE = Algorithm("pairwise", frozenset(("all_gather", "all_to_all", "all_to_all_v")), _slices, exposes_out=False)
