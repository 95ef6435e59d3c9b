"""A fabric-native communication library for supernodes, on one Linux host.

    import strata
    g = strata.world()
    x = strata.ones(1000, "f4")
    g.all_reduce(x)

run by ``strata-run -n 4 program.py``, or as a job of one die without it.
"""

from __future__ import annotations

from strata._core.work import Work
from strata.comm import Group, world
from strata.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    ConfigError,
    FabricMemoryError,
    GroupBroken,
    NotInJob,
    PeerDead,
    RegistrationError,
    StrataError,
)
from strata.fabric.arrays import (
    address,
    array,
    empty,
    empty_like,
    full,
    full_like,
    is_fabric,
    memory_stats,
    ones,
    ones_like,
    owner,
    zeros,
    zeros_like,
)
from strata.job import explain, finalize, init, initialized, stats

__all__ = [
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ConfigError",
    "FabricMemoryError",
    "Group",
    "GroupBroken",
    "NotInJob",
    "PeerDead",
    "RegistrationError",
    "StrataError",
    "Work",
    "address",
    "array",
    "empty",
    "empty_like",
    "explain",
    "finalize",
    "full",
    "full_like",
    "init",
    "initialized",
    "is_fabric",
    "memory_stats",
    "ones",
    "ones_like",
    "owner",
    "spawn",
    "stats",
    "world",
    "zeros",
    "zeros_like",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "spawn":  # a die never needs the launcher
        from strata.launch import spawn

        return spawn
    raise AttributeError(f"module 'strata' has no attribute {name!r}")
