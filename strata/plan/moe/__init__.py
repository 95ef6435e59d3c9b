"""MoE dispatch and combine, planned: who has which expert, what moves, and which core moves it.

A die tells the others what its tokens' passes gave (``strata._core.routing``); from all dies' counts it makes windows,
from windows and lists its plan (``dispatch_plan``, ``combine_plan``).  ``played`` does so for all dies at once, and
``verify`` proves the plans of all.
"""

from strata.plan.moe.balancing import balance, bound, imbalance
from strata.plan.moe.partition import combine_plan, dispatch_plan, tariff
from strata.plan.moe.placement import MASKED, Placement
from strata.plan.moe.proof import verify
from strata.plan.moe.rounds import Round, combine_plans, dispatch_plans, played
from strata.plan.moe.routing import Routing

__all__ = [
    "MASKED", "Placement", "Round", "Routing", "balance", "bound", "combine_plan", "combine_plans", "dispatch_plan",
    "dispatch_plans", "imbalance", "played", "tariff", "verify",
]  # fmt: skip
