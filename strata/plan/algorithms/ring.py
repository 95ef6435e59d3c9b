"""ring: every member takes from its left neighbour, chunk by chunk.

Bandwidth-optimal in n - 1 steps; all_reduce is reduce_scatter and all_gather (Patarasu and Yuan,
2009).  broadcast and reduce are a chain from and to the root, pipelined.  ``zerocopy_ring`` is the
baseline that StrataCL's paper compares with: the same ring on the members' own arrays, block by
block, without chunks; sums of an all_reduce lie in OUT unless accumulators are wider than elements.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.plan.algorithms.collective import Along, rootless
from strata.plan.algorithms.trees import Trees
from strata.plan.topology import Topology


@lru_cache(16)
def around(n: int) -> Trees:
    """Block b goes to b + 1, b + 2, ... round the ring."""
    member, block = np.indices((n, n))
    step = (member - block - 1) % n
    step[member == block] = -1
    return Trees(np.where(member == block, -1, (member - 1) % n), step)


def chain(n: int, root: int, topology: Topology) -> Trees:
    """One block from the root along the members; each has one step, its own."""
    member = np.arange(n)[:, None]
    away = (member - root) % n
    return Trees(np.where(away > 0, (member - 1) % n, -1), np.where(away > 0, 0, -1))


_ORDER = "member b has block b: b + ((b + 1) + ((b + 2) + ...)), round the ring"

RING = Along(rootless(around), chain, most=8, most_rooted=64).algorithm(
    "ring", "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce",
    order=f"{_ORDER}; reduce: the same from the root, for all bytes",
)  # fmt: skip

ZEROCOPY_RING = Along(rootless(around), in_out=True).algorithm(
    "zerocopy_ring", "all_gather", "reduce_scatter", "all_reduce", order=_ORDER, chosen_freely=False
)
