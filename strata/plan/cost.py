"""What a transfer is expected to cost, by distance: tau(s) = alpha + s / beta."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.records import NTIERS

KIB = 1 << 10
MIB = 1 << 20
NO_CAP = 1 << 16


def _derived() -> Any:
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True)
class Cost:
    """Figures by tier (local, SIO, L1, L2) that the scheduler goes by; InvalidArgument if
    there are not four of each, or one is out of range.

    ``alpha_us``    start-up of a transfer, microseconds
    ``gbps``        rate of one core on one peer, 1e9 bytes per second
    ``unit_bytes``  size S_t of the units that slices are cut to
    ``cap``         H_t: cores of a die that may be on one peer in one stripe
    ``sio_gbps``, ``ub_gbps``  a die's port to its package and to all others, 1e9 bytes per second in each
                    direction; 0: no limit but the cores (``plan.ports`` goes by them, partition does not)

    ``row_us``      units that move rows of a table: from a row to the next at least, microseconds; 0: bytes alone count

    Times are whole picoseconds, so that the same plan comes out on every host.
    """

    alpha_us: tuple[float, ...]
    gbps: tuple[float, ...]
    unit_bytes: tuple[int, ...]
    cap: tuple[int, ...] = (NO_CAP,) * NTIERS
    sio_gbps: float = 0.0
    ub_gbps: float = 0.0
    row_us: tuple[float, ...] = (0.0,) * NTIERS

    alpha_ps: np.ndarray = _derived()
    ps_per_byte: np.ndarray = _derived()
    units: np.ndarray = _derived()
    caps: np.ndarray = _derived()
    _hash: int = _derived()

    def __post_init__(self) -> None:
        for name, least in (("alpha_us", 0), ("gbps", 1e-6), ("unit_bytes", 1), ("cap", 1), ("row_us", 0)):
            value = tuple(getattr(self, name))
            if len(value) != NTIERS or not all(least <= v < 1 << 48 for v in value):
                raise InvalidArgument(f"{name} is {value}: not {NTIERS} figures of {least} or more")
            object.__setattr__(self, name, value)
        for name in ("sio_gbps", "ub_gbps"):
            rate = getattr(self, name)
            if not (rate == 0 or 1e-6 <= rate < 1 << 48):
                raise InvalidArgument(f"{name} is {rate}: 0 (none) or a rate in GB/s is expected")
        for name, array in (
            ("alpha_ps", np.rint(np.array(self.alpha_us) * 1e6).astype(np.int64)),
            ("ps_per_byte", 1e3 / np.array(self.gbps, np.float64)),
            ("units", np.array(self.unit_bytes, np.int64)),
            ("caps", np.array(self.cap, np.int64)),
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        figures = (self.alpha_us, self.gbps, self.unit_bytes, self.cap, self.sio_gbps, self.ub_gbps, self.row_us)
        object.__setattr__(self, "_hash", hash(figures))

    def row_ps(self, nbytes: int) -> np.ndarray:
        """From a row of so many bytes to the next, f64 picoseconds by tier."""
        return np.maximum(self.ps_per_byte * nbytes, np.array(self.row_us) * 1e6)

    def __hash__(self) -> int:
        """Found once: plans are looked up by it."""
        return self._hash


# One core of a common server; what a die does is measured, not taken from here.
HOST = Cost(alpha_us=(0.2,) * 4, gbps=(10.0,) * 4, unit_bytes=(512 * KIB,) * 4)
