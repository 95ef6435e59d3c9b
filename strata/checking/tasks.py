"""Dies and their tasks, as the analyser follows them."""

from __future__ import annotations

from collections import deque
from typing import Any

from strata.checking.clocks import Clock, acquire
from strata.checking.events import Event, Wait
from strata.checking.memory import Allocation
from strata.checking.operations import Record
from strata.checking.places import UNKNOWN, Doing, Place

__all__ = ["Die", "Task", "Tasks"]


class Task:
    """A thread of execution of a die.

    ``queue``    its events that the analysis has not come to, each with what it is about
    ``stage``    how far the analysis is within the first of them
    ``closing``  no more events will come
    ``tail``     what it blocks in, as far as is known: an operation or a Wait that nothing has come after
    ``touched``  it has accessed memory since its last release
    ``thread``   it is one of the program's
    ``later``    it did nothing but begin an operation that goes on by itself
    """

    __slots__ = (
        "clock", "closing", "die", "doing", "done", "joiners", "later", "moved", "number", "queue", "slot", "stage",
        "started", "tail", "thread", "touched",
    )  # fmt: skip

    def __init__(self, die: Die, number: int) -> None:
        self.die = die
        self.number = number
        self.slot = 0
        self.clock: Clock = {}
        self.queue: deque[tuple[Event, Any]] = deque()
        self.started = False
        self.closing = False
        self.done = False
        self.joiners: list[Task] = []
        self.stage = 0
        self.touched = False
        self.doing = Doing("", "none since it began", UNKNOWN)
        self.tail: Wait | Record | None = None
        self.thread = False
        self.later = False
        self.moved = 0.0  # when its last event came

    def release(self) -> Clock:
        """What it knows now, for others; what it does from here on is not in it."""
        clock = dict(self.clock)
        self.clock[self.slot] += 1
        self.touched = False
        return clock


class Die:
    """One die of a job.  ``ended``: it has said so; ``failed``: so has its program; ``gone``: no more will come."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank = rank
        self.number = number  # differs for another process of the same rank
        self.places: dict[int, Place] = {}
        self.tasks: dict[int, Task] = {}  # those that may still do something
        self.ended_tasks: dict[int, Task] = {}
        self.views: dict[int, Allocation] = {}
        self.open: dict[tuple[str, int], list[Record]] = {}  # operations that it is in
        self.pending = 0  # events in its queues
        self.ended = False
        self.failed = False
        self.gone = False

    @property
    def broken(self) -> bool:
        """Whether it has failed by itself, or was killed: then it is no news that others wait for it in vain."""
        return self.failed or (self.gone and not self.ended)

    def place(self, site: int) -> Place:
        """Of a site, that was sent before."""
        return self.places.get(site, UNKNOWN)


class Tasks:
    """Those of a job, and the events in their queues."""

    def __init__(self) -> None:
        self.dies: dict[int, Die] = {}  # by rank: the last process of that rank
        self.pending = 0
        self._old: list[Die] = []  # processes whose rank another has by now, with events that wait
        self._ready: deque[Task] = deque()
        self._seen = 0

    def _tasks(self) -> list[Task]:
        return [task for die in (*self._old, *self.dies.values()) for task in die.tasks.values()]

    def _put(self, task: Task, event: Event, about: Any) -> None:
        task.queue.append((event, about))
        task.die.pending += 1
        self.pending += 1

    def _next(self, task: Task) -> None:
        task.queue.popleft()
        task.stage = 0
        task.die.pending -= 1
        self.pending -= 1
        self._seen += 1

    def _acquire_all(self, task: Task) -> None:
        """The order is not known: no report may come of that."""
        for other in self._tasks():
            acquire(task.clock, other.clock)
