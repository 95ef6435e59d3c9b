"""Streams of one die: tasks in order on each, beside those of the others, which slow them down.

At any instant each stream runs its next task, if what it comes after is done.  Tasks go on at rates that depend on
which run; events are ends of tasks, and between them all rates are constant.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from strata.errors import InvalidArgument

KERNEL, COLLECTIVE, REGISTRATION = "kernel", "collective", "registration"


class Task(NamedTuple):
    """``us`` alone;  ``key``: what rates go by;  ``after``: numbers of tasks before it in the list."""

    kind: str
    us: float
    key: Hashable
    stream: str
    after: tuple[int, ...]
    layer: str = ""
    name: str = ""


Rate = Callable[[Task, Sequence[Task]], float]


class Schedule(NamedTuple):
    """Microseconds.

    ``start``, ``finish``  of each task
    ``end``         when the last is done
    ``exposed``     no kernel runs, and something else does;  ``overlapped``: a kernel and something else do
    ``registering`` the part of ``exposed`` in which nothing but registration goes on
    """

    start: list[float]
    finish: list[float]
    end: float
    exposed: float
    overlapped: float
    registering: float


def run(tasks: list[Task], rate: Rate, overlap: bool = True) -> Schedule:
    """When tasks run.  ``rate(task, others)``: of a task while the others run, 0 to 1, and not 0 of all.

    Without ``overlap`` they run one after the other, in their order.  InvalidArgument if a task comes after one that
    is not before it in the list.
    """
    for number, task in enumerate(tasks):
        if any(not 0 <= a < number for a in task.after):
            raise InvalidArgument(f"task {number} ({task.name}) comes after {task.after}: earlier ones are expected")
    queues: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        queues.setdefault(task.stream if overlap else "", []).append(number)
    return _Run(tasks, queues, rate).all()


class _Run:
    """``on``: the task that each stream runs, or None."""

    def __init__(self, tasks: list[Task], queues: dict[str, list[int]], rate: Rate) -> None:
        self.tasks, self.rate = tasks, rate
        self.queues = [deque(q) for q in queues.values()]
        self.on: list[int | None] = [None] * len(self.queues)
        self.start, self.finish = [-1.0] * len(tasks), [-1.0] * len(tasks)
        self.left = [float(t.us) for t in tasks]
        self.now = self.exposed = self.overlapped = self.registering = 0.0

    def all(self) -> Schedule:
        while True:
            self._begin()
            running = [n for n in self.on if n is not None]
            if not running:
                break  # a task comes after earlier ones alone, so nothing is left either
            rates = [self._rate(n, running) for n in running]
            ends = [self.left[n] / r if r > 0 else math.inf for n, r in zip(running, rates, strict=True)]
            span = min(ends)
            self._count(running, span)
            self.now += span
            for n, r, end in zip(running, rates, ends, strict=True):
                self.left[n] = self.left[n] - span * r if end > span * (1 + 1e-12) else 0.0
                if not self.left[n]:
                    self.finish[n] = self.now
                    self.on[self.on.index(n)] = None
        return Schedule(self.start, self.finish, self.now, self.exposed, self.overlapped, self.registering)

    def _begin(self) -> None:
        """Each stream's next task, if it can; what takes no time is done at once."""
        again = True
        while again:
            again = False
            for i, queue in enumerate(self.queues):
                while queue and self.on[i] is None and all(self.finish[a] >= 0 for a in self.tasks[queue[0]].after):
                    n = queue.popleft()
                    self.start[n] = self.now
                    if self.left[n] > 0:
                        self.on[i] = n
                    else:
                        self.finish[n], again = self.now, True

    def _rate(self, n: int, running: list[int]) -> float:
        return self.rate(self.tasks[n], [self.tasks[m] for m in running if m != n])

    def _count(self, running: list[int], span: float) -> None:
        kinds = {self.tasks[n].kind for n in running}
        if KERNEL not in kinds:
            self.exposed += span
            self.registering += span if kinds == {REGISTRATION} else 0.0
        elif len(kinds) > 1:
            self.overlapped += span
