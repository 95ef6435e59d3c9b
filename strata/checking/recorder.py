"""What a die tells the analyser of ``strata-run --check``: a task's accesses, and what orders them, in JSON lines.

Events of a task are in its program's order.  Tasks are the threads of the program, and whatever goes on without
them: asynchronous operations, items of streams, chains of descriptors.  Threads of one die take turns (the
interpreter's lock orders what they do), so one that takes over is after the one before it; only what goes on without
the program is concurrent with it, and other dies are.

Accesses of one line and kind that touch each other are sent as one, up to the next event that orders.  All is sent
before anything that may block, so that a die that is killed has told what it did.
"""

from __future__ import annotations

import collections
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from strata._core.space import Context
from strata.checking.sites import Sites

__all__ = ["Recorder", "current", "start", "stop"]

PIECE = 1 << 16  # bytes that are sent at once, if nothing blocks before
PATIENCE = 120.0  # seconds in which the analyser must take something
LAST = 5.0  # seconds that it has for its answer at the end
RANGES = 4096  # that wait to be merged, of one line
Range = tuple[int, ...]  # of strata.checking.ranges

_current: Recorder | None = None
_times = 0  # that this process has joined a job


def current() -> Recorder | None:
    """This die's; None: it is not checked, or has left the job."""
    return _current


def start(context: Context) -> Recorder:
    """Of a die that has just joined."""
    global _current, _times
    _times += 1
    _current = made = Recorder(context, context.config.check)
    return made


def stop() -> None:
    """The die leaves the job."""
    global _current
    found, _current = _current, None
    if found is not None:
        found.end()


def _after_fork() -> None:
    global _current, _times
    found, _current, _times = _current, None, 0
    if found is not None:
        found.forget()


os.register_at_fork(after_in_child=_after_fork)


