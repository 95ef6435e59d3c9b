"""Events of a checked die: what they hold, and how a line becomes one.

A die sends JSON lines over one connection.  Each is an object with "e", the kind, and, but
for ``hello`` and ``site``, "t": the task, a thread of execution of that die.  Events of one task
are in program order.  Addresses are virtual, equal on all dies; ranges are [lo, hi).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = [
    "LINE", "Acc", "Alloc", "BadEvent", "Done", "End", "Event", "Fork", "Free", "Hello", "Join", "Leak", "Op", "OpEnd",
    "Post", "Range", "Site", "Take", "Unpost", "View", "ViewEnd", "Wait", "parse",
]  # fmt: skip

LINE = 1 << 20  # bytes of the longest line
PIECES = 1 << 16  # of a strided range
ADDRESS = 1 << 64


class BadEvent(ValueError):
    """A line that is no event; the text says why."""


class Range(NamedTuple):
    """Bytes [lo, hi), and the same ``n`` - 1 more times, each ``step`` bytes further."""

    lo: int
    hi: int
    n: int = 1
    step: int = 0

    @property
    def end(self) -> int:
        """The first address behind all of it."""
        return self.hi + (self.n - 1) * self.step


class Hello(NamedTuple):
    """First of a connection: who speaks."""

    job: str
    rank: int
    size: int
    pid: int


class Site(NamedTuple):
    """A place in the program.  ``stack``: (file, line, function), innermost first."""

    id: int
    file: str
    line: int
    function: str
    text: str
    stack: tuple[tuple[str, int, str], ...]


class Acc(NamedTuple):
    """Bytes read or written.  ``view``: the id of the View through which, or -1."""

    t: int
    range: Range
    write: bool
    atomic: bool
    site: int
    what: str
    view: int


class Alloc(NamedTuple):
    """Memory of the die's own became an array."""

    t: int
    lo: int
    hi: int
    site: int


class Free(NamedTuple):
    """... and is none any more."""

    t: int
    lo: int
    hi: int
    site: int


class Fork(NamedTuple):
    """Task ``child`` begins after this."""

    t: int
    child: int
    site: int


class Join(NamedTuple):
    """Task ``t`` goes on after the end of ``child``; ``failed``: which has ended with an error, wherever it was."""

    t: int
    child: int
    site: int
    failed: bool


class Done(NamedTuple):
    """The task has ended, whether anybody joins it or not."""

    t: int


class Post(NamedTuple):
    """A flag was raised to ``value``, or by ``add``."""

    t: int
    key: str
    value: int
    add: int
    site: int


class Unpost(NamedTuple):
    """A post that nobody may take any more: a message that was withdrawn."""

    t: int
    key: str
    value: int


class Take(NamedTuple):
    """A flag was seen at ``value`` or above; ``failed``: what would raise it has failed, and nothing of it goes on."""

    t: int
    key: str
    value: int
    site: int
    failed: bool


class Op(NamedTuple):
    """This member came to operation ``n`` of a group.  Ranks are those of the world; -1: no root."""

    t: int
    group: str
    name: str
    n: int
    op: str
    members: tuple[int, ...]
    root: int
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    site: int
    ts: float


class OpEnd(NamedTuple):
    """``status``: "ok", "later" (it goes on without its caller), or an error's name."""

    t: int
    group: str
    n: int
    status: str
    op: str


class Wait(NamedTuple):
    """The task is about to block: until operations of tasks are over, for ranks, or for a flag."""

    t: int
    site: int
    what: str
    tasks: tuple[int, ...]
    ranks: tuple[int, ...]
    key: str
    value: int


class View(NamedTuple):
    """An array was made from an address."""

    t: int
    id: int
    lo: int
    hi: int
    site: int


class ViewEnd(NamedTuple):
    """... and is gone."""

    t: int
    id: int


class Leak(NamedTuple):
    """Something was left open at the end."""

    t: int
    kind: str
    text: str
    site: int


class End(NamedTuple):
    """The die has left the job in good order; ``failed``: its program was not well."""

    t: int
    failed: bool


Event = (
    Acc | Alloc | Free | Fork | Join | Done | Post | Unpost | Take | Op | OpEnd | Wait | View | ViewEnd | Leak | End
)  # of a task


