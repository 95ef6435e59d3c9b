"""Traces in Chrome's JSON format, which Perfetto and chrome://tracing load.

A *process* has threads and counters, a *thread* has spans, which do not overlap; arrows go from span to span.
Whoever knows what happened, on whatever clock, says so to a ``Trace``; times are microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from strata.errors import InvalidArgument, writing

SLACK_US = 1e-9  # sums of times in floating point: less than a whole picosecond


class Span(NamedTuple):
    """Where an arrow may begin or end: a thread, and from when to when (microseconds)."""

    process: int
    thread: int
    begin: float
    end: float


class Trace:
    """What happened, to be written by ``save``.

    Processes and threads have numbers of 0 or more, which viewers sort by, and names.  Spans of one thread may come
    in any order but must not overlap: ``save`` refuses them with InvalidArgument.
    """

    def __init__(self, **about: Any) -> None:
        self.about = about
        self._names: dict[tuple[int, int], str] = {}
        self._spans: dict[tuple[int, int], list[tuple[float, float, str, str, Mapping[str, Any] | None]]] = {}
        self._arrows: list[tuple[str, Span, Span]] = []
        self._counters: dict[tuple[int, str], list[tuple[float, Mapping[str, float]]]] = {}

    def process(self, process: int, name: str) -> None:
        """Names a process."""
        self._names[process, -1] = name

    def thread(self, process: int, thread: int, name: str) -> None:
        """Names a thread of a process."""
        self._names[process, thread] = name

    def span(self, process: int, thread: int, name: str, begin: float, end: float, category: str = "",
             args: Mapping[str, Any] | None = None) -> Span:  # fmt: skip
        """Something that a thread did from ``begin`` to ``end``; what arrows take."""
        if not 0 <= begin <= end:
            raise InvalidArgument(f"{name}: a span from {begin} to {end} us")
        self._spans.setdefault((process, thread), []).append((begin, end, name, category, args))
        return Span(process, thread, begin, end)

    def arrow(self, name: str, source: Span, target: Span) -> None:
        """That the begin of ``target`` waited for the end of ``source``."""
        self._arrows.append((name, source, target))

    def counter(self, process: int, name: str, at: Sequence[float], values: Mapping[str, Sequence[float]]) -> None:
        """Values that hold from each of the times ``at`` on, by the names of their series."""
        rows = self._counters.setdefault((process, name), [])
        series = [(key, list(map(float, column))) for key, column in values.items()]
        rows += [(float(when), {key: column[i] for key, column in series}) for i, when in enumerate(at)]

    @property
    def events(self) -> int:
        """Events that ``save`` will write, names aside."""
        return sum(map(len, self._spans.values())) + 2 * len(self._arrows) + sum(map(len, self._counters.values()))

    def save(self, file: str | PathLike[str]) -> None:
        """Writes JSON, compressed if the name ends in .gz; OSError, or InvalidArgument for spans that overlap."""
        path = Path(file)
        opened = gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8")
        with writing(path), opened as out:
            out.write('{"displayTimeUnit": "ns", "otherData": ' + json.dumps(self.about) + ', "traceEvents": [\n')
            for i, event in enumerate(self._all()):
                out.write((",\n" if i else "") + json.dumps(event, separators=(",", ":")))
            out.write("\n]}\n")

    def _all(self) -> Iterator[dict[str, Any]]:
        for (process, thread), name in sorted(self._names.items()):
            what = "process" if thread < 0 else "thread"
            head = {"ph": "M", "pid": process, **({} if thread < 0 else {"tid": thread})}
            order = process if thread < 0 else thread
            yield {**head, "name": f"{what}_name", "args": {"name": name}}
            yield {**head, "name": f"{what}_sort_index", "args": {"sort_index": order}}
        for (process, thread), spans in sorted(self._spans.items()):
            before, last = 0.0, ""
            for begin, end, name, category, args in sorted(spans, key=lambda s: s[:2]):
                if begin < before - SLACK_US:
                    where = f"process {process}, thread {thread}"
                    raise InvalidArgument(f"{where}: {name} begins at {begin} us, before {last} ends at {before} us")
                begin, before, last = max(begin, before), max(end, before), name
                event = {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": _us(begin),
                         "dur": _us(max(end - begin, 0.0))}  # fmt: skip
                yield {**event, **({"cat": category} if category else {}), **({"args": args} if args else {})}
        for number, (name, source, target) in enumerate(self._arrows, 1):
            # A viewer ties an arrow's end to the span that is there at that time, so the source's is within it.
            leaves = max(source.begin, min(source.end, target.begin) - min(1e-3, (source.end - source.begin) / 2))
            ends = (("s", source, leaves), ("f", target, max(target.begin, leaves)))
            for kind, span, when in ends:
                yield {"ph": kind, "id": number, "pid": span.process, "tid": span.thread, "name": name, "cat": "flag",
                       "ts": _us(when), **({"bp": "e"} if kind == "f" else {})}  # fmt: skip
        for (process, name), rows in sorted(self._counters.items()):
            for when, values in sorted(rows, key=lambda row: row[0]):
                yield {"ph": "C", "pid": process, "name": name, "ts": _us(when), "args": values}


def _us(value: float) -> float:
    """Microseconds to whole picoseconds."""
    return round(float(value), 6)
