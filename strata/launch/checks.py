"""The launcher's side of --check: a server of its own in a thread, and what it has found at the end."""

from __future__ import annotations

import os
import selectors
import threading
from typing import TYPE_CHECKING, NamedTuple

from strata.errors import ConfigError
from strata.launch.options import CHECK_FAILED, Options

if TYPE_CHECKING:
    from strata.checking.reports import Report

__all__ = ["Checker", "Found", "checker"]

PATIENCE = 60.0  # seconds for the analysis of what the dies had sent when they ended


class Found(NamedTuple):
    """What is printed at the end, and the exit status of a program that is well but for that."""

    text: str
    code: int


class Checker:
    """Made before the dies, which learn of it by STRATA_CHECK; ``start`` once they are there.

    ``json``  file that gets the reports, or None
    """

    def __init__(self, json: str | None) -> None:
        from strata.checking.server import Server  # only for jobs that are checked

        self._json = json
        self._server = Server(urgent=self._found_urgent)
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._lock = threading.Lock()
        self._urgent: list[Report] = []  # to be shown now
        self._shown: list[Report] = []
        self._thread = threading.Thread(target=self._server.run, name="strata-check", daemon=True)
        os.environ["STRATA_CHECK"] = self._server.name

    def start(self) -> int:
        """Begins to serve; a descriptor that is readable when urgent() has something."""
        self._thread.start()
        return self._read

    def _found_urgent(self, report: Report) -> None:
        """In the server's thread: dies wait in vain, and so would the user for the end of the job."""
        with self._lock:
            self._urgent.append(report)
        os.write(self._write, b".")

    def urgent(self) -> str:
        """Reports that cannot wait for the end."""
        os.read(self._read, 512)
        with self._lock:
            found, self._urgent = self._urgent, []
        self._shown += found
        return "".join(report.text() + "\n" for report in found)

    def finish(self, selector: selectors.BaseSelector) -> Found:
        """All dies have ended: the reports, and their file."""
        selector.unregister(self._read)
        server = self._server
        server.stop()
        self._thread.join(PATIENCE)
        text = ""
        if self._thread.is_alive():
            text = f"strata check: the analysis did not end within {PATIENCE:g} s; what it has found so far:\n"
        elif not server.jobs_seen:
            text = "strata check: no die was checked: none has used strata, or all ended before they could\n"
        text += server.text(self._shown)
        if self._json is not None:
            try:
                server.save(self._json)
            except OSError as error:
                text += f"strata check: cannot write {self._json}: {error.strerror}\n"
        good = server.clean and server.jobs_seen and not self._thread.is_alive()
        return Found(text, 0 if good else CHECK_FAILED)

    def close(self) -> None:
        """In a die: the server is the launcher's."""
        self._server.close()
        os.close(self._read)
        os.close(self._write)


def checker(options: Options) -> Checker | None:
    """Of a job that is to be checked.  ConfigError: the file of its reports cannot be written."""
    if not options.check and options.check_json is None:
        return None
    if options.check_json is not None:
        try:  # before the job, not after
            with open(options.check_json, "a"):
                pass
        except OSError as error:
            raise ConfigError(f"--check-json {options.check_json} cannot be written: {error.strerror}") from None
    return Checker(options.check_json)
