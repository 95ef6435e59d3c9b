"""The terminal as rank 0's standard input.

Dies are in process groups of their own, and a terminal stops a process outside
its foreground group that reads it.  So the keeper reads and passes on; a file or
pipe instead is rank 0's own.
"""

from __future__ import annotations

import contextlib
import os
import selectors

LIMIT = 1 << 16  # bytes typed ahead


class Terminal:
    """Passes what is typed to a pipe; only while the launcher is in the foreground."""

    def __init__(self, pipe: int, selector: selectors.BaseSelector) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._selector = selector
        self._typed = b""
        self._ended = False  # Ctrl-D, or the terminal is gone
        self._reads = self._writes = False
        self.resume()

    def resume(self) -> None:
        """Looks again whether this is the foreground job (after SIGCONT)."""
        if self._pipe >= 0:
            room = not self._ended and len(self._typed) < LIMIT
            self._want(reads=room and _in_foreground(), writes=bool(self._typed))

    def _want(self, reads: bool, writes: bool) -> None:
        for fd, before, after, event, call in (
            (0, self._reads, reads, selectors.EVENT_READ, self._read),
            (self._pipe, self._writes, writes, selectors.EVENT_WRITE, self._write),
        ):
            if after and not before:
                self._selector.register(fd, event, call)
            elif before and not after:
                self._selector.unregister(fd)
        self._reads, self._writes = reads, writes

    def _read(self, _events: int) -> None:
        if not _in_foreground():
            self._want(reads=False, writes=self._writes)
            return
        try:
            typed = os.read(0, 4096)
        except OSError:  # the terminal is gone
            typed = b""
        self._typed += typed
        self._ended = not typed
        self._write(0)

    def _write(self, _events: int) -> None:
        try:
            while self._typed:
                self._typed = self._typed[os.write(self._pipe, self._typed) :]
        except BlockingIOError:
            pass
        except OSError:  # rank 0 reads no more
            self.close()
            return
        if self._ended and not self._typed:
            self.close()
        self.resume()

    def close(self) -> None:
        if self._pipe >= 0:
            self._want(reads=False, writes=False)
            os.close(self._pipe)
            self._pipe = -1


def _in_foreground() -> bool:
    with contextlib.suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False
