"""Which algorithm and path an operation takes."""

from __future__ import annotations

from strata.errors import InvalidArgument
from strata.plan.spec import Spec

ALGORITHMS = ("full_mesh",)
PATHS = ("mte",)


def choose(spec: Spec, algorithm: str | None = None, path: str | None = None) -> tuple[str, str]:
    """The algorithm and path for ``spec``: those asked for, else the library's choice.

    InvalidArgument (a ValueError) names what is available.
    """
    for what, asked, there in (("algorithm", algorithm, ALGORITHMS), ("path", path, PATHS)):
        if asked is not None and asked not in there:
            raise InvalidArgument(
                f"{what} {asked!r} is not available for {spec.operation}; there is {', '.join(there)}"
            )
    return algorithm or "full_mesh", path or "mte"
