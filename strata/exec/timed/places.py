"""Which of a die's cores and rings an operation has, and what may be asked of pairs of dies and of memories at once.

An operation prefers what was held by operations that are over when it begins, then what nobody had.  If neither is
left it takes what was taken longest ago, and waits for it, core by core: operations hold a core in the order in which
they were added, so no two wait for each other, and no more cores are held than there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.exec.timed.links import HBM_COLUMN, Links
from strata.exec.timed.records import NONE
from strata.exec.timed.stage import Stage

FREE = -1  # of an owner: nobody had it

# Columns of a place (``st_load_place``)
CORE, CORE_WAIT, CORE_POST, RING, RING_WAIT, RING_POST = range(6)


@dataclass
class _Chain:
    """Operations of which on each die none begins before the one before it is over there."""

    last: np.ndarray  # i64 (ndies,): the last stage on each die
    most: np.ndarray  # f64 (2, ndies, ndies): the most that readers, and writers, of one operation ask for
    own: np.ndarray  # f64 (ndies,): the most that the dies' own cores ask of their memory


class _Owners:
    """Who had which of a die's cores, or rings: stage, and row in its places, i64 (ndies, number)."""

    def __init__(self, ndies: int, number: int) -> None:
        self.stage = np.full((ndies, number), FREE)
        self.row = np.full((ndies, number), FREE)


class Places:
    """What all operations of a program have so far."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self._owners: dict[int, _Owners] = {}
        self._tables: dict[int, np.ndarray] = {}
        self._chains: list[_Chain] = []
        self._others = np.zeros((links.ndies, 2))  # of bytes out of and into a die, how many touch its memory
        self._kernels = np.zeros(links.ndies, bool)

    def take(self, stage: Stage, cores: np.ndarray, busy: np.ndarray, table: np.ndarray, column: int, number: int,
             flag) -> None:  # fmt: skip
        """Fills in which cores (column CORE) or rings (RING), of ``number`` on a die, an operation has.

        ``cores`` i64 (members,): of each plan; ``busy`` bool: which of all these have something to do; ``table`` i32
        (cores of all plans, 6); ``flag()``: a new flag.
        """
        first = np.cumsum(cores) - cores
        table[:, column] = np.arange(len(table)) - np.repeat(first, cores)
        self._tables[stage.index] = table
        owners = self._owners.get(column)
        if owners is None:
            owners = self._owners[column] = _Owners(self.links.ndies, number)
        elif (owners.stage[stage.dies] != FREE).any():
            self._choose(stage, first, cores, owners, table, column, flag)
        die = np.repeat(stage.dies, cores)[busy]
        owners.stage[die, table[busy, column]] = stage.index
        owners.row[die, table[busy, column]] = np.nonzero(busy)[0]

    def _choose(self, stage, first, cores, owners, table, column, flag) -> None:
        held = owners.stage[stage.dies]
        over = np.zeros(held.shape, bool)
        for other in np.unique(held[held != FREE]).tolist():
            over |= (held == other) & stage.over(other)[:, None]
        # Best first: what is over, what nobody had, then the longest ago.
        order = np.argsort(np.where(over, FREE - 1, held), axis=1, kind="stable")
        for m, count in enumerate(cores.tolist()):
            rows = table[first[m] : first[m] + count]
            rows[:, column] = order[m, :count]
            for k in np.nonzero((held[m] != FREE) & ~over[m])[0].tolist():
                mine = np.nonzero(rows[:, column] == k)[0]
                if len(mine):
                    die = stage.dies[m]
                    other, row = int(owners.stage[die, k]), int(owners.row[die, k])
                    rows[mine[0], column + 1] = self._tables[other][row, column + 2] = flag()

    def ask(self, stage: Stage, demand: np.ndarray, memory: np.ndarray) -> None:
        """Counts in what cores ask of pairs of members, f64 (2, n, n), readers and writers, and of their memories,
        f64 (n, 5), as st_load_memory."""
        dies, ndies = stage.dies, self.links.ndies
        for chain in self._chains:
            last = chain.last[dies]
            if all(stage.over(other)[last == other].all() for other in np.unique(last[last != FREE]).tolist()):
                break
        else:
            chain = _Chain(np.full(ndies, FREE), np.zeros((2, ndies, ndies)), np.zeros(ndies))
            self._chains.append(chain)
        chain.last[dies] = stage.index
        if len(dies) == ndies and np.array_equal(dies, np.arange(ndies)):
            np.maximum(chain.most, demand, out=chain.most)
        else:
            where = (slice(None), dies[:, None], dies)
            chain.most[where] = np.maximum(chain.most[where], demand)
        remote, local, ratio = memory[:, :3].T
        ports = self.links.through[dies].sum(axis=1)
        own = np.where(ratio > 0, np.minimum(remote, np.maximum(ratio, 1e-9) * ports), 0.0) + local
        chain.own[dies] = np.maximum(chain.own[dies], own)
        self._others[dies] = np.maximum(self._others[dies], memory[:, 3:])

    def kernel(self, stage: Stage) -> None:
        """Counts in a kernel that reads and writes memory, as fast as that goes."""
        self._kernels[stage.dies] = True

    def demand(self) -> np.ndarray:
        """The most that may be asked for at once of what die a gives die b, f64 (ndies, ndies), as if all was read."""
        found = np.zeros((self.links.ndies,) * 2)
        for chain in self._chains:
            found += chain.most[0]
            found += chain.most[1]
        return found

    def memories(self) -> np.ndarray:
        """Links of the dies' memory, i32 (ndies,): NONE where it gives whatever may be asked for at once."""
        asked = sum((chain.own for chain in self._chains), np.zeros(self.links.ndies))
        for way in (0, 1):
            there = self._others[:, way] > 0
            asked[there] += self._others[there, way] * self.links.through[there, way]
        limits = self._kernels | (asked > self.links.memory)
        return np.where(limits, self.links.rows[:, HBM_COLUMN], NONE).astype(np.int32)
