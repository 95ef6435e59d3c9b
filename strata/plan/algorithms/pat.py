"""pat: parallel aggregated trees (NCCL 2.23; Jeaugey, "PAT: a new algorithm for all-gather and
reduce-scatter operations at scale", 2025).

Every member is the root of a binomial tree, all shifted copies of one.  A block travels its longest
way first, so that little is far from home at any time and far links carry single blocks; the blocks of
a step go together.  ceil(log2 n) steps for any n.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.algorithms.collective import Along
from strata.plan.algorithms.trees import Trees
from strata.plan.topology import Topology


@lru_cache(16)
def shifted(n: int) -> Trees:
    """The last leg of a block that comes from d members away is the lowest bit of d."""
    member, block = np.indices((n, n))
    away = (member - block) % n
    low = away & -away
    steps = (n - 1).bit_length()
    step = steps - np.frexp(low)[1]
    return Trees(np.where(away > 0, (member - low) % n, -1), np.where(away > 0, step, -1))


def _many(n: int, root: int, topology: Topology) -> Trees:
    return shifted(n)


_PAT = Along(_many)

PAT = Algorithm(
    "pat",
    frozenset(("all_gather", "reduce_scatter")),
    _PAT.slices,
    _PAT.scratch,
    _PAT.refuses,
    order="for block b, a binomial tree with member b at the root: each member's own operand, then its children's "
    "sums by their distance (child - member) mod n",
    depth=_PAT.depth,
)
