"""Dies and their tasks, as the analyser follows them."""

from __future__ import annotations

from collections import deque
from typing import Any

from strata.checking.clocks import Clock
from strata.checking.events import Event, Wait
from strata.checking.memory import Allocation
from strata.checking.operations import Record
from strata.checking.places import UNKNOWN, Doing, Place

__all__ = ["Die", "Task"]


class Task:
    """A thread of execution of a die.

    ``queue``    its events that the analysis has not come to, each with what it is about
    ``stage``    how far the analysis is within the first of them
    ``closing``  no more events will come
    ``tail``     what it blocks in, as far as is known: an operation or a Wait that nothing has come after
    ``touched``  it has accessed memory since its last release
    ``later``    it did nothing but begin an operation that goes on by itself
    """

    __slots__ = (
        "clock", "closing", "die", "doing", "done", "joiners", "later", "moved", "number", "queue", "slot", "stage",
        "started", "tail", "touched",
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
