"""scatter: everyone pulls its own part of the root's source."""

import numpy as np

from strata.plan.frontends._common import Ranks, pulls, unless
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    nbytes = unless(rank == spec.root, spec.part) if spec.in_place else spec.part
    return pulls([spec.root], nbytes, src=rank * spec.part)
