"""barrier: nothing moves; the arrival that every operation begins with is all of it."""

import numpy as np

from strata.plan.frontends._common import Ranks, nothing
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    return nothing()
