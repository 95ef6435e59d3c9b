"""Entry of strata-run."""

from __future__ import annotations

import os
import signal
import socket
import sys

from strata.launch import front, procs
from strata.launch.options import LAUNCHER_FAILED, parse, say
from strata.launch.terminal import Terminal


def main(arguments: list[str] | None = None) -> int:
    """Runs a job; returns the exit status for the front, and a die's own for a die.

    The same call returns in the front and in each die, which then end as
    ``python script.py`` would; the keeper never comes back from it.
    """
    options = parse(sys.argv[1:] if arguments is None else arguments)
    front.open_standard_files()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        origin = front.Origin()
    except OSError as error:
        say(str(error.strerror))
        return LAUNCHER_FAILED
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, *front.PASSED_ON])
    procs.adopt_orphans()
    here, there = socket.socketpair()
    typed, typing = os.pipe() if os.isatty(0) else (None, None)
    keeper = procs.fork()
    if keeper:
        there.close()
        terminal = None
        if typed is not None and typing is not None:
            os.close(typed)
            terminal = Terminal(typing)
        with here:
            return front.watch(keeper, here, origin, terminal)
    here.close()
    if typing is not None:
        os.close(typing)
    from strata.launch.command import keep

    return keep(options, there, origin, typed).run()
