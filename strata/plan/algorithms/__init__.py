"""Algorithms: ways to carry out an operation, each one function from a spec to a die's slices.

``full_mesh`` is the frontends' own: every member works with every other directly, in one step.
The others are one file each, and users add theirs (``register``).
"""

from __future__ import annotations

import zlib

from strata.errors import InvalidArgument
from strata.plan.algorithms import atomic, binomial, bruck, full_mesh, hierarchical, pat, rhd, ring, staged
from strata.plan.algorithms.algorithm import Algorithm
from strata.plan.spec import Spec
from strata.plan.topology import Topology

__all__ = ["Algorithm", "available", "get", "names", "register"]

_BUILTIN: tuple[Algorithm, ...] = (
    full_mesh.FULL_MESH,
    ring.RING,
    ring.ZEROCOPY_RING,
    rhd.RHD,
    pat.PAT,
    binomial.BINOMIAL,
    binomial.SCATTER_ALLGATHER,
    bruck.BRUCK,
    hierarchical.HIERARCHICAL,
    atomic.ATOMIC_RMW,
    staged.STAGED,
)
_ALL: dict[str, Algorithm] = {a.name: a for a in _BUILTIN}


def names() -> tuple[str, ...]:
    """All algorithms' names, the library's own first."""
    return tuple(_ALL)


def register(algorithm: Algorithm) -> Algorithm:
    """Adds a user's algorithm, or replaces one of the same name; InvalidArgument for a built-in name."""
    if algorithm.name in {a.name for a in _BUILTIN}:
        raise InvalidArgument(f"algorithm {algorithm.name!r} is the library's own; give yours another name")
    _ALL[algorithm.name] = algorithm
    return algorithm


def get(name: str, spec: Spec, topology: Topology) -> Algorithm:
    """The algorithm of that name, if it can do ``spec``; else InvalidArgument that says why, and what can."""
    found = _ALL.get(name)
    if found is None:
        why = f"there is no algorithm {name!r}"
    else:
        reason = found.refusal(spec, topology)
        if reason is None:
            return found
        why = f"algorithm {name!r} is not available for {spec.operation}: {reason}"
    can = ", ".join(a.name for a in available(spec, topology))
    raise InvalidArgument(f"{why}; there is {can}", operation=spec.operation)


def find(name: str) -> Algorithm | None:
    """The algorithm of that name, or None."""
    return _ALL.get(name)


def is_users(name: str) -> bool:
    """Whether the algorithm of that name is a user's."""
    return name in _ALL and _ALL[name] not in _BUILTIN


def exposes_out(name: str) -> bool:
    """``Algorithm.exposes_out`` of that name; True for one that is not known here."""
    return name not in _ALL or _ALL[name].exposes_out


def digest(name: str) -> int:
    """15 bits that tell an algorithm from others, the same on all hosts; 0 for full_mesh."""
    return 0 if name == "full_mesh" else zlib.crc32(name.encode()) & 0x7FFF or 1


def by_digest(code: int) -> str:
    """The algorithm with this digest, in words."""
    for name in _ALL:
        if digest(name) == code:
            return name
    return f"an algorithm not known here (#{code})"


def available(spec: Spec, topology: Topology) -> list[Algorithm]:
    """The algorithms that can do ``spec``."""
    return [a for a in _ALL.values() if a.refusal(spec, topology) is None]
