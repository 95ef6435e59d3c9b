"""Descriptor rings, flags, streams and graphs of a die that is checked."""

from __future__ import annotations

import types
from typing import Any

from strata._core import flags as flags
from strata._core import sdma as core
from strata._core.sdma import Ring
from strata._core.space import Context
from strata._core.submission import Submission
from strata.checking import items, recorder
from strata.checking.chains import chain, flag_key, flag_seen, flag_written
from strata.checking.groups import opened
from strata.checking.recorder import Recorder
from strata.sdma import Batch

__all__ = ["CheckedFlags", "CheckedRing", "CheckedRings", "CheckedSubmission", "Replays", "lane"]


class CheckedSubmission(Submission):
    """A submission that tells when somebody has waited for it."""

    def __init__(self, of: Submission, item: items.Item) -> None:
        self._of, self._item = of, item

    first = property(lambda self: self._of.first)
    count = property(lambda self: self._of.count)

    def done(self) -> bool:
        if not self._of.done():
            return False
        if self._of.exception() is None:
            self._item.seen()
        else:
            self._item.raised(self._of.exception())
        return True

    def wait(self, timeout: float | None = None) -> None:
        if not self._of.done():
            self._item.waits()
        try:
            self._of.wait(timeout)
        except BaseException as error:
            if self._of.done():
                self._item.raised(error)
            raise
        self._item.join()

    def exception(self) -> Any:
        self.done()
        return self._of.exception()

    def cancel(self) -> None:
        self._of.cancel()
        opened.drop(self._item)

    def __repr__(self) -> str:
        return repr(self._of)


class CheckedRing(Ring):
    """A ring whose chains are told of: a task each, one after another."""

    def __init__(self, of: Ring, told: Recorder, mine: bool) -> None:
        self._of, self._told = of, told
        self._key = f"ring:{of.rank}.{of.index}"
        if mine:
            told.post(self._key, of.tail + 1)

    rank = property(lambda self: self._of.rank)
    index = property(lambda self: self._of.index)
    depth = property(lambda self: self._of.depth)
    head = property(lambda self: self._of.head)
    tail = property(lambda self: self._of.tail)
    open = property(lambda self: self._of.open)
    engine = property(lambda self: self._of.engine)

    def check(self) -> None:
        self._of.check()

    def submit(self, batch: Any, *, notify: bool = True, timeout: float | None = None, wait: bool = True,
               keep: Any = None) -> Any:  # fmt: skip
        told = recorder.current()
        if told is None:
            return self._of.submit(batch, notify=notify, timeout=timeout, wait=wait, keep=keep)
        told.flush()
        made = self._of.submit(batch, notify=notify, timeout=timeout, wait=wait, keep=keep)
        what = batch.build() if isinstance(batch, Batch) else batch.reshape(-1)
        first = made.first if notify else made
        count = made.count if notify else len(what)
        if not count:
            return made
        with told.lock:
            task, site = told.fork(), told.sites.here()
            told.take(self._key, first + 1, task)
            chain(told, task, what, site)
            told.post(self._key, first + count + 1, task)
            told.event("done", task)
            told.flush()
        if not notify:
            return made
        item = items.Item(None, told, task, 0, "a chain of descriptors")
        return CheckedSubmission(made, item)

    def close(self) -> None:
        tail = self._of.tail if self._of.open and self._of.rank == self._told.rank else None
        self._of.close()
        self._drained(tail)

    def drain(self, timeout: float | None = None) -> None:
        tail = self._of.tail
        self._of.drain(timeout)
        self._drained(tail)

    def _drained(self, tail: int | None) -> None:
        told = recorder.current()
        if told is not None and tail is not None:
            told.take(self._key, tail + 1)

    def __repr__(self) -> str:
        return repr(self._of)


def _rings() -> Any:
    def open_ring(*args: Any, **kwargs: Any) -> Ring:
        made, told = core.open_ring(*args, **kwargs), recorder.current()
        return made if told is None else CheckedRing(made, told, True)

    def attach(*args: Any) -> Ring:
        made, told = core.attach(*args), recorder.current()
        return made if told is None else CheckedRing(made, told, False)

    return types.SimpleNamespace(open_ring=open_ring, attach=attach, seal=core.seal)


CheckedRings = _rings()


def _flags() -> Any:
    def read(context: Context, va: int) -> int:
        value: int = flags.read(context, va)
        told = recorder.current()
        if told is not None:
            flag_seen(told, va, value)
        return value

    def write(context: Context, va: int, value: int) -> None:
        told = recorder.current()
        if told is not None:
            flag_written(told, va, value)
            told.flush()
        flags.write(context, va, value)

    def wait(context: Context, va: int, value: int, die: int, timeout: Any) -> None:
        told = recorder.current()
        if told is None:
            flags.wait(context, va, value, die, timeout)
            return
        told.wait("sdma.wait", key=flag_key(va), value=value)
        flags.wait(context, va, value, die, timeout)
        flag_seen(told, va, value)

    return types.SimpleNamespace(read=read, write=write, wait=wait)


CheckedFlags = _flags()


def lane(context: Context, name: str) -> items.Lane | None:
    """What a stream tells of its items."""
    told = recorder.current()
    return None if told is None else items.Lane(told, name, opened)


class Replays:
    """A graph's: each does its operations one after another, after the replay before."""

    serial = 0

    def __init__(self, told: Recorder, entries: list[Any], keep: list[Any]) -> None:
        Replays.serial += 1
        self.told, self.site = told, told.sites.here()
        self.queue = items.Queue(told, f"graph:{told.rank}.{Replays.serial}")
        self.steps = [(e.group, e.text.split(" ", 1)[0], e.desc, *arrays[1:])
                      for e, arrays in zip(entries, keep, strict=False)]  # fmt: skip
        tracks = {id(g.track): g.track for g, *_ in self.steps if g is not None}
        # Members capture in one order, and have called as much before: so the keys are the same on all of them.
        self._keys = {i: f"graph{t.issued}.{t.key}" for i, t in tracks.items()}
        self._used = dict.fromkeys(tracks, 0)
        self._open: dict[int, items.Item] = {}

    def begin(self, number: int, outcome: Any) -> None:
        """Replay ``number`` (from 1) begins."""
        told = self.told
        with told.lock:
            task = told.fork()
            item = items.Item(None, told, task, 0, "a replay")
            self.queue.enter(task)
            for group, name, desc, src, out in self.steps:
                if group is None:
                    told.touch(task, items.bytes_of(told, src), False, "graph copy src", item.site)
                    told.touch(task, items.bytes_of(told, out), True, "graph copy dst", item.site)
                    continue
                track = group.track
                self._used[id(track)] += 1
                n, key = self._used[id(track)], self._keys[id(track)]
                root = (desc >> 32 & 0xFFFF) if name in items.ROOTED else None
                track.op(task, n, name, root, src, out, key)
                track.over(n, items.LATER, task, key)
            self.queue.leave(task)
            told.event("done", task)
            self._open[number] = item
            opened.add(item, "graph", "a replay of a graph was begun, and nobody has waited for it: wait() for it, or "
                       "replay without async_op", item.site)  # fmt: skip
            told.flush()

    def fail(self, error: BaseException) -> None:
        """A replay has, and those after it do not begin."""
        while self._open:
            item = self._open.pop(next(iter(self._open)))
            opened.drop(item)
            item.raised(error)

    def join(self, number: int) -> None:
        """The host has waited for a replay."""
        for n in [n for n in self._open if n <= number]:
            item = self._open.pop(n)
            opened.drop(item)
            item.join()
