"""What a die has written to its trace: calls, probes and phases, and which phase belongs to which call."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from strata._core import marks, spans, tracing

__all__ = ["CALL", "Die", "KIND", "MOVES", "Thread", "tags_of"]

KIND = {name: number for number, name in enumerate(tracing.KINDS)}
MOVES = tuple(KIND[name] for name in ("copy", "reduce", "accumulate", "mailbox"))
CALL = np.dtype([
    ("begin", "u8"), ("end", "u8"), ("name", "u4"), ("bytes", "u8"), ("flags", "u1"), ("peer", "u2"), ("group", "u8"),
    ("number", "u8"), ("count", "u1"), ("slack", "u1"), ("later", "u1"), ("site", "u4"), ("tags", "u8"),
])  # fmt: skip
MASK = (1 << spans.NUMBER_BITS) - 1
NONE = -1


class Thread(NamedTuple):
    """A slice of a die's trace.

    ``role``, ``tid``  as strata._core.tracing.read has them
    ``calls``   places in the die's calls;  ``probes``, ``phases``  of EVENT
    ``call``    of each phase, a place in the die's calls; -1: of none
    ``group``, ``number``  of each phase, the operation: the lower half of its group's id, and its number; 0: of none
    """

    role: str
    tid: int
    calls: np.ndarray
    probes: np.ndarray
    phases: np.ndarray
    call: np.ndarray
    group: np.ndarray
    number: np.ndarray


class Die:
    """``found`` is what strata._core.tracing.read returned for a die."""

    def __init__(self, rank: int, found: dict[str, Any]) -> None:
        self.rank = rank
        self.pid = int(found["pid"])
        self.names: list[str] = found["names"]
        slices = sorted(found["slices"], key=lambda s: (s["tid"] != self.pid, _first(s["events"]) or 0))
        self.first = min((t for s in slices if (t := _first(s["events"])) is not None), default=None)
        self.groups = dict(filter(None, map(_group, self.names)))
        parts = [_calls(s["events"]) for s in slices]
        ends = np.cumsum([0, *map(len, parts)])
        self.calls = np.concatenate(parts) if parts else np.zeros(0, CALL)
        self._settle_numbers(slices)
        known = self._by_number()
        self.threads = [self._thread(s, np.arange(ends[i], ends[i + 1]), known) for i, s in enumerate(slices)]

    def name(self, number: int) -> str:
        """A text by its number, "?" if the trace does not have it."""
        text = self.names[number] if 0 < number < len(self.names) else ""
        return text if text and text[0] != marks.GROUP[0] else "?"

    def tags(self, word: int) -> dict[str, Any] | None:
        """What an event says of tags; None: there are none."""
        number = word & 0xFFFF
        text = self.names[number] if 0 < number < len(self.names) else ""
        return tags_of(text.removeprefix(marks.TAGS), word) if text.startswith(marks.TAGS) else None

    def members(self) -> dict[int, list[int]]:
        """World ranks of the members of groups, by the lower half of their ids."""
        return {identity & 0xFFFFFFFF: ranks for identity, (_, ranks) in self.groups.items()}

    def _settle_numbers(self, slices: list[dict[str, Any]]) -> None:
        """Operations that were handed to a group's thread have the numbers that it gave them, in their order."""
        ran: dict[int, set[int]] = {}
        for s in slices:
            if s["role"] == "worker":
                there = s["events"][s["events"]["kind"] == KIND["arrive"]]
                for low, number in zip(there["index"].tolist(), there["arg"].tolist(), strict=True):
                    ran.setdefault(low, set()).add(number)
        last: dict[int, int] = {}
        for at in np.argsort(self.calls["begin"], kind="stable").tolist():
            call = self.calls[at]
            group, number = int(call["group"]), int(call["number"])
            if call["later"] and number:
                least = max(number - int(call["slack"]), last.get(group, 0) + 1)
                there = ran.get(group & 0xFFFFFFFF, ())
                number = next((n for n in range(least, number + 1) if n in there), min(least, number))
                self.calls["number"][at] = number
            if call["count"]:
                last[group] = max(number, last.get(group, 0))

    def _by_number(self) -> dict[tuple[int, int], int]:
        """The place of the call of each operation, by the lower half of its group's id and its number."""
        found = {}
        for at, call in enumerate(self.calls[["group", "number", "count"]].tolist()):
            group, number, count = call
            for n in range(max(number - count + 1, 1), number + 1 if count else 0):
                found[group & 0xFFFFFFFF, n] = at
        return found

    def _thread(self, found: dict[str, Any], mine: np.ndarray, known: dict[tuple[int, int], int]) -> Thread:
        events = found["events"]
        kind = events["kind"]
        probes = events[kind == KIND["probe"]]
        phases = events[~np.isin(kind, (KIND["call"], KIND["call more"], KIND["probe"]))]
        group, number, call = _operations(phases, known)
        calls = self.calls[mine]
        if len(calls) and len(phases):  # what lies within a call of its own thread is that call's
            order = np.argsort(calls["begin"], kind="stable")
            begin, end = calls["begin"][order], calls["end"][order]
            place = np.searchsorted(begin, phases["begin"], "right") - 1
            within = (place >= 0) & (phases["end"] <= end[place])
            call = np.where(within, mine[order][place], call)
        return Thread(found["role"], int(found["tid"]), mine, probes, phases, call, group, number)


