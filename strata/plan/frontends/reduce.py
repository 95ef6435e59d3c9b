"""reduce: every member reduces one share and pushes it to the root, which so reads and adds
no more than the others.  From mailboxes the root reduces everything itself.

A member off the root has no OUT: its share is TRANSIENT, never stored on its way.
"""

import numpy as np

from strata.plan.frontends._common import Ranks, Slices, at_root, joined, pulls, pushes, share, unless
from strata.plan.records import OUT, SCRATCH, TRANSIENT
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> Slices:
    """The slices of a die, or of each."""
    n, root = spec.nranks, spec.root
    peers = np.arange(n)
    if n == 1:
        return pulls(peers[spec.in_place :], spec.part)
    if spec.mode == "mailbox":
        return at_root(spec, rank, lambda spec, rank: pulls(peers, spec.part, op=spec.redop))
    start, length = share(spec.part, spec.itemsize, n, rank)
    own = rank == root
    reduced = pulls(peers, length, src=start, dst=own * start, op=spec.redop)
    reduced["dst_buf"] = np.where(own, OUT, SCRATCH)
    reduced["flags"] = unless(own, TRANSIENT)
    sent = pushes([root], unless(own, length), dst=start)
    sent["src_buf"] = SCRATCH
    return joined(reduced, sent)
