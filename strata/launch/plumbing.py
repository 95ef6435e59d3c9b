"""The dies' standard files: what rank 0 reads, the pipes to the launcher, the files of --log-dir."""

from __future__ import annotations

import os
from collections.abc import Callable

from strata.launch import procs
from strata.launch.die import Streams
from strata.launch.options import Options
from strata.launch.output import ERR, OUT, Forwarder, Log


class Plumbing:
    """Made before the first fork, in the keeper.

    ``stdin`` is what rank 0 reads instead of the launcher's own standard input.
    """

    def __init__(
        self,
        options: Options,
        forwarder: Forwarder | None,
        stdin: int | None,
        log_failed: Callable[[str, OSError], None],
    ) -> None:
        self._stdin = stdin
        self._forwarder = forwarder
        each = (2 if forwarder else 0) + (2 if options.log_dir is not None else 0)
        dies = options.n + min(options.restarts, options.n)  # what a dead one had open is read to its end
        self.limits = procs.need_files(64 + max(procs.open_files()) + each * dies)
        self._null = os.open(os.devnull, os.O_RDONLY)
        self._logs: dict[tuple[int, int], Log] = {}
        if options.log_dir is not None:
            os.makedirs(options.log_dir, exist_ok=True)
            for rank in range(options.n):
                for stream, name in ((OUT, "out"), (ERR, "err")):
                    path = os.path.join(options.log_dir, f"rank.{rank}.{name}")
                    self._logs[rank, stream] = Log(path, log_failed)

    def streams(self, rank: int, again: bool = False) -> tuple[Streams, list[int]]:
        """A die's standard files, and those of them to close in the keeper after the fork.  ``again``: of one that is
        started while the others run; rank 0 reads on where the one before has stopped."""
        if self._forwarder is None:
            return Streams(self._null, None, None), []
        theirs: list[int] = []
        for stream in (OUT, ERR):
            read, write = os.pipe()
            add = self._forwarder.again if again else self._forwarder.add
            add(rank, stream, read, self._logs.get((rank, stream)))
            theirs.append(write)
        return Streams(self._null if rank else self._stdin, *theirs), theirs

    def close(self, again: bool) -> None:
        """Once all dies have been forked.  ``again``: some may be later."""
        if again:
            return
        os.close(self._null)
        if self._stdin is not None:
            os.close(self._stdin)