def _first(events: np.ndarray) -> int | None:
    timed = events[events["kind"] != tracing.MORE]
    return int(timed["begin"].min()) if len(timed) else None


def _calls(events: np.ndarray) -> np.ndarray:
    kind = events["kind"]
    at = np.flatnonzero(kind == KIND["call"])
    made = np.zeros(len(at), CALL)
    own = events[at]
    for name, source in (("begin", "begin"), ("end", "end"), ("name", "index"), ("bytes", "arg"), ("flags", "core"),
                         ("peer", "peer")):  # fmt: skip
        made[name] = own[source]
    follows = np.zeros(len(at), bool)
    inside = at + 1 < len(events)
    follows[inside] = kind[at[inside] + 1] == tracing.MORE
    more = events[at[follows] + 1]
    word = more["end"]
    made["group"][follows], made["site"][follows], made["tags"][follows] = more["begin"], more["index"], more["arg"]
    made["number"][follows] = word & np.uint64(MASK)
    made["count"][follows] = (word >> np.uint64(spans.NUMBER_COUNT)) & np.uint64(0xFF)
    made["slack"][follows] = (word >> np.uint64(spans.NUMBER_SLACK)) & np.uint64(3)
    made["later"][follows] = word >> np.uint64(63)
    return made


def _operations(phases: np.ndarray, known: dict[tuple[int, int], int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each phase the operation that its thread was at, by ``arrive`` events: group, number, place of the call."""
    n = len(phases)
    there = np.flatnonzero(phases["kind"] == KIND["arrive"])
    before = np.searchsorted(there, np.arange(n), "right") - 1
    # What is looked up, or put into a mailbox, comes before the die says that it is there.
    early = (phases["kind"] == KIND["check"]) | (
        (phases["kind"] == KIND["mailbox"]) & (phases["peer"] == tracing.NOBODY))
    after = np.searchsorted(there, np.arange(n), "left")
    which = np.where(early & (after < len(there)), after, before)
    low, number = phases["index"][there].astype("i8"), phases["arg"][there].astype("i8")
    call = np.array([known.get(key, NONE) for key in zip(low.tolist(), number.tolist(), strict=True)], "i8")
    found = which >= 0
    result = []
    for column, none in ((low, 0), (number, 0), (call.reshape(-1), NONE)):
        made = np.full(n, none, "i8")
        made[found] = column[which[found]]
        result.append(made)
    return result[0], result[1], result[2]


def _group(text: str) -> tuple[int, tuple[str, list[int]]] | None:
    """A group's id, name and world ranks, if a text is one's."""
    if not text.startswith(marks.GROUP):
        return None
    parts = text.removeprefix(marks.GROUP).split(" ", 1)
    name, _, listed = parts[-1].rpartition(" ")
    try:
        return int(parts[0], 16), (name, [int(word) for word in listed.split(",") if word.isdigit()])
    except ValueError:
        return None


def tags_of(text: str, word: int) -> dict[str, Any] | None:
    """Tags, by the text of their shape and what an event holds; None: it is none."""
    found: dict[str, Any] = {}
    word >>= 16
    try:
        for key, bits, *given in json.loads(text):
            found[str(key)] = given[0] if given else word & ((1 << int(bits)) - 1)
            word >>= int(bits)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found
