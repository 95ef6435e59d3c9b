"""barrier: nothing moves; the arrival that every operation begins with is all of it."""

import numpy as np

from strata.plan.frontends._common import nothing
from strata.plan.spec import Spec


def slices(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    return nothing()
