"""What an algorithm is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from strata.plan.spec import Spec
from strata.plan.topology import Topology


def _no_scratch(spec: Spec, rank: int, topology: Topology) -> int:
    return 0


def _anything(spec: Spec, topology: Topology) -> str | None:
    return None


@dataclass(frozen=True)
class Algorithm:
    """A way to carry out some operations.

    ``slices(spec, rank, topology)``   what the member does, SLICE_DTYPE; none empty
    ``scratch(spec, rank, topology)``  bytes of scratch that the member provides
    ``refuses(spec, topology)``        why it cannot do this spec, or None
    ``exposes_out``                    peers read or write members' OUT in a way that full mesh
                                       does not, so that OUT must be fabric memory on all members
    ``order``                          in which order operands are reduced, for documents
    ``mailbox``                        whether it can work from mailboxes
    ``depth(spec, topology)``          synchronisations on the longest way, where that is more than
                                       any member's own (pipelines along members), for the cost model
    ``rank_order``                     reductions take operands in rank order, all at once, so that
                                       the bits are those of full_mesh
    ``many(spec, ranks, topology)``    ``slices`` of each of ``ranks``, int64, where all at once take less
    ``chosen_freely``                  the library may choose it; False for baselines, and for
                                       reductions in free order
    """

    name: str
    operations: frozenset[str]
    slices: Callable[[Spec, int, Topology], np.ndarray]
    scratch: Callable[[Spec, int, Topology], int] = _no_scratch
    refuses: Callable[[Spec, Topology], str | None] = _anything
    exposes_out: bool = True
    order: str = ""
    mailbox: bool = False
    depth: Callable[[Spec, Topology], int] | None = None
    rank_order: bool = False
    many: Callable[[Spec, np.ndarray, Topology], list[np.ndarray]] | None = None
    chosen_freely: bool = True

    def slices_of(self, spec: Spec, ranks: np.ndarray, topology: Topology) -> list[np.ndarray]:
        """``slices`` of each of ``ranks``, int64; they may share memory."""
        if self.many is not None:
            return self.many(spec, ranks, topology)
        return [self.slices(spec, rank, topology) for rank in ranks.tolist()]

    def refusal(self, spec: Spec, topology: Topology) -> str | None:
        """Why the algorithm cannot do ``spec``, or None."""
        if spec.operation not in self.operations:
            return f"it does {', '.join(sorted(self.operations))}"
        if spec.mode == "mailbox" and not self.mailbox:
            return "it does not work from mailboxes"
        return self.refuses(spec, topology)
