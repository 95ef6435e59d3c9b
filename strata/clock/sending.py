"""The end of a die's clock: its report goes to the launcher, or, if there is none, to standard error and files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from typing import TYPE_CHECKING

from strata import config
from strata.clock import tables

if TYPE_CHECKING:
    from strata.clock.die import Clock

__all__ = ["send", "socket_name"]

PATIENCE = 5.0  # seconds for the launcher to answer


def socket_name(token: str) -> str:
    """The abstract socket at which the launcher of a job takes reports."""
    return f"\0strata.{token}.clock"


def send(clock: Clock) -> None:
    """Sends, or shows, what a clock has counted."""
    options = config.get()
    with clock.lock:
        report = {**clock.books.summary(clock.now_ps), "machine": clock.machine.name, "title": clock.machine.caption,
                  "dies": clock.context.ndies}  # fmt: skip
        if options.clock_trace:
            report["events"] = clock.books.trace()
    if options.rank is not None:
        _to_launcher(clock.context.token, json.dumps(report).encode())
    elif clock.rank == 0:  # another launcher's job, or a die alone
        tables.finish([report], options, sys.stderr)


def _to_launcher(token: str, data: bytes) -> None:
    """As a file without a name, so that its size stops nobody."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), \
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, \
            open(os.memfd_create("strata-clock"), "w+b") as file:  # fmt: skip
        file.write(data)
        file.flush()
        link.settimeout(PATIENCE)
        link.connect(socket_name(token))
        socket.send_fds(link, [b"clock"], [file.fileno()])
