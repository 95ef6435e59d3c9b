"""pat: parallel aggregated trees (NCCL 2.23; Jeaugey, "PAT: a new algorithm for all-gather and
reduce-scatter operations at scale", 2025).

Every member is the root of a binomial tree, all shifted copies of one.  A block travels its longest
way first, so that little is far from home at any time and far links carry single blocks; the blocks of
a step go together.  ceil(log2 n) steps for any n.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms.collective import BY_DISTANCE, Along, rootless
from strata.plan.algorithms.trees import Trees


@lru_cache(16)
def shifted(n: int) -> Trees:
    """The last leg of a block that comes from d members away is the lowest bit of d."""
    member, block = np.indices((n, n))
    away = (member - block) % n
    low = away & -away
    steps = (n - 1).bit_length()
    step = steps - np.frexp(low)[1]
    return Trees(np.where(away > 0, (member - low) % n, -1), np.where(away > 0, step, -1))


PAT = Along(rootless(shifted)).algorithm(
    "pat", "all_gather", "reduce_scatter",
    order=f"for block b, a binomial tree with member b at the root: {BY_DISTANCE}",
)  # fmt: skip
