"""all_reduce: reduce one share from all sources and push it to all members.

Only the share's owner touches it, in any member's buffers, so the operation is safe in
place.  From mailboxes every member reduces everything for itself: they are small, and
a push would need a second synchronisation.
"""

import numpy as np

from strata.plan.frontends._common import Ranks, joined, others, pulls, pushes, share
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> np.ndarray:
    """The slices of a die, or of each."""
    n = spec.nranks
    peers = np.arange(n)
    if n == 1:
        return pulls(peers[spec.in_place :], spec.part)
    if spec.mode == "mailbox":
        return pulls(peers, spec.part, op=spec.redop)
    start, length = share(spec.part, spec.itemsize, n, rank)
    return joined(
        pulls(peers, length, src=start, dst=start, op=spec.redop),
        pushes(others(n, rank), length, src=start, dst=start),
    )
