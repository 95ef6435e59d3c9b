"""MoE dispatch and combine, planned: who has which expert, what moves, and which core moves it."""

from strata.plan.moe.placement import MASKED, Placement

__all__ = ["MASKED", "Placement"]
