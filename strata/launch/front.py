"""The front: the process that the user sees, signals and waits for."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from strata.launch import procs
from strata.launch.options import say
from strata.launch.terminal import Terminal

# Passed on to the job.  What was ignored when the launcher started (nohup) stays so.
PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
STOP_LIMIT = 1.0  # seconds for the keeper to stop the dies before the front stops as well
KILL_LIMIT = 5.0  # seconds for killed processes to be gone


class Origin:
    """How the front was started, for the dies to start alike."""

    def __init__(self) -> None:
        self.ignored = {n for n in PASSED_ON if signal.getsignal(n) == signal.SIG_IGN}
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self.files = procs.open_files()
        self.front = os.getpid()

    def restore(self, python: bool) -> None:
        """Signals as a new program finds them, or as Python sets them for a script.

        They stay blocked until unblock(), so that none is taken before the user's code runs.
        """
        for number in (*PASSED_ON, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD):
            handler: object = signal.SIG_IGN if number in self.ignored else signal.SIG_DFL
            if number == signal.SIGINT and python and number not in self.ignored:
                handler = signal.default_int_handler
            signal.signal(number, handler)  # type: ignore[arg-type]
        if not python:  # Python ignores these two for itself
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    def unblock(self) -> None:
        """Takes the signals that came since the fork, and those to come."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def open_standard_files() -> None:
    """Opens /dev/null for a standard stream that is closed, so that no pipe takes its number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is fd
            os.set_inheritable(fd, True)


def watch(keeper: int, link: socket.socket, origin: Origin, terminal: Terminal | None) -> int:
    """Passes signals on until the keeper ends; returns its exit status.

    Over ``link`` goes a byte for each signal; a byte comes back when the dies have
    been stopped.  Its end of file tells the keeper that the front is dead.  A keeper
    that was killed leaves its dies to this process, which ends them.
    """
    link.settimeout(STOP_LIMIT)
    while True:
        number = signal.sigwait([signal.SIGCHLD, *(n for n in PASSED_ON if n not in origin.ignored)])
        if number == signal.SIGCHLD:
            pid, status = os.waitpid(keeper, os.WNOHANG)
            if pid:
                break
            continue
        with contextlib.suppress(OSError):
            link.send(bytes([number]))
            if number == signal.SIGTSTP:
                link.recv(1)
        if number == signal.SIGCONT and terminal:
            terminal.resume()
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    gone = procs.kill_descendants(KILL_LIMIT)
    say(
        f"the keeper of the job was killed by {signal.Signals(-code).name}; "
        + ("its dies have been ended" if gone else "some of its processes could not be ended")
    )
    return 128 - code
