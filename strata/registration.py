"""Registration of memory that is not the fabric's, so that operations on it need not begin from nothing.

    with strata.register(x):
        for step in range(1000):
            group.all_reduce(x)

What it does depends on the memory, and ``Registration.kind`` says what:

``"fabric"``   it is in the fabric already: nothing.
``"shared"``   it is a shared mapping of a file (multiprocessing.shared_memory, a memfd, np.memmap, a
               torch tensor in shared memory): the file is mapped a second time, in this die's
               segment, and peers map it too.  Operations use it where it lies; nothing is copied.
``"staged"``   no other process can map it, and ``Registration.reason`` says why: it gets a
               buffer in the fabric, once.  Operations copy through that, and count staged bytes
               as ever, but allocate nothing.

Registration is local: no peer takes part, none is waited for.  It counts: memory that is
registered twice is mapped once, and each ``register`` needs one ``deregister``.  It keeps
the array alive, but an array that is resized in spite of it is another array.

Deregistration is safe at any time.  An operation that is in progress keeps what it uses; peers
let go of a file in the background.  While an operation uses a buffer, another on the same
bytes takes memory of its own, as if they were not registered.

Arrays that are strided, and views that reach beyond what is registered, are staged as ever.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np

from strata import bootstrap
from strata._core import foreign, heap, memory, space
from strata._core.spans import spanned
from strata.errors import RegistrationError

__all__ = ["Registration", "alias", "deregister", "lease", "register", "stats"]

KINDS = ("fabric", "shared", "staged")
_MAP_FILES = "/proc/self/map_files"  # who may open these: root, or CAP_CHECKPOINT_RESTORE


class Registration:
    """Memory that is registered.  ``with`` deregisters it at the end of the block.

    ``kind``      "fabric", "shared" or "staged"
    ``reason``    why no peer can map it, in a sentence; "" if they can
    ``nbytes``    of the memory, from its first to its last byte
    ``count``     ``register`` calls that ``deregister`` has not undone; 0: it is over
    """

    def __init__(self, context: space.Context, x: Any, low: int, high: int) -> None:
        self.kind, self.reason, self.nbytes, self.count = "fabric", "", high - low, 0
        self._context, self._low, self._high = context, low, high
        self._kept = x
        self._memory: np.ndarray | None = None  # of the fabric: the file, or the buffer
        self._shift = 0  # offset in it of the first byte
        self._lock = threading.RLock()
        self._busy: tuple[tuple[int, int, weakref.ref[np.ndarray]], ...] = ()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        deregister(self)

    def __repr__(self) -> str:
        state = f"registered {self.count} times" if self.count else "over"
        why = f": {self.reason}" if self.reason else ""
        return f"<Registration of {self.nbytes} bytes at {self._low:#x}, {self.kind}, {state}{why}>"

    def _set_up(self) -> None:
        """Finds out what can be done, and does it.  FabricMemoryError if there is no room."""
        if self._context.owner(self._low) >= 0:
            return
        self.kind = "staged"
        if not self.nbytes:
            self.reason = "it has no bytes"
            return
        try:
            found = _file(self._low, self._high)
            self.reason = found if isinstance(found, str) else self._share(found)
        except OSError as error:
            if error.errno == errno.ENOENT:
                self.reason = "there is no /proc to look what memory it is: mount -t proc proc /proc"
            elif error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            else:
                self.reason = (
                    "no file descriptor is left to look what memory it is, or to open its file: raise `ulimit -n`"
                )
        if self.reason:
            self._shift = self._low % 64  # what is aligned stays aligned
            self._memory = memory.alloc_array(self._context, self.nbytes + self._shift, np.uint8, False, heap.STAGING)
        else:
            self.kind = "shared"

    def _share(self, file: _File) -> str:
        """Maps the file; the reason if that cannot be."""
        if not foreign.reachable(self._context):
            return "other dies cannot open this process's files (another pid namespace, or it is not dumpable)"
        fd = _open(file)
        if fd is None:
            return "its file can no longer be opened: it has no name, and no descriptor of it is open here"
        try:
            start = file.offset // mmap.PAGESIZE * mmap.PAGESIZE
            self._shift = file.offset - start
            length = self._shift + self.nbytes
            if os.fstat(fd).st_size < start + length:
                return "its file is shorter than the mapping"
            self._memory = foreign.window(
                self._context, fd, file.device, file.inode, start, length, file.writable
            )
            if self._memory is None:
                return f"this die shares {foreign.SLOTS} other files already"
            fd = -1  # the window's
            return ""
        finally:
            if fd >= 0:
                os.close(fd)

    def _lease(self, a: np.ndarray, low: int, high: int) -> np.ndarray | None:
        """The buffer's part for an array; None while an operation uses some of it."""
        whole = self._memory
        if whole is None:  # it has been deregistered meanwhile
            return None
        view: np.ndarray = np.ndarray(a.shape, a.dtype, whole, self._shift + low - self._low)
        with self._lock:
            while True:  # again if this thread has come by here meanwhile, in a finalizer
                before = self._busy
                kept = tuple(entry for entry in before if entry[2]() is not None)
                if any(low < end and begin < high for begin, end, _ in kept):
                    return None
                after = (*kept, (low, high, weakref.ref(view)))
                if self._busy is before:
                    self._busy = after
                    return view


