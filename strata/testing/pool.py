"""Pool: the owner's side of dies that stay up."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from strata import config, errors
from strata.launch import procs
from strata.launch.front import Origin
from strata.testing import warden
from strata.testing.outcome import raise_error
from strata.testing.travel import pack

__all__ = ["Pool", "close", "pids", "pool"]

GRACE = (0.05, 0.5)  # seconds that the other dies get once one has failed: at least, at most
SAY = 1.0  # seconds for stuck dies to say where they are
PIECE = 1 << 18
_all: weakref.WeakSet[Pool] = weakref.WeakSet()


class _Die:
    """A die as its owner sees it."""

    def __init__(self, end: socket.socket, dump: int) -> None:
        self.end = end
        self.dump = dump
        self.pid = 0
        self.gone = False  # its end of the socket is closed
        self.status: int | None = None  # how it ended
        self.got = bytearray()

    def read(self) -> warden.Reply | None:
        """Takes what has come; the reply if it is complete."""
        try:
            piece = self.end.recv(PIECE)
        except ConnectionError:
            piece = b""
        if not piece:
            self.gone = True
            return None
        self.got += piece
        head = warden.LENGTH.size
        if len(self.got) < head or len(self.got) < head + warden.LENGTH.unpack_from(self.got)[0]:
            return None
        data, self.got = self.got, bytearray()
        return warden.Reply(*pickle.loads(memoryview(data)[head:]))


class Pool:
    """``n`` dies of one job that run one function after another.

    ``n``        dies, 1 to 1024
    ``hbm``      HBM of each: bytes, or a size such as "1G" (None: STRATA_HBM)
    ``timeout``  seconds that a call may take, starting the dies included
    ``stateful`` calls may leave operations of the world group in progress, and the dies out of
                 step, for later calls; else new dies are started after such a call, so
                 that it cannot disturb the next
    ``options``  options of strata for the dies, by name (``mailbox_bytes=0``); the option ``timeout``
                 (of an operation) is half of a call's unless it is set, so that
                 a call that hangs in an operation ends with its error, which names ranks

    A context manager.  The dies start at the first call (or ``start()``) and are forks of this
    process, so whatever is imported is there; they end at ``close()``, with this process,
    or when a call fails, and then the next call starts new ones.
    """

    _warden = 0  # process

    def __init__(
        self,
        n: int,
        hbm: int | str | None = None,
        timeout: float = 60.0,
        stateful: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(n, int) or not 1 <= n <= 1024:
            raise errors.InvalidArgument(f"Pool(n): 1 to 1024 dies are possible, not {n!r}")
        if not timeout > 0:
            raise errors.InvalidArgument(f"timeout={timeout!r}: seconds, above 0, expected")
        if "timeout" not in options and not os.environ.get("STRATA_TIMEOUT"):
            options["timeout"] = timeout / 2
        config.load(**options)  # raises if they are wrong
        variables = {option.name: option.env for option in config.options()}
        self.n = n
        self.timeout = timeout
        self._stateful = stateful
        self._hbm = config.parse_size(hbm) if isinstance(hbm, str) else hbm
        self._environment = {
            variables[name]: "auto" if value == config.AUTO else str(value) for name, value in options.items()
        }
        self._lock = threading.Lock()
        self._owner = 0
        self._control: socket.socket | None = None
        self._dies: list[_Die] = []
        self._poll = select.poll()
        self._path: tuple[list[str], str] | None = None  # as the dies have it
        _all.add(self)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self.up:
            self.close()

    def __repr__(self) -> str:
        return f"<strata.testing.Pool of {self.n} dies, {'up' if self.up else 'down'}>"

    @property
    def up(self) -> bool:
        """Whether the dies are there; those of a forked child's parent are not its own."""
        return self._warden > 0 and self._owner == os.getpid()

    @property
    def pids(self) -> list[int]:
        """Processes of the dies in order of rank; empty if they are not up."""
        return [die.pid for die in self._dies] if self.up else []

    # ---- calls ---------------------------------------------------------------------

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        """Runs ``fn(group, *args)`` on every die; the results in order of rank.

        ``group`` is the world group of the dies.  ``fn`` may be any function: it goes by name
        if that leads to it, else by value, with what it closes over.  Arguments and
        results travel by pickle, so that arrays arrive as ordinary copies.

        ``timeout``  seconds for this call (None: the pool's)

        When ``fn`` raises on some die, the exception of the die that failed first, and not as
        a consequence of another, is raised here, with a SpawnError for its cause that holds the
        rank and the die's traceback.  If it cannot travel, or a die died or did not answer in
        time, SpawnError itself: ``ranks`` names it, and for a stuck one the text says
        where it is.  After any of these the next call starts new dies.
        """
        with self._lock:
            begin = time.monotonic()
            end = begin + (self.timeout if timeout is None else timeout)
            try:
                self._start(end)
                self._send(fn, args, end)
                replies = self._collect(begin, end)
                good = [r for r in replies if r is not None and not r.line]
                if len(good) < self.n:
                    self._raise(fn, replies)
            except BaseException:
                self._close()
                raise
            if not self._stateful and {r.number for r in good} != {max(0, good[0].number)}:
                self._close()  # the dies are not in step, or will not be
            return [r.value for r in good]

    def _send(self, fn: Callable[..., Any], args: tuple[Any, ...], end: float) -> None:
        here = (list(sys.path), os.getcwd())
        data = pack(None if here == self._path else here) + pack((fn, args))
        self._path = here
        for die in self._dies:
            die.end.settimeout(max(0.001, end - time.monotonic()))
            try:
                die.end.sendall(warden.LENGTH.pack(len(data)))
                die.end.sendall(data)
            except OSError:  # it has died, or is stuck: _collect says so
                continue
            die.end.setblocking(False)

    def _collect(self, begin: float, end: float) -> list[warden.Reply | None]:
        """A reply of each die, or None of those that died or are late."""
        replies: list[warden.Reply | None] = [None] * self.n
        waiting = {die.end.fileno(): rank for rank, die in enumerate(self._dies)}
        failed = False
        while waiting:
            left = end - time.monotonic()
            ready = self._poll.poll(max(0.0, left) * 1000)
            if not ready:
                if left > 0:
                    continue
                break
            for fd, _ in ready:
                if fd not in waiting:
                    continue
                die = self._dies[waiting[fd]]
                reply = die.read()
                if reply is None and not die.gone:
                    continue
                replies[waiting.pop(fd)] = reply
                if die.gone:
                    self._poll.unregister(fd)
                if (die.gone or (reply and reply.line)) and not failed:
                    failed = True
                    now = time.monotonic()
                    end = min(end, now + min(max(now - begin, GRACE[0]), GRACE[1]))
        return replies

    def _raise(self, fn: Callable[..., Any], replies: list[warden.Reply | None]) -> NoReturn:
        """The error of a call that did not go well."""
        __tracebackhide__ = True
        gone = [rank for rank, die in enumerate(self._dies) if die.gone]
        if gone:
            self._learn(gone)
        dead = {rank: self._dies[rank].status for rank in gone}
        late = [rank for rank, reply in enumerate(replies) if reply is None and rank not in dead]
        said = {rank: reply for rank, reply in enumerate(replies) if reply is not None and reply.line}
        where = self._where(late) if late and not dead and not said else ""
        raise_error(getattr(fn, "__name__", repr(fn)), self.n, said, dead, late, where)

    def _learn(self, ranks: list[int]) -> None:
        """Waits for what the warden says of dies that have ended."""
        assert self._control is not None
        end = time.monotonic() + SAY
        size = warden.ENDED.size
        with contextlib.suppress(OSError):
            while any(self._dies[r].status is None for r in ranks):
                self._control.settimeout(max(0.001, end - time.monotonic()))
                said = self._control.recv(size, socket.MSG_WAITALL)
                if len(said) < size:
                    return  # the warden has been killed
                rank, status = warden.ENDED.unpack(said)
                self._dies[rank].status = status

    def _where(self, ranks: list[int]) -> str:
        """The stacks of dies that do not answer, as far as they can still say."""
        assert self._control is not None
        with contextlib.suppress(OSError):
            self._control.send(warden.DUMP)
        end = time.monotonic() + SAY
        texts = dict.fromkeys(ranks, "")
        while time.monotonic() < end:
            before = dict(texts)
            for rank in ranks:
                size = os.fstat(self._dies[rank].dump).st_size
                texts[rank] = os.pread(self._dies[rank].dump, size, 0).decode(errors="replace")
            if all(texts.values()) and texts == before:
                break
            time.sleep(0.05)
        return "\n\n".join(f"Rank {rank} was here:\n\n{text.rstrip()}" for rank, text in texts.items() if text)

    # ---- the processes ---------------------------------------------------------------

    def start(self) -> None:
        """Starts the dies now, if they are not up."""
        with self._lock:
            try:
                self._start(time.monotonic() + self.timeout)
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """Ends the dies, whatever they do.  A later call starts new ones."""
        with self._lock:
            self._close()

    def _start(self, end: float) -> None:
        if self.up:
            return
        if os.environ.get("STRATA_RANK"):
            raise errors.StrataError(
                f"a pool was used inside a die, rank {os.environ['STRATA_RANK']} of a job; dies do not nest"
            )
        self._forget()
        self._owner = os.getpid()
        origin = Origin()
        for stream in (sys.stdout, sys.stderr):  # what is buffered must not be written by each fork again
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            undo.callback(self._forget)
            self._control, control = socket.socketpair()
            theirs.enter_context(control)
            ends = []
            for _ in range(self.n):
                mine, end_of_die = socket.socketpair()
                ends.append(theirs.enter_context(end_of_die))
                undo.callback(mine.close)
                dump = os.memfd_create("strata-testing", os.MFD_CLOEXEC)
                self._dies.append(_Die(mine, dump))
            plan = warden.Plan(
                self.n, self._hbm, self._stateful, self._environment, origin, control, ends,
                [die.dump for die in self._dies],
            )  # fmt: skip
            self._warden = procs.fork()
            if self._warden == 0:
                warden.keep(plan)
            undo.pop_all()
        self._poll = select.poll()
        for die in self._dies:
            die.end.setblocking(False)
            self._poll.register(die.end, select.POLLIN)
        self._path = (list(sys.path), os.getcwd())
        self._greet(end)

    def _greet(self, end: float) -> None:
        """Waits until all dies have joined their job."""
        replies = self._collect(time.monotonic(), end)
        if all(reply is not None and not reply.line for reply in replies):
            for die, reply in zip(self._dies, replies, strict=True):
                assert reply is not None
                die.pid = reply.value
            return
        assert self._control is not None
        if all(die.gone for die in self._dies):  # the warden may have something to say
            self._control.settimeout(SAY)
            with contextlib.suppress(OSError), self._control.makefile("rb") as file:
                head = file.read(warden.ENDED.size)
                if len(head) == warden.ENDED.size and warden.ENDED.unpack(head)[0] == -1:
                    raise pickle.loads(file.read(warden.ENDED.unpack(head)[1]))
        self._raise(self.start, replies)

    def _close(self) -> None:
        if self.up:
            assert self._control is not None
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # reaches the warden whoever has inherited this end
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._warden, 0)
        self._forget()

    def _forget(self) -> None:
        """Lets go of what belongs to the processes, and of nothing else: a forked child may do so too."""
        self._warden = 0
        for die in self._dies:
            die.end.close()
            os.close(die.dump)
        self._dies = []
        if self._control is not None:
            self._control.close()
            self._control = None


_pools: dict[tuple[Any, ...], Pool] = {}


def pool(
    n: int, hbm: int | str | None = None, timeout: float = 60.0, stateful: bool = False, **options: Any
) -> Pool:
    """A Pool that is shared by all who ask with the same arguments; it ends with this process."""
    key = (os.getpid(), n, hbm, timeout, stateful, *sorted(options.items()))
    found = _pools.get(key)
    if found is None:
        found = _pools[key] = Pool(n, hbm, timeout, stateful, **options)
    return found


def close() -> None:
    """Ends the dies of all pools that ``pool()`` gave.  They start again when called."""
    for shared in _pools.values():
        shared.close()


def pids() -> set[int]:
    """Processes of all pools of this process that are up: wardens and dies."""
    return {pid for each in _all if each.up for pid in (each._warden, *each.pids)}


atexit.register(close)
