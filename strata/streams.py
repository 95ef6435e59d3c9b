"""Streams and events: work that is queued, and goes on while the caller does something else.

    s = strata.Stream()
    with strata.stream(s):
        g.all_gather(x, out)          # queued; returns at once
        g.all_reduce(y)               # after it
    ...                               # compute
    s.synchronize()                   # now out and y are what they should be

What is queued on one stream is carried out in the order in which it was queued; between streams there is no order
but what events make.  Names and meanings are those of CUDA, CANN and torch; ``docs/streams.md`` has the rules.
"""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from typing import Any

import numpy as np

from strata import bootstrap, clock, errors
from strata._core import engine as engines
from strata._core import stream as core
from strata._core.spans import spanned
from strata.sdma import Batch

__all__ = ["Event", "Stream", "current_stream", "stream"]

lane_of: Any = clock.lane  # strata.checking, on a die that it checks, has its own in this place
_numbers = itertools.count(1)
_streams: weakref.WeakSet[Stream] = weakref.WeakSet()
_leaving: list[tuple[Any, core.Progress]] = []  # rings of streams that nobody has any more, but are not empty


class Stream(core.CoreStream):
    """A queue of operations of this die, carried out one after another.

    Inside ``with strata.stream(s):`` operations of groups are queued on it and return at once what they would return;
    arrays, which must be contiguous fabric memory, are read and written when their turn comes.  With ``async_op=True``
    they return a Work.  ``copy``, ``fill`` and ``submit`` queue work of the die's DMA thread.  256 items may be
    in progress; whoever queues more waits.

    When an item fails, later ones are not carried out (Cancelled), and ``synchronize`` raises the first error.
    A stream holds one descriptor ring until ``close()``, which ``with strata.Stream() as s:`` does at its end; that
    does not make it the current one, ``with strata.stream(s):`` does.
    """

    def __init__(self, *, depth: int | None = None, name: str | None = None) -> None:
        """``depth``: descriptors that its ring holds (a power of two; None: option sdma_depth); ``name``: for errors.

        RingFull: a die has at most 1024 rings; FabricMemoryError.
        """
        _sweep()
        context = bootstrap.context()
        self.name = f"stream {next(_numbers)}" if name is None else str(name)
        self._open(engines.engine_of(context), self.name, depth)
        self.lane: Any = lane_of(context, self.name)  # None: nobody is told of what it does
        _streams.add(self)

    # ---- what is queued ---------------------------------------------------------------

    @spanned("Stream.copy")
    def copy(self, dst: np.ndarray, src: np.ndarray) -> None:
        """Queues dst = src: contiguous fabric arrays of one shape and dtype, this die's or others'."""
        if not isinstance(dst, np.ndarray) or not isinstance(src, np.ndarray):
            raise TypeError("copy: two numpy arrays are expected")
        if dst.dtype != src.dtype or dst.shape != src.shape:
            raise errors.InvalidArgument(f"copy: dst is {dst.dtype} of shape {dst.shape}, src {src.dtype} of shape "
                                         f"{src.shape}; one dtype and shape are expected")  # fmt: skip
        self.submit(Batch().copy(dst, src))

    @spanned("Stream.fill")
    def fill(self, dst: np.ndarray, value: Any) -> None:
        """Queues dst[...] = value; a contiguous fabric array with elements of 1, 2, 4 or 8 bytes."""
        if not isinstance(dst, np.ndarray):
            raise TypeError(f"fill: a numpy array is expected, not {type(dst).__name__}")
        self.submit(Batch().fill(dst, value))

    @spanned("Stream.submit")
    def submit(self, batch: Batch) -> None:
        """Queues descriptors (a strata.sdma.Batch) as one item."""
        if not isinstance(batch, Batch):
            raise TypeError(f"submit: a strata.sdma.Batch is expected, not {type(batch).__name__}")
        self._queue(batch.build(), batch)
        if self.lane is not None:
            self.lane.moved(batch.build())

    @spanned("Stream.wait_event")
    def wait_event(self, event: Event) -> None:
        """What is queued from now on begins when the event has happened, as last recorded.  The host does not wait."""
        self._check()
        if not isinstance(event, Event):
            raise TypeError(f"wait_event: a strata.Event is expected, not {type(event).__name__}")
        at = event.at
        if at is not None and at[0] is not self.progress and not (at[0].ended(at[1]) and at[0].wait(at[1], None)):
            self._queue((), None, *at)
        if self.lane is not None and event.time is not None:
            self.lane.wait(event.time)

    @spanned("Stream.wait_stream")
    def wait_stream(self, other: Stream) -> None:
        """What is queued from now on begins when all that is queued on ``other`` now has ended."""
        if not isinstance(other, Stream):
            raise TypeError(f"wait_stream: a strata.Stream is expected, not {type(other).__name__}")
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """The event (None: a new one) happens when all that is queued now has ended; returns it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    # ---- waiting ------------------------------------------------------------------------

    @spanned("Stream.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """Returns when all that is queued now has ended; raises the first error, after which the stream is as new.

        ``timeout``: seconds (None: for as long as the operations' own timeouts let them live); CollectiveTimeout, and
        what is queued goes on.  NotInJob: strata.finalize() has ended it.
        """
        self._check()
        progress = self.progress
        if progress.torn or not progress.wait(progress.issued, timeout):
            self._fail(progress, timeout)
        progress.settle()
        if self.lane is not None and self.lane.last is not None:
            self.lane.last.join()

    def _fail(self, progress: core.Progress, timeout: float | None) -> None:
        progress.drain(timeout)
        self._renew(progress)
        if self.lane is not None:
            self.lane.last = None
        progress.raised = True
        error = progress.error
        raise errors.Cancelled(f"{self.name} failed", operation="stream") if error is None else error

    def query(self) -> bool:
        """Whether all that was queued has ended, well or not.  Never waits."""
        self._check()
        return self.progress.idle()

    # ---- its end -------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for what is queued, gives the ring back, and raises the first error.  Idempotent."""
        if self.ring is None:
            return
        try:
            self.synchronize()
        finally:
            if self.query():
                self._give_up().close()
                _streams.discard(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except errors.StrataError:  # there is an error already
            pass

    def __del__(self) -> None:
        if self.ring is None or sys.is_finalizing() or not self.progress.engine.context.here:
            return
        _leaving.append((self._give_up(), self.progress))
        _sweep()

    def __repr__(self) -> str:
        if self.ring is None:
            return f"<strata.Stream {self.name}, closed>"
        self.progress.settle()
        state = "failed" if self.progress.error is not None else f"{len(self.progress)} queued"
        return f"<strata.Stream {self.name}, {state}>"


class Event:
    """A place in a stream: it has happened when all that was queued there before it was recorded has ended.

    One that was never recorded, or outside any stream, has happened.  It may be recorded again.
    """

    def __init__(self) -> None:
        self.at: tuple[core.Progress, int] | None = None
        self.time: Any = None  # by the die's clock, if it has one

    def record(self, stream: Stream | None = None) -> None:
        """Records the event in a stream (None: the current one; if there is none, all before it is done)."""
        stream = current_stream() if stream is None else stream
        if stream is not None:
            stream._check()
            if stream.progress.torn:
                raise stream.progress.cancelled("record")
        self.at = None if stream is None else (stream.progress, stream.progress.issued)
        self.time = stream.lane.place() if stream is not None and stream.lane is not None else None

    @spanned("Event.wait")
    def wait(self, stream: Stream | None = None) -> None:
        """A stream (None: the current one) waits for the event; without any stream the host does."""
        stream = current_stream() if stream is None else stream
        if stream is None:
            self.synchronize()
        else:
            stream.wait_event(self)

    def query(self) -> bool:
        """Whether the event has happened, or, since something before it failed, never will.  Never waits."""
        return self.at is None or self.at[0].ended(self.at[1])

    @spanned("Event.synchronize")
    def synchronize(self, timeout: float | None = None) -> None:
        """The host waits for the event; raises the error if something before it in its stream failed.

        ``timeout``: seconds (None: for as long as the operations' own timeouts let them live); CollectiveTimeout.
        """
        if self.at is None or self.at[0].wait(self.at[1], timeout):
            if self.time is not None:
                self.time.join()
            return
        progress = self.at[0]
        error = progress.cause()
        progress.raised = True
        raise errors.Cancelled(f"{progress.name} failed", operation="stream") if error is None else error

    def __repr__(self) -> str:
        where = "" if self.at is None else f" of {self.at[0].name}, item {self.at[1]}"
        return f"<strata.Event{where}, {'happened' if self.query() else 'to come'}>"


class stream:
    """``with strata.stream(s):`` s is this thread's current stream; None: none is, and calls wait as they always do."""

    def __init__(self, s: Stream | None) -> None:
        if s is not None and not isinstance(s, Stream):
            raise TypeError(f"stream: a strata.Stream or None is expected, not {type(s).__name__}")
        self.s = s
        self.before: list[Any] = []

    def __enter__(self) -> Stream | None:
        if self.s is not None:
            self.s._check()
        self.before.append(core.enter(self.s))
        return self.s

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        core.leave(self.before.pop())


def current_stream() -> Stream | None:
    """This thread's current stream; None: there is none, and operations wait for their end."""
    found: Stream | None = core.current_stream()
    return found


def _warn(progress: core.Progress) -> None:
    progress.settle()
    if progress.error is not None and not progress.raised:
        progress.raised = True
        text = f"{progress.name} failed, and nobody called synchronize(): {progress.error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _sweep() -> None:
    """Gives back the rings of dropped streams on which nothing is queued any more."""
    kept = []
    while _leaving:
        try:
            ring, progress = _leaving.pop()  # from other threads, and from this in the middle of another sweep
        except IndexError:
            break
        _warn(progress)
        if len(progress):
            kept.append((ring, progress))
        else:
            ring.close()
    _leaving.extend(kept)


def stop() -> None:
    """Streams end (at finalize): whoever waits for one gets NotInJob."""
    for s in list(_streams):
        if s.ring is not None and s.progress.engine.context.here:
            _warn(s.progress)
            s._stop()
    for _, progress in _leaving:
        _warn(progress)
        progress.over = True
    _leaving.clear()