class _File(NamedTuple):
    """The file behind a range of addresses."""

    device: int
    inode: int
    offset: int  # of the range's first byte
    path: str
    writable: bool
    name: str  # in /proc/self/map_files, if one mapping holds the whole range


def _file(low: int, high: int) -> _File | str:
    """What lies behind [low, high), if it is one file that others can map; else why not."""
    parts = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
            if end <= low:
                continue
            if begin >= high:
                break
            parts.append((begin, end, line.rstrip("\n").split(None, 5)))
    if not parts or parts[0][0] > low or parts[-1][1] < high:
        return "it is not memory of this process that /proc/self/maps shows"
    first, _, words = parts[0]
    if words[1][3] != "s":
        return "it is private memory of this process, which no other process can map"
    offset = int(words[2], 16) + low - first
    for begin, _, other in parts:
        if other[1][3] != "s" or other[3:5] != words[3:5] or int(other[2], 16) + low - begin != offset:
            return "it is not a mapping of one file in one piece"
        if other[1][0] != "r":
            return "it cannot be read"
    major, minor = (int(number, 16) for number in words[3].split(":"))
    name = f"{parts[0][0]:x}-{parts[0][1]:x}" if len(parts) == 1 else ""
    writable = all(other[1][1] == "w" for _, _, other in parts)
    return _File(os.makedev(major, minor), int(words[4]), offset, words[5] if len(words) > 5 else "", writable, name)


