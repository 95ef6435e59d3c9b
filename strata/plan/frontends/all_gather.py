"""all_gather: pull each member's source into its part of OUT."""

import numpy as np

from strata.plan.frontends._common import Ranks, others, pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    peers = others(spec.nranks, rank) if spec.in_place else np.arange(spec.nranks)
    return pulls(peers, spec.part, dst=peers * spec.part)
