"""What goes on without the program's threads, and when the program knows that it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from strata._core import memory
from strata._core.front import OPERATIONS
from strata.checking import ranges
from strata.checking.recorder import Recorder
from strata.checking.traced import plain

__all__ = ["Item", "Lane", "Open", "Place", "Queue", "Track", "bytes_of"]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
LATER = "later"  # of an operation that goes on: its end as far as order goes


def bytes_of(told: Recorder, a: Any) -> list[tuple[int, int]]:
    """The fabric's bytes of an array that an operation takes; memory of this die's that is new becomes known."""
    if not isinstance(a, np.ndarray):
        return []
    found = ranges.of(a)
    if not found or not told.inside(found[0][0]):
        return []
    adopt(told, a)
    return found


def adopt(told: Recorder, a: np.ndarray) -> None:
    """Takes memory on of which nobody has told yet: what the library has made in another way."""
    root = a
    while isinstance(root.base, np.ndarray):
        root = root.base
    lo = memory.pointer(root) or 0
    if lo in told.owned or not root.nbytes or told.context.owner(lo) != told.rank:
        return
    if isinstance(root.base, memory.Block):  # not numpy's own memory: an array with weak references cannot be resized
        told.own(root, lo, lo + root.nbytes)


class Open:
    """What nobody has waited for yet: at the end of the job it is a leak."""

    def __init__(self) -> None:
        self.items: dict[int, tuple[str, str, int, Any]] = {}  # id -> kind, text, site, the item

    def add(self, item: Any, kind: str, text: str, site: int) -> None:
        self.items[id(item)] = kind, text, site, item

    def drop(self, item: Any) -> None:
        self.items.pop(id(item), None)


class Queue:
    """Tasks that come one after another, whoever has begun them: the next begins when the one before has ended."""

    def __init__(self, told: Recorder, key: str, issued: int = 0) -> None:
        self.told, self.key, self.issued = told, key, issued

    def enter(self, task: int | None) -> None:
        if self.issued:
            self.told.take(self.key, self.issued, task)

    def leave(self, task: int) -> None:
        self.issued += 1
        self.told.post(self.key, self.issued, task)


class Item:
    """An operation, or what else runs.  ``task``: its own, None: the caller's."""

    def __init__(self, track: Track | None, told: Recorder, task: int | None, number: int = 0, what: str = "") -> None:
        self.track, self.told, self.task, self.number, self.what = track, told, task, number, what
        self.ended = False
        self.site = told.sites.here()
        self.handed = False
        self.copied: Any = None
        self.after: Callable[[], None] | None = None  # what is told once it went well
        self.undo: Callable[[str], None] | None = None  # gets the error's name

    def begun(self, work: Any) -> None:
        """It is carried out by a thread."""
        self.handed = True

    def waits(self) -> None:
        """Somebody is about to wait for it."""
        if self.task is not None:
            self.told.wait(f"wait() for what was begun ({self.what})", c=[self.task])

    def well(self) -> None:
        """It was carried out, unless it was handed to a thread."""
        if not self.handed:
            self._end("ok")

    def fail(self, error: BaseException) -> None:
        """Its caller, or whoever waited, has got its error, and goes on: nothing of it is in progress here any more."""
        self._end(type(error).__name__)
        task, self.task = self.task, None
        if task is not None:
            self.told.event("join", c=task, failed=1)

    raised = fail

    def delivers(self, destination: Any, temporary: Any) -> tuple[Any, Any]:
        """What its output is copied to when somebody waits for it, and from: told of after its end, not by the copy."""
        if isinstance(destination, np.ndarray):
            self.copied = destination
        return plain(destination), plain(temporary)

    def seen(self) -> None:
        """It was seen to have ended well."""
        self.join()

    def join(self) -> None:
        """Whoever waited goes on after it."""
        self._end("ok")
        task, self.task = self.task, None
        if task is not None:
            self.told.join(task)
        copied, self.copied = self.copied, None
        if copied is not None and (found := bytes_of(self.told, copied)):
            self.told.access(found, True, "copied to out")

    def _end(self, status: str) -> None:
        if self.ended:
            return
        self.ended = True
        if self.track is not None:
            self.track.open.drop(self)
            if self.number:
                self.track.over(self.number, status)
        if status == "ok" and self.after is not None:
            self.after()
        if status != "ok" and self.undo is not None:
            self.undo(status)


class Place:
    """Where a stream is: what an event records."""

    def __init__(self, queue: Queue) -> None:
        self.queue, self.at = queue, queue.issued
        self.lane: Lane | None = None

    def waits(self) -> None:
        """The host is about to wait for it."""
        if self.at and self.lane is not None:
            self.queue.told.wait(f"synchronize() with {self.lane.name}", key=self.queue.key, value=self.at)

    def join(self) -> None:
        """The host goes on after it."""
        if self.at:
            self.queue.told.take(self.queue.key, self.at)
        if self.lane is not None:
            self.lane.known(self.at)


