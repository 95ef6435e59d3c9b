"""reduce: every member reduces one share and pushes it to the root, which so reads and adds
no more than the others.  From mailboxes the root reduces everything itself.

A member off the root has no OUT: its share is TRANSIENT, never stored on its way.
"""

import numpy as np

from strata.plan.frontends._common import nothing, pulls, pushes, share
from strata.plan.records import SCRATCH, TRANSIENT
from strata.plan.spec import Spec


def slices(spec: Spec, rank: int) -> np.ndarray:
    """The die's slices, SLICE_DTYPE."""
    n, root = spec.nranks, spec.root
    peers = np.arange(n)
    if n == 1:
        return pulls(peers[spec.in_place :], spec.part)
    if spec.mode == "mailbox":
        return pulls(peers, spec.part, op=spec.redop) if rank == root else nothing()
    start, length = share(spec.part, spec.itemsize, n, rank)
    if rank == root:
        return pulls(peers, length, src=start, dst=start, op=spec.redop)
    reduced = pulls(peers, length, src=start, op=spec.redop)
    reduced["dst_buf"] = SCRATCH
    reduced["flags"] = TRANSIENT
    sent = pushes([root], length, dst=start)
    sent["src_buf"] = SCRATCH
    return np.concatenate((reduced, sent))
