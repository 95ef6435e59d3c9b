"""What the launcher asks of Linux about processes and Python has no name for."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
import time
import warnings

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_ARG_START = 48 - 3  # proc(5) counts fields of stat from 1; here they start after the name, at the third

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when ``parent`` ends, and at once if it has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def fork() -> int:
    """os.fork without Python's warning about threads; the caller knows what runs in the child."""
    if sys.version_info < (3, 12):
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def children() -> list[int]:
    """Pids of this process's children, adopted ones and zombies too.

    A child's pid stays its own until this process waits for it, so signalling
    what this returns cannot hit a stranger.
    """
    me, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                if file.read(512).rsplit(b")", 1)[1].split(None, 2)[1] == me:
                    found.append(int(name))
    return found


def send(pid: int, number: int, group: bool = False) -> None:
    """Signals a child (or the group it leads), and wakes it up to take the signal if it is stopped."""
    deliver = os.killpg if group else os.kill
    with contextlib.suppress(ProcessLookupError, PermissionError):
        deliver(pid, number)
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            deliver(pid, signal.SIGCONT)


def kill_descendants(limit: float) -> bool:
    """Kills all descendants of this process, however deep.  SIGCHLD must be blocked.

    Each that dies leaves its children to this process, which has called
    adopt_orphans.  False if some were still there after ``limit`` seconds.
    """
    end = time.monotonic() + limit
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        if time.monotonic() > end:
            return False
        for pid in children():
            send(pid, signal.SIGKILL)
        signal.sigtimedwait([signal.SIGCHLD], 0.1)


def open_files() -> set[int]:
    """Descriptors open in this process."""
    found = set()
    try:
        names = os.listdir("/proc/self/fd")
    except FileNotFoundError:
        raise OSError(errno.ENOENT, "a job's launcher needs /proc: mount -t proc proc /proc") from None
    for name in names:
        with contextlib.suppress(OSError):
            os.fstat(int(name))  # the one that listed the directory is closed already
            found.add(int(name))
    return found


def need_files(count: int) -> tuple[int, int]:
    """Raises the soft limit of open files to ``count`` if need be; returns the limits before.

    OSError if the hard limit forbids it.
    """
    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise OSError(
                f"{count} open files are needed and the limit is {hard}: raise it (ulimit -Hn), or start fewer dies"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    return before


class Title:
    """The name of this process in ps, top and pkill: its command line and its short name.

    The keeper takes its own, so that a ``pkill -9 -f train.py`` that reaches
    front and dies alike leaves somebody to clean up after them.
    """

    def __init__(self) -> None:
        try:
            with open("/proc/self/stat", "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
            start, end = int(fields[_ARG_START]), int(fields[_ARG_START + 1])
            with open("/proc/self/comm", "rb") as file:
                self._name = file.read().rstrip(b"\n")
            with open("/proc/self/cmdline", "rb") as file:
                self._line = file.read(end - start)
            # Only where the kernel shows what this address holds.
            usable = start and ctypes.string_at(start, end - start) == self._line
        except (OSError, IndexError, ValueError):
            usable = False
        self._start = start if usable else 0

    def set(self, text: str) -> None:
        if self._start:
            line = text.encode()[: len(self._line) - 1]
            ctypes.memmove(self._start, line.ljust(len(self._line), b"\0"), len(self._line))
            self._rename(text.encode())

    def restore(self) -> None:
        if self._start:
            ctypes.memmove(self._start, self._line, len(self._line))
            self._rename(self._name)

    def _rename(self, name: bytes) -> None:
        text = ctypes.create_string_buffer(name[:15])
        with contextlib.suppress(OSError):
            _prctl(_PR_SET_NAME, ctypes.addressof(text))
