"""From stages to the arrays that the simulator takes.

All stages *reserve* first, flags above all, so that any may wait for any; then all *write*.  Tasks, lanes and uses
get room for the most there can be, and what is left over is cut off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from strata._core.simulator import scratch
from strata.exec.timed.links import POOL_COLUMN, Links
from strata.exec.timed.places import Places
from strata.exec.timed.records import (
    FLAG_DTYPE,
    LANE_DTYPE,
    MEMBER_DTYPE,
    NONE,
    NOTHING,
    RENDEZVOUS_DTYPE,
    TASK_DTYPE,
    USE_DTYPE,
)
from strata.exec.timed.stage import Stage

WAITS = 2  # of a task


class Part(ABC):
    """What a stage comes to.  ``done``, ``arrived``: flags of each member, i32, once reserved."""

    done: np.ndarray
    arrived: np.ndarray

    @abstractmethod
    def reserve(self, stage: Stage, into: Assembly) -> tuple[int, int, int]:
        """Takes flags and rendezvous; the most tasks, uses and lanes that will be written."""

    @abstractmethod
    def write(self, stage: Stage, into: Assembly) -> None:
        """Writes them."""


class Assembly:
    """Arrays of a program, as ``_core.simulator.run`` takes them."""

    def __init__(self, links: Links, stages: list[Stage]) -> None:
        self.links = links
        self.places = Places(links)
        self.lock = np.full(links.ndies, NONE, np.int32)  # of each die's page table: who has it last
        self.nflags = 0
        self._needs: list[tuple[int, Any]] = []
        self._members: list[np.ndarray] = []
        self._rendezvous: list[np.ndarray] = []
        self._arrivals: list[tuple[np.ndarray, int]] = []
        self.nmembers = 0
        room = np.array([stage.part.reserve(stage, self) for stage in stages] or [(0, 0, 0)]).sum(axis=0)
        self.flags = np.zeros(self.nflags, FLAG_DTYPE)
        self.flags["rendezvous"] = NONE
        for base, need in self._needs:
            self.flags["need"][base : base + len(need)] = need
        for flags, index in self._arrivals:
            self.flags["rendezvous"][flags] = index
        self.members = np.concatenate([np.zeros(0, MEMBER_DTYPE), *self._members])
        self.rendezvous = np.concatenate([np.zeros(0, RENDEZVOUS_DTYPE), *self._rendezvous])
        pairs, self.pair = links.pairs(self.places.demand())
        self.memory = self.places.memories()
        self.all_links = np.concatenate([links.ports, pairs])
        ntasks, nuses, nlanes = room.tolist()
        tasks, uses = scratch(TASK_DTYPE, ntasks), scratch(USE_DTYPE, nuses)
        self.tasks, self.uses, self.lanes, self.at = tasks, uses, np.empty(nlanes, LANE_DTYPE), (0, 0, 0)
        for stage in stages:
            stage.part.write(stage, self)
        ntasks, nuses, nlanes = self.at
        self.tasks, self.uses, self.lanes = tasks[:ntasks], uses[:nuses], self.lanes[:nlanes]

    def flag(self, need: np.ndarray) -> np.ndarray:
        """New flags, i32; ``need``: posts of each."""
        base, self.nflags = self.nflags, self.nflags + len(need)
        self._needs.append((base, need))
        return np.arange(base, self.nflags, dtype=np.int32)

    def meet(self, dies: np.ndarray, arrive: np.ndarray, start: np.ndarray, base_ps: int, seen_ps: list[int]) -> None:
        """A rendezvous of members with these flags."""
        found = np.zeros(len(dies), MEMBER_DTYPE)
        found["die"], found["arrive"], found["start"] = dies, arrive, start
        meeting = np.zeros(1, RENDEZVOUS_DTYPE)
        meeting["first"], meeting["count"] = self.nmembers, len(dies)
        meeting["base_ps"], meeting["seen_ps"] = base_ps, seen_ps
        self._arrivals.append((arrive, len(self._rendezvous)))
        self._members.append(found)
        self._rendezvous.append(meeting)
        self.nmembers += len(dies)

    @staticmethod
    def serial_room(stage: Stage, number: int, uses: int) -> tuple[int, int, int]:
        """Room that ``serial`` takes."""
        n = len(stage.dies)
        return n * (number + len(stage.after)), n * uses, n

    def serial(self, stage: Stage, number: int, post: np.ndarray, extra: np.ndarray | None = None) -> np.ndarray:
        """A lane for each die, of ``number`` tasks, to be filled in; the tasks, (dies, number).

        The first waits for what the stage comes after and for ``extra``, the last posts ``post``.
        """
        n = len(stage.dies)
        waits = waits_of(stage, extra)
        joins = max(0, -(-waits.shape[1] // WAITS) - 1)
        each = joins + number
        first, nuses, lane = self.at
        made = self.tasks[first : first + n * each]
        made[:] = np.zeros((), TASK_DTYPE)
        made["wait"], made["post"], made["unit"] = NONE, NONE, NONE
        made["bound"], made["operation"], made["use_first"] = np.inf, stage.index, nuses
        made["kind"] = NOTHING
        made = made.reshape(n, each)
        for k in range(waits.shape[1]):
            made["wait"][:, min(k // WAITS, joins), k % WAITS] = waits[:, k]
        made["post"][:, -1] = post
        lanes = self.lanes[lane : lane + n]
        lanes["first"], lanes["count"] = first + each * np.arange(n), each
        lanes["die"], lanes["pool"], lanes["core"], lanes["ahead"] = stage.dies, NONE, NONE, 0
        self.at = first + n * each, nuses, lane + n
        return made[:, joins:]

    def use(self, tasks: np.ndarray, links: np.ndarray, weights: np.ndarray) -> None:
        """Gives each of ``tasks`` (n,) its uses: links (n, k), NONE for none, and weights that go with them."""
        first, nuses, lane = self.at
        there = (links != NONE) & (weights > 0)
        made = self.uses[nuses : nuses + int(there.sum())]
        made["link"], made["peer"] = links[there], NONE
        made["weight"] = np.broadcast_to(weights, links.shape)[there]
        tasks["nuse"] = there.sum(axis=1)
        tasks["use_first"] = nuses + np.cumsum(tasks["nuse"]) - tasks["nuse"]
        self.at = first, nuses + len(made), lane

    def pool(self, dies: np.ndarray) -> np.ndarray:
        """Links of the dies' free cores."""
        return self.links.rows[dies, POOL_COLUMN]


def waits_of(stage: Stage, extra: np.ndarray | None = None) -> np.ndarray:
    """Flags that a stage waits for before it begins, i32 (dies, k), the first ones first; NONE: none."""
    columns = []
    for a in stage.after:
        if a.dies is stage.dies or np.array_equal(a.dies, stage.dies):
            columns.append(a.part.done)
        else:
            done = a.part.done.tolist()
            there = [done[a.member[d]] if d in a.member else NONE for d in stage.dies.tolist()]
            columns.append(np.array(there, np.int32))
    if extra is not None:
        columns.append(extra)
    if not columns:
        return np.zeros((len(stage.dies), 0), np.int32)
    found = np.stack(columns, axis=1)
    found = np.take_along_axis(found, np.argsort(found == NONE, axis=1, kind="stable"), axis=1)
    return found[:, : int((found != NONE).sum(axis=1).max())]