def _open(file: _File) -> int | None:
    """A descriptor of the file, of our own: by its name, by one that is open here, or by the mapping."""
    flags = (os.O_RDWR if file.writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    places = [file.path] if file.path.startswith("/") else []
    places += [f"/proc/self/fd/{fd}" for fd in sorted(map(int, os.listdir("/proc/self/fd")))]
    places += [f"{_MAP_FILES}/{file.name}"] if file.name else []
    for place in places:
        try:
            found = os.stat(place)
            if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != (file.device, file.inode):
                continue
            fd = os.open(place, flags)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            continue
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == (file.device, file.inode):
            return _out_of_the_way(fd)
        os.close(fd)
    return None


def _out_of_the_way(fd: int) -> int:
    """The same descriptor beyond the numbers that programs use, if there is room (`ulimit -n`)."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)
    except OSError:
        return fd
    os.close(fd)
    return high


_lock = threading.RLock()  # never held while an operation runs, so that registering can wait for none
_entries: tuple[Registration, ...] = ()  # replaced as a whole: operations look without the lock


def _replace(old: Registration | None, new: Registration | None) -> None:
    """Takes an entry out, or puts one in; the lock is held, but finalizers may come in between."""
    global _entries
    while True:
        before = _entries
        after = tuple(entry for entry in (*before, new) if entry is not None and entry is not old)
        if _entries is before:
            _entries = after
            return


def _after_fork() -> None:
    """A child is not the die; what it may become later has registered nothing."""
    global _lock, _entries
    _lock, _entries = threading.RLock(), ()


os.register_at_fork(after_in_child=_after_fork)


def _range(x: Any) -> tuple[int, int]:
    """First and last address of an array or buffer, the last exclusive."""
    if isinstance(x, np.ndarray):
        if x.dtype.hasobject:
            raise TypeError(f"dtype {x.dtype}: arrays that hold Python objects cannot be registered")
        low, high = np.lib.array_utils.byte_bounds(x)
        return (low, high) if x.size else (low, low)
    low_or_none = memory.pointer(x)
    if low_or_none is None:
        raise TypeError(f"a numpy array, or an object with a buffer, is expected, not {type(x).__name__}")
    view = memoryview(x)
    if not view.contiguous:
        return _range(np.asarray(view))
    return low_or_none, low_or_none + view.nbytes


def _find(context: space.Context, low: int, high: int) -> Registration | None:
    for entry in _entries:
        if (entry._low, entry._high) == (low, high) and entry._context is context:
            return entry
    return None


@spanned("register")
def register(x: Any) -> Registration:
    """Registers the memory of an array, or of another object with a buffer; local.  See help("strata.registration").

    Joins the job first, if that has not been done.  FabricMemoryError if a buffer is needed and
    there is no room, TypeError for what has no memory of its own.
    """
    context = bootstrap.context()
    low, high = _range(x)
    with _lock:
        entry = _find(context, low, high)
        if entry is None:
            made = Registration(context, x, low, high)
            made._set_up()
            entry = _find(context, low, high)  # by a finalizer, meanwhile
            if entry is None:
                _replace(None, entry := made)
        entry.count += 1
        return entry


@spanned("deregister")
def deregister(x: Any) -> None:
    """Undoes one ``register`` of the same memory, given as an array or as what that returned.

    RegistrationError if it is not registered (any more).
    """
    with _lock:
        if isinstance(x, Registration):
            entry = x if x in _entries else None
            what = f"{x.nbytes} bytes at {x._low:#x}"
        else:
            low, high = _range(x)
            entry = _find(bootstrap.context(), low, high)
            what = f"{high - low} bytes at {low:#x}"
        if entry is None or not entry.count:
            raise RegistrationError(
                f"{what}: not registered, or deregistered as often as it was registered; give deregister() the "
                "array that register() was given, or what it returned"
            )
        entry.count -= 1
        if entry.count:
            return
        _replace(entry, None)
    # Outside the lock, since an array's end may run any code.  Operations keep what they use.
    entry._kept = entry._memory = None


def _covering(context: space.Context, a: np.ndarray, kind: str) -> tuple[Registration, int] | None:
    """A registration of a kind that holds all of a C-contiguous array, and the array's address."""
    entries = _entries
    if not entries or not a.flags.c_contiguous:
        return None
    low = memory.pointer(a)
    if low is None:
        return None
    for entry in entries:
        if entry.kind == kind and entry._low <= low and low + a.nbytes <= entry._high and entry._context is context:
            return entry, low
    return None


def alias(context: space.Context, a: np.ndarray) -> np.ndarray | None:
    """An array's own bytes, at an address that peers know; None: they are not registered as shared."""
    found = _covering(context, a, "shared")
    if found is None:
        return None
    view = found[0]._memory
    return None if view is None else np.ndarray(a.shape, a.dtype, view, found[0]._shift + found[1] - found[0]._low)


def lease(context: space.Context, a: np.ndarray) -> np.ndarray | None:
    """The part of a buffer for an array's bytes, until nobody refers to it; None: take other memory."""
    found = _covering(context, a, "staged")
    return None if found is None else found[0]._lease(a, found[1], found[1] + a.nbytes)


def stats() -> dict[str, int]:
    """How many registrations of each kind there are (``fabric``, ``shared``, ``staged``), and their
    bytes (``fabric_bytes``, ...)."""
    counts = dict.fromkeys((*KINDS, *(f"{kind}_bytes" for kind in KINDS)), 0)
    for entry in _entries:
        counts[entry.kind] += 1
        counts[f"{entry.kind}_bytes"] += entry.nbytes
    return counts
