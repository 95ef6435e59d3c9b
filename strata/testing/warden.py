"""The processes of a pool: the warden, which has the dies for children, and the dies.

The warden is a fork of the process that owns the pool.  It ends its dies and itself when told
to, or when the owner has gone, however that ended; a die ends when the warden does.
Whoever is killed, nothing stays.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from strata import bootstrap, comm, errors
from strata.launch import procs
from strata.launch.command import become_keeper, end_everything
from strata.launch.die import new_random_numbers
from strata.launch.front import Origin
from strata.launch.spawning import forget_caller

__all__ = ["DUMP", "ENDED", "LENGTH", "Plan", "Reply", "keep"]

LENGTH = struct.Struct("<Q")  # before each message to and from a die
ENDED = struct.Struct("<ii")  # from the warden: a die's rank and how it ended, or -1 and the length of an error
DUMP = b"d"  # to the warden: have the dies say where they are
DUMP_SIGNAL = signal.SIGRTMAX - 1
SETTLE = 0.2  # seconds for operations that a call left in progress to end
LOOK = 1000  # milliseconds between the warden's looks at whether the owner lives


class Plan(NamedTuple):
    """What a pool's processes are to be."""

    n: int
    hbm: int | None
    stateful: bool
    environment: Mapping[str, str]
    origin: Origin
    control: socket.socket  # the warden's end
    ends: Sequence[socket.socket]  # the dies' ends
    dumps: Sequence[int]  # files in which the dies say where they are


class Reply(NamedTuple):
    """What a die says of a call."""

    number: int  # of the last operation of the world group; -1: some are still in progress
    value: Any = None
    line: str = ""  # last line of the error's traceback; empty: no error
    text: str = ""  # the traceback
    pickled: bytes = b""  # the error, if it can travel


def keep(plan: Plan) -> NoReturn:
    """Runs the warden in a process just forked.  Never returns."""
    owner = os.getppid()
    try:
        become_keeper(plan.origin)
        wake = _wake_on_children()
        _close_all_but({plan.control.fileno(), *(s.fileno() for s in (*plan.ends, *wake)), *plan.dumps})
        os.environ.update(plan.environment)
        gc.freeze()
        job = bootstrap.create_job(plan.n, plan.hbm)
        ranks = {}
        for rank in range(plan.n):
            pid = procs.fork()
            if pid == 0:
                _die(plan, job, rank)
            ranks[pid] = rank
        for end in plan.ends:
            end.close()
        _watch(plan.control, wake[0], owner, ranks, job)
    except BaseException as error:
        _report(plan.control, error)
    with contextlib.suppress(BaseException):
        end_everything()
    os._exit(0)


def _wake_on_children() -> tuple[socket.socket, socket.socket]:
    """A socket that can be read when a child has ended."""
    read, write = socket.socketpair()
    read.setblocking(False)
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return read, write


def _watch(control: socket.socket, wake: socket.socket, owner: int, ranks: dict[int, int], job: bootstrap.Job) -> None:
    """Until the owner wants the end or has gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while os.getppid() == owner:
        ready = {fd for fd, _ in poll.poll(LOOK)}
        if wake.fileno() in ready:
            wake.recv(1 << 12)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in ranks:
                rank = ranks.pop(pid)
                job.mark_dead(rank)
                control.sendall(ENDED.pack(rank, os.waitstatus_to_exitcode(status)))
        if control.fileno() in ready:
            if control.recv(1) != DUMP:
                return
            for pid in ranks:
                procs.send(pid, DUMP_SIGNAL)


def _report(control: socket.socket, error: BaseException) -> None:
    """Tells the owner why there will be no dies."""
    if not isinstance(error, errors.StrataError):
        error = errors.SpawnError(f"the warden of a pool failed: {error!r}\n{traceback.format_exc()}")
    with contextlib.suppress(OSError):
        data = pickle.dumps(error)
        control.sendall(ENDED.pack(-1, len(data)) + data)


def _close_all_but(files: set[int]) -> None:
    for fd in procs.open_files() - {0, 1, 2} - files:
        os.close(fd)


# --- in a die


def _die(plan: Plan, job: bootstrap.Job, rank: int) -> NoReturn:
    """A die, in a process just forked from the warden.  Never returns."""
    with contextlib.suppress(BaseException):
        end = plan.ends[rank]
        try:
            _become_die(plan, job, rank)
            group = comm.world()
        except BaseException as error:
            _send(end, _failure(0, error))
        else:
            _send(end, Reply(group.number, os.getpid()))
            _serve(end, group, plan.stateful)
    os._exit(0)


def _become_die(plan: Plan, job: bootstrap.Job, rank: int) -> None:
    signal.set_wakeup_fd(-1)
    procs.die_with(os.getppid())
    os.setpgid(0, 0)  # Ctrl-C at a terminal is for the owner
    _close_all_but({plan.ends[rank].fileno(), job.fd, plan.dumps[rank]})
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    plan.origin.restore(python=True)
    plan.origin.unblock()
    os.environ.update(job.env(rank))
    new_random_numbers()
    forget_caller()
    faulthandler.register(DUMP_SIGNAL, file=plan.dumps[rank], all_threads=True)


def _serve(end: socket.socket, group: comm.Group, stateful: bool) -> None:
    """Runs what comes until no more does."""
    while True:
        request = _receive(end)
        if request is None:
            return
        try:
            parts = io.BytesIO(request)
            place = pickle.load(parts)
            if place is not None:  # before what follows is looked up
                sys.path[:], cwd = place
                os.chdir(cwd)
            fn, args = pickle.load(parts)
            reply = Reply(0, fn(group, *args))
            del fn, args
            reply = reply._replace(number=-1 if not stateful and _busy(group) else group.number)
        except BaseException as error:
            reply = _failure(group.number, error)
        try:
            _send(end, reply)
        except (pickle.PicklingError, TypeError, AttributeError) as error:  # the value cannot travel
            _send(end, _failure(group.number, error))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()


def _busy(group: comm.Group) -> bool:
    """Whether an asynchronous operation is in progress; one that all dies have begun is given time to end."""
    end = time.monotonic() + SETTLE
    while group.pending():
        if time.monotonic() > end:
            return True
        time.sleep(0.001)
    return False


def _failure(number: int, error: BaseException) -> Reply:
    line = traceback.format_exception_only(type(error), error)[-1].strip()
    trace = error.__traceback__ and error.__traceback__.tb_next  # without the frame of _serve
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    pickled = b""
    with contextlib.suppress(BaseException):
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    return Reply(number, None, line or type(error).__name__, text, pickled)


def _send(end: socket.socket, reply: Reply) -> None:
    data = pickle.dumps(tuple(reply), protocol=pickle.HIGHEST_PROTOCOL)
    end.sendall(LENGTH.pack(len(data)) + data)


def _receive(end: socket.socket) -> bytearray | None:
    """The next message, or None when the owner has closed the pool."""
    head = _exactly(end, LENGTH.size)
    return None if head is None else _exactly(end, LENGTH.unpack(head)[0])


def _exactly(end: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = end.recv_into(view[done:])
        if not got:
            return None
        done += got
    return data
