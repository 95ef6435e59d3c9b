"""The launcher's own standard output and error, written without ever blocking the launcher."""

from __future__ import annotations

import os
import select
import selectors
import stat
from collections import deque
from collections.abc import Callable
from typing import Any

HIGH = 1 << 20  # bytes waiting for a slow reader from which on the dies are no longer read
LOW = HIGH // 4  # bytes below which they are again
ALL = 1 << 18  # bytes of one write where a write does not block
PIPE = select.PIPE_BUF  # where it may: so many fit if the file is writable at all


class Sink:
    """One output file of the launcher.

    Several sources (pipes of dies) write whole lines into it.  ``holder`` is the
    source in the middle of a line too long to be held back, for which all others
    wait; ``cursor`` is the source that left the last line without its end.
    """

    def __init__(self, fd: int, selector: selectors.BaseSelector, failed: Callable[[Sink, OSError], None]) -> None:
        mode = os.fstat(fd).st_mode
        self.is_tty = os.isatty(fd)
        self.sources = 0  # those that may still write
        self.holder: Any = None
        self.cursor: Any = None
        self.waiting: set[Any] = set()  # sources to be told when there is room again
        self.broken = False
        self._failed = failed
        self._selector = selector
        self._queue: deque[memoryview] = deque()
        self._pending = 0
        self._registered = False
        self._plain = _plain(fd, mode)
        self._fd, self._blocks = _reopen(fd, mode)

    @property
    def full(self) -> bool:
        return self._pending > HIGH

    @property
    def stalled(self) -> bool:
        """Whether sources wait for one that is silent in the middle of its line."""
        return self.holder is not None and bool(self.waiting) and self.holder not in self.waiting

    @property
    def empty(self) -> bool:
        return not self._queue

    def write(self, data: bytes) -> None:
        if data and not self.broken:
            self._queue.append(memoryview(data))
            self._pending += len(data)
            if not self._registered:
                self.flush()

    def flush(self, _events: int = 0) -> None:
        """Writes what the file takes now; the rest when it takes more."""
        try:
            while self._queue and (not self._blocks or _writable(self._fd)):
                data = self._queue[0]
                done = os.write(self._fd, data[: PIPE if self._blocks else ALL])
                self._pending -= done
                if done == len(data):
                    self._queue.popleft()
                else:
                    self._queue[0] = data[done:]
        except BlockingIOError:
            pass
        except OSError as error:
            self.discard()
            self._failed(self, error)
        self._watch(bool(self._queue))

    def _watch(self, wanted: bool) -> None:
        if wanted != self._registered and not self._plain:
            self._registered = wanted
            if wanted:
                self._selector.register(self._fd, selectors.EVENT_WRITE, self.flush)
            else:
                self._selector.unregister(self._fd)

    def wake(self) -> None:
        """Lets the sources that wait for this file write again, if there is room."""
        if self.waiting and (self.broken or self._pending < LOW):
            waiting, self.waiting = self.waiting, set()
            for source in waiting:
                source.pump()

    def discard(self) -> None:
        """Drops what waits here and all that comes later."""
        self.broken = True
        self.holder = self.cursor = None
        self._queue.clear()
        self._pending = 0
        self._watch(False)


def _writable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


def _reopen(fd: int, mode: int) -> tuple[int, bool]:
    """A descriptor for the same file, and whether a write to it may block.

    O_NONBLOCK on ``fd`` itself would hold for everyone who shares it, the user's
    shell included; a pipe or terminal opened again has flags of its own.
    """
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            return os.open(f"/proc/self/fd/{fd}", flags), False
        except OSError:
            pass  # no /proc, another user's terminal, no reader any more
    return os.dup(fd), not _plain(fd, mode)


def _plain(fd: int, mode: int) -> bool:
    """Whether this is a file or a device like /dev/null: always writable, and unknown to epoll."""
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd))
