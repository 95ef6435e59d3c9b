"""Rounds of moe.Buffer, on a die that is checked.

A round is an operation that orders all before it before all after it, and reads what was given until it ends.  What it
writes is memory that it returns, and nobody else has before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from strata._core import memory
from strata.checking import heap, items, recorder
from strata.checking.groups import opened
from strata.checking.traced import traced
from strata.moe import windows
from strata.moe.events import Task
from strata.moe.rounds import Posted, Rounds
from strata.moe.windows import Windows

__all__ = ["watch"]


_own_post, _own_run, _own_wait, _own_done = Rounds.post, Rounds.run, Task.wait, Task.done


def _post(self: Any, asked: Any, tokens: int, columns: Any, *args: Any, **kwargs: Any) -> Posted:
    told, track = recorder.current(), self.group.track
    if told is None or not isinstance(track, items.Track):
        return _own_post(self, asked, tokens, columns, *args, **kwargs)
    self._keep_up()
    with told.lock:
        task, number, key = told.fork(), self.next, f"moe{self._held.number}.{track.key}"
        made = items.Item(None, told, task, 0, asked.name)
        queue = self.__dict__.setdefault("_told", items.Queue(told, f"moe:{told.rank}.{id(self)}"))
        queue.enter(task)
        reads = [r for c in columns for r in items.bytes_of(told, c)]
        told.event("op", task, group=key, name=track.name, n=number, op=f"moe.{asked.name}",
                   members=list(track.ranks), root=None, reads=reads, writes=[], site=made.site,
                   ts=time.monotonic())  # fmt: skip
        told.event("opend", task, group=key, n=number, status=items.LATER)
        queue.leave(task)
        told.event("done", task)
        told.flush()
    try:
        posted = _own_post(self, asked, tokens, columns, *args, **kwargs)
    except BaseException as error:
        told.event("opend", group=key, n=number, status=type(error).__name__)
        raise

    def over() -> None:
        told.event("opend", group=key, n=number, status="ok")

    made.after = over
    posted.__dict__["told"] = made
    return posted


def _run(self: Rounds, what: str, posted: Posted, receive: Callable[[], None], later: bool) -> Task | None:
    task, item = _own_run(self, what, posted, receive, later), posted.__dict__.get("told")
    if item is None:
        return task
    if task is None:
        item.join()
        return None
    task.__dict__["told"] = item
    text = f"a {what} of a moe.Buffer was begun, and nobody has waited for its event or called its hook"
    opened.add(item, "request", text, item.site)
    return task


def _wait(self: Task, context: Any) -> None:
    item = self.__dict__.get("told")
    if item is not None:
        opened.drop(item)
        item.waits()
    _own_wait(self, context)
    if item is not None:
        item.join()


def _done(self: Task) -> bool:
    found, item = _own_done(self), self.__dict__.get("told")
    if found and item is not None:
        opened.drop(item)
        if self.error is None:
            item.join()
    return found


def _block(group: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As Windows needs it, which counts who refers to a block: not a view, since numpy lets views of views refer to
    what is below all of them."""
    return heap.owned(memory.alloc_array(group.context, shape, np.dtype(dtype), False))


def watch(set_: Callable[[Any, str, Any], None]) -> None:
    """Puts these in the place of what they stand for."""
    take = Windows.take
    set_(windows, "empty", _block)
    set_(Windows, "take", lambda self, shape, dtype: traced(take(self, shape, dtype)))
    set_(Rounds, "post", _post)
    set_(Rounds, "run", _run)
    set_(Task, "wait", _wait)
    set_(Task, "done", _done)
