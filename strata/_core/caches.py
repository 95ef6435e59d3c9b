"""Whether what an operation moves stays in the caches of the CPUs, or is better written past them."""

from __future__ import annotations

import functools
import os
from typing import Any

from strata._core.cpus import granted

__all__ = ["cache_bytes", "dies_per_cpu", "past_caches"]

FALLBACK = 1 << 20  # where the kernel does not say


def _read(path: str) -> str:
    with open(path) as f:
        return f.read().strip()


@functools.cache
def cache_bytes(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Bytes of the second-level cache, which a CPU has for itself.  ``folder``: where the kernel shows its caches."""
    try:
        for name in sorted(os.listdir(folder)):
            if name.startswith("index") and _read(f"{folder}/{name}/level") == "2":
                size = _read(f"{folder}/{name}/size")  # "2048K"
                return int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1], 0) or FALLBACK
    except (OSError, ValueError, IndexError):
        pass
    return FALLBACK


@functools.cache
def dies_per_cpu(ndies: int) -> int:
    """Dies of a job that share a CPU's cache.  By the host's CPUs, since each die may be bound to one of them."""
    return -(-ndies // granted(os.cpu_count() or 1))


def past_caches(units: Any, ndies: int) -> bool:
    """Whether non-temporal stores pay for a plan: what a CPU's dies read and write in it is more than its cache holds.

    ``units``: records with bytes, nsrc and ndst.  ``ndies``: of the job; 0: never.
    """
    moved = units["bytes"].astype("u8") * (units["nsrc"].clip(1).astype("u8") + units["ndst"].clip(1))
    return int(moved.sum()) * dies_per_cpu(ndies) > cache_bytes()
