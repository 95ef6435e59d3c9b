"""One fork for each die."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
from collections.abc import Sequence

from strata.bootstrap import Job
from strata.launch import procs
from strata.launch.die import Die
from strata.launch.front import Origin
from strata.launch.options import Options
from strata.launch.plumbing import Plumbing


class Forker:
    """What all dies of a job are started with.  ``keep``: descriptors that they keep."""

    def __init__(self, options: Options, job: Job, origin: Origin, plumbing: Plumbing, keep: Sequence[int],
                 interrupted: mmap.mmap) -> None:  # fmt: skip
        self.title = procs.Title()
        self._job = job
        self._origin = origin
        self._plumbing = plumbing
        self._keep = keep
        self._interrupted = interrupted
        self._cpus = sorted(os.sched_getaffinity(0)) if options.bind else []

    def fork(self, rank: int, incarnation: int) -> tuple[int, Die | None]:
        """The die's pid, and in the die itself the Die.  ``incarnation``: how many were started for this rank before.

        Signals that are passed on must be blocked.  OSError: no process.
        """
        streams, theirs = self._plumbing.streams(rank, incarnation > 0)
        cpu = self._cpus[rank % len(self._cpus)] if self._cpus else None
        die = Die(rank, self._job.env(rank, incarnation), streams, self._origin, keep=self._keep, cpu=cpu,
                  files=self._plumbing.limits, title=self.title, interrupted=self._interrupted)  # fmt: skip
        pid = -1
        try:
            pid = procs.fork()
        finally:
            if pid:
                for fd in theirs:
                    os.close(fd)
        if pid == 0:
            if incarnation:
                signal.set_wakeup_fd(-1)
            return 0, die
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid, None

    def failed(self, rank: int, error: OSError) -> str:
        """What to say of a process that could not be made."""
        return f"cannot start rank {rank} of {self._job.ndies}: {error.strerror} (see `ulimit -u`, pids.max)"
