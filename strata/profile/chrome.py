"""Traces in Chrome's JSON format, which Perfetto and chrome://tracing load.

A *process* has threads and counters, a *thread* has spans, which are apart or one within the other; arrows go from span
to span.  Whoever knows what happened, on whatever clock, says so to a ``Trace``; times are microseconds.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from strata.errors import InvalidArgument, writing

Args = Mapping[str, Any] | str | None  # of spans; text is Encoded
Row = tuple[float, float, str, str, Args]
SLACK_US = 1e-9  # sums of times in floating point: less than a whole picosecond


class Span(NamedTuple):
    """Where an arrow may begin or end: a thread, and from when to when (microseconds)."""

    process: int
    thread: int
    begin: float
    end: float


class Encoded(str):
    """Arguments of a span that are JSON already: an object's text."""


class Trace:
    """What happened, to be written by ``save``.

    Processes and threads have numbers of 0 or more, which viewers sort by, and names.  Spans of one thread may come
    in any order but must not overlap in part: ``save`` refuses them with InvalidArgument.
    """

    def __init__(self, **about: Any) -> None:
        self.about = about
        self._names: dict[tuple[int, int], str] = {}
        self._spans: dict[tuple[int, int], list[Row]] = {}
        self._arrows: list[tuple[str, Span, Span, bool]] = []
        self._counters: dict[tuple[int, str], list[tuple[float, Mapping[str, float]]]] = {}

    def process(self, process: int, name: str) -> None:
        """Names a process."""
        self._names[process, -1] = name

    def thread(self, process: int, thread: int, name: str) -> None:
        """Names a thread of a process."""
        self._names[process, thread] = name

    def span(self, process: int, thread: int, name: str, begin: float, end: float, category: str = "",
             args: Args = None) -> Span:  # fmt: skip
        """Something that a thread did from ``begin`` to ``end``; what arrows take."""
        if not 0 <= begin <= end:
            raise InvalidArgument(f"{name}: a span from {begin} to {end} us")
        self._spans.setdefault((process, thread), []).append((begin, end, name, category, args))
        return Span(process, thread, begin, end)

    def arrow(self, name: str, source: Span, target: Span) -> None:
        """That the begin of ``target`` waited for the end of ``source``."""
        self._arrows.append((name, source, target, False))

    def release(self, name: str, source: Span, target: Span) -> None:
        """That ``target``, a wait, was over since ``source`` had ended."""
        self._arrows.append((name, source, target, True))

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
            out.write('{"otherData": ' + json.dumps(self.about) + ', "traceEvents": [\n')
            for i, event in enumerate(self._all()):
                out.write(",\n" + event if i else event)
            out.write("\n]}\n")

    def _all(self) -> Iterator[str]:
        for (process, thread), name in sorted(self._names.items()):
            what = "process" if thread < 0 else "thread"
            head = {"ph": "M", "pid": process, **({} if thread < 0 else {"tid": thread})}
            order = process if thread < 0 else thread
            yield _json({**head, "name": f"{what}_name", "args": {"name": name}})
            yield _json({**head, "name": f"{what}_sort_index", "args": {"sort_index": order}})
        for (process, thread), spans in sorted(self._spans.items()):
            yield from _thread(process, thread, spans)
        for number, (name, source, target, late) in enumerate(self._arrows, 1):
            # A viewer ties an arrow's end to the span that is there at that time, so both are within theirs.
            least = min(1e-3, (source.end - source.begin) / 2)
            if late:
                comes = max(target.begin, min(source.end, target.end - min(1e-3, (target.end - target.begin) / 2)))
                leaves = max(source.begin, min(source.end - least, comes))
            else:
                leaves = max(source.begin, min(source.end, target.begin) - least)
                comes = max(target.begin, leaves)
            ends = (("s", source, leaves), ("f", target, comes))
            for kind, span, when in ends:
                yield _json({"ph": kind, "id": number, "pid": span.process, "tid": span.thread, "name": name,
                             "cat": "flag", "ts": _us(when), **({"bp": "e"} if kind == "f" else {})})  # fmt: skip
        for (process, name), rows in sorted(self._counters.items()):
            for when, values in sorted(rows, key=lambda row: row[0]):
                yield _json({"ph": "C", "pid": process, "name": name, "ts": _us(when), "args": values})


def _thread(process: int, thread: int, spans: list[Row]) -> Iterator[str]:
    """A thread's spans, in order of their begins, instants and then the outer one first."""
    open_: list[tuple[float, str]] = []  # ends and names of those that go on, the innermost last
    head = f'{{"ph":"X","pid":{process},"tid":{thread},"name":'
    for begin, end, name, category, args in sorted(spans, key=lambda s: (s[0], s[1] > s[0], -s[1])):
        while open_ and open_[-1][0] <= begin + SLACK_US:
            begin, end = max(begin, open_[-1][0]), max(end, open_[-1][0])
            open_.pop()
        if open_ and end > open_[-1][0]:
            if end > open_[-1][0] + SLACK_US:
                where = f"process {process}, thread {thread}"
                raise InvalidArgument(f"{where}: {name} begins at {begin} us, before {open_[-1][1]} ends at "
                                      f"{open_[-1][0]} us")  # fmt: skip
            end = open_[-1][0]
        open_.append((end, name))
        text = f'{head}{_quoted(name)},"ts":{_us(begin)},"dur":{_us(max(end - begin, 0.0))}'
        if category:
            text += f',"cat":{_quoted(category)}'
        if args:
            text += f',"args":{args if isinstance(args, Encoded) else _json(args)}'
        yield text + "}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


_quoted = functools.lru_cache(4096)(json.dumps)  # names: few, again and again


def _us(value: float) -> float:
    """Microseconds to whole picoseconds."""
    return round(float(value), 6)
