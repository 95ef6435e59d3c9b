"""rhd: recursive halving and doubling (Rabenseifner; Thakur, Rabenseifner and Gropp, 2005).

all_gather doubles what each member has at every step; reduce_scatter is the same backwards;
all_reduce is both.  log2 n steps.  The members beyond the largest power of two give their
block to a partner first and have the rest from it at last, one step more on each side.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms.collective import BY_DISTANCE, Along, rootless
from strata.plan.algorithms.trees import Trees


@lru_cache(16)
def doubling(n: int) -> Trees:
    """Blocks of ``n`` members, each step from the member that differs in the next bit."""
    bits = n.bit_length() - 1
    power = 1 << bits
    member, block = np.indices((n, n))
    apart = member ^ block % power  # of members below the power of two
    top = np.frexp(apart)[1] - 1  # the highest bit; -1 for none
    parent = np.where(top >= 0, member ^ (1 << np.maximum(top, 0)), -1)
    step = np.where(top >= 0, top + 1, -1)
    folded = (top < 0) & (block >= power)
    parent, step = np.where(folded, block, parent), np.where(folded, 0, step)
    extra = member >= power
    parent, step = np.where(extra, member - power, parent), np.where(extra, bits + 1, step)
    own = member == block
    return Trees(np.where(own, -1, parent), np.where(own, -1, step))


RHD = Along(rootless(doubling)).algorithm(
    "rhd", "all_gather", "reduce_scatter", "all_reduce",
    order=f"for block b, a binomial tree with member b at the root: {BY_DISTANCE}",
)  # fmt: skip
