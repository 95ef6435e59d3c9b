"""Forwarding what dies print: whole lines, bytes untouched, nothing lost, nothing unbounded.

A line goes out when its end has come.  What has no end yet goes out when that
can spoil no other line: on a terminal, or when nobody else writes there (a
prompt); and at the end of the job.  A line longer than ``limit`` goes out in
pieces while the other dies wait.
"""

from __future__ import annotations

import errno
import os
import selectors
import stat
import time
from collections import deque
from collections.abc import Callable

from strata.launch.sink import Sink

READ = 1 << 16
PIECES = 64  # reads that empty a pipe
PROMPT_AFTER = 0.1  # seconds until an unfinished line is shown, where it may be
STALL = 1.0  # seconds of silence in the middle of an endless line until others go on
LONGEST = 4 << 20  # bytes of an unfinished line held back
ALL_PARTIALS = 256 << 20  # bytes of unfinished lines of all dies together
TAIL_BYTES = 32 << 10
OUT, ERR = 0, 1


class Tail:
    """The end of what a die printed, for the report of its failure."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def add(self, stream: int, data: bytes) -> None:
        data = data[-TAIL_BYTES:]
        self._pieces.append((stream, data))
        self._size += len(data)
        while self._size - len(self._pieces[0][1]) >= TAIL_BYTES:
            self._size -= len(self._pieces.popleft()[1])

    def lines(self, streams: tuple[int, ...] = (OUT, ERR)) -> list[bytes]:
        return b"".join(data for stream, data in self._pieces if stream in streams).splitlines()


def _opened(path: str) -> int:
    """An empty file at ``path``.  PermissionError: another user, in whose directory this may be, has put a link or a
    file of their own there, which would be overwritten, or read by them."""
    friends = os.geteuid(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    cure = "another user's, so nothing is written there: remove it, or name another --log-dir"
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        if os.lstat(path).st_uid not in friends:
            raise PermissionError(errno.EPERM, f"a link that is {cure}", path) from None
        fd = os.open(path, flags, 0o666)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode):
        if found.st_uid not in friends:
            os.close(fd)
            raise PermissionError(errno.EPERM, f"a file that is {cure}", path)
        os.ftruncate(fd, 0)
    return fd


class Log:
    """A file of --log-dir."""

    def __init__(self, path: str, failed: Callable[[str, OSError], None]) -> None:
        self.path = path
        self.fd = _opened(path)
        self._failed = failed
        self._broken = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self._broken:
                rest = rest[os.write(self.fd, rest) :]
        except OSError as error:
            self._broken = True
            self._failed(self.path, error)


class Source:
    """One stream of one die: the pipe's read end and what has been read but not passed on."""

    def __init__(self, owner: Forwarder, rank: int, stream: int, fd: int, log: Log | None) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.rank = rank
        self.stream = stream
        self.last = 0.0  # when bytes came last
        self._owner = owner
        self._log = log
        self._tag = b"[%d] " % rank if owner.tag else b""
        self._buffer = bytearray()
        self._lines = 0  # bytes of the buffer that are whole lines
        self.since = 0.0  # when the unfinished line began; 0: there is none
        self._fresh = True  # the next byte begins a line
        self._registered = False
        self.before: Source | None = None  # of stderr: the same die's stdout
        self.open = True

    def begin(self, sink: Sink) -> None:
        self.sink = sink
        sink.sources += 1
        self._listen(True)

    def _listen(self, wanted: bool) -> None:
        if wanted != self._registered:
            self._registered = wanted
            if wanted:
                self._owner.selector.register(self.fd, selectors.EVENT_READ, self.read)
            else:
                self._owner.selector.unregister(self.fd)

    def read(self, _events: int = 0) -> None:
        """Takes what the pipe holds now, one piece of it."""
        if not self.open:
            return  # an event of the same round as the read that found the end
        try:
            data = os.read(self.fd, READ)
        except BlockingIOError:
            if self._owner.writers_gone:
                self._finish()
            return
        if not data:
            self._finish()
            return
        # What the die printed before this must be passed on before it, so that the
        # end of its output is shown in the order in which it was written.
        if self.before and self.before.open and self.before._registered:
            self.before.read()
        self.last = time.monotonic()
        if self._log:
            self._log.write(data)
        end = data.rfind(b"\n") + 1
        if end:
            self._lines = len(self._buffer) + end
            self.since = 0.0
        self._buffer += data
        if len(self._buffer) > self._lines and not self.since:
            self.since = self.last
        self.pump()

    def pump(self) -> None:
        """Passes on what may go now; stops reading the die if that is nothing."""
        sink = self.sink
        if sink.full or sink.holder not in (None, self):
            sink.waiting.add(self)
            self._listen(self.open and len(self._buffer) < READ)
            return
        if sink.holder is self:
            self.last = time.monotonic()  # it was not this die that kept others waiting
        if self._lines:
            self._emit(self._lines)
            if sink.holder is self:
                sink.holder = None
        if self._buffer and (sink.holder is self or len(self._buffer) > self._owner.limit):
            sink.holder = self
            self._emit(len(self._buffer))
        self._listen(self.open)
        if not self.open:
            self._close()

    def show(self) -> None:
        """Passes the unfinished line on as it is."""
        if not self.sink.full and self.sink.holder is None:
            self._emit(len(self._buffer))

    def _emit(self, size: int) -> None:
        sink, data = self.sink, bytes(self._buffer[:size])
        del self._buffer[:size]
        self._lines = max(0, self._lines - size)
        if not self._buffer:
            self.since = 0.0
        self._owner.tails[self.rank].add(self.stream, data)
        whole = data.endswith(b"\n")
        if sink.cursor not in (None, self) and (self._tag or sink.is_tty):
            sink.write(b"\n")
            sink.cursor._fresh = True
        if self._tag:
            body = data[:-1] if whole else data
            text = body.replace(b"\n", b"\n" + self._tag) + data[len(body) :]
            sink.write(self._tag + text if self._fresh else text)
        else:
            sink.write(data)
        self._fresh = whole
        sink.cursor = None if whole else self

    def _finish(self) -> None:
        """The die, and all that it started, has closed this stream."""
        self._listen(False)
        os.close(self.fd)
        self.open = False
        self.sink.sources -= 1
        self.pump()

    def _close(self) -> None:
        sink = self.sink
        if self._buffer and (self._tag or sink.is_tty):
            self._emit(len(self._buffer))
        elif self._buffer:
            self._owner.unfinished.append(self)  # now, it could run into another die's line
        if sink.holder is self:
            sink.holder = None
        self._owner.sources.discard(self)


