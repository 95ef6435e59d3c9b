"""spawn: the dies of a job from a script, a notebook or a test.

The keeper is forked from the calling process and forks the dies, so ``fn`` may be
a closure or a lambda and needs no ``__main__`` guard.  Only the thread that calls
is in them: what other threads of the caller held at that moment (a lock of their
own, a pool of an OpenMP library) stays held, as after any fork.  Locks of Python,
of numpy's BLAS and of strata are not affected.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

from strata import bootstrap, errors
from strata.launch import procs
from strata.launch.command import become_keeper, end_everything
from strata.launch.die import Die, ends
from strata.launch.front import Origin
from strata.launch.keeper import Keeper
from strata.launch.options import Options
from strata.launch.report import Failure, ranks_text, root_cause, status_text
from strata.launch.runner import exit_status

T = TypeVar("T")
HEADER = 64  # bytes of a message that says what its file holds


class _Error(NamedTuple):
    """What a die says of the exception that ended ``fn``."""

    line: str  # its last line
    text: str  # the traceback
    pickled: bytes  # the exception, or b"" if it cannot travel


class _Outcome(NamedTuple):
    """What the keeper says of the job."""

    failures: list[tuple[int, int]]
    statuses: dict[int, int]
    verdict: str
    running: list[int]  # ranks that had to be ended
    refused: BaseException | None = None
    found: str = ""  # by the check


def spawn(
    fn: Callable[..., T],
    n: int,
    *args: Any,
    timeout: float | None = None,
    grace: float = 2.0,
    hbm: int | str | None = None,
    clock: str | None = None,
    check: bool = False,
) -> list[T]:
    """Runs ``fn(*args)`` in each of ``n`` new dies of one job; their results in order of rank.

    ``fn`` finds its place with ``strata.world()``.  Results travel by pickle.

    timeout   seconds for the whole job (None: no limit)
    grace     seconds that dies get to end by themselves after one has failed
    hbm       HBM of each die: bytes, or a size such as "1G" (None: STRATA_HBM)
    check     look for races and other misuse of the fabric, and raise SpawnError if there is any (docs/checking.md)
    clock     machine whose time is told beside: a name or a .toml file (None: STRATA_CLOCK; docs/clock.md)

    Raises SpawnError when a die fails, for the one that failed first and not as
    a consequence of another: ``ranks`` names it, ``traceback`` is its traceback as text,
    and the cause is its exception.  StrataError inside a die: dies do not nest.
    No process is left when it returns or raises, KeyboardInterrupt included.
    """
    if os.environ.get("STRATA_RANK"):
        raise errors.StrataError(
            f"spawn() was called inside a die, rank {os.environ['STRATA_RANK']} of a job; dies do not nest"
        )
    if not callable(fn):
        raise TypeError(f"spawn(fn, n, *args): a function expected first, not {type(fn).__name__}")
    options = _options(n, timeout, grace, hbm, clock)
    options.check = check
    origin = Origin()
    _flush()
    with contextlib.ExitStack() as opened:
        link, keeper_link = map(opened.enter_context, socket.socketpair())
        results, die_results = map(
            opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        keeper = procs.fork()
        if keeper == 0:
            link.close()
            results.close()
            _keep(options, keeper_link, die_results, origin, fn, args)
        keeper_link.close()
        die_results.close()
        outcome, values, said = _wait(keeper, link, results)
    return _results(options.n, outcome, values, said)


def _options(n: int, timeout: float | None, grace: float, hbm: int | str | None, clock: str | None) -> Options:
    from strata.config import parse_size

    if not isinstance(n, int) or not 1 <= n <= 1024:
        raise errors.InvalidArgument(f"spawn(fn, n): 1 to 1024 dies are possible, not {n!r}")
    if timeout is not None and not timeout > 0 or not grace >= 0:
        raise errors.InvalidArgument(f"timeout={timeout!r}, grace={grace!r}: seconds, 0 or more, expected")
    try:
        size = parse_size(hbm) if isinstance(hbm, str) else hbm
    except ValueError:
        raise errors.InvalidArgument(f"hbm={hbm!r}: bytes, or a size such as '64G', expected") from None
    if clock is not None and not isinstance(clock, str):
        raise errors.InvalidArgument(f"clock={clock!r}: the name of a machine, or a .toml file, expected")
    return Options(n, timeout=timeout, grace=grace, hbm=size, clock=clock)


def _flush() -> None:
    """What is buffered now must not be written by each child again."""
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            file.flush()


# --- in the caller


def _wait(
    keeper: int, link: socket.socket, results: socket.socket
) -> tuple[_Outcome | None, dict[int, Any], dict[int, _Error]]:
    """Collects what dies send until the keeper ends; ends the job if this thread is interrupted."""
    values: dict[int, Any] = {}
    said: dict[int, _Error] = {}
    message = bytearray()
    try:
        _collect(link, results, message, values, said)
    except BaseException:
        _end(link, signal.SIGINT)
        raise
    finally:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(keeper, 0)
    return pickle.loads(message) if message else None, values, said


def _collect(
    link: socket.socket,
    results: socket.socket,
    message: bytearray,
    values: dict[int, Any],
    said: dict[int, _Error],
) -> None:
    ended = False
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(results, select.POLLIN)
    while not ended:
        for fd, _ in poll.poll():
            if fd == results.fileno() and not _receive(results, values, said):
                poll.unregister(fd)  # no die is left
            elif fd == link.fileno():
                piece = link.recv(1 << 16)
                message += piece
                ended = not piece
    while select.select([results], [], [], 0)[0] and _receive(results, values, said):
        pass


def _receive(results: socket.socket, values: dict[int, Any], said: dict[int, _Error]) -> bool:
    """Takes one die's message; False when there will be no more."""
    header, fds, _, _ = socket.recv_fds(results, HEADER, 1)
    if not header:
        return False
    rank, kind = header.split()
    if not fds:  # the kernel drops a descriptor for which there is no number
        text = f"the result of rank {int(rank)} cannot be received: no file descriptor is left, raise `ulimit -n`"
        said[int(rank)] = _Error(text, text, b"")
        return True
    with open(fds[0], "rb") as file:
        file.seek(0)
        try:
            value = pickle.load(file)
        except Exception as error:
            text = f"the result of rank {int(rank)} cannot be read back: {error!r}"
            value, kind = _Error(text, text, b""), b"error"
    if kind == b"error":
        said[int(rank)] = value
    else:
        values[int(rank)] = value
    return True


