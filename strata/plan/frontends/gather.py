"""gather: the root pulls each member's source into its part of OUT."""

import numpy as np

from strata.plan.frontends._common import nothing, pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    if rank != spec.root:
        return nothing()
    peers = np.arange(spec.nranks)
    out = pulls(peers, spec.part, dst=peers * spec.part)
    return out[peers != rank] if spec.in_place else out
