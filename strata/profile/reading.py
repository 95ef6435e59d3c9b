"""Traces in Chrome's JSON format, read back into columns, from whichever clock.

What is read is checked: a file is anybody's.  Categories of spans become *kinds*, which all views go by:
calls of the library, the three things that a call's phases can be (waiting, moving bytes, anything else), the
program's own probes, and what is shown but not counted (idle threads, samples).
"""

from __future__ import annotations

import gc
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strata.errors import InvalidArgument

CALL, WAIT, TRANSFER, OTHER, PROBE, ASIDE = range(6)
KIND_NAMES = ("call", "wait", "transfer", "other", "probe", "aside")
KINDS = {
    "call": CALL, "probe": PROBE, "idle": ASIDE, "sample": ASIDE,
    "wait": WAIT, "arrive": WAIT,
    "copy": TRANSFER, "reduce": TRANSFER, "accumulate": TRANSFER, "dma": TRANSFER, "mailbox": TRANSFER,
    "send": TRANSFER, "recv": TRANSFER, "move": TRANSFER,
}  # fmt: skip  # all else is OTHER
CALLS, CORE, RING, THREAD = range(4)
TRACK_NAMES = ("calls", "core", "ring", "thread")
TRACK = re.compile(r"(calls|core|ring)(?: (\d{1,9}))?")
NO = -1  # where a span has no such number

SPAN = np.dtype([
    ("die", "i4"), ("track", "i4"), ("begin", "f8"), ("end", "f8"), ("name", "i4"), ("category", "i4"), ("kind", "u1"),
    ("bytes", "i8"), ("peer", "i4"), ("unit", "i8"), ("call", "i8"), ("group", "i4"), ("args", "i8"),
])  # fmt: skip
MOST = 2**53  # above this, JSON's numbers are not exact


class Track(NamedTuple):
    """A thread of a die: what it is, and which of its kind."""

    die: int
    thread: int
    name: str
    kind: int
    number: int


class Recorded(NamedTuple):
    """A trace.

    ``about``    what the file says of itself;  ``dies``  their names by number;  ``lost``  events by die
    ``tracks``   what the column "track" is a place in;  ``names``, ``categories``, ``groups``  likewise
    ``spans``    of ``SPAN``, by track, begin, and the longer first; microseconds; -1: has no such number
    ``args``     of calls and probes, what the column "args" is a place in
    ``arrows``   f64 (arrows, 2): from when to when;  ``counters``  by (die, name, series): times and values
    """

    file: str
    about: dict[str, Any]
    dies: dict[int, str]
    lost: dict[int, int]
    tracks: list[Track]
    names: list[str]
    categories: list[str]
    groups: list[str]
    spans: np.ndarray
    args: list[dict[str, Any]]
    arrows: np.ndarray
    counters: dict[tuple[int, str, str], tuple[np.ndarray, np.ndarray]]

    def of(self, *kinds: int) -> np.ndarray:
        """Rows of ``spans`` that are of one of these kinds."""
        return np.flatnonzero(np.isin(self.spans["kind"], kinds))

    def track_kinds(self) -> np.ndarray:
        """Of each span, the kind of its track."""
        return np.array([t.kind for t in self.tracks], "i4")[self.spans["track"]]

    def between(self, begin: float, end: float) -> Recorded:
        """What lies in a part of the time, spans cut to it; InvalidArgument if nothing does."""
        starts, ends = self.spans["begin"], self.spans["end"]
        spans = self.spans[((ends > begin) | (starts >= begin)) & (starts < end)].copy()
        if not len(spans):
            raise InvalidArgument(f"{self.file}: nothing between {begin:g} and {end:g} us")
        np.clip(spans["begin"], begin, end, out=spans["begin"])
        np.clip(spans["end"], begin, end, out=spans["end"])
        return self._replace(spans=spans)

    def only(self, dies: Iterable[int]) -> Recorded:
        """What these dies did; InvalidArgument for one that is not there."""
        wanted = set(dies)
        if missing := wanted - self.dies.keys():
            there = ", ".join(map(str, sorted(self.dies)))
            raise InvalidArgument(f"{self.file}: there is no die {min(missing)}; there are {there}")
        return self._replace(
            spans=self.spans[np.isin(self.spans["die"], list(wanted))],
            dies={die: name for die, name in self.dies.items() if die in wanted},
            lost={die: n for die, n in self.lost.items() if die in wanted},
            counters={key: value for key, value in self.counters.items() if key[0] in wanted},
        )


