"""The errors of strata.  All derive from StrataError and none ends the process.

Each carries what a program needs to react, and its text repeats it for a reader:

``ranks``      world ranks concerned (dead, missing, disagreeing), a tuple
``group``      name of the group, or ""
``operation``  name of the operation, or ""
``number``     the operation's number in its group, or None
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = [
    "Cancelled",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ConfigError",
    "CorruptSpace",
    "Deadlock",
    "FabricMemoryError",
    "GroupBroken",
    "HostError",
    "InvalidArgument",
    "NotInJob",
    "PeerDead",
    "RegistrationError",
    "RingFull",
    "SpawnError",
    "StrataError",
    "UnsupportedType",
    "from_status",
]


def _context(ranks: tuple[int, ...], group: str, operation: str, number: int | None) -> str:
    """What failed and where, as a suffix of the message; empty if nothing is known."""
    parts = []
    if operation or number is not None:
        name = operation or "operation"
        parts.append(name if number is None else f"{name} #{number}")
    if group:
        parts.append(f"group {group}")
    if ranks:
        parts.append(("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks)))
    return f" [{'; '.join(parts)}]" if parts else ""


class StrataError(Exception):
    """Base of all errors of strata.

    Without a message, the class's own phrase is the message.  Pickles and
    copies keep everything, so an error may travel from a die to its launcher.
    """

    phrase = "strata failed"

    def __init__(
        self,
        message: str | None = None,
        *,
        ranks: Iterable[int] = (),
        group: str = "",
        operation: str = "",
        number: int | None = None,
    ) -> None:
        self.ranks = tuple(int(r) for r in ranks)
        self.group = str(group)
        self.operation = str(operation)
        self.number = None if number is None else int(number)
        context = _context(self.ranks, self.group, self.operation, self.number)
        super().__init__((self.phrase if message is None else message) + context)

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self._state())


def _restore(cls: type[StrataError], args: tuple[Any, ...], state: dict[str, Any]) -> StrataError:
    """Unpickles an error.  Its text is complete already, so it replaces what __init__ made."""
    error = cls()
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class InvalidArgument(StrataError, ValueError):
    """An argument is out of its range; nothing was started."""

    phrase = "an argument is out of range"


class UnsupportedType(StrataError, TypeError):
    """The element type and the operator, or the layout, do not go together."""

    phrase = "element type and operator do not go together"


class ConfigError(StrataError, ValueError):
    """An option has an unknown name or a value that is not allowed."""

    phrase = "an option is wrong"


class FabricMemoryError(StrataError, MemoryError):
    """The UB space is full: a die's HBM share, /dev/shm, or the memory cgroup.

    Of an allocation: ``needed_bytes`` of pages, ``available_bytes`` below the
    tightest limit, ``limits``, the free bytes below each (name -> bytes), and
    ``holders``, the die's largest allocations: (bytes, address, kind, place or None).
    """

    phrase = "fabric memory is exhausted"
    needed_bytes: int = 0
    available_bytes: int = 0
    limits: Mapping[str, int] = MappingProxyType({})
    holders: Sequence[tuple[int, int, str, str | None]] = ()


class HostError(StrataError, OSError):
    """A system call failed; ``errno`` says why."""

    phrase = "a system call failed"

    def __init__(self, message: str | None = None, *, errno: int = 0, **context: Any) -> None:
        text = self.phrase if message is None else message
        super().__init__(f"{text}: {os.strerror(errno)}" if errno else text, **context)
        self.errno = errno or None

    def _state(self) -> dict[str, Any]:
        return {**self.__dict__, "errno": self.errno}


class PeerDead(StrataError):
    """Members of the group died: ``ranks``."""

    phrase = "a peer died"


class CollectiveTimeout(StrataError):
    """The deadline passed and ``ranks`` had not arrived; they are not known to be dead."""

    phrase = "timed out"


class CollectiveMismatch(StrataError):
    """Members asked for different operations; the group stays usable."""

    phrase = "members asked for different operations"


class GroupBroken(StrataError):
    """The group failed earlier; ``shrink()`` gives the survivors a working one."""

    phrase = "the group failed earlier and is broken"


class RegistrationError(StrataError):
    """An address is not mapped, is stale, or lies outside its allocation."""

    phrase = "an address is not mapped, stale, or out of bounds"


class Cancelled(StrataError):
    """Descriptors, or an operation on a stream, were given up, or what they depend on has failed: not carried out."""

    phrase = "it was given up, or what it depends on has failed: it was not carried out"


class Deadlock(StrataError):
    """Gates of descriptor rings wait for each other: the text names them all, ``ranks`` their dies.  Or a signal
    handler calls an operation of the group whose operation it has interrupted: nothing has begun."""

    phrase = "gates, or operations of one thread, wait for each other"


class RingFull(StrataError):
    """A descriptor ring has no room, or a die has as many rings as it can."""

    phrase = "a descriptor ring is full"


class NotInJob(StrataError):
    """This process has not joined a job, has left it, or is a forked child of a die."""

    phrase = "this process is not a die of a job"


class SpawnError(StrataError):
    """A die that spawn() or a test pool started failed: ``ranks``; the cause is its exception, if that could travel.

    ``traceback``  the die's own, as text; "" if it left none
    """

    phrase = "a die failed"
    traceback = ""

    def __str__(self) -> str:
        return super().__str__() + (f"\n\n{self.traceback}" if self.traceback else "")


class CorruptSpace(StrataError):
    """Shared memory does not hold what it should: another version, or overwritten."""

    phrase = "the UB space does not hold what it should"


class Status(NamedTuple):
    """A status code of the C core: its name in st_status.h and the class it raises."""

    name: str
    error: type[StrataError] | None  # None: not an error by itself
    phrase: str | None = None  # None: the phrase of the class


# Status code -> error.  The order is that of enum st_status; a test compares them.
STATUS: tuple[Status, ...] = (
    Status("ST_OK", None),
    Status("ST_EINVAL", InvalidArgument),
    Status("ST_ENOMEM", FabricMemoryError),
    Status("ST_ESYS", HostError),
    Status("ST_EDEAD", PeerDead),
    Status("ST_ETIMEOUT", CollectiveTimeout),
    Status("ST_EMISMATCH", CollectiveMismatch),
    Status("ST_EBROKEN", GroupBroken),
    Status("ST_EINTR", None),  # the handler's own exception is already set
    Status("ST_EREG", RegistrationError),
    Status("ST_ENOJOB", NotInJob, "this process was forked from a die and is not one itself: it may read what it "
           "inherited, but it can change nothing of the die's memory; start dies with strata-run or strata.spawn"),
    Status("ST_EABI", CorruptSpace, "the UB space was made by another version of strata"),
    Status("ST_ECORRUPT", CorruptSpace, "a value read from shared memory is out of bounds"),
    Status("ST_EUNSUPPORTED", UnsupportedType),
    Status("ST_AGAIN", None),
    Status("ST_EMAPS", RegistrationError, "the kernel refuses this process another memory mapping: "
           "raise vm.max_map_count (sysctl) or `ulimit -v`, or allocate in larger pieces"),
    Status("ST_EFILE", RegistrationError, "a file that another die has registered cannot be opened here: its "
           "descriptor was closed or replaced, the file was cut short, or /proc hides that die's process; "
           "deregister it there, and its memory is copied"),
    Status("ST_ECANCELED", Cancelled),
    Status("ST_EDEADLOCK", Deadlock),
    Status("ST_EFULL", RingFull),
)


@contextlib.contextmanager
def writing(file: str | os.PathLike[str]) -> Iterator[None]:
    """While a file is opened and written: an OSError names it, and what could not be completed does not stay.

    A full disk is an error of write or close, in which Python names no file.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(file)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.lstat(file).st_mode):
                    os.unlink(file)
        raise


def from_status(
    code: int,
    message: str | None = None,
    *,
    errno: int = 0,
    ranks: Iterable[int] = (),
    group: str = "",
    operation: str = "",
    number: int | None = None,
) -> StrataError:
    """The error for a status code of the C core, to be raised by the caller.

    ``errno`` counts for system calls only.  A code that is no error (ST_OK,
    ST_EINTR, ST_AGAIN) or is unknown gives a StrataError that says so: a
    caller that asked has lost track, and must not go on as if nothing were.
    """
    context: dict[str, Any] = {
        "ranks": ranks,
        "group": group,
        "operation": operation,
        "number": number,
    }
    status = STATUS[code] if 0 <= code < len(STATUS) else Status(f"status {code}", None)
    if status.error is None:
        detail = f": {message}" if message else ""
        return StrataError(f"internal error, {status.name} raised as an error{detail}", **context)
    if status.error is HostError:
        context["errno"] = errno
    return status.error(status.phrase if message is None else message, **context)
