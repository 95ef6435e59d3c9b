"""The host as checks see it: files below a root, and what can only be tried.

Tests put other files below another root, and override what is tried.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Host", "Room"]

_MADV_COLLAPSE = 25
_NOREPLACE = 0x100000
_FIXED = 0x10
_FOLD = 2 << 20
_FAILED = ctypes.c_void_p(-1).value


class Room(NamedTuple):
    """Of a file system: bytes in all and free, and files that may still be made (None: it does not count them)."""

    total: int
    free: int
    files: int | None
    writable: bool


class Host:
    """``root``: where /proc, /sys and /dev are looked for."""

    def __init__(self, root: str = "/") -> None:
        self.root = root.rstrip("/")

    def path(self, name: str) -> str:
        """Where a file of the host is."""
        return self.root + name

    def read(self, name: str) -> str:
        """The text of a file; "" if it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20)
        except OSError:
            return ""

    def number(self, name: str) -> int | None:
        """The number in a file; None if there is none."""
        try:
            return int(self.read(name).split()[0])
        except (IndexError, ValueError):
            return None

    def names(self, folder: str) -> list[str]:
        """What is in a folder; [] if it cannot be read."""
        try:
            return sorted(os.listdir(self.path(folder)))
        except OSError:
            return []

    # ---- what only a call can tell

    def room(self, folder: str) -> Room | None:
        """None: there is no such folder."""
        try:
            fs = os.statvfs(self.path(folder))
        except OSError:
            return None
        return Room(fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize, fs.f_favail if fs.f_files else None,
                    os.access(self.path(folder), os.W_OK | os.X_OK))  # fmt: skip

    def release(self) -> tuple[int, int]:
        """Version of the kernel."""
        words = os.uname().release.split(".")
        return int(words[0]), int("".join(c for c in words[1] if c.isdigit()) or 0)

    def affinity(self) -> int:
        """CPUs that this process may run on."""
        return len(os.sched_getaffinity(0))

    def limit(self, number: int) -> tuple[int, int]:
        """resource.getrlimit."""
        return resource.getrlimit(number)

    def environment(self, name: str) -> str:
        """A variable, or ""."""
        return os.environ.get(name, "")

    def uid(self) -> int:
        """Whose processes these are."""
        return os.geteuid()

    def collapse(self) -> str:
        """Whether shared memory can be made a huge page: "" or the error's text."""
        libc = _libc()
        try:
            fd = os.open(self.path("/dev/shm"), os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError as error:
            return os.strerror(error.errno or 0)
        got = libc.mmap(None, 2 * _FOLD, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        at = (got + _FOLD - 1) // _FOLD * _FOLD
        try:
            os.truncate(fd, _FOLD)
            os.pwrite(fd, b"x", 0)
            if libc.mmap(at, _FOLD, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _FIXED, fd, 0) != at:
                return os.strerror(ctypes.get_errno())
            ctypes.c_char.from_address(at).value = b"x"
            return os.strerror(ctypes.get_errno()) if libc.madvise(at, _FOLD, _MADV_COLLAPSE) else ""
        finally:
            libc.munmap(got, 2 * _FOLD)
            os.close(fd)

    def reserve(self, base: int, nbytes: int) -> bool:
        """Whether addresses are free here."""
        libc = _libc()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000) | _NOREPLACE
        got = libc.mmap(base, nbytes, 0, flags, -1, 0)
        if got == _FAILED:
            return False
        libc.munmap(got, nbytes)
        return bool(got == base)

    def calls(self) -> dict[str, str]:
        """System calls that strata makes, each tried harmlessly: name -> "" or the error's text."""
        return {name: _tried(call) for name, call in _CALLS.items()}

    def peer_file(self) -> str:
        """Whether a process of this user can open a descriptor of another: "" or the error's text."""
        with tempfile.TemporaryFile() as file:
            child = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read(1)"],
                                     stdin=subprocess.PIPE, pass_fds=(file.fileno(),))  # fmt: skip
            try:
                os.close(os.open(f"/proc/{child.pid}/fd/{file.fileno()}", os.O_RDONLY))
            except OSError as refused:
                return os.strerror(refused.errno or 0)
            finally:
                child.kill()
                child.communicate()
        return ""

    def run(self, command: list[str], seconds: float) -> tuple[int, str]:
        """Status and output of a command; it is ended after ``seconds``, with status 124."""
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=seconds, text=True, errors="replace")  # fmt: skip
        except subprocess.TimeoutExpired:
            return 124, "it did not end"
        return done.returncode, done.stdout


def _libc() -> ctypes.CDLL:
    """The C library, with the types of calls that take addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _tried(call: Callable[[], object]) -> str:
    try:
        call()
    except OSError as error:
        return os.strerror(error.errno or errno.EINVAL)
    return ""


def _shared() -> None:
    fd = os.memfd_create("strata-doctor")
    try:
        os.truncate(fd, 1 << 16)
        os.posix_fallocate(fd, 0, 1 << 16)
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 20)
        mmap.mmap(fd, 1 << 16).close()
    finally:
        os.close(fd)


def _punch() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    fd = os.memfd_create("strata-doctor")
    try:
        os.truncate(fd, 1 << 16)
        if libc.fallocate(fd, 3, 0, 1 << 12):  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(fd)


def _futex() -> None:
    number = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
    word = ctypes.c_uint32(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if number and libc.syscall(number, ctypes.byref(word), 1, 1, None, None, 0) < 0:
        raise OSError(ctypes.get_errno(), "futex")


def _wipe() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        page.madvise(18)


def _send_descriptor() -> None:
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [0])
        for fd in socket.recv_fds(other, 1, 1)[1]:
            os.close(fd)


def _subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    value = ctypes.c_int()
    if libc.prctl(37, ctypes.byref(value), 0, 0, 0):  # PR_GET_CHILD_SUBREAPER
        raise OSError(ctypes.get_errno(), "prctl")


_CALLS: dict[str, Callable[[], object]] = {
    "memfd_create, fallocate, fcntl locks, mmap": _shared,
    "fallocate (punch a hole)": _punch,
    "futex": _futex,
    "madvise (MADV_WIPEONFORK)": _wipe,
    "sendmsg (SCM_RIGHTS)": _send_descriptor,
    "prctl (subreaper)": _subreaper,
    "pidfd_open": lambda: os.close(os.pidfd_open(os.getpid())),
    "sched_setaffinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "kill": lambda: os.kill(os.getpid(), 0),
    "rt_sigprocmask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
}