class Lane:
    """A stream's items: a task each, one after another."""

    serial = 0

    def __init__(self, told: Recorder, name: str, opened: Open) -> None:
        Lane.serial += 1
        self.told, self.name, self.open = told, name, opened
        self.queue = Queue(told, f"stream:{told.rank}.{Lane.serial}")

    @property
    def last(self) -> Place:
        return self.place()

    @last.setter
    def last(self, item: Any) -> None:  # None: the stream begins anew after a failure
        if self.queue.issued:
            self.told.event("take", key=self.queue.key, value=self.queue.issued, failed=1)
        self.known(self.queue.issued)

    def place(self) -> Place:
        found = Place(self.queue)
        found.lane = self
        return found

    def known(self, number: int) -> None:
        if number >= self.queue.issued:
            self.open.drop(self)

    def begin(self) -> int:
        """The task of the next item."""
        task = self.told.fork()
        self.queue.enter(task)
        return task

    def end(self, task: int) -> None:
        self.queue.leave(task)
        self.told.event("done", task)
        text = f"{self.name} has work that nobody has waited for: synchronize() it"
        self.open.add(self, "stream", text, self.told.sites.here())

    def moved(self, batch: np.ndarray) -> None:
        """Descriptors have been queued."""
        from strata.checking.chains import chain

        with self.told.lock:
            task = self.begin()
            chain(self.told, task, batch, self.told.sites.here())
            self.end(task)

    def wait(self, place: Place) -> None:
        """What is queued from now on begins when the place has been come to, too."""
        with self.told.lock:
            task = self.begin()
            if place.at:
                self.told.take(place.queue.key, place.at, task)
            self.queue.leave(task)
            self.told.event("done", task)


class Turn:
    """Threads that share a group take turns.  ``depth``: calls that the one whose turn it is is in."""

    def __init__(self) -> None:
        self._lock, self.depth = threading.RLock(), 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self.depth += 1

    def __exit__(self, *_: Any) -> None:
        self.depth -= 1
        self._lock.release()


class Track:
    """A group's operations: the members call them in one order, and count them alike."""

    def __init__(self, told: Recorder, name: str, key: bytes, ranks: tuple[int, ...], opened: Open) -> None:
        self.told, self.name, self.ranks, self.open = told, name, ranks, opened
        self.key = told.again + key.hex()
        self.me = ranks.index(told.rank)
        self.issued = 0
        self.turn = Turn()
        self.queue = Queue(told, f"chain:{told.rank}.{self.key}")
        self._messages: dict[tuple[int, int, int, bool], int] = {}

    def op(self, task: int | None, number: int, name: str, root: int | None, src: Any, out: Any, key: str = "") -> None:
        """This member has come to an operation."""
        told = self.told
        told.event("op", task, group=key or self.key, name=self.name, n=number, op=name, members=list(self.ranks),
                   root=None if root is None else self.ranks[root], reads=bytes_of(told, src),
                   writes=bytes_of(told, out), site=told.sites.here(), ts=time.monotonic())  # fmt: skip

    def over(self, number: int, status: str, task: int | None = None, key: str = "") -> None:
        self.told.event("opend", task, group=key or self.key, n=number, status=status)

    def collective(self, desc: int, plan: Any, copied: int, stream: Any, handed: bool, src: Any, out: Any) -> Item:
        """A call that runs here and now, or (``handed``) is about to be handed to the group's thread."""
        name, told = OPERATIONS[desc & 0xFF], self.told
        root = (desc >> 32 & 0xFFFF) if name in ROOTED else None
        if self.turn.depth > 1:  # in the place of what could not be handed to a thread, and was told of
            return Item(None, told, None)
        self.issued += 1
        with told.lock:
            if not handed:
                item = Item(self, told, None, self.issued)
                self.queue.enter(None)
                self.op(None, self.issued, name, root, src, out)
                told.flush()
                return item
            lane = None if stream is None else stream.lane
            task = told.fork() if lane is None else lane.begin()
            item = Item(self, told, task, self.issued, name)
            self.queue.enter(task)
            self.op(task, self.issued, name, root, src, out)
            self.over(self.issued, LATER, task)
            self.queue.leave(task)
            if lane is not None:
                lane.end(task)
            else:
                self.open.add(item, "request", f"{name} of group {self.name} was begun with async_op=True, and nobody "
                              "has waited for it: keep its Work, and call wait()", item.site)  # fmt: skip
                told.event("done", task)
            told.flush()
            return item

    def transfer(self, receive: bool, peer: int, tag: int, nbytes: int, stream: Any, later: bool, a: Any) -> Item:
        """A send or a receive."""
        told, of = self.told, (peer, tag, receive)
        with told.lock:
            source, target = (peer, self.me) if receive else (self.me, peer)
            key = f"p2p:{self.key}:{self.ranks[source]}:{self.ranks[target]}:{tag}"
            of = source, target, tag, receive
            number = self._messages[of] = self._messages.get(of, 0) + 1
            lane = None if stream is None else stream.lane
            task = None if lane is None and not later else told.fork() if lane is None else lane.begin()
            item = Item(self, told, task, 0, "recv" if receive else "send")
            where = bytes_of(told, a)

            def come() -> None:
                told.take(key, number, task)
                told.touch(task, where, True, "recv out", item.site)

            def undo(status: str) -> None:
                if status == "CollectiveMismatch":  # it has come, and was refused
                    if receive and task is None:
                        told.take(key, number)
                elif self._messages[of] == number:
                    self._messages[of] -= 1
                    if not receive:
                        told.event("unpost", key=key, value=number)

            item.undo = undo
            if receive and task is None:
                item.after = come
            elif receive:
                come()
            else:
                told.touch(task, where, False, "send x", item.site)
                told.post(key, number, task, site=item.site)
            if lane is not None and task is not None:
                lane.end(task)
            elif later:
                what = "recv" if receive else "send"
                self.open.add(item, "request", f"{what} of group {self.name} was begun with async_op=True, and nobody "
                              "has waited for it: keep its Work, and call wait()", item.site)  # fmt: skip
            if task is not None and lane is None:
                told.event("done", task)
            elif receive and task is None:
                told.wait(f"recv from {self.ranks[source]}, tag {tag}", ranks=[self.ranks[source]], key=key,
                          value=number)  # fmt: skip
            told.flush()
            return item
