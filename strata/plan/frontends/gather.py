"""gather: the root pulls each member's source into its part of OUT."""

from strata.plan.frontends import all_gather
from strata.plan.frontends._common import Ranks, Slices, at_root
from strata.plan.spec import Spec


def slices(spec: Spec, rank: Ranks) -> Slices:
    """The slices of a die, or of each."""
    return at_root(spec, rank, all_gather.slices)