class Forwarder:
    """All streams of all dies.  Made before the dies; ``begin`` once they are there."""

    def __init__(self, ndies: int, tag: bool) -> None:
        self.tag = tag
        self.limit = min(LONGEST, ALL_PARTIALS // ndies)
        self.tails = [Tail() for _ in range(ndies)]
        self.sources: set[Source] = set()
        self.unfinished: list[Source] = []  # ended in mid-line; shown when all has been
        self.writers_gone = False

    def add(self, rank: int, stream: int, fd: int, log: Log | None) -> None:
        self.sources.add(Source(self, rank, stream, fd, log))

    def again(self, rank: int, stream: int, fd: int, log: Log | None) -> None:
        """As add(), for a die that is started again while the job runs."""
        source = Source(self, rank, stream, fd, log)
        if stream == ERR:
            source.before = next((s for s in self.sources if s.rank == rank and s.stream == OUT and s.open), None)
        else:
            self.tails[rank] = Tail()  # the end of what the new one says
        self.sources.add(source)
        source.begin(self.out if stream == OUT else self.err)

    def begin(self, selector: selectors.BaseSelector, failed: Callable[[Sink, OSError], None]) -> None:
        """Opens the launcher's own output; ``failed`` hears of an error in writing there."""
        self.selector = selector
        self.out = Sink(1, selector, failed)
        # One sink if both are the same file, so that lines of the two do not mix either.
        self.err = self.out if _same_file(1, 2) else Sink(2, selector, failed)
        stdouts = {source.rank: source for source in self.sources if source.stream == OUT}
        for source in self.sources:
            source.before = stdouts.get(source.rank) if source.stream == ERR else None
            source.begin(self.out if source.stream == OUT else self.err)

    def due(self) -> float | None:
        """When on_time() is next wanted, in time.monotonic() seconds."""
        times = [s.since + PROMPT_AFTER for s in self.sources if s.since and self._safe(s)]
        for sink in (self.out, self.err):
            if sink.stalled:
                times.append(sink.holder.last + STALL)
        return min(times, default=None)

    def _safe(self, source: Source) -> bool:
        sink = source.sink
        return not sink.broken and not sink.full and (sink.is_tty or sink.sources == 1)

    def on_time(self) -> None:
        """What time brings about, and what became possible since the last call."""
        now = time.monotonic()
        for source in list(self.sources):
            if source.since and now >= source.since + PROMPT_AFTER and self._safe(source):
                source.show()
        for sink in (self.out, self.err):
            if sink.stalled and now >= sink.holder.last + STALL:
                sink.holder = None
            sink.wake()

    def end_writers(self) -> None:
        """No process of the job is left: what is in the pipes now is all there will be.

        Waits for no end of file, since a stranger may have been given a pipe's other
        end.  To be called until finished(), as a slow reader may stop it midway.
        """
        self.writers_gone = True
        for source in list(self.sources):
            for _ in range(PIECES):
                if source.open and source._registered:
                    source.read()

    def finished(self) -> bool:
        """Whether everything has been written to the launcher's own output."""
        if self.sources:
            return False
        for source in sorted(self.unfinished, key=lambda s: s.rank):
            source._emit(len(source._buffer))
        self.unfinished.clear()
        return self.out.empty and self.err.empty

    def message(self, text: str) -> None:
        """A message of the launcher, on a line of its own."""
        if text and self.err.cursor is not None:
            self.err.write(b"\n")
            self.err.cursor = None
        self.err.write(text.encode(errors="surrogateescape"))

    def discard(self, blocked_only: bool = False) -> None:
        """Drops what has not been written, and all that would be; or only where nobody reads."""
        for sink in (self.out, self.err):
            if not (blocked_only and sink.empty):
                sink.discard()


def _same_file(a: int, b: int) -> bool:
    first, second = os.fstat(a), os.fstat(b)
    return (first.st_dev, first.st_ino, first.st_rdev) == (second.st_dev, second.st_ino, second.st_rdev)
