"""all_to_all_v: as all_to_all, with the parts' sizes in a matrix and both sides packed."""

import numpy as np

from strata.plan.frontends._common import Ranks, pulls
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    counts = spec.counts
    if isinstance(rank, int):
        before = counts[:, :rank].sum(axis=1)  # in each source, parts of lower ranks
        mine = counts[:, rank]
    else:
        before = (counts.cumsum(axis=1) - counts).T[rank[:, 0]]
        mine = counts.T[rank[:, 0]]
    dst = mine.cumsum(axis=-1) - mine
    return pulls(np.arange(spec.nranks), mine * spec.itemsize, src=before * spec.itemsize, dst=dst * spec.itemsize)
