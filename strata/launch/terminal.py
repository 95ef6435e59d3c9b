"""The terminal as rank 0's standard input.

Dies are in process groups of their own, and a terminal stops a process outside
its foreground group that reads it.  So a thread of the front, which is in that
group when its user wants it to be, reads and passes on.  A file or a pipe
instead is rank 0's own.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading

LOOK_AGAIN = 0.5  # seconds between looks whether this is the foreground job again


class Terminal:
    """Passes what is typed to ``pipe``, while the front is in the foreground.

    Ends at Ctrl-D, when the terminal is gone, and when rank 0 reads no more.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._continued = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="strata-terminal").start()

    def resume(self) -> None:
        """After SIGCONT: this may be the foreground job now."""
        self._continued.set()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while self._pass_on():
                pass
        os.close(self._pipe)

    def _pass_on(self) -> bool:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.poll()
        if not in_foreground():  # what is typed is another's
            self._continued.wait(LOOK_AGAIN)
            self._continued.clear()
            return True
        typed = os.read(0, 4096)
        rest = memoryview(typed)
        while rest:
            rest = rest[os.write(self._pipe, rest) :]
        return bool(typed)


def in_foreground() -> bool:
    """Whether the terminal's keys are for this process group; OSError if there is no terminal any more."""
    return os.tcgetpgrp(0) == os.getpgrp()
