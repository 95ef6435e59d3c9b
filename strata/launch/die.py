"""A die between its fork and the user's code: what separates it from the launcher."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from strata.launch import procs
from strata.launch.front import Origin
from strata.launch.options import LAUNCHER_FAILED, say


def ends(status: int) -> None:
    """The user's code has ended so: a die that is checked says whether it was well."""
    if status and "strata.checking.dies" in sys.modules:
        sys.modules["strata.checking.dies"].failed()


class Streams:
    """Descriptors that become a die's standard files; None: it keeps the launcher's."""

    def __init__(self, stdin: int | None, stdout: int | None, stderr: int | None) -> None:
        self.fds = (stdin, stdout, stderr)


class Die:
    """One die.  Made in the keeper, for the child of the next fork."""

    def __init__(
        self,
        rank: int,
        environment: Mapping[str, str],
        streams: Streams,
        origin: Origin,
        *,
        keep: Sequence[int] = (),
        cpu: int | None = None,
        files: tuple[int, int] | None = None,
        title: procs.Title | None = None,
        interrupted: mmap.mmap | None = None,
    ) -> None:
        self.rank = rank
        self.origin = origin
        self.interrupted = interrupted  # first byte: the launcher has sent SIGINT
        self.target: Any = None  # what run() does; set in the die
        self.keeper: Any = None  # kept, not used
        self._environment = environment
        self._streams = streams
        self._keep = keep
        self._cpu = cpu
        self._files = files
        self._title = title
        self._keeper = os.getpid()

    def settle(self, python: bool) -> None:
        """Called first in the child.  Nothing of the launcher is left to it, or it ends here."""
        try:
            self._settle(python)
        except BaseException as error:
            say(f"rank {self.rank} cannot start: {error}")
            os._exit(LAUNCHER_FAILED)

    def _settle(self, python: bool) -> None:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)  # the keeper does so too; whoever comes first
        procs.die_with(self._keeper)
        for fd, source in enumerate(self._streams.fds):
            if source is not None and source != fd:
                os.dup2(source, fd)
        self._close_others()
        if self._title:
            self._title.restore()
        if self._files:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
        if self._cpu is not None:
            os.sched_setaffinity(0, {self._cpu})
        os.environ.update(self._environment)
        if python:
            new_random_numbers()
            from strata import config

            config.reset()
        self.origin.restore(python)

    def _close_others(self) -> None:
        """Closes what the launcher opened; what its user had open stays, as without it."""
        keep = {0, 1, 2, *self._keep, *self.origin.files}
        for fd in procs.open_files() - keep:
            os.close(fd)

    def run(self) -> int:
        """The user's code.  Returns the exit status, or does not return."""
        status: int = self.target(self)
        return status


def new_random_numbers() -> None:
    """Dies must not draw the numbers of the process they were forked from.

    Python's own ``random`` sees to itself at a fork.
    """
    module = sys.modules.get("numpy.random")
    if module is not None:
        module.seed()
