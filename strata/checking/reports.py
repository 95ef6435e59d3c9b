"""Reports: what was found, as an object for programs and as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

from strata.checking.places import Place

__all__ = ["Report", "Reports", "Side", "text_of"]

PRINTED = 20  # reports whose text is shown
WIDTH = 110  # columns of text
KEPT = 1000  # different reports of a job


class Side(NamedTuple):
    """One of the parties: a die, what it did, where, and its last synchronisation before."""

    die: int
    task: int
    what: str
    operation: str
    place: Place
    sync: str

    def lines(self) -> Iterator[str]:
        """Of the text, indented."""
        of = f", by {self.operation}" if self.operation else ""
        task = f" (task {self.task} of it)" if self.task else ""
        yield f"  rank {self.die}{task}: {self.what}{of}"
        yield from (f"      {line}" for line in self.place.lines())

    def json(self) -> dict[str, Any]:
        """For --check-json."""
        place = self.place
        return {
            "die": self.die, "task": self.task, "what": self.what, "operation": self.operation or None,
            "file": place.file, "line": place.line, "function": place.function, "source": place.text,
            "stack": [list(frame) for frame in place.stack], "last_synchronisation": self.sync or None,
        }  # fmt: skip


class Report:
    """One finding.

    ``kind``   "race", "use after free", "stale", "mismatch", "deadlock" or "leak"
    ``title``  what it is, in a line
    ``bytes``  of which it is, in words ("": of none), and as addresses ``lo``, ``hi``
    ``why``, ``cure``  sentences
    ``count``  how often it was found at the same lines
    """

    def __init__(
        self,
        kind: str,
        title: str,
        sides: Iterable[Side],
        why: str,
        cure: str,
        bytes: str = "",
        lo: int = 0,
        hi: int = 0,
    ) -> None:
        self.kind = kind
        self.title = title
        self.sides = tuple(sides)
        self.why = why
        self.cure = cure
        self.bytes = bytes
        self.lo = lo
        self.hi = hi
        self.count = 1
        self.job = ""

    def key(self) -> tuple[object, ...]:
        """The same for findings that need be shown once."""
        return (self.kind, *sorted((side.place.file, side.place.line) for side in self.sides))

    def text(self) -> str:
        """For people; ends with a newline."""
        lines = [f"strata check: {self.kind}: {self.title}"]
        if self.bytes:
            lines.append(f"  {self.bytes}")
        for side in self.sides:
            lines += side.lines()
        lines += _wrapped("Why: ", self.why) + _wrapped("Cure:", self.cure)
        if self.count > 1:
            lines.append(f"  Found {self.count} times at these lines; shown once.")
        return "\n".join(lines) + "\n"

    def json(self) -> dict[str, Any]:
        """For --check-json; see docs/checking.md."""
        return {
            "kind": self.kind, "job": self.job, "title": self.title, "sides": [side.json() for side in self.sides],
            "range": [self.lo, self.hi] if self.hi else None, "bytes": self.bytes or None, "why": self.why,
            "cure": self.cure, "count": self.count, "text": self.text(),
        }  # fmt: skip


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {head} ", subsequent_indent=" " * 8, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


class Reports:
    """Those of one job, each once."""

    def __init__(self, job: str = "") -> None:
        self.job = job
        self._all: dict[tuple[object, ...], Report] = {}
        self.more = 0  # that were not kept

    def add(self, report: Report) -> bool:
        """True if it is new."""
        key = report.key()
        known = self._all.get(key)
        if known is not None:
            known.count += 1
            return False
        if len(self._all) >= KEPT:
            self.more += 1
            return False
        report.job = self.job
        self._all[key] = report
        return True

    def clear(self, kind: str | None = None) -> None:
        """Forgets those of a kind; None: all of them."""
        self._all = {} if kind is None else {key: r for key, r in self._all.items() if r.kind != kind}

    def __len__(self) -> int:
        return len(self._all) + self.more

    def __iter__(self) -> Iterator[Report]:
        return iter(self._all.values())


def text_of(reports: Iterable[Report], shown: Container[object] = ()) -> str:
    """The texts of the first PRINTED, but of those whose key is in ``shown``, and how many there are of which kind."""
    found = list(reports)
    if not found:
        return ""
    kinds: dict[str, int] = {}
    for report in found:
        kinds[report.kind] = kinds.get(report.kind, 0) + 1
    new = [report for report in found if report.key() not in shown]
    parts = [report.text() + "\n" for report in new[:PRINTED]]
    counted = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    hidden = len(new) - PRINTED
    more = f"; {hidden} of them not shown here (--check-json FILE has them)" if hidden > 0 else ""
    parts.append(f"strata check: {len(found)} report{'s' if len(found) > 1 else ''} ({counted}){more}\n")
    return "".join(parts)