def read(file: str | PathLike[str]) -> Recorded:
    """A trace from a file; OSError, or InvalidArgument that says what is wrong with it, and where."""
    path = Path(file)
    collects = gc.isenabled()
    gc.disable()  # else it looks through millions of small objects again and again, and finds no circle
    try:
        return _read(path)
    finally:
        if collects:
            gc.enable()


def _read(path: Path) -> Recorded:
    found = _json(path)
    about: Any = {}
    if isinstance(found, dict):
        about = found.get("otherData", {})
        events = found.get("traceEvents")
    else:
        events = found
    if not isinstance(events, list) or not isinstance(about, dict):
        raise InvalidArgument(f"{path}: no trace: a list of events, or an object with traceEvents, is expected")
    made = _Reader(str(path))
    for at, event in enumerate(events):
        made.take(at, event)
    return made.done(about)


def _json(path: Path) -> Any:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise InvalidArgument(f"{path}: damaged or cut short: {error}") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError too
        raise InvalidArgument(f"{path}: no JSON, or cut short: {error}") from None


class _Reader:
    """Events, one after the other."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.at = 0
        self.dies: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.tracks: dict[tuple[int, int], int] = {}
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.groups: dict[str, int] = {}
        self.kinds: list[int] = []
        self.rows: list[tuple[Any, ...]] = []
        self.args: list[dict[str, Any]] = []
        self.leaves: dict[Any, float] = {}
        self.arrows: list[tuple[float, float]] = []
        self.counters: dict[tuple[int, str, str], list[tuple[float, float]]] = {}

    def wrong(self, what: str) -> InvalidArgument:
        """What is wrong with the event at hand."""
        return InvalidArgument(f"{self.file}: event {self.at}: {what}")

    def take(self, at: int, event: Any) -> None:
        """One event; kinds that strata does not write are errors where they would be missed."""
        self.at = at
        kind = event.get("ph") if isinstance(event, dict) else None
        if kind == "X":
            self._span(event, self._time(event, "dur"))
        elif kind in ("i", "I"):
            self._span(event, 0.0)
        elif kind == "M":
            self._named(event)
        elif kind == "C":
            self._counter(event)
        elif kind == "s":
            self.leaves[self._id(event)] = self._time(event, "ts")
        elif kind in ("f", "t"):
            begin = self.leaves.get(self._id(event))
            if begin is not None:
                self.arrows.append((begin, self._time(event, "ts")))
        elif kind in ("B", "E", "b", "e"):
            raise self.wrong(f"begin and end apart (ph {kind!r}); spans with a duration (ph 'X') are read")
        else:
            raise self.wrong(f"no event of Chrome's trace format that is known: ph {kind!r}")

    def _id(self, event: dict[str, Any]) -> Any:
        number = event.get("id")
        if not isinstance(number, (int, str)):
            raise self.wrong("an arrow without id")
        return event.get("cat"), number

    def _time(self, event: dict[str, Any], key: str) -> float:
        value = event.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < MOST:
            raise self.wrong(f"{key} is {value!r}, and microseconds of 0 or more are expected")
        return float(value)

    def _whole(self, event: dict[str, Any], key: str, least: int = 0, default: int | None = None) -> int:
        value = event.get(key, default)
        if value is None and default is not None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < MOST:
            raise self.wrong(f"{key} is {value!r}, and a whole number of {least} or more is expected")
        return value

    def _place(self, event: dict[str, Any]) -> tuple[int, int]:
        die = self._whole(event, "pid")
        if die >= 2**31:
            raise self.wrong(f"pid is {die}, which is no number of a die")
        return die, self._whole(event, "tid", default=0)

    def _text(self, event: dict[str, Any], key: str, default: str | None = None) -> str:
        value = event.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(f"{key} is {value!r}, and text is expected")
        return value

    def _args(self, event: dict[str, Any]) -> dict[str, Any]:
        args = event.get("args")
        if args is not None and not isinstance(args, dict):
            raise self.wrong(f"args is {args!r}, and an object is expected")
        return args or {}

    def _named(self, event: dict[str, Any]) -> None:
        what = event.get("name")
        if what in ("process_name", "thread_name"):
            name = self._text(self._args(event), "name")
            die, thread = self._place(event)
            if what == "process_name":
                self.dies[die] = name
            else:
                self.threads[die, thread] = name

    def _span(self, event: dict[str, Any], long: float) -> None:
        where = self._place(event)
        begin = self._time(event, "ts")
        name = self._text(event, "name")
        category = self._text(event, "cat", "")
        args = self._args(event)
        which = self.categories.setdefault(category, len(self.categories))
        if which == len(self.kinds):
            self.kinds.append(KINDS.get(category, OTHER))
        kind = self.kinds[which]
        if category == "flag" and "wait" in name:
            kind = WAIT
        kept = NO
        if kind in (CALL, PROBE):
            kept = len(self.args)
            self.args.append(args)
        numbers = [self._whole(args, key, NO, NO) if args else NO for key in ("bytes", "peer", "unit", "call")]
        if numbers[1] >= 2**31:
            raise self.wrong(f"peer is {numbers[1]}, which is no number of a die")
        group = self.groups.setdefault(str(args["group"]), len(self.groups)) if "group" in args else NO
        track = self.tracks.setdefault(where, len(self.tracks))
        self.dies.setdefault(where[0], f"die {where[0]}")
        self.rows.append((where[0], track, begin, begin + long, self.names.setdefault(name, len(self.names)), which,
                          kind, *numbers, group, kept))  # fmt: skip

    def _counter(self, event: dict[str, Any]) -> None:
        name, when, die = self._text(event, "name"), self._time(event, "ts"), self._whole(event, "pid")
        for series, value in self._args(event).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise self.wrong(f"the counter {name} has {series} {value!r}, and a number is expected")
            self.counters.setdefault((die, name, series), []).append((when, float(value)))

    def done(self, about: dict[str, Any]) -> Recorded:
        """All of it."""
        if not self.rows:
            raise InvalidArgument(f"{self.file}: a trace without spans; was anything traced?")
        spans = np.array(self.rows, SPAN)
        spans = spans[np.lexsort((-spans["end"], spans["begin"], spans["track"]))]
        tracks = [self._track(where) for where in self.tracks]
        counters = {}
        for key, rows in self.counters.items():
            columns = np.array(sorted(rows, key=lambda row: row[0]))
            counters[key] = columns[:, 0], columns[:, 1]
        arrows = np.array(self.arrows, "f8").reshape(-1, 2)
        return Recorded(self.file, about, dict(sorted(self.dies.items())), self._lost(about), tracks, list(self.names),
                        list(self.categories), list(self.groups), spans, self.args, arrows, counters)  # fmt: skip

    def _track(self, where: tuple[int, int]) -> Track:
        name = self.threads.get(where, f"thread {where[1]}")
        known = TRACK.fullmatch(name)
        if known is None:
            return Track(*where, name, THREAD, where[1])
        return Track(*where, name, TRACK_NAMES.index(known[1]), int(known[2] or 0))

    def _lost(self, about: dict[str, Any]) -> dict[int, int]:
        lost = about.get("lost") or {}
        try:
            return {int(die): int(n) for die, n in lost.items()}
        except (AttributeError, TypeError, ValueError):
            raise InvalidArgument(f"{self.file}: otherData: lost is {lost!r}; events by die are expected") from None
