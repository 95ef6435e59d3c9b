"""Beyond the paper: what selection gives, against the better of ring and full mesh, by size and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reproduction.claims import GIB, KIB, wide

from strata.machine import Machine
from strata.prediction import simulate

RANKS = (8, 32, 128, 512)
MANY = 32  # more ranks are simulated in windows,
WINDOW = 1000  # which are so small a part of full mesh's time
SIZES = tuple(KIB << i for i in range(0, 21, 2))
assert SIZES[-1] == GIB


class Row(NamedTuple):
    """Microseconds of an all_gather; ``chosen``: the algorithm that selection took."""

    ranks: int
    nbytes: int
    ring: float
    mesh: float
    chosen: str
    ours: float

    @property
    def ahead(self) -> float:
        """By how much selection is ahead of the better of the two; below 1: behind."""
        return min(self.ring, self.mesh) / self.ours


def rows(machine: Machine, ranks: tuple[int, ...] = RANKS, sizes: tuple[int, ...] = SIZES) -> Iterator[Row]:
    """All of them.  Ring and full mesh have all cores, and of many dies ring has one wide core (``claims.wide``);
    many dies are simulated in windows; of the most, every second size."""
    for n in ranks:
        for nbytes in sizes if n < max(RANKS) else sizes[::2]:
            mesh = _us(machine, nbytes, n, "full_mesh", 0.0)
            window = 0.0 if n <= MANY else round(mesh / WINDOW, 6)
            ring = _us(machine, nbytes, n, "zerocopy_ring", window)
            found = simulate("all_gather", nbytes, n, machine, select="simulation", window_us=window)
            yield Row(n, nbytes, ring, mesh, found.algorithm, found.time_us)


def _us(machine: Machine, nbytes: int, ranks: int, algorithm: str, window_us: float) -> float:
    cores = machine.die.cores
    if algorithm == "zerocopy_ring" and ranks > 64:
        machine, cores = wide(machine), 1
    return simulate("all_gather", nbytes, ranks, machine, algorithm=algorithm, path="mte", cores=cores,
                    window_us=window_us).time_us  # fmt: skip
