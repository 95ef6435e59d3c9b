"""all_to_all_v: as all_to_all, with the parts' sizes in a matrix and both sides packed."""

import numpy as np

from strata.plan.frontends._common import pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    mine = spec.counts[:, rank] * spec.itemsize
    before = spec.counts[:, :rank].sum(axis=1) * spec.itemsize  # in each source, parts of lower ranks
    return pulls(np.arange(spec.nranks), mine, src=before, dst=mine.cumsum() - mine)
