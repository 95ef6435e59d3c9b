"""Plans: what an operation moves, as plain data that any executor takes.

``build(Spec(...), rank)`` gives a die's plan, ``build_all`` all members', and ``PlanCache`` keeps plans;
``verify(plans)`` proves that the plans of all members deliver the operation.  ``save``, ``load``,
``save_all`` and ``load_all`` keep plans in files (npz or JSON), ``diff(a, b)`` tells what two differ in.
"""

from strata.plan.build import PlanCache, build, build_all
from strata.plan.files import load, load_all, save, save_all
from strata.plan.plan import Plan, PlanError
from strata.plan.spec import OPERATIONS, Spec
from strata.plan.text import diff

__all__ = [
    "OPERATIONS", "Plan", "PlanCache", "PlanError", "Spec", "build", "build_all", "diff", "load", "load_all", "save",
    "save_all", "verify",
]  # fmt: skip


def verify(plans: "list[Plan]") -> "dict[str, int]":
    """Proves the plans of all members; see ``strata.plan.verifier.verify``."""
    from strata.plan.verifier import verify as prove  # loaded by those who verify

    return prove(plans)
