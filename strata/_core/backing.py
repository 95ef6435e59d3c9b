"""The object that is a job's UB space: in /dev/shm or a memfd, and without a name before anything else happens."""

from __future__ import annotations

import errno
import os
import secrets

import posix_ipc

from strata import errors
from strata._core import limits, space
from strata.config import Config

__all__ = ["new_space"]


def new_space(ndies: int, mailbox: int, options: Config) -> tuple[int, bytes]:
    """A formatted UB space without a name, with mailboxes of ``mailbox`` bytes: its descriptor and random token.

    HostError if it cannot be made, FabricMemoryError if its control region has no room, ConfigError for wrong sizes.
    """
    token = secrets.token_bytes(16)
    name = f"/strata.{os.getuid()}.{token.hex()}"
    sizes = (ndies, options.hbm_bytes, mailbox, options.window_base)
    space.layout(*sizes, options.trace_events)  # refuse before making anything
    fd = _new_object(name, options)
    try:
        space.format_space(fd, *sizes, token, options.trace_events)
    except errors.FabricMemoryError as error:
        os.close(fd)
        raise errors.FabricMemoryError(
            f"{limits.place(options.backing)} has no room for the control region of {ndies} dies; "
            f"{limits.cure(options.backing)}, or lower STRATA_MAILBOX_BYTES"
        ) from error
    except errors.HostError as error:
        os.close(fd)
        if error.errno != errno.EFBIG:
            raise
        raise errors.HostError(
            f"the UB space of {ndies} dies with {limits.human(options.hbm_bytes)} of HBM each is larger than files may "
            "be here: raise `ulimit -f`, or lower --hbm (STRATA_HBM)", errno=errno.EFBIG,
        ) from error  # fmt: skip
    except BaseException:
        os.close(fd)
        raise
    os.set_inheritable(fd, False)
    return fd, token


def _new_object(name: str, options: Config) -> int:
    """The descriptor of new, empty shared memory that no name leads to, for this user alone."""
    try:
        if options.backing == "memfd":
            return os.memfd_create(name[1:], os.MFD_CLOEXEC)
        fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd
    except (OSError, posix_ipc.Error) as error:
        raise errors.HostError(
            f"cannot create shared memory ({error}): {_cannot(options.backing)}", errno=getattr(error, "errno", 0) or 0
        ) from error
    posix_ipc.unlink_shared_memory(name)
    return fd


def _cannot(backing: str) -> str:
    if backing == "memfd":
        return "see the limits of this process (ulimit -n)"
    return "/dev/shm must be there and writable (mount -t tmpfs tmpfs /dev/shm); or set STRATA_BACKING=memfd"
