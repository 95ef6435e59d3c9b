"""all_to_all: pull own part of each member's source."""

import numpy as np

from strata.plan.frontends._common import Ranks, pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    peers = np.arange(spec.nranks)
    return pulls(peers, spec.part, src=rank * spec.part, dst=peers * spec.part)
