"""What the paper says, what the timing plane says, and how the two are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from strata.machine import Machine
from strata.plan.records import TIER_NAMES
from strata.prediction import simulate

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

FITTED = "fitted"  # a constant of the machine was chosen so that this comes out
PREDICTED = "predicted"

NEAR = 0.15


@dataclass(frozen=True)
class Claim:
    """A published figure and the way to it.

    ``where``      in the paper
    ``published``  a figure, or the least and the most
    ``ours``       from a machine to the figure
    ``why``        if it is missed: the reason that we believe
    ``smaller``    which of two is meant by 'ahead' is not part of a figure: bounds are "at most" (-1), "at least" (1)
    """

    where: str
    what: str
    published: float | tuple[float, float]
    unit: str
    kind: str
    ours: Callable[[Machine], float]
    why: str = ""
    bound: int = 0

    def ratio(self, value: float) -> float:
        """Ours to the published figure: 1 within a published range, or on the right side of a bound."""
        low, high = self.published if isinstance(self.published, tuple) else (self.published, self.published)
        if (self.bound < 0 and value <= high) or (self.bound > 0 and value >= low):
            return 1.0
        return value / min(max(value, low), high)

    def near(self, value: float) -> bool:
        """Within 15 % of what is published."""
        ratio = self.ratio(value)
        return 1 / (1 + NEAR) <= ratio <= 1 + NEAR


class Timed(NamedTuple):
    """Of a simulation, what is kept: the operation, and (dies, cores) of how long each core was held; microseconds."""

    time_us: float
    core_times_us: np.ndarray


@functools.lru_cache(4096)
def run(machine: Machine, operation: str, nbytes: int, ranks: int, algorithm: str, path: str = "mte",
        cores: int = 48, partition: str = "balanced") -> Timed:  # fmt: skip
    """A simulation, once."""
    found = simulate(operation, nbytes, ranks, machine, algorithm=algorithm, path=path, cores=cores,
                     partition=partition, dtype="f4")  # fmt: skip
    return Timed(found.time_us, found.core_times_us)


def wide(machine: Machine) -> Machine:
    """The machine with one core a die that does what all do on one peer: a ring, which has one peer, takes as long on
    it (at 64 KiB 8 % less, from some MiB on the same), with as many units fewer as there are cores."""
    rates = {f"tier.{t}.core_gbps": machine.constants()[f"tier.{t}.read_gbps"] for t in TIER_NAMES}
    units = {f"tier.{t}.unit_bytes": 1 << 40 for t in TIER_NAMES}
    return machine.replace(**rates, **units)


def us(machine: Machine, operation: str, nbytes: int, ranks: int, algorithm: str, **ways: Any) -> float:
    """Microseconds of it.  Rings of many dies are on one wide core."""
    if algorithm == "zerocopy_ring" and ranks > 64 and not ways:
        return run(wide(machine), operation, nbytes, ranks, algorithm, cores=1).time_us
    return run(machine, operation, nbytes, ranks, algorithm, **ways).time_us
