"""A fabric-native communication library for supernodes, on one Linux host."""

from __future__ import annotations

from typing import Any

from strata import bootstrap as _bootstrap
from strata import comm as _comm
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


def init(timeout: float | None = None) -> None:
    """Joins the job of strata-run (or another launcher); outside any job, a job of one die.

    Idempotent.  ``timeout``: seconds to wait for the other dies.
    """
    _bootstrap.init(timeout)
