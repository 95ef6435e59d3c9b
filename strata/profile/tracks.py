"""A die's threads as tracks of a trace: calls, cores, rings, and what else there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from strata._core import tracing
from strata.profile.chrome import SLACK_US, Encoded, Trace
from strata.profile.events import KIND, MOVES, Die, Thread
from strata.profile.flows import Arrows

__all__ = ["write"]

# Numbers of tracks, which viewers sort by.
CORES, RINGS, THREADS, WORKERS, TRANSFERS, OTHERS, SAMPLES, LANES = 1000, 2000, 4000, 4100, 4300, 4500, 6000, 10_000
FLAGS = {1: "async", 2: "bound", 4: "failed"}  # of calls: strata/_core/spans.pxd
UNITS = (*MOVES[:3], KIND["mailbox"])
BYTES = (*UNITS, KIND["check"], KIND["map"], KIND["send"], KIND["recv"])
MOVING = tracing.DESCRIPTORS[1:5]  # descriptors that move bytes

Row = tuple[float, float, str, str, Encoded, Any]  # the last: for arrows


def write(made: Trace, die: Die, first: int, rate: float, arrows: Arrows) -> None:
    """Puts a die's tracks into a trace.  Ticks from ``first`` on, times ``rate``, are microseconds."""
    rows: dict[tuple[int, str], list[Row]] = {}
    texts = _Texts(die)
    count = dict.fromkeys(tracing.ROLES, 0)
    for at, thread in enumerate(die.threads):
        nth, other = count[thread.role], (OTHERS + at, f"thread {thread.tid}")
        count[thread.role] += 1
        if thread.role == "caller":
            calls = rows.setdefault((nth, f"calls {nth}" if nth else "calls"), [])
        elif len(thread.calls) or len(thread.probes):  # of a thread that is known for something else, too
            calls = rows.setdefault(other, [])
        else:
            calls = []
        calls.extend(_calls(die, thread, first, rate, texts))
        for where, row in _phases(die, thread, nth, first, rate, texts):
            rows.setdefault(where or other, []).append(row)
    for (number, name), mine in sorted(rows.items()):
        _lanes(made, die.rank, number, name, mine, arrows)


def _times(events: np.ndarray, first: int, rate: float) -> tuple[list[float], list[float]]:
    begin, end = ((events[name] - np.uint64(first)).astype("f8") * rate for name in ("begin", "end"))
    return begin.tolist(), end.tolist()


class _Texts:
    """Arguments as JSON, each made once."""

    def __init__(self, die: Die) -> None:
        self.die = die
        self._tags: dict[int, str] = {0: ""}
        self._of: dict[int, str] = {-1: ""}

    def tags(self, word: int) -> str:
        """Tags as a member of an object, with a comma before it; "": there are none."""
        found = self._tags.get(word)
        if found is None:
            tags = self.die.tags(word)
            found = self._tags[word] = f',"tags":{json.dumps(tags)}' if tags else ""
        return found

    def group(self, identity: int) -> str:
        known = self.die.groups.get(identity)
        return known[0] if known else f"{identity:016x}"

    def call(self, at: int) -> str:
        """Of phases: what they say of their call."""
        found = self._of.get(at)
        if found is None:
            call = self.die.calls[at]
            found = f',"call":{call["number"]}' if call["number"] else ""
            if call["group"]:
                found += f',"group":{json.dumps(self.group(int(call["group"])))}'
            found += self.tags(int(call["tags"]))
            self._of[at] = found
        return found


def _calls(die: Die, thread: Thread, first: int, rate: float, texts: _Texts) -> Iterator[Row]:
    calls = die.calls[thread.calls]
    for begin, end, call in zip(*_times(calls, first, rate), calls, strict=True):
        args: dict[str, Any] = {"bytes": int(call["bytes"])}
        if call["group"]:
            args["group"] = texts.group(int(call["group"]))
        if call["number"]:
            args["number"] = int(call["number"])
        if call["peer"] != tracing.NOBODY:
            args["peer"] = int(call["peer"])
        if call["site"]:
            args["site"] = die.name(int(call["site"]))
        args |= {name: True for bit, name in FLAGS.items() if call["flags"] & bit}
        text = json.dumps(args)[:-1] + texts.tags(int(call["tags"])) + "}"
        yield begin, end, die.name(int(call["name"])), "call", Encoded(text), None
    for begin, end, probe in zip(*_times(thread.probes, first, rate), thread.probes, strict=True):
        text = "{" + texts.tags(int(probe["arg"]))[1:] + "}"
        yield begin, end, die.name(int(probe["index"])), "probe", Encoded(text if text != "{}" else ""), None


