"""all_reduce: reduce one share from all sources and push it to all members.

Only the share's owner touches it, in any member's buffers, so the operation is safe in
place.  From mailboxes every member reduces everything for itself: they are small, and
a push would need a second synchronisation.
"""

import numpy as np

from strata.plan.frontends._common import pulls, pushes, share
from strata.plan.spec import Spec


def slices(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    n = spec.nranks
    peers = np.arange(n)
    if n == 1:
        return pulls(peers[spec.in_place :], spec.part)
    if spec.mode == "mailbox":
        return pulls(peers, spec.part, op=spec.redop)
    start, length = share(spec.part, spec.itemsize, n, rank)
    return np.concatenate(
        (
            pulls(peers, length, src=start, dst=start, op=spec.redop),
            pushes(peers[peers != rank], length, src=start, dst=start),
        )
    )