class _Fields:
    """The fields of one line, read with a check of each."""

    __slots__ = ("_values", "kind")

    def __init__(self, kind: str, values: dict[str, Any]) -> None:
        self.kind = kind
        self._values = values

    def bad(self, name: str, what: str) -> BadEvent:
        shown = repr(self._values[name])[:60] if name in self._values else "nothing"
        return BadEvent(f'"{self.kind}": {what} expected in "{name}", not {shown}')

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def number(self, name: str, default: int | None = None, low: int = 0, high: int = ADDRESS) -> int:
        value = self._values.get(name, default)
        if value is None and default is not None:
            return default
        if type(value) is bool:  # a flag
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise self.bad(name, f"an integer of {low} or more")
        return value

    def seconds(self, name: str) -> float:
        value = self._values.get(name, 0.0)
        if not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise self.bad(name, "seconds")
        return float(value)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self.bad(name, "text")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self._values.get(name) or ()
        if not isinstance(value, (list, tuple)) or not all(type(v) is int and v >= 0 for v in value):
            raise self.bad(name, "a list of integers")
        return tuple(value)

    def span(self) -> tuple[int, int]:
        lo, hi = self.number("lo"), self.number("hi")
        if hi < lo:
            raise self.bad("hi", f'"lo" ({lo}) or more')
        return lo, hi

    def items(self, name: str) -> list[Any] | tuple[Any, ...]:
        value = self._values.get(name) or ()
        if not isinstance(value, (list, tuple)):
            raise self.bad(name, "a list")
        return value

    def ranges(self, name: str) -> tuple[Range, ...]:
        found = []
        for item in self.items(name):
            if not isinstance(item, (list, tuple)) or len(item) not in (2, 4) or any(type(v) is not int for v in item):
                raise self.bad(name, "a list of [lo, hi] or [lo, hi, n, step]")
            found.append(self.checked(Range(*item), name))
        return tuple(found)

    def checked(self, span: Range, name: str) -> Range:
        inside = 0 <= span.lo <= span.hi and span.end <= ADDRESS
        if not inside or not 1 <= span.n <= PIECES or span.n > 1 and span.step < span.hi - span.lo:
            raise self.bad(name, f"ascending addresses in at most {PIECES} pieces that do not overlap")
        return span

    def stack(self) -> tuple[tuple[str, int, str], ...]:
        frames = []
        for item in self.items("stack"):
            good = isinstance(item, (list, tuple)) and len(item) == 3
            if not good or [type(v) for v in item] != [str, int, str]:
                raise self.bad("stack", "a list of [file, line, function]")
            frames.append((item[0], item[1], item[2]))
        return tuple(frames)


def _acc(f: _Fields, t: int) -> Acc:
    span = f.checked(Range(*f.span(), f.number("n", 1, 1, PIECES), f.number("step", 0)), "n")
    return Acc(t, span, bool(f.number("w", 0)), bool(f.number("atomic", 0)), f.number("site"), f.text("what", ""),
               f.number("v", -1, -1))  # fmt: skip


def _op(f: _Fields, t: int) -> Op:
    members = f.numbers("members")
    if not members or len(set(members)) != len(members):
        raise f.bad("members", "distinct world ranks")
    return Op(t, f.text("group"), f.text("name", ""), f.number("n"), f.text("op"), members, f.number("root", -1, -1),
              f.ranges("reads"), f.ranges("writes"), f.number("site"), f.seconds("ts"))  # fmt: skip


def _post(f: _Fields, t: int) -> Post:
    add = f.number("add", 0)
    return Post(t, f.text("key"), 0 if add else f.number("value"), add, f.number("site", -1, -1))


def _wait(f: _Fields, t: int) -> Wait:
    return Wait(t, f.number("site"), f.text("what", "a wait"), f.numbers("c"), f.numbers("ranks"), f.text("key", ""),
                f.number("value", 0))  # fmt: skip


_READERS: dict[str, Callable[[_Fields, int], Event]] = {
    "acc": _acc,
    "alloc": lambda f, t: Alloc(t, *f.span(), f.number("site")),
    "free": lambda f, t: Free(t, *f.span(), f.number("site")),
    "fork": lambda f, t: Fork(t, f.number("c", low=1), f.number("site", -1, -1)),
    "join": lambda f, t: Join(t, f.number("c", low=1), f.number("site", -1, -1), bool(f.number("failed", 0))),
    "done": lambda f, t: Done(t),
    "post": _post,
    "unpost": lambda f, t: Unpost(t, f.text("key"), f.number("value")),
    "take": lambda f, t: Take(t, f.text("key"), f.number("value"), f.number("site", -1, -1),
                              bool(f.number("failed", 0))),  # fmt: skip
    "op": _op,
    "opend": lambda f, t: OpEnd(t, f.text("group"), f.number("n"), f.text("status"), f.text("op", "")),
    "wait": _wait,
    "view": lambda f, t: View(t, f.number("id"), *f.span(), f.number("site")),
    "viewend": lambda f, t: ViewEnd(t, f.number("id")),
    "leak": lambda f, t: Leak(t, f.text("kind"), f.text("text", ""), f.number("site", -1, -1)),
    "end": lambda f, t: End(t, bool(f.number("failed", 0))),
}


def _hello(f: _Fields) -> Hello:
    hello = Hello(f.text("job"), f.number("rank"), f.number("size", low=1), f.number("pid", 0))
    if hello.rank >= 1 << 16 or len(hello.job) > 256:
        raise f.bad("rank", "a rank of this job")
    return hello


def parse(line: bytes) -> Hello | Site | Event:
    """The event that a line holds.

    Raises BadEvent: no JSON object, an unknown kind, a field that is missing or not of its kind.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadEvent(f"no JSON ({error}): {line[:60]!r}") from None
    if not isinstance(values, dict):
        raise BadEvent(f"no JSON object: {line[:60]!r}")
    kind = values.get("e")
    fields = _Fields(str(kind), values)
    if kind == "hello":
        return _hello(fields)
    if kind == "site":
        return Site(fields.number("id"), fields.text("file"), fields.number("line"), fields.text("function", ""),
                    fields.text("text", ""), fields.stack())  # fmt: skip
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise BadEvent(f"unknown kind of event: {kind!r}"[:100])
    default = 0 if kind in ("leak", "end") else None
    return reader(fields, fields.number("t", default, high=1 << 53))
