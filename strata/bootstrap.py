"""Joining a job: how the dies find one UB space, whoever started them.

Under ``strata-run`` a die inherits the space's file descriptor.  A die whose
parent closed it (a wrapper script) asks the launcher's abstract Unix socket for
it.  Under another launcher rank 0 makes the space and serves it on an abstract
socket whose name all ranks compute from what the launcher gave them.  Abstract
sockets and an unlinked object leave nothing behind, however the job ends.
"""

from __future__ import annotations

import array
import contextlib
import errno
import hashlib
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from strata import _core, config, errors
from strata._core import backing, checked, space

__all__ = ["Job", "context", "create_job", "finalize", "forget", "identify", "init"]

_REQUEST = b"strata ub 1\n"
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def mailbox_bytes(ndies: int, options: config.Config | None = None) -> int:
    """Bytes of a member's mailbox in a job; all_to_all_v's counts must fit."""
    wanted = (options or config.get()).mailbox_bytes
    return -(-max(wanted, 16 * ndies + 64) // 64) * 64


class Job:
    """A UB space and the means to hand it to dies.  Close it when all of them have ended.

    ``fd``     the space's descriptor, close-on-exec
    ``token``  the job's random name
    """

    def __init__(self, ndies: int, options: config.Config) -> None:
        self.ndies = ndies
        self.hbm_bytes = options.hbm_bytes
        self._options = options
        self.fd, token = backing.new_space(ndies, mailbox_bytes(ndies, options), options)
        self.token = token.hex()
        self._view: space.Context | None = None
        self._socket: socket.socket | None = None

    def env(self, rank: int, incarnation: int = 0) -> dict[str, str]:
        """The variables that make a process die ``rank``, after ``incarnation`` others that were it."""
        return {
            "STRATA_INCARNATION": str(incarnation),
            "STRATA_RANK": str(rank),
            "STRATA_WORLD_SIZE": str(self.ndies),
            "STRATA_JOB": self.token,
            "STRATA_JOB_FD": str(self.fd),
            "STRATA_JOB_SOCKET": _socket_name(self.token),
        }

    def serve(self) -> socket.socket:
        """The listening socket at which dies that did not inherit ``fd`` ask for it."""
        if self._socket is None:
            self._socket = _listen(_socket_name(self.token), self.ndies)
        return self._socket

    def fileno(self) -> int:
        return self.serve().fileno()

    def accept(self) -> None:
        """Answers one request, if one is waiting; others than the job's user get nothing."""
        _answer(self.serve(), self.fd)

    def _context(self) -> space.Context:
        if self._view is None:
            self._view = space.Context.attach(os.dup(self.fd), self._options)
        return self._view

    def die_info(self, rank: int) -> dict[str, Any]:
        """dict of a die: state ("absent", "joined", "left"), pid, alive."""
        return self._context().die_info(rank)

    def mark_dead(self, rank: int) -> None:
        """Tell the others that a process ended before it joined."""
        self._context().mark_dead(rank)

    def trace(self, mode: int) -> None:
        """Switches tracing of all dies (strata._core.tracemode), also before they are there."""
        from strata._core import tracemode

        tracemode.set_mode(self._context(), mode)

    def close(self) -> None:
        """Lets go of the space.  Dies keep theirs."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._view = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def create_job(ndies: int, hbm_bytes: int | None = None) -> Job:
    """A new job of ``ndies`` dies with ``hbm_bytes`` of HBM each (default: option hbm_bytes)."""
    return Job(ndies, config.load(hbm_bytes=hbm_bytes))


def _socket_name(token: str) -> str:
    return f"strata.{token}"


def _listen(name: str, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind("\0" + name)
        sock.listen(backlog + 16)
    except BaseException:
        sock.close()
        raise
    return sock


def _peer_uid(sock: socket.socket) -> int:
    cred = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", cred)[1]


def _answer(listener: socket.socket, fd: int) -> None:
    try:
        conn, _ = listener.accept()
    except (BlockingIOError, InterruptedError, ConnectionError):
        return
    except OSError as error:
        if error.errno not in _SHORT:
            raise
        time.sleep(0.05)  # it stays in the queue, and may be answered later
        return
    with conn, contextlib.suppress(OSError):
        if _peer_uid(conn) == os.geteuid():
            conn.setblocking(False)
            conn.sendmsg([_REQUEST], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def _ask(name: str, deadline: float, what: str) -> int:
    """The descriptor that the job's server hands out."""
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                sock.connect("\0" + name)
                if _peer_uid(sock) not in (os.geteuid(), 0):
                    raise errors.NotInJob(f"{what}: the socket belongs to another user")
                message, fds, _, _ = socket.recv_fds(sock, len(_REQUEST), 1)
                if fds:
                    os.set_inheritable(fds[0], False)
                    return fds[0]
                if message:  # the kernel drops a descriptor for which there is no number
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                raise errors.NotInJob(f"{what}: refused (another user?)")
            except (ConnectionRefusedError, FileNotFoundError, TimeoutError, ConnectionResetError) as error:
                if time.monotonic() >= deadline:
                    raise errors.CollectiveTimeout(
                        f"{what}: nobody serves the job's UB space ({error})", operation="init"
                    ) from error
        time.sleep(0.005)  # rank 0 is still starting


class Identity(NamedTuple):
    """Who this process is in a job: of strata-run ("strata") or of another launcher."""

    launcher: str
    rank: int
    size: int
    name: str  # of the job; "" when the launcher gives none


_LAUNCHERS = (  # launcher, rank, size, parts of the job's name
    ("torchrun", "RANK", "WORLD_SIZE",
     ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")),
    ("MPICH", "PMI_RANK", "PMI_SIZE",
     ("PMI_JOBID", "PMI_ID_SPACE", "HYDI_CONTROL_FD", "PMI_PORT", "I_MPI_HYDRA_UUID")),
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME")),
)  # fmt: skip


def identify(environ: Mapping[str, str], options: config.Config) -> Identity | None:
    """This process's place in a job, from its environment; None: it is in none."""
    if options.rank is not None and options.world_size is not None:
        return Identity("strata", options.rank, options.world_size, options.job or "")
    for launcher, rank, size, parts in _LAUNCHERS:
        if rank not in environ or size not in environ:
            continue
        try:
            r, n = int(environ[rank]), int(environ[size])
        except ValueError:
            raise errors.ConfigError(
                f"{rank}={environ[rank]!r}, {size}={environ[size]!r}: integers expected from {launcher}"
            ) from None
        if not 0 <= r < n:
            raise errors.ConfigError(f"{rank}={r}, {size}={n}: a rank from 0 to {n - 1} expected")
        known = [f"{p}={environ[p]}" for p in parts if p in environ]
        if not known:
            # Nothing names the job: its ranks share a parent (mpirun's proxy).
            known = [f"parent={os.getppid()}.{_start_time(os.getppid())}"]
        return Identity(launcher, r, n, f"{launcher}:{n}:" + ":".join(known))
    return None


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[19].decode()
    except (OSError, IndexError):
        return ""


def _inherited(options: config.Config) -> int | None:
    """The launcher's descriptor, if it is still what it was; by device, type and header."""
    if options.job_fd is None:
        return None
    with contextlib.suppress(OSError):
        fd = os.dup(options.job_fd)
        try:
            view = space.Context.attach(os.dup(fd), options)
            if view.token == options.job:
                del view
                os.set_inheritable(options.job_fd, False)  # what this die starts is no die of the job
                return fd
        except errors.StrataError:
            pass
        os.close(fd)
    return None


def _join_strata(me: Identity, options: config.Config, deadline: float) -> int:
    fd = _inherited(options)
    if fd is None:
        if not options.job_socket:
            raise errors.NotInJob("STRATA_RANK is set but neither STRATA_JOB_FD nor STRATA_JOB_SOCKET leads to a job")
        fd = _ask(options.job_socket, deadline, f"rank {me.rank} of job {me.name}")
    return fd


def _join_other(me: Identity, options: config.Config, deadline: float) -> int:
    """Rank 0 makes the space and serves it until all have joined."""
    digest = hashlib.sha256(f"{os.getuid()}:{me.name}".encode()).hexdigest()[:40]
    name, what = f"strata.{digest}", f"rank {me.rank} of {me.size} under {me.launcher}"
    if me.rank != 0:
        return _ask(name, deadline, what)
    try:
        listener = _listen(name, me.size)
    except OSError as error:
        raise errors.NotInJob(
            f"{what}: another job of this user has the same name ({me.name}); give the jobs different "
            "MASTER_PORT (or run id)",
            ranks=(0,),
        ) from error
    fd, _ = backing.new_space(me.size, mailbox_bytes(me.size, options), options)
    thread = threading.Thread(target=_serve, args=(listener, os.dup(fd), me.size - 1), daemon=True, name="strata-serve")
    thread.start()
    return fd


# Never let go of: who closes any descriptor of a file loses all its locks on it, and by its
# lock a die is known to be alive.
_kept: list[space.Context] = []


def _serve(listener: socket.socket, fd: int, clients: int) -> None:
    view = space.Context.attach(fd, config.get())
    _kept.append(view)
    with listener:
        while True:  # also when rank 0 waits no longer: it may call init() again
            if all(view.die_info(r)["state"] != "absent" for r in range(clients + 1)):
                return
            if select.select([listener], [], [], 0.05)[0]:
                _answer(listener, fd)


_lock = threading.RLock()
_context: space.Context | None = None
_joined = False
_tried: space.Context | None = None  # has joined, but not all others did: init() goes on with it


def init(timeout: float | None = None) -> space.Context:
    """Joins the job that this process was started in; outside any job, a job of one die.

    Idempotent.  ``timeout``: seconds to wait for the other dies (default: option
    timeout).  Raises NotInJob in a forked child of a die, CollectiveTimeout or
    PeerDead when others do not come, ConfigError for wrong options.  After an error it
    may be called again, with the options of the first time.
    """
    global _context, _joined, _tried
    with _lock:
        if _context is not None:
            if not _context.here:
                space.current()  # raises, and says why
            if not _joined:
                _context.rejoin()
                _joined = True
                if _context.config.check:
                    sys.modules["strata"]._watch(_context)
            return _context
        made = _tried if _tried is not None and _tried.here else None
        options = config.load() if made is None else made.config
        config.reset(options)
        deadline = time.monotonic() + (options.timeout if timeout is None else timeout)
        me = identify(os.environ, options)
        rank = 0 if me is None else me.rank
        if options.fault or _core.CHECKED:
            from strata._core.checked import arming

            arming.arm(options.fault, rank)
        if options.weak_order:
            checked.weaken(options.weak_order, options.weak_break, rank)
        if made is None:
            try:
                if me is None:
                    fd, _ = backing.new_space(1, mailbox_bytes(1, options), options)
                else:
                    fd = (_join_strata if me.launcher == "strata" else _join_other)(me, options, deadline)
            except OSError as error:
                if isinstance(error, errors.StrataError) or error.errno not in _SHORT:
                    raise
                cure = "raise `ulimit -n`, or close files" if error.errno == errno.EMFILE else "see this host's limits"
                raise errors.HostError(f"cannot join the job: {error.strerror} ({cure})", errno=error.errno) from error
            made = space.Context.attach(fd, options)
            if me is not None and made.ndies != me.size:
                raise errors.ConfigError(f"the job has {made.ndies} dies, but this process was told {me.size}")
        try:
            made.join(rank, max(0.0, deadline - time.monotonic()), options.incarnation > 0)
        finally:
            _tried = made if made.published else None
        space.set_current(made)
        from strata._core import spans  # numpy with it: the launcher does without

        spans.join(made)
        _context, _joined, _tried = made, True, None
        if options.check:  # the package's top puts in what watches: it stands above all that is watched
            sys.modules["strata"]._watch(made)
        if options.registration == "pool":
            from strata._core import heap

            try:
                heap.heap_of(made)  # maps the pool
            except BaseException:
                made.leave()  # or peers would wait for it
                _joined = False
                raise
        if options.intercept:
            from strata._core import intercept

            intercept.enable(made)
        return made


def context() -> space.Context:
    """This die's context; joins first if that has not been done."""
    return _context if _joined and _context is not None and _context.here else init()


def initialized() -> bool:
    """Whether this process is a die now."""
    return _joined and _context is not None and _context.here


def forget() -> None:
    """For a forked child that will be a die of another job: its parent's place is not its own.

    Mappings stay, so that arrays it inherited can still be read.
    """
    global _context, _joined, _tried
    _context, _joined, _tried = None, False, None
    space.set_current(None)
    config.reset()


def finalize() -> None:
    """Leaves the job.  Idempotent, local, never waits.  Arrays stay usable here."""
    global _joined
    with _lock:
        if _joined and _context is not None and _context.here:
            _joined = False
            _context.leave()