def _end(link: socket.socket, number: int) -> None:
    """Tells the keeper to end the job and waits until it has; a second interrupt kills."""
    with contextlib.suppress(OSError):
        link.send(bytes([number]))
        try:
            while link.recv(1 << 16):
                pass
        except BaseException:
            _end(link, signal.SIGKILL)


def _results(n: int, outcome: _Outcome | None, values: dict[int, Any], said: dict[int, _Error]) -> list[Any]:
    """The results by rank, or the error that says why there are none."""
    if outcome is None:
        raise errors.SpawnError("the keeper of the job was killed; its dies have ended with it")
    if outcome.refused is not None:
        raise outcome.refused
    failures = [Failure(rank, status) for rank, status in outcome.failures]
    # A die that could not be read back, or that ended well without a word, failed as well.
    failed = {f.rank for f in failures}
    silent = [r for r, status in sorted(outcome.statuses.items()) if not status and r not in values]
    failures += [Failure(rank, 0) for rank in silent if rank not in failed]
    if not failures and outcome.verdict:
        raise errors.SpawnError(outcome.verdict, ranks=outcome.running)
    if not failures and outcome.found:
        misused = errors.SpawnError("the check has found misuse of the fabric (docs/checking.md)")
        misused.traceback = outcome.found
        raise misused
    if not failures:
        return [values[rank] for rank in range(n)]
    root = root_cause(failures, {rank: error.line for rank, error in said.items()})
    error = said.get(root.rank)
    how = error.line if error else status_text(root.status)
    if not error and not root.status:
        how = "ended without a result"
    others = [f.rank for f in failures if f is not root]
    also = f" ({ranks_text(others)} failed too)" if others else ""
    problem = errors.SpawnError(f"rank {root.rank} of {n}: {how}{also}", ranks=[root.rank])
    cause = None
    if error:
        problem.traceback = f"Traceback of rank {root.rank}:\n\n{error.text}"
        with contextlib.suppress(Exception):
            cause = pickle.loads(error.pickled)
    raise problem from (cause if isinstance(cause, BaseException) else None)