class Recorder:
    """Of one die.  All of it may be called by any thread."""

    def __init__(self, context: Context, name: str) -> None:
        self.context, self.rank = context, context.rank
        self.again = f"{_times}." if _times > 1 else ""  # of keys: groups of another stay in the job have the same
        self.low = context.base
        self.high = context.base + context.ndies * context.segment_bytes
        self.lock = threading.RLock()
        self.frees: collections.deque[int] = collections.deque()  # what finalizers say, at any place
        self.unseen: collections.deque[int] = collections.deque()  # views that are gone
        self._views = 0
        self.owned: dict[int, tuple[int, int]] = {}  # of this die's arrays: first address -> end, site
        self.sites = Sites(self._line)
        self._lines: list[str] = []
        self._size = 0
        self._near: dict[tuple[Any, ...], dict[Range, None]] = {}  # accesses since the last event that orders
        self._turn = 0  # task of the thread that spoke last
        self._turns = 0
        self._handed = False  # it has given its turn away, and does nothing but wait since
        self._threads = False  # there are several
        self._mine = threading.local()  # its number
        self._mine.task = 0
        self._next = 1
        self.failed = False  # the program
        self._raised = getattr(sys, "last_value", None)  # Python's own record of what has ended a program
        self._socket: socket.socket | None = None
        self._connect(name)
        self._line({"e": "hello", "job": context.token, "rank": context.rank, "size": context.ndies,
                    "pid": os.getpid()})  # fmt: skip
        self.flush()

    # ---- the wire -------------------------------------------------------------------------

    def _connect(self, name: str) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(PATIENCE)
            made.connect("\0" + name)
        except OSError as error:
            made.close()
            self._gone(error)
            return
        self._socket = made

    def _gone(self, error: Exception) -> None:
        """Nobody takes what this die tells.  The job goes on, and says so once."""
        found, self._socket = self._socket, None
        if found is not None:
            found.close()
        self._lines, self._size = [], 0
        self._near.clear()
        print(f"strata check: rank {self.rank}: the analyser does not answer ({error}); what this die does from here "
              "on is not checked", file=sys.stderr, flush=True)  # fmt: skip

    def _line(self, event: dict[str, Any]) -> None:
        self._text(json.dumps(event, separators=(",", ":")))

    def _text(self, line: str) -> None:
        if self._socket is None:
            return
        self._lines.append(line)
        self._size += len(line)
        if self._size >= PIECE:
            self._send()

    def _send(self) -> None:
        lines, self._lines, self._size = self._lines, [], 0
        if not lines or self._socket is None:
            return
        try:
            self._socket.sendall(("\n".join(lines) + "\n").encode())
        except OSError as error:
            self._gone(error)

    def flush(self) -> None:
        """Sends all that there is: what comes next may block, or end the die."""
        with self.lock:
            self._settle()
            self._send()

    def forget(self) -> None:
        """In a forked child, whose parent speaks on."""
        self.lock = threading.RLock()
        self._lines, self._size = [], 0
        self._near.clear()
        found, self._socket = self._socket, None
        if found is not None:
            found.close()

    def end(self) -> None:
        """The last word; waits a moment until the analyser has heard it."""
        with self.lock:
            leaving = sys.exc_info()[1]  # in a finally
            raised = leaving is not None and not (isinstance(leaving, SystemExit) and not leaving.code)
            failed = self.failed or raised or getattr(sys, "last_value", None) is not self._raised
            self.event("end", failed=int(failed))
            self.flush()
            found, self._socket = self._socket, None
        if found is None:
            return
        try:
            found.settimeout(LAST)
            until = time.monotonic() + LAST
            while time.monotonic() < until:
                piece = found.recv(4096)
                if not piece or b"\n" in piece:
                    break
        except OSError:
            pass  # it will say what it found all the same
        finally:
            found.close()

    # ---- tasks ----------------------------------------------------------------------------

    def _enter(self) -> int:
        """The task of this thread, which has its turn now.  The lock is held."""
        while self.unseen:
            self._line({"e": "viewend", "t": self._turn, "id": self.unseen.popleft()})
        while self.frees:
            self._free(self.frees.popleft())
        task: int | None = getattr(self._mine, "task", None)
        if task is None:
            task = self._mine.task = self._adopt()
        if task != self._turn:
            self._hand_over()
            self._line({"e": "take", "t": task, "key": f"host:{self.rank}", "value": self._turns})
            self._turn = task
        self._handed = False
        return task

    def _hand_over(self) -> None:
        """Whoever speaks next goes on after what has been told so far."""
        self._settle()
        if not self._handed:
            self._turns += 1
            self._line({"e": "post", "t": self._turn, "key": f"host:{self.rank}", "value": self._turns})

    def _adopt(self) -> int:
        """The number of a thread that nobody has heard of."""
        thread = threading.current_thread()
        given = thread.__dict__.pop(f"strata task {id(self)}", None)
        if given is None:  # made by what is not Python
            given, self._threads = self._fork(self._turn), True
        return int(given)

    def begins(self, thread: threading.Thread) -> None:
        """This thread starts another."""
        with self.lock:
            self._threads = True
            thread.__dict__[f"strata task {id(self)}"] = self.fork()

    def ends(self) -> None:
        """This thread ends."""
        with self.lock:
            task = self._enter()
            self._hand_over()
            self._handed = True
            self._line({"e": "done", "t": task})

    def _fork(self, parent: int) -> int:
        self._settle()
        child, self._next = self._next, self._next + 1
        self._line({"e": "fork", "t": parent, "c": child})
        return child

    def fork(self) -> int:
        """A task that begins here, and goes on without this thread."""
        with self.lock:
            return self._fork(self._enter())

    def join(self, child: int) -> None:
        """This thread knows that a task has ended."""
        self.event("join", c=child)

    def event(self, event: str, task: int | None = None, **fields: Any) -> None:
        """An event of a task; None: of this thread."""
        with self.lock:
            mine = self._enter()
            self._settle()
            waits = task is None and self._threads and event in ("op", "wait")
            if waits:  # others must not be put behind what it waits for
                self._hand_over()
            self._line({"e": event, "t": mine if task is None else task, **fields})
            self._handed = waits

    def wait(self, what: str, **fields: Any) -> None:
        """This thread is about to block: until a flag, or tasks, or other dies have come so far."""
        with self.lock:
            self.event("wait", what=what, site=self.sites.here(), **fields)
            self.flush()

    def post(self, key: str, value: int, task: int | None = None, **fields: Any) -> None:
        self.event("post", task, key=key, value=value, **fields)

    def take(self, key: str, value: int, task: int | None = None) -> None:
        self.event("take", task, key=key, value=value)

    # ---- accesses ---------------------------------------------------------------------------

    def access(self, ranges: Iterable[Range], write: bool, what: str, view: int = -1) -> None:
        """This thread reads or writes bytes of the fabric."""
        with self.lock:
            if self._socket is None:
                return
            self._enter()
            key = (self.sites.here(), write, what, view)
            near = self._near.get(key)
            if near is None:
                near = self._near[key] = {}
            for found in ranges:
                if near and len(found) == 2:
                    last = next(reversed(near))
                    lo, hi = found
                    if len(last) == 2 and lo <= last[1] and hi >= last[0]:
                        if lo >= last[0] and hi <= last[1]:
                            continue
                        del near[last]
                        found = min(lo, last[0]), max(hi, last[1])
                near[found] = None
            if len(near) >= RANGES:
                self._settle()

    def _settle(self) -> None:
        """What was waiting to be merged is told: of the thread that has its turn."""
        if not self._near:
            return
        near, self._near = self._near, {}
        task = self._turn
        for (site, write, what, view), ranges in near.items():
            tail = f',"w":{int(write)},"site":{site},"what":{json.dumps(what)}'
            tail += "}" if view < 0 else f',"v":{view}}}'
            for lo, hi in joined(r for r in ranges if len(r) == 2):
                self._text(f'{{"e":"acc","t":{task},"lo":{lo},"hi":{hi}{tail}')
            for lo, hi, n, step in (r for r in ranges if len(r) == 4):
                self._text(f'{{"e":"acc","t":{task},"lo":{lo},"hi":{hi},"n":{n},"step":{step}{tail}')

    def touch(self, task: int | None, ranges: Iterable[Range], write: bool, what: str, site: int, atomic: bool = False
              ) -> None:  # fmt: skip
        """A task that goes on without the program (None: this thread) reads or writes."""
        with self.lock:
            for lo, hi, *rows in ranges:
                more = {"n": rows[0], "step": rows[1]} if rows else {}
                self.event("acc", task, lo=lo, hi=hi, w=int(write), atomic=int(atomic), site=site, what=what, **more)

    def inside(self, lo: int) -> bool:
        return self.low <= lo < self.high

    # ---- memory -------------------------------------------------------------------------------

    def alloc(self, lo: int, hi: int) -> None:
        """Memory of this die's that a program has now."""
        with self.lock:
            self._enter()  # frees of what lay there come first
            if hi > lo and lo not in self.owned:
                site = self.sites.here()
                self.owned[lo] = hi, site
                self.event("alloc", lo=lo, hi=hi, site=site)

    def free(self, lo: int) -> None:
        """It has been given back, by this thread."""
        with self.lock:
            self._enter()
            self._free(lo)

    def _free(self, lo: int) -> None:
        found = self.owned.pop(lo, None)
        if found is not None:
            self._settle()
            self._line({"e": "free", "t": self._turn, "lo": lo, "hi": found[0], "site": self.sites.here()})

    def view(self, array: Any, lo: int, hi: int) -> int:
        """An array over an address; its number."""
        with self.lock:
            self._views += 1
            number = self._views
            self.event("view", id=number, lo=lo, hi=hi, site=self.sites.here())
        end = weakref.finalize(array, _unseen, weakref.ref(self), number)
        end.atexit = False
        return number

    def own(self, array: Any, lo: int, hi: int) -> None:
        """An array's memory, which returns when it goes: in any thread, at any place."""
        self.alloc(lo, hi)
        end = weakref.finalize(array, _freed, weakref.ref(self), lo)
        end.atexit = False


def _freed(of: weakref.ref[Recorder], lo: int) -> None:
    found = of()
    if found is not None:
        found.frees.append(lo)


def _unseen(of: weakref.ref[Recorder], number: int) -> None:
    found = of()
    if found is not None:
        found.unseen.append(number)


def joined(ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
    """Ranges in order, those that touch as one."""
    low = high = -1
    for lo, hi in sorted(ranges):
        if lo <= high:
            high = max(high, hi)
            continue
        if high > low:
            yield low, high
        low, high = lo, hi
    if high > low:
        yield low, high
