"""Who has come to which operation, and who waits for whom: mismatches and deadlocks.

This looks at events as they arrive, not at the order that the analysis finds.  A task is *stuck*
when the last that was heard of it is that it entered an operation, or blocked otherwise, and what it
waits for has not come.  A die can still come to something while one of its tasks is not stuck, or will
not be once others have come.  When dies are left that cannot, they wait for each other or
for one that has ended, and that is reported as soon as they have not moved for a moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strata.checking import findings
from strata.checking.events import BadEvent, End, Event, Free, Op, OpEnd, Post, ViewEnd, Wait
from strata.checking.findings import Blocked
from strata.checking.operations import LATER, MISMATCH, NOTHING, OK, TIMEOUT, Record, key_of, title
from strata.checking.places import UNKNOWN, Place

if TYPE_CHECKING:
    from strata.checking.analyser import Job
    from strata.checking.tasks import Die, Task

__all__ = ["Arrivals"]

PAST = 256  # operations that are over and whose late errors are still understood
BOUND = 0.5  # seconds without a move until tasks count as stuck


class Arrivals:
    """Of one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._records: dict[tuple[str, bool, int], Record] = {}
        self._past: deque[Record] = deque()
        self._late: list[tuple[Record, Blocked, list[Blocked]]] = []  # timeouts: who, for whom
        self._unlike: dict[Record, int] = {}  # whose members do not agree, and who was the first to hear it
        self._told: dict[int, list[Wait | Record | None]] = {}  # of each process, what it hangs in as was reported

    def __len__(self) -> int:
        return len(self._records)

    def note(self, die: Die, task: Task, event: Event, now: float) -> Any:
        """Takes an event.  Returns the record of an Op, and the task that an OpEnd is about."""
        task.moved = now
        if isinstance(event, Op):
            return self._came(die, task, event)
        if isinstance(event, OpEnd):
            if event.status == TIMEOUT:
                self.check(now, 0.0)  # as long as it is seen to wait
            return self._ended(die, event)
        if isinstance(event, Wait):
            task.tail = event
        elif isinstance(task.tail, Wait) and not isinstance(event, Free | ViewEnd):
            task.tail = None
        if isinstance(event, End):
            die.ended, die.failed = True, event.failed
        return None

    # --- operations

    def _came(self, die: Die, task: Task, op: Op) -> Record:
        key, rank = key_of(op.group, op.op, op.n), die.rank
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = Record(key, op.members)
        if rank in record.arrived:
            if record.statuses.get(rank, OK) in (OK, LATER):
                raise BadEvent(f"{title(op)} comes a second time")
            record.again(rank)
        record.arrived[rank] = (op, die.place(op.site))
        record.tasks[rank] = task
        die.open.setdefault((op.group, op.n), []).append(record)
        task.tail, task.later = record, False
        first, (known, _) = next(iter(record.arrived.items()))
        if (known.op, known.root) != (op.op, op.root) and not record.reported:
            record.reported = True
            if NOTHING not in (known.op, op.op):
                self._job.reports.add(findings.mismatch(record, first, rank))
        return record

    def _ended(self, die: Die, event: OpEnd) -> Task | None:
        rank = die.rank
        records = [r for r in die.open.get((event.group, event.n), ()) if event.op in ("", r.arrived[rank][0].op)]
        if not records:
            return None  # a late word about an operation that is over
        mine = [r for r in records if r.tasks[rank].number == event.t and rank not in r.statuses]
        record = (mine or [r for r in records if rank not in r.statuses] or records)[0]
        record.statuses[rank] = event.status
        task: Task = record.tasks[rank]
        if task.tail is record:
            task.tail = None
        if event.status == LATER:
            task.later = True
            return task
        self._close(die, record)
        if event.status != OK:
            self._failed(die, record, event.status)
        return task

    def _close(self, die: Die, record: Record) -> None:
        op = record.arrived[die.rank][0]
        left = [r for r in die.open.get((op.group, op.n), ()) if r is not record]
        if left:
            die.open[op.group, op.n] = left
        else:
            die.open.pop((op.group, op.n), None)

    def over(self, record: Record) -> None:
        """All members have left it, for the analysis."""
        if self._records.get(record.key) is record:
            del self._records[record.key]
            self._past.append(record)
        if len(self._past) > PAST:
            old = self._past.popleft()
            for rank in old.arrived:
                if rank in self._job.dies:
                    self._forget(self._job.dies[rank], old)

    def _forget(self, die: Die, record: Record) -> None:
        if die.rank in record.arrived and any(record in open for open in die.open.values()):
            self._close(die, record)

    def _failed(self, die: Die, record: Record, status: str) -> None:
        rank = die.rank
        op, place = record.arrived[rank]
        if status == MISMATCH and not record.reported:
            self._unlike.setdefault(record, rank)
        if record in self._unlike:
            if all(record.statuses.get(m, LATER) != LATER for m in record.members):
                self._differs(record)
            return
        missing = [m for m in record.missing() if m in self._job.dies]
        if not missing or record.reported:
            return
        waiter = Blocked(rank, title(op), place, missing, task=op.t)
        if status == TIMEOUT:
            self._late.append((record, waiter, [self._seen(m) for m in missing]))
            return
        ended = [m for m in missing if self._job.dies[m].ended]
        if ended and not any(self._job.dies[m].broken for m in missing):
            self._job.reports.add(findings.deadlock([waiter, self._gone(ended[0])]))

    def _differs(self, record: Record) -> None:
        """Members have heard that they do not agree: by an error of one of them, or of the program's making."""
        rank = self._unlike.pop(record)
        own = [m for m, status in record.statuses.items() if status not in (OK, LATER, MISMATCH)]
        if own or record.reported or record.missing():
            return
        record.reported = True
        sizes = {m: [(r.hi - r.lo) * r.n for r in (*o.reads, *o.writes)] for m, (o, _) in record.arrived.items()}
        others = [m for m in sizes if m != rank]
        if others:
            first, second = sorted((next((m for m in others if sizes[m] != sizes[rank]), others[0]), rank))
            self._job.reports.add(findings.mismatch(record, first, second, MISMATCH))

    def _gone(self, rank: int) -> Blocked:
        ended = self._job.dies[rank].ended
        what = "has left the job (its program is over)" if ended else "is gone: its process has ended or was killed"
        return Blocked(rank, what, UNKNOWN, ended=True)

    def _seen(self, rank: int) -> Blocked:
        """Where a die was seen last."""
        die = self._job.dies[rank]
        if die.ended or die.gone:
            return self._gone(rank)
        task = die.tasks[0]
        if task.tail is None:
            first = task.doing.place is UNKNOWN
            what = "has not come to any operation" if first else f"was last seen after {task.doing.sync}"
            return Blocked(rank, what, task.doing.place, ended=True)
        what, place = self._where(task)
        return Blocked(rank, f"is in {what}", place, ended=True)

    def _where(self, task: Task) -> tuple[str, Place]:
        tail = task.tail
        if isinstance(tail, Wait):
            return tail.what, task.die.place(tail.site)
        assert tail is not None
        op, place = tail.arrived[task.die.rank]
        return title(op), place

    # --- deadlocks

    def check(self, now: float, bound: float = BOUND) -> bool:
        """Looks for dies that wait in vain since ``bound`` seconds; True if that is news."""
        dies = self._job.dies
        waits = {t: self._needs(t) for t in self._stuck(now, bound)}
        if not waits:
            return False
        able = {r for r, die in dies.items() if self._moves(die, {t for t, need in waits.items() if need is not None})}
        while True:
            more = {
                task.die.rank
                for task, need in waits.items()
                if need is not None and task.die.rank not in able and self._comes(task, need, able)
            }
            if not more:
                break
            able |= more
        left = [t for t, need in waits.items() if need is not None and t.die.rank not in able]
        left.sort(key=lambda t: (t.number, t.die.rank))
        news = [self._report(task, waits, left, able) for task in left]
        return any(news)

    def _stuck(self, now: float, bound: float) -> Iterator[Task]:
        for die in self._job.dies.values():
            if not (die.gone or die.ended):
                yield from (t for t in die.tasks.values() if t.tail is not None and t.moved <= now - bound)

    def _moves(self, die: Die, stuck: set[Task]) -> bool:
        """Whether some task of it goes on by itself."""
        if die.gone or die.ended:
            return False
        return any(t not in stuck and not t.closing and not t.later for t in die.tasks.values())

    def _needs(self, task: Task) -> tuple[int, ...] | None:
        """Ranks that must come for the task to go on; (): any other; None: it can go on."""
        tail, die = task.tail, task.die
        if isinstance(tail, Record):
            return None if tail.reported else tuple(tail.missing()) or None
        assert tail is not None
        if tail.key and self._posted(tail.key, tail.value):
            return None
        ranks = set(tail.ranks)
        if tail.tasks:
            records = [r for open in die.open.values() for r in open if r.tasks[die.rank].number in tail.tasks]
            ranks |= {m for r in records if not r.reported for m in r.missing()}
            if not ranks:
                return None
        return tuple(sorted(ranks))

    def _posted(self, key: str, value: int) -> bool:
        if self._job.flags.reached(key, value):
            return True
        queued = (e for die in self._job.dies.values() for t in die.tasks.values() for e, _ in t.queue)
        return any(isinstance(e, Post) and e.key == key for e in queued)

    def _comes(self, task: Task, need: tuple[int, ...], able: set[int]) -> bool:
        dies = self._job.dies
        if need:
            return all(rank in able or rank not in dies for rank in need)
        return len(dies) < self._job.size or any(rank in able for rank in dies if rank != task.die.rank)

    def _report(self, task: Task, waits: dict[Task, tuple[int, ...] | None], left: list[Task], able: set[int]) -> bool:
        """Follows from one die to the next until one comes again, or has ended."""
        dies = self._job.dies
        path: list[Task] = []
        links: list[Blocked] = []
        at: Task | None = task
        while at is not None and at not in path:
            path.append(at)
            ranks = waits[at] or tuple(r for r in dies if r != at.die.rank and r not in able) or (at.die.rank,)
            held = [r for r in ranks if r in dies and r not in able]
            what, place = self._where(at)
            links.append(Blocked(at.die.rank, what, place, held or ranks, task=at.number))
            over = [r for r in held if dies[r].gone or dies[r].ended]
            if any(dies[r].broken for r in over):
                return False
            if over:
                links.append(self._gone(over[0]))
                at = None
                break
            at = next((t for r in held for t in left if t.die.rank == r), None)
        if at is not None:
            path, links = path[path.index(at) :], links[path.index(at) :]
        if any(t.tail in self._told.get(t.die.number, ()) for t in path):
            return False  # of a die that hangs the first reason counts
        for t in path:
            self._told.setdefault(t.die.number, []).append(t.tail)
        return self._job.reports.add(findings.deadlock(links))

    def finish(self) -> None:
        """The job is over: timeouts whose missing members never came are reported now, and what somebody heard of."""
        for record in list(self._unlike):
            self._differs(record)
        for record, waiter, missing in self._late:
            never = [link for link in missing if link.rank not in record.arrived]
            if never and not any(tail is record for told in self._told.values() for tail in told):
                self._job.reports.add(findings.deadlock([waiter, never[0]], late=True))
