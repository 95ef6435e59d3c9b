"""reduce_scatter: reduce own part from all sources."""

import numpy as np

from strata.plan.frontends._common import Ranks, pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    peers = np.arange(spec.nranks)
    if spec.nranks == 1:
        return pulls(peers[spec.in_place :], spec.part)
    return pulls(peers, spec.part, src=rank * spec.part, op=spec.redop)
