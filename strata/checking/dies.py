"""A die of ``strata-run --check``: what it puts in the place of the library's parts, and what it says at the end.

Nothing of this is imported, and nothing asks for it, in dies that are not checked.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

from strata import comm, registration, sdma, staging, streams
from strata._core.space import Context
from strata.capturing import replaying
from strata.checking import heap, leaks, queues, recorder, rounds
from strata.checking.groups import CheckedGroup
from strata.fabric import arrays
from strata.moe import arrays as moe_arrays

__all__ = ["failed", "start", "stop"]

_done: list[tuple[Any, str, Any]] = []  # what was in the place of what is there now


def _set(where: Any, name: str, value: Any) -> None:
    _done.append((where, name, vars(where)[name]))
    setattr(where, name, value)


def start(context: Context) -> None:
    """The die has joined, and is to be checked."""
    recorder.start(context)
    if not _done:
        _watch()
        atexit.register(stop)


def failed() -> None:
    """The program has ended with an error: that its peers wait for it in vain is no mistake of its own."""
    told = recorder.current()
    if told is not None:
        told.failed = True


def stop() -> None:
    """The die leaves the job."""
    told = recorder.current()
    if told is not None:
        leaks.report(told)
        recorder.stop()


def _watch() -> None:
    _set(comm, "kind_of", _kind_of)
    _set(comm, "alloc_array", heap.alloc_array)
    _set(staging, "memory", heap.CheckedMemory)
    _set(moe_arrays, "memory", heap.CheckedMemory)
    new, over = arrays._new, arrays._over
    _set(arrays, "_new", lambda *args: heap.wrap(new(*args)))
    _set(arrays, "_over", lambda *args: heap.over(over(*args)))
    _set(sdma, "core", queues.CheckedRings)
    _set(sdma, "flags", queues.CheckedFlags)
    _set(streams, "lane_of", queues.lane)
    _set(streams.Stream, "synchronize", _waiting(streams.Stream.synchronize, lambda s: s.lane and s.lane.last))
    _set(streams.Event, "synchronize", _waiting(streams.Event.synchronize, lambda e: e.time))
    _set(streams.Stream, "query", _query(streams.Stream.query, lambda s: s.lane and s.lane.last))
    _set(streams.Event, "query", _query(streams.Event.query, lambda e: e.time))
    _set(replaying, "times_of", _times_of)
    _set(replaying.Graph, "_fail", _failing(replaying.Graph._fail))
    _set(threading.Thread, "start", _starting(threading.Thread.start))
    heap.watch(_set)
    rounds.watch(_set)
    assert registration  # it is watched by memory


def _starting(own: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """What a thread does comes after what went before its start."""

    def start(self: threading.Thread) -> None:
        told, run = recorder.current(), self.run
        if told is None:
            own(self)
            return

        def watched() -> None:
            try:
                run()
            finally:
                del self.__dict__["run"]
                if recorder.current() is told:
                    told.ends()

        told.begins(self)
        self.run = watched  # type: ignore[method-assign]
        own(self)

    return start


def _kind_of(context: Context) -> type[comm.Group]:
    return comm.Group if recorder.current() is None else CheckedGroup


def _times_of(entries: list[Any], keep: list[Any]) -> Any:
    told = recorder.current()
    return None if told is None else queues.Replays(told, entries, keep)


def _failing(own: Callable[..., BaseException]) -> Callable[..., BaseException]:
    """A graph that has failed: nobody need wait for its replays."""

    def fail(self: Any, why: BaseException | None = None) -> BaseException:
        found = own(self, why)
        if isinstance(self._times, queues.Replays):
            self._times.fail(found)
        return found

    return fail


def _waiting(own: Callable[..., None], place: Callable[[Any], Any]) -> Callable[..., None]:
    def synchronize(self: Any, timeout: float | None = None) -> None:
        if (at := place(self)) is not None:
            at.waits()
        own(self, timeout)

    return synchronize


def _query(own: Callable[[Any], bool], place: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Whoever has seen that it is over goes on after it."""

    def query(self: Any) -> bool:
        found = own(self)
        if found and (at := place(self)) is not None:
            at.join()
        return found

    return query
