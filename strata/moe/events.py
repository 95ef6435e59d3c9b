"""Events, and the thread that carries out what a call left to be done."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from strata import errors, streams
from strata._core.space import Context
from strata._core.spans import spanned
from strata.errors import InvalidArgument

__all__ = ["EventHandle", "EventOverlap", "Receiver", "Task"]


class Task:
    """Something that a Receiver does; whoever waits gets what it raised."""

    def __init__(self, what: str, run: Callable[[], None]) -> None:
        self.what = what
        self.error: BaseException | None = None
        self._run: Callable[[], None] | None = run
        self._told = False
        self.ended = threading.Event()

    def run(self) -> None:
        run, self._run = self._run, None
        try:
            if run is not None:
                run()
        except BaseException as error:  # it belongs to whoever waits
            self.error = error
        finally:
            del run  # and with it the arrays of the round
            self.ended.set()

    def done(self) -> bool:
        return self.ended.is_set()

    def wait(self, context: Context) -> None:
        if not context.here:
            raise errors.NotInJob(f"{self.what}: this process was forked from the die that has begun it")
        self.ended.wait()
        if self.error is not None:
            self._told = True
            raise self.error

    def __del__(self) -> None:
        if self.error is not None and not self._told and not sys.is_finalizing():
            warnings.warn(f"{self.what} failed, and nobody waited for it: {self.error}", RuntimeWarning, stacklevel=2)


class Receiver:
    """Does tasks one after another, on a thread that is made for the first of them.

    ``over``: called once no more tasks come and all have ended.
    """

    def __init__(self, name: str, over: Callable[[], None]) -> None:
        self.name = name
        self.pid = os.getpid()
        self.stopping = threading.Event()  # tasks look at it where they wait
        self._over: Callable[[], None] | None = over
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Task | None = None

    @property
    def busy(self) -> bool:
        return self._last is not None and not self._last.done()

    def submit(self, task: Task) -> Task:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        self._last = task
        self._tasks.put(task)
        return task

    def end(self) -> None:
        """No more tasks come.  Does not wait, and may be called by any thread, any number of times."""
        if self._thread is None:
            self._ended()
        elif self.pid == os.getpid():
            self._tasks.put(None)

    def join(self, timeout: float) -> bool:
        """Whether the thread has ended, after ``end``."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # as the other threads of a die: it preempts nobody when it wakes
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        while True:
            task = self._tasks.get()
            if task is None:
                self._last = None
                self._ended()
                return
            task.run()
            del task  # not to be held until the next comes

    def _ended(self) -> None:
        over, self._over = self._over, None
        if over is not None:
            over()


class EventHandle:
    """What an EventOverlap waits for: a round, a place in a stream, or nothing more.

    ``EventHandle()`` is where this thread's current stream is now; outside any stream it has happened.
    """

    def __init__(self, task: Task | None = None, context: Context | None = None) -> None:
        self._task, self._context = task, context
        self._place: streams.Event | None = None
        if task is None and streams.current_stream() is not None:
            self._place = streams.Event()
            self._place.record()

    def query(self) -> bool:
        """Whether it has happened, or failed.  Never waits."""
        if self._task is not None:
            return self._task.done()
        return self._place is None or self._place.query()

    def current_stream_wait(self) -> None:
        """The host waits until it has happened; raises what went wrong."""
        if self._task is not None:
            assert self._context is not None
            self._task.wait(self._context)
        elif self._place is not None:
            self._place.synchronize()


class EventOverlap:
    """An event, with what its users do around it.

    ``event``          an EventHandle, or None
    ``extra_tensors``  kept as long as this object
    """

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[Any, ...] | None = None) -> None:
        if event is not None and not isinstance(event, EventHandle):
            raise TypeError(f"event: a strata.moe.EventHandle or None is expected, not {type(event).__name__}")
        self.event = event
        self.extra_tensors = extra_tensors
        self.hook_after_wait: Callable[[], None] | None = None
        self._release = False

    @spanned("moe.wait")
    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Waits for the event (the host does), then calls the registered hook once.

        ``release_handle``  forgets the event afterwards.  Raises what the round raised; InvalidArgument: no event.
        """
        if self.event is None:
            raise InvalidArgument("this EventOverlap has no event to wait for")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """``hook_after_wait()`` is called by the next current_stream_wait.  InvalidArgument: there is one already."""
        if not callable(hook_after_wait):
            raise TypeError(f"hook_after_wait: something to call is expected, not {type(hook_after_wait).__name__}")
        if self.hook_after_wait is not None:
            raise InvalidArgument("a hook is registered already; current_stream_wait() calls it")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """``with event(release_handle=True):`` forgets the event at the end of the block."""
        self._release = bool(release_handle)
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        release, self._release = self._release, False
        if self.event is not None and kind is None:
            self.current_stream_wait(release)
