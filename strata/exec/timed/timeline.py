"""When everything that a program does begins and ends."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.exec.timed.assembly import Assembly
from strata.exec.timed.operation import SDMA, Operation
from strata.exec.timed.records import MOVE, NONE
from strata.exec.timed.stage import Stage
from strata.machine.description import Machine
from strata.plan.records import NTIERS, TIER_NAMES

US = 1e6  # picoseconds

ROW_DTYPE = np.dtype(
    [
        ("stage", "<i4"), ("die", "<i4"), ("core", "<i4"), ("unit", "<i4"), ("kind", "u1"), ("tier", "u1"),
        ("ready", "<i8"), ("begun", "<i8"), ("flowing", "<i8"), ("done", "<i8"), ("work", "<f8"), ("bound", "<f8"),
    ]
)  # fmt: skip

# What a core's time goes to, in the order in which it comes; ``port`` is followed by one for each tier.
PARTS = ("launch", "opening", "flags", "submission", "issue", "latency", "transfer", "port", "idle", "closing")


class Arrays(NamedTuple):
    """What was simulated and what became of it, as ``st_timing.h`` and ``records`` have it; not to be changed."""

    links: np.ndarray
    uses: np.ndarray
    tasks: np.ndarray
    lanes: np.ndarray
    flags: np.ndarray
    times: np.ndarray
    raised: np.ndarray


class _Ran(NamedTuple):
    """Where an operation is in the arrays of a run: lanes of all plans' cores and rings, flags of members."""

    lanes: np.ndarray
    cores: np.ndarray
    start: np.ndarray
    drained: np.ndarray
    path: str
    launch: np.ndarray

    @classmethod
    def of(cls, part: Operation) -> _Ran:
        return cls(part.lanes, part.translation.cores, part.start, part.drained, part.path, part.launch_ps)