def _phases(die: Die, thread: Thread, nth: int, first: int, rate: float,
            texts: _Texts) -> Iterator[tuple[tuple[int, str] | None, Row]]:  # fmt: skip
    columns = [thread.phases[name].tolist() for name in ("kind", "core", "peer", "index", "arg")]
    columns += [thread.call.tolist(), thread.group.tolist(), thread.number.tolist()]
    for begin, end, kind, core, peer, index, arg, call, group, number in zip(
            *_times(thread.phases, first, rate), *columns, strict=True):  # fmt: skip
        if kind == KIND["arrive"] and thread.role == "core":
            continue  # it only says to what the core's thread has come
        name, category = _named(die, thread, kind, core, peer, index)
        text = ""
        if kind in BYTES or (kind == KIND["dma"] and name in MOVING):
            text += f',"bytes":{arg}'
        if kind in UNITS:
            text += f',"unit":{index & 0xFFFFFF},"remote":{index >> 24}'
        if kind in (KIND["submit"], KIND["doorbell"]):
            text += f',"ring":{index},"descriptors":{arg}'
        if kind == KIND["map"]:
            text += f',"pages":{index}'
        if peer != tracing.NOBODY:
            text += f',"peer":{peer}'
        text += texts.call(call)
        if call < 0 and number:
            text += f',"call":{number}'
        about = (kind, core, peer, index, arg, group, number)
        yield _place(thread, nth, kind, core, index), (begin, end, name, category, Encoded("{" + text[1:] + "}"), about)


def _named(die: Die, thread: Thread, kind: int, core: int, peer: int, index: int) -> tuple[str, str]:
    """Name and category of a phase."""
    what = tracing.KINDS[kind]
    if what == "wait":
        return f"wait {tracing.WHYS[index]}" if index < len(tracing.WHYS) else what, "wait"
    if what == "flag wait":
        return "wait flag", "wait"
    if what == "flag set":
        return "set flag", "flag"
    if what == "map":
        return "map ahead" if thread.role == "registrar" else "map own" if peer == die.rank else "map late", "map"
    if what == "notify" and thread.role != "engine":
        return "wait notify", "wait"
    if what == "dma":
        name = tracing.DESCRIPTORS[core] if core < len(tracing.DESCRIPTORS) else "dma"
        return name, "wait" if name == "gate" else "flag" if name in ("write", "add", "count") else "dma"
    return what, what


def _place(thread: Thread, nth: int, kind: int, core: int, index: int) -> tuple[int, str] | None:
    """Number and name of a phase's track; None: it is the thread's own."""
    if thread.role == "engine" and kind in (KIND["dma"], KIND["notify"]) and index < THREADS - RINGS:
        return RINGS + index, f"ring {index}"
    if thread.role in ("caller", "core"):
        return CORES + core, f"core {core}"
    base = {"engine": THREADS, "registrar": THREADS + 20, "worker": WORKERS, "transfers": TRANSFERS}.get(thread.role)
    if base is None:
        return None
    return base + nth, f"thread {thread.role}" + (f" {nth}" if nth else "")


def _lanes(made: Trace, rank: int, number: int, name: str, rows: list[Row], arrows: Arrows) -> None:
    """A track, and others beside it for what would overlap in part: of several threads that have one core's number."""
    lanes: list[list[float]] = []  # ends of what goes on, the innermost last
    for begin, end, what, category, args, about in sorted(rows, key=lambda r: (r[0], r[1] > r[0], -r[1])):
        lane = next((i for i, ends in enumerate(lanes) if _fits(ends, begin, end)), len(lanes))
        if lane == len(lanes):
            lanes.append([])
            made.thread(rank, number + LANES * lane, f"thread {name} ({lane + 1})" if lane else name)
        lanes[lane].append(end)
        span = made.span(rank, number + LANES * lane, what, begin, end, category, args or None)
        if about is not None:
            arrows.add(rank, about, span)


def _fits(ends: list[float], begin: float, end: float) -> bool:
    """Whether a span lies beside, or within, what goes on in a lane."""
    while ends and ends[-1] <= begin + SLACK_US:
        ends.pop()
    return not ends or end <= ends[-1]


def samples(made: Trace, rows: Mapping[int, Any], begin: float) -> None:
    """Puts what the kernel said of threads into a trace, whose time begins at ``begin`` (CLOCK_MONOTONIC ns)."""
    for rank, threads in sorted(rows.items()):
        for nth, (name, seen) in enumerate(threads):
            where = rank, SAMPLES + nth
            made.thread(*where, f"thread {name}")
            for since, until, state, cpu in seen:
                low, high = max(0.0, (since - begin) / 1e3), (until - begin) / 1e3
                if high > low:
                    made.span(*where, state, low, high, "sample", {"cpu": cpu})
