"""The timing plane: plans, kernels and mappings of memory on a named machine, and when each is done."""

from strata.exec.timed.links import Effects
from strata.exec.timed.program import Program
from strata.exec.timed.stage import Stage
from strata.exec.timed.timeline import Timeline

__all__ = ["Effects", "Program", "Stage", "Timeline"]
