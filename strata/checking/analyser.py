"""The analyser of one job: puts the dies' events in order, and finds what the order does not cover.

Events are taken as they come and analysed as far as those of the other dies allow: the end of an
operation waits for the coming of its members, a ``take`` for its ``post``, a ``join`` for the end
of the task.  So the order in which events of different dies arrive does not matter.

What an operation does to a member's arrays is put down to that member, between its coming and
its return.  It is not ordered after the coming of the others: an early peer may
read and write there before a late one has come.  What a non-root of broadcast and scatter
gets, it gets after the root has come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strata.checking import findings
from strata.checking.accesses import Accesses
from strata.checking.arrivals import Arrivals
from strata.checking.clocks import Slots, acquire, floor
from strata.checking.events import (
    Acc,
    Alloc,
    BadEvent,
    Done,
    End,
    Event,
    Fork,
    Free,
    Hello,
    Join,
    Leak,
    Op,
    OpEnd,
    Post,
    Site,
    Take,
    Unpost,
    View,
    ViewEnd,
    Wait,
)  # fmt: skip
from strata.checking.flags import Flags, words
from strata.checking.operations import FORMING, LATER, OK, TIMEOUT, Record, title
from strata.checking.places import Doing, Place
from strata.checking.reports import Reports
from strata.checking.tasks import Die, Task, Tasks

__all__ = ["Job"]

ENDED = 1 << 12  # tasks of a die that have ended and may be joined yet
_ANYWHERE = (Leak, End, ViewEnd)  # of the die rather than of a task
SWEEP = 4096  # events between two looks for what can be forgotten, at least


class Job(Tasks):
    """All of one job.  ``reports`` grows as events are fed; ``pending`` events wait for others."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.size = 0
        self.reports = Reports(name)
        self.forced = 0  # events that were analysed without what they waited for
        self.accesses = Accesses(self.reports)
        self.flags = Flags()
        self.arrivals = Arrivals(self)
        self._slots = Slots()
        self._live: set[Task] = set()
        self._sweep_at = SWEEP
        self._do: dict[type, Callable[[Task, Any, Any], bool]] = {
            Acc: self._acc, Alloc: self._alloc, Free: self._free, Fork: self._fork, Join: self._join,
            Post: self._post, Unpost: self._unpost, Take: self._take, Op: self._op, View: self._view,
            ViewEnd: self._view_end, Leak: self._leak,
            **dict.fromkeys((Done, Wait, End), self._nothing),  # a task that is done ends with its queue
        }  # fmt: skip

    # --- dies come and go

    def join(self, hello: Hello) -> Die:
        """A die's connection has opened."""
        self.size = max(self.size, hello.size)
        before = self.dies.get(hello.rank)
        if before is not None:
            self.leave(before)
            self._old = [old for old in (*self._old, before) if old.pending]
        die = Die(hello.rank, hello.rank if before is None else before.number + (1 << 16))
        self.dies[hello.rank] = die
        first = Task(die, 0)
        die.tasks[0] = first
        self._start(first)
        return die

    def leave(self, die: Die) -> None:
        """... and has closed: nothing more comes from it."""
        if die.gone:
            return
        die.gone = True
        for task in die.tasks.values():
            task.closing = True
        self._wake_all()

    def _wake_all(self) -> None:
        """Who waits for a die that has ended may go on."""
        self._ready += [task for task in self._tasks() if task.queue or task.closing]
        self._run()

    def over(self) -> bool:
        """Whether all dies of the job have come and gone."""
        return len(self.dies) >= self.size and all(die.gone for die in self.dies.values())

    # --- events

    def feed(self, die: Die, event: Site | Event, now: float = 0.0) -> None:
        """Takes one event of a die.  BadEvent: it makes no sense after those before."""
        if isinstance(event, Site):
            die.places[event.id] = Place(event.file, event.line, event.function, event.text, event.stack)
            return
        if isinstance(event, Hello):
            raise BadEvent("a second hello")
        task = die.tasks.get(event.t)
        if task is None or task.closing:
            if isinstance(event, Done):
                return  # that is known
            if isinstance(event, _ANYWHERE):
                task = die.tasks[0]
            else:
                task = self._unknown(die, event.t)
        about = self.arrivals.note(die, task, event, now)
        if isinstance(event, OpEnd):
            if about is not None:
                self._ready.append(about)
                self._run()
            return
        if isinstance(event, Fork):
            about = die.tasks[event.child] = Task(die, event.child)
        elif isinstance(event, Join):
            about = self._joined(die, event.child)
        elif isinstance(event, Done):
            task.closing = True
        self._put(task, event, about)
        if len(task.queue) == 1:  # else it waits, and what it waits for wakes it
            self._ready.append(task)
        if isinstance(event, End):
            self._wake_all()
        self._run()

    def _joined(self, die: Die, number: int) -> Task:
        child = die.tasks.get(number)
        if child is None:
            child = die.ended_tasks.pop(number, None)
        if child is None:
            raise BadEvent(f'"join" of task {number}, of which nothing was heard, or that was joined before')
        child.closing = True
        self._ready.append(child)
        return child

    def _unknown(self, die: Die, number: int) -> Task:
        """A task of which nothing was heard: it began after what task 0 has done so far."""
        task = die.tasks[number] = Task(die, number)
        self._put(die.tasks[0], Fork(0, number, -1), task)
        self._ready.append(die.tasks[0])
        return task

    def _run(self) -> None:
        ready = self._ready
        while ready:
            self._advance(ready.popleft())
        if self._seen >= self._sweep_at:
            self.sweep()

    def _advance(self, task: Task) -> None:
        if not task.started:
            return
        queue, do = task.queue, self._do
        while queue:
            event, about = queue[0]
            if not task.slot and not isinstance(event, Take):
                self._count(task)
            if not do[type(event)](task, event, about):
                return
            self._next(task)
        if task.closing and not task.done:
            self._end(task)
        if task.joiners:
            self._ready += task.joiners
            task.joiners.clear()

    def _start(self, task: Task) -> None:
        task.started = True
        self._live.add(task)
        if task.queue or task.closing:
            self._ready.append(task)

    def _count(self, task: Task) -> None:
        """It gets its slot when it does more than wait: one that follows another may have that one's then."""
        task.slot = task.slot or self._slots.start(task.die.number, task.clock)

    def _end(self, task: Task) -> None:
        task.done = True
        self._live.discard(task)
        self._count(task)
        if not task.touched:
            task.clock[task.slot] -= 1  # nobody knows this count, and nothing was done at it
        self._slots.end(task.die.number, task.slot, task.clock[task.slot])
        die = task.die
        if task.number and die.tasks.get(task.number) is task:
            del die.tasks[task.number]
            die.ended_tasks[task.number] = task  # somebody may join it yet
            if len(die.ended_tasks) > ENDED:
                del die.ended_tasks[next(iter(die.ended_tasks))]

    def sweep(self) -> None:
        """Forgets what is ordered before all that may still come."""
        self._seen = 0
        if len(self.dies) >= self.size:
            known = floor(task.clock for task in self._live)
            self.accesses.drop(known)
            self.flags.drop(known)
        self._sweep_at = max(SWEEP, 2 * (len(self.accesses) + len(self.flags)))

    # --- what events mean

    def _nothing(self, _task: Task, _event: Event, _about: Any) -> bool:
        return True

    def _synced(self, task: Task, what: str, site: int) -> None:
        task.doing = Doing("", what, task.die.place(site))

    def _fork(self, task: Task, event: Fork, child: Task) -> bool:
        child.clock = task.release()
        child.doing = Doing("", f"the start of task {child.number}", task.die.place(event.site))
        self._start(child)
        return True

    def _join(self, task: Task, event: Join, child: Task) -> bool:
        if not child.done and not (event.failed and child.started and self._drain(child)):
            child.joiners.append(task)
            return False
        acquire(task.clock, child.clock)
        self._synced(task, f"the end of task {child.number}", event.site)
        return True

    def _drain(self, task: Task, posts: bool = True) -> bool:
        """It has failed, and does not come to what it waits for; True.  ``posts``: what comes after it goes on."""
        while task.queue:
            event, record = task.queue[0]
            if isinstance(event, Post):
                if posts:
                    self._count(task)
                    self._post(task, event, None)
            elif isinstance(event, Take):
                if self.flags.reached(event.key, event.value):
                    self.flags.take(event.key, event.value, task.clock, task)
            elif isinstance(event, Op):
                record.clocks.setdefault(task.die.rank, dict(task.clock))
                self._ready += record.waiters
                record.waiters.clear()
                self._left(record, task.die.rank)
            self._next(task)
        self._advance(task)
        return True

    def _unpost(self, _task: Task, event: Unpost, _about: Any) -> bool:
        self.flags[event.key].unpost(event.value)
        return True

    def _post(self, task: Task, event: Post, _about: Any) -> bool:
        place = task.die.place(event.site)
        self._ready += self.flags.post(event.key, event.value, event.add, task.release(), task.die.rank, place)
        self._synced(task, f"a post of {words(event.key)}", event.site)
        return True

    def _take(self, task: Task, event: Take, _about: Any) -> bool:
        if event.failed and not self.flags.reached(event.key, event.value):
            for other in [t for t in task.die.tasks.values() if t.started]:
                if any(isinstance(e, Post) and e.key == event.key and e.value <= event.value for e, _ in other.queue):
                    self._drain(other)
        if not self.flags.take(event.key, event.value, task.clock, task):
            return False
        self._synced(task, f"a wait for {words(event.key)}", event.site)
        return True

    def _op(self, task: Task, event: Op, record: Record) -> bool:
        rank = task.die.rank
        status = record.statuses.get(rank)
        if event.op in FORMING:
            if any(tried is event for tried in record.given_up):
                return True
            if status is None and not task.die.gone:
                return False  # others have what it knows at its last try, and only its end says which that is
            if status == TIMEOUT:
                self._left(record, rank)
                return True
        if task.stage == 0:
            record.clocks[rank] = task.release()
            task.stage = 1
            self._ready += record.waiters
            record.waiters.clear()
        if status is None and not task.die.gone:
            return False  # its opend is on the way; feed() comes back to this task
        if status not in (OK, LATER):
            self._left(record, rank)
            return True
        if task.stage == 1:
            if not record.reported:  # else its members do not agree, and no byte moves
                self.accesses.operation(task, event, late=False)
            task.stage = 2
        needed = record.needs(event, rank)
        if any(m not in record.clocks and not self._never(record, m) for m in needed):
            record.waiters.append(task)
            return False
        for member in needed:
            if member in record.clocks:
                acquire(task.clock, record.clocks[member])
            else:
                self._acquire_all(task)
        if needed:
            self._synced(task, title(event), event.site)
        if not record.reported:
            self.accesses.operation(task, event, late=True)
        self._left(record, rank)
        return True

    def _left(self, record: Record, rank: int) -> None:
        record.left.add(rank)
        if all(member in record.left or self._never(record, member) for member in record.members):
            self.arrivals.over(record)

    def _never(self, record: Record, rank: int) -> bool:
        """Whether a member will not come to an operation any more."""
        die = self.dies.get(rank)
        came = rank in record.arrived and not (record.statuses.get(rank) == TIMEOUT and record.key[1])
        return not came and die is not None and (die.gone or die.ended)

    def _acc(self, task: Task, event: Acc, _about: Any) -> bool:
        self.accesses.access(task, event)
        return True

    def _alloc(self, task: Task, event: Alloc, _about: Any) -> bool:
        self.accesses.alloc(task, event)
        self.flags.forget(event.lo, event.hi)
        return True

    def _free(self, task: Task, event: Free, _about: Any) -> bool:
        self.accesses.free(task, event)
        self.flags.forget(event.lo, event.hi)
        return True

    def _view(self, task: Task, event: View, _about: Any) -> bool:
        self.accesses.view(task, event)
        return True

    def _view_end(self, task: Task, event: ViewEnd, _about: Any) -> bool:
        task.die.views.pop(event.id, None)
        return True

    def _leak(self, task: Task, event: Leak, _about: Any) -> bool:
        place = task.die.place(event.site)
        self.reports.add(findings.leak(task.die.rank, task.number, event.kind, event.text, place))
        return True

    # --- what does not come

    def force(self) -> bool:
        """Lets one task go on whose event waits for something that does not come; False: there is none."""
        waiting = [task for task in self._tasks() if task.queue and task.started]
        if not waiting:
            return False
        # What it would have learnt is not known, so it is taken to know everything.  First those for whom others wait.
        task = max(waiting, key=lambda t: (not isinstance(t.queue[0][0], Join), len(t.queue)))
        self._acquire_all(task)
        self._next(task)
        self.forced += 1
        self._ready.append(task)
        self._run()
        return True

    def finish(self) -> None:
        """Nothing more comes from any die: analyses what is left, and reports what only the end shows.

        Of a job that a die has left by an error, or was killed in, no leaks: the others had no way to the end.
        """
        broken = any(die.broken for die in self.dies.values())
        for die in list(self.dies.values()):
            self.leave(die)
        while vain := self.flags.vain(self._tasks()):
            for task in vain:
                self._drain(task, posts=False)
            self._run()
        while self.force():
            pass
        for key, number, rank, place in self.flags.messages():
            text = f"message {number} of {words(key)}, which nobody received"
            self.reports.add(findings.leak(rank, 0, "message", text, place))
        if broken:
            self.reports.clear("leak")
        self.arrivals.finish()
