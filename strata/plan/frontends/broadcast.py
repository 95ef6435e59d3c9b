"""broadcast: everyone pulls from the root."""

import numpy as np

from strata.plan.frontends._common import nothing, pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    if spec.in_place and rank == spec.root:
        return nothing()
    return pulls([spec.root], spec.part)
