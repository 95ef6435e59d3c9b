"""Which algorithm and path an operation takes."""

from __future__ import annotations

from strata.errors import InvalidArgument
from strata.plan import algorithms
from strata.plan.algorithms import Algorithm
from strata.plan.spec import Spec
from strata.plan.topology import HOST, Topology

PATHS = ("mte",)


def choose(
    spec: Spec, algorithm: str | None = None, path: str | None = None, topology: Topology = HOST
) -> tuple[Algorithm, str]:
    """The algorithm and path for ``spec``: those asked for, else the library's choice.

    InvalidArgument (a ValueError) names what is available.
    """
    if path is not None and path not in PATHS:
        raise InvalidArgument(f"path {path!r} is not available for {spec.operation}; there is {', '.join(PATHS)}")
    return algorithms.get(algorithm or "full_mesh", spec, topology), path or "mte"