# --- in the keeper


def _keep(
    options: Options,
    link: socket.socket,
    results: socket.socket,
    origin: Origin,
    fn: Callable[..., Any],
    args: Sequence[Any],
) -> NoReturn:
    """The forked child: keeper, and in its own children the dies.  Never returns."""
    try:
        become_keeper(origin)
        gc.freeze()
        if options.clock is not None:
            os.environ["STRATA_CLOCK"] = options.clock
        job = bootstrap.create_job(options.n, options.hbm)
        keeper = Keeper(options, job, link, origin, None, keep=[results.fileno()])
        die = keeper.start()
        if die is not None:
            die.settle(python=True)
            _work(die, results, fn, args)
        results.close()
        keeper.run()
        verdict = keeper.verdict.text if keeper.verdict else ""
        outcome = _Outcome(keeper.failures, keeper.statuses, verdict, keeper.running, found=keeper.found)
    except BaseException as error:
        if not isinstance(error, errors.StrataError):
            error = errors.SpawnError(f"the keeper of the job failed: {error!r}\n{traceback.format_exc()}")
        end_everything()
        outcome = _Outcome([], {}, "", [], error)
    with contextlib.suppress(BaseException):
        link.setblocking(True)
        link.sendall(pickle.dumps(outcome))
    os._exit(0)


# --- in a die


def _work(die: Die, results: socket.socket, fn: Callable[..., Any], args: Sequence[Any]) -> NoReturn:
    """Runs fn and sends what comes of it.  Ends without what the caller registered for its own end."""
    status = 0
    try:
        forget_caller()
        die.origin.unblock()
        try:
            value = fn(*args)
        except SystemExit as error:
            status, value = exit_status(error.code), None
        if not status:
            _send_value(results, die.rank, value)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException as error:
        status = 1
        _send_error(results, die.rank, error)
    ends(status)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # all has been said
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # those that fn registered
    with contextlib.suppress(BaseException):
        sys.modules.get("strata.job", bootstrap).finalize()
    _flush()
    os._exit(status)


def forget_caller() -> None:
    """What belongs to the calling process and not to its dies."""
    atexit._clear()
    bootstrap.forget()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process._children.clear()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util._finalizer_registry.clear()
        atexit.register(util._exit_function)


def _send(results: socket.socket, rank: int, kind: bytes, value: Any) -> None:
    """A value in a file without a name, so that its size stops nobody."""
    with open(os.memfd_create("strata-result"), "w+b") as file:
        pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
        file.flush()
        socket.send_fds(results, [b"%d %s" % (rank, kind)], [file.fileno()])


def _send_value(results: socket.socket, rank: int, value: Any) -> None:
    try:
        _send(results, rank, b"value", value)
    except OSError:
        raise
    except Exception as error:
        raise errors.StrataError(f"the result of rank {rank} cannot travel by pickle: {error}") from error


def _send_error(results: socket.socket, rank: int, error: BaseException) -> None:
    line = traceback.format_exception_only(type(error), error)[-1].strip()
    trace = error.__traceback__ and error.__traceback__.tb_next  # without the frame of _work
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    pickled = b""
    with contextlib.suppress(BaseException):
        pickled = pickle.dumps(error)
    with contextlib.suppress(OSError):  # the caller is gone
        _send(results, rank, b"error", _Error(line, text, pickled))
