"""The launcher's side of the emulated clock: takes the dies' reports, and says at the end what they say."""

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import socket
import struct

from strata import config
from strata.errors import ConfigError

__all__ = ["Collector", "collector"]

PATIENCE = 1.0  # seconds for a die that has connected to send


class Collector:
    """A listening socket, and what has come to it."""

    def __init__(self, token: str, ndies: int, options: config.Config) -> None:
        from strata.clock.sending import socket_name  # the clock comes with numpy, and only for jobs that have one

        self._options = options
        self._ndies = ndies
        self.failed = False  # a file could not be written
        self._reports: dict[int, dict[str, object]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(socket_name(token))
            self._socket.listen(ndies + 16)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> bool:
        """Takes one report, if one is waiting; others than the job's user are not listened to."""
        try:
            link, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return False
        from strata.clock import tables

        with link, contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            uid = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[1]
            if uid == os.geteuid():
                link.settimeout(PATIENCE)
                _, fds, _, _ = socket.recv_fds(link, 64, 1)
                with open(fds[0], "rb") as file:
                    file.seek(0)
                    report = tables.checked(json.load(file), self._ndies)
                self._reports[report["rank"]] = report
        return True

    def finish(self, selector: selectors.BaseSelector) -> str:
        """The table; writes the files.  What is wrong with those is in the text."""
        from strata.clock import tables

        selector.unregister(self)
        while self.accept():
            pass
        self._socket.close()
        if not self._reports:
            return "strata clock: no die has reported: none has used strata, or all have ended before they could\n"
        text = io.StringIO()
        try:
            tables.finish(list(self._reports.values()), self._options, text)
        except OSError as error:
            self.failed = True
            text.write(f"strata clock: cannot write {error.filename}: {error.strerror}\n")
        return text.getvalue()

    def close(self) -> None:
        self._socket.close()


def collector(token: str, ndies: int) -> Collector | None:
    """Of a job whose dies have a clock; None: they have none.  ConfigError: the machine is not known, or too
    small, or a file cannot be written."""
    options = config.load()
    if not options.clock:
        if options.clock_trace or options.clock_json:
            name = "STRATA_CLOCK_TRACE" if options.clock_trace else "STRATA_CLOCK_JSON"
            raise ConfigError(f"{name} needs a clock: --clock MACHINE (STRATA_CLOCK), such as cm384")
        return None
    from strata import clock, selection

    machine = selection.clock_machine(options)
    clock.check(machine.name, machine.topology.dies, ndies)
    for option, file in (("STRATA_CLOCK_TRACE", options.clock_trace), ("STRATA_CLOCK_JSON", options.clock_json)):
        try:  # before the job, not after
            with open(file, "a") if file else contextlib.nullcontext():
                pass
        except OSError as error:
            raise ConfigError(f"{option}={file} cannot be written: {error.strerror}") from None
    return Collector(token, ndies, options)
