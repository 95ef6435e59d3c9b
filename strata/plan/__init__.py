"""Plans: what an operation moves, as plain data that any executor takes.

``build(Spec(...), rank)`` gives a die's plan, ``PlanCache`` keeps them, and
``verify(plans)`` proves that the plans of all members deliver the operation.
"""

from strata.plan.build import PlanCache, build
from strata.plan.plan import Plan, PlanError
from strata.plan.spec import OPERATIONS, Spec

__all__ = ["OPERATIONS", "Plan", "PlanCache", "PlanError", "Spec", "build", "verify"]


def verify(plans: "list[Plan]") -> "dict[str, int]":
    """Proves the plans of all members; see ``strata.plan.verifier.verify``."""
    from strata.plan.verifier import verify as prove  # loaded by those who verify

    return prove(plans)
