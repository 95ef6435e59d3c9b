"""What tasks do to memory: the part of the analysis that knows bytes."""

from __future__ import annotations

from strata.checking import findings
from strata.checking.clocks import Clock
from strata.checking.events import Acc, Alloc, Free, Op, Range, View
from strata.checking.memory import Memory
from strata.checking.operations import ROOT_FIRST, title
from strata.checking.places import Place
from strata.checking.reports import Report, Reports
from strata.checking.shadow import ALLOC, ATOMIC_READ, ATOMIC_WRITE, FREE, READ, WRITE, Access, Shadow
from strata.checking.tasks import Task

__all__ = ["Accesses"]

FREED = 1 << 15  # pieces of freed memory that are remembered
KINDS = {(False, False): READ, (True, False): WRITE, (False, True): ATOMIC_READ, (True, True): ATOMIC_WRITE}


class _Found:
    """What one access meets: each other party once, with the hull of the bytes."""

    def __init__(self) -> None:
        self.all: dict[Access, tuple[int, int]] = {}

    def __call__(self, old: Access, lo: int, hi: int) -> None:
        known = self.all.get(old)
        self.all[old] = (min(known[0], lo), max(known[1], hi)) if known else (lo, hi)


def _new(kind: int, task: Task, place: Place, what: str, operation: str = "") -> Access:
    task.touched = True
    doing = task.doing._replace(operation=operation) if operation else task.doing
    return Access(kind, task.die.rank, task.number, task.slot, task.clock[task.slot], place, what, doing)


class Accesses:
    """The memory of one job."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._memory = Memory()
        self.shadow = Shadow()

    def __len__(self) -> int:
        return len(self.shadow)

    def access(self, task: Task, event: Acc) -> None:
        """Bytes are read or written."""
        die = task.die
        access = _new(KINDS[event.write, event.atomic], task, die.place(event.site), event.what)
        seen = die.views.get(event.view) if event.view >= 0 else None
        if seen is not None and seen.free is not None and seen.alloc.die != die.rank:
            self._reports.add(self._old_view(access, event.range, seen.free, task.clock))
        else:
            self._access(task, event.range, access)

    def _old_view(self, access: Access, span: Range, free: Access, clock: Clock) -> Report:
        """An access by a view whose array was freed since it was made."""
        now = self._memory.find(span.lo)
        mark = free
        if now is not None and now.free is None:
            new = now.alloc
            mark = Access(ALLOC, new.die, new.task, new.slot, new.count, new.place, new.what, new.doing)
            mark.previous = free
        return findings.unowned(access, mark, span.lo, span.end, self._memory, mark.before(clock))

    def operation(self, task: Task, event: Op, late: bool) -> None:
        """An operation's own accesses: those that wait for the root to have come (late), or the others."""
        after = event.op in ROOT_FIRST and event.root >= 0 and event.root != task.die.rank
        ranges = [] if late else [(READ, "src", event.reads)]
        if after == late:
            ranges.append((WRITE, "out", event.writes))
        for kind, name, spans in ranges:
            if spans:
                access = _new(kind, task, task.die.place(event.site), f"{name} of {event.op}", title(event))
                for span in spans:
                    self._access(task, span, access)

    def _access(self, task: Task, span: Range, access: Access) -> None:
        found, clock = _Found(), task.clock
        if span.hi > span.lo:
            self.shadow.access(span, access, clock, found, found)
        for old, (a, b) in found.all.items():
            if old.kind in (ALLOC, FREE):
                self._reports.add(findings.unowned(access, old, a, b, self._memory, old.before(clock)))
            else:
                self._reports.add(findings.race(old, access, a, b, self._memory))

    def alloc(self, task: Task, event: Alloc) -> None:
        """Bytes become an array of the die's own."""
        if event.hi > event.lo:
            found = _Found()
            mark = _new(ALLOC, task, task.die.place(event.site), "")
            self.shadow.alloc(event.lo, event.hi, mark, task.clock, found)
            self._memory.alloc(event.lo, event.hi, mark)
            self._report_all(found, mark)

    def free(self, task: Task, event: Free) -> None:
        """... and none."""
        if event.hi > event.lo:
            found = _Found()
            mark = _new(FREE, task, task.die.place(event.site), "")
            self.shadow.free(event.lo, event.hi, mark, task.clock, found)
            self._report_all(found, mark)
            self._memory.free(event.lo, event.hi, mark)

    def view(self, task: Task, event: View) -> None:
        """A view is made from an address: of the array that its maker knows there."""
        seen = self._memory.seen(event.lo, task.clock)
        if seen is not None:
            task.die.views[event.id] = seen

    def _report_all(self, found: _Found, mark: Access) -> None:
        for old, (a, b) in found.all.items():
            self._reports.add(findings.unowned(old, mark, a, b, self._memory, False))

    def drop(self, known: Clock) -> None:
        """Forgets what is ordered before all that may still come."""
        self.shadow.drop(known, FREED)
        self._memory.drop()