class Timeline:
    """What a run found.

    ``end_us``   when all was done;  ``digest``  of all events in their order, hex, the same on every host
    ``solves``, ``events``: of the simulator;  ``window_us``: as given, 0 if the times are exact
    ``residual``  of a run with ``check``: how far the shares of links were from a max-min one at worst, relative
    """

    def __init__(self, machine: Machine, stages: list[Stage], made: Assembly, found: dict[str, Any],
                 window_us: float) -> None:  # fmt: skip
        self.machine, self.stages, self.window_us = machine, tuple(stages), window_us
        done = [found["raised"][s.part.done].max() for s in stages]
        self.end_us = max(found["end_ps"], *done, 0) / US
        self.digest = f"{found['digest']:016x}"
        self.solves, self.events = found["solves"], found["events"]
        self.residual: float | None = found.get("residual")
        self._times, self._raised, self._made = found["times"], found["raised"], made
        # A program that grows after a run lays its stages out anew.
        self._flags = [(s.part.arrived, s.part.done) for s in stages]
        self._ran = {s.index: _Ran.of(s.part) for s in stages if isinstance(s.part, Operation)}

    def __repr__(self) -> str:
        return f"<Timeline of {len(self.stages)} stages, {self.end_us:.3f} us>"

    @property
    def arrays(self) -> Arrays:
        """For whoever draws or looks closer."""
        m = self._made
        return Arrays(m.all_links, m.uses, m.tasks, m.lanes, m.flags, self._times, self._raised)

    def _stage(self, stage: Stage, kind: str = "") -> int:
        if stage.index >= len(self.stages) or self.stages[stage.index] is not stage:
            raise InvalidArgument(f"{stage!r} is not of this timeline")
        if kind and stage.kind != kind:
            raise InvalidArgument(f"{stage!r} is no {kind}")
        return stage.index

    def start_us(self, stage: Stage) -> np.ndarray:
        """When each member began, f64 (members,): of an operation, when it arrived."""
        arrived, done = self._flags[self._stage(stage)]
        if stage.kind == "operation":
            return self._raised[arrived] / US
        task = self._last_of()[done]
        return self._times["begun"][task] / US if stage.kind != "map" else self._first_begun(stage) / US

    def finish_us(self, stage: Stage) -> np.ndarray:
        """When each member was done, f64 (members,)."""
        return self._raised[self._flags[self._stage(stage)][1]] / US

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        """The lane of each task, in the order of the tasks."""
        lanes = self._made.lanes
        return np.repeat(np.arange(len(lanes)), lanes["count"])

    def _first_begun(self, stage: Stage) -> np.ndarray:
        """When the first task of each member's lane began, i64."""
        done = self._flags[stage.index][1]
        lane = self._rows[self._last_of()[done]]
        return self._times["begun"][self._made.lanes["first"][lane]]

    def _last_of(self) -> np.ndarray:
        """A task that posts each flag; NONE where there is none."""
        post = self._made.tasks["post"]
        found = np.full(len(self._raised), NONE)
        posts = np.nonzero(post != NONE)[0]
        found[post[posts]] = posts
        return found

    def core_times_us(self, stage: Stage, member: int | None = None) -> np.ndarray:
        """How long each of the plan's cores was busy, since the member's opening: f64 (members, cores), or (cores,) of
        one member.  0: it had nothing to do; NaN: the member's plan is for fewer cores.  By SDMA a core is busy until
        it has submitted all."""
        ran = self._ran[self._stage(stage, "operation")]
        cores, start = ran.cores, ran.start
        until = self._done_of(ran.lanes[:, 0])
        found = np.full((len(cores), int(cores.max())), np.nan)
        found[np.arange(found.shape[1]) < cores[:, None]] = until
        found = np.where(found < 0, 0.0, (found - self._raised[start][:, None]) / US)
        return found if member is None else found[member, : cores[member]]

    def _done_of(self, lanes: np.ndarray) -> np.ndarray:
        """When the last task of each lane was done, i64; -1 of none."""
        which = self._made.lanes[lanes]
        last = which["first"].astype(np.int64) + which["count"] - 1
        return np.where(lanes == NONE, -1, self._times["done"][np.where(lanes == NONE, 0, last)])

    def table(self) -> np.ndarray:
        """A row for each task, ROW_DTYPE, lane by lane.  ``core``: of the die, its rings' numbers after those of the
        cores, NONE of none; ``unit``: in its plan, NONE of none; times in picoseconds; ``work`` in bytes, or in
        picoseconds at full speed; ``bound``: work per picosecond."""
        tasks, lanes = self._made.tasks, self._made.lanes
        found = np.empty(len(tasks), ROW_DTYPE)
        for name in ("die", "core"):
            found[name] = lanes[name][self._rows]
        for name in ("unit", "kind", "tier", "work", "bound"):
            found[name] = tasks[name]
        for name in ("ready", "begun", "flowing", "done"):
            found[name] = self._times[name]
        found["stage"] = tasks["operation"]
        return found

    def breakdown(self, stage: Stage) -> dict[str, dict[str, float]]:
        """What an operation's time went to, microseconds: ``critical``, of the core whose work ended last (by SDMA its
        ring), and ``mean``, over all cores that had something to do.  The parts of each add up to the time from when
        the member could have launched to when it was done:

        ``launch``, ``opening`` (until all had arrived and it knew), ``flags`` that it waited for, ``submission``
        (SDMA), ``issue``, ``latency``, ``transfer`` (at the core's own rate; a ring has none), ``port_sio`` and its
        like (what sharing made it wait for, by the farthest operand's tier), ``idle`` (other cores of the die still
        worked), ``closing``.
        """
        index = self._stage(stage, "operation")
        lanes, cores, start, drained, path, launch = self._ran[index]
        arrived, done = (self._raised[flags] for flags in self._flags[index])
        opened, ended = self._raised[start], self._raised[drained]
        column = 1 if path == SDMA else 0
        busy = lanes[:, column] != NONE
        which, member = lanes[busy, column], np.repeat(np.arange(len(cores)), cores)[busy]
        works = len(which) > 0
        if not works:  # nothing but synchronisation
            member = np.arange(len(cores))
        last = self._done_of(which) if works else done
        parts = {name: np.zeros(len(member)) for name in _names()}
        parts["launch"] += launch[member]
        parts["opening"] += (opened - arrived)[member]
        parts["closing"] += (done - ended)[member]
        if works:
            self._spent(which, opened[member], parts)
            parts["idle"] += ended[member] - last
        critical = int(np.argmax(last))
        return {
            "critical": {name: float(part[critical] / US) for name, part in parts.items()},
            "mean": {name: float(part.mean() / US) for name, part in parts.items()},
        }

    def _spent(self, which: np.ndarray, opened: np.ndarray, parts: dict[str, np.ndarray]) -> None:
        """Adds what each lane's tasks took, of the time in which no earlier one of the lane still flowed."""
        count = self._made.lanes["count"][which].astype(np.int64)
        lane = np.repeat(np.arange(len(which)), count)
        task = np.arange(len(lane)) - np.repeat(np.cumsum(count) - count, count)
        first = task == 0
        task += np.repeat(self._made.lanes["first"][which].astype(np.int64), count)
        times, tasks = self._times[task], self._made.tasks[task]
        before = np.where(first, np.repeat(opened, count), np.roll(times["done"], 1))
        edge = before
        submitted = before
        if self._made.lanes["core"][which].max() >= self.machine.die.cores:  # rings wait for their cores first
            bell = np.where(tasks["wait"][:, 0] != NONE, self._raised[tasks["wait"][:, 0]], 0)
            submitted = np.minimum(np.maximum(bell, before), np.maximum(times["begun"], before))
            _add(parts["submission"], lane, submitted - before)
            edge = submitted
        for name, until in (
            ("flags", times["begun"]), ("issue", times["begun"] + tasks["hold_ps"]), ("latency", times["flowing"]),
        ):  # fmt: skip
            until = np.maximum(until, edge)
            _add(parts[name], lane, until - edge)
            edge = until
        flow = (times["done"] - edge).astype(np.float64)
        own = np.where(tasks["kind"] == MOVE, np.minimum(tasks["work"] / tasks["bound"], flow), flow)
        _add(parts["transfer"], lane, own)
        for tier in range(NTIERS):
            here = tasks["tier"] == tier
            _add(parts[f"port_{TIER_NAMES[tier]}"], lane[here], (flow - own)[here])


def _names() -> list[str]:
    return [n for part in PARTS for n in ([f"port_{t}" for t in TIER_NAMES] if part == "port" else [part])]


def _add(into: np.ndarray, lane: np.ndarray, spent: np.ndarray) -> None:
    into += np.bincount(lane, spent, len(into))
