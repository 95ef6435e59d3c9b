"""Tests that a program uses the fabric well: what ``strata-run --check`` finds, for a block of a test."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from strata import errors

__all__ = ["Checked", "checked"]

PATIENCE = 60.0  # seconds for the analysis of what the dies have sent


class Checked:
    """What was found, once the block is over.

    ``reports``   a dict each, as a line of ``strata-run --check-json`` (docs/checking.md); without duplicates
    ``problems``  lines about the check itself: it was not complete
    ``text``      all of it, for people; "" if there is nothing
    """

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.text = ""


@contextlib.contextmanager
def checked() -> Iterator[Checked]:
    """Checks the jobs that begin in the block, by ``spawn`` or a new ``Pool``; they should end in it, too.

        with strata.testing.checked() as check:
            strata.spawn(fn, 4)
        assert not check.reports, check.text

    STRATA_CHECK is set meanwhile.  StrataError if the analysis does not come to an end.
    """
    from strata.checking.server import Server

    before, found = os.environ.get("STRATA_CHECK"), Checked()
    server = Server()
    thread = threading.Thread(target=server.run, name="strata-check", daemon=True)
    thread.start()
    os.environ["STRATA_CHECK"] = server.name
    try:
        yield found
    finally:
        if before is None:
            del os.environ["STRATA_CHECK"]
        else:
            os.environ["STRATA_CHECK"] = before
        server.stop()
        thread.join(PATIENCE)
    if thread.is_alive():
        raise errors.StrataError(f"the analysis of the checked jobs did not end within {PATIENCE:g} s")
    found.reports = [report.json() for report in server.reports()]
    found.problems, found.text = list(server.problems), server.text()
    server.close()
