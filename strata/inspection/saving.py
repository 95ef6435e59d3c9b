"""Dumps in files."""

from __future__ import annotations

import json
import os
from typing import Any

from strata.errors import InvalidArgument
from strata.inspection import text
from strata.inspection.snapshot import FORMAT

__all__ = ["load", "save"]


def save(snapshot: dict[str, Any], path: str) -> None:
    """Writes a snapshot as JSON; the file is there as a whole, or not at all.  OSError if it cannot be written."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(snapshot, file)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def load(path: str) -> dict[str, Any]:
    """A snapshot from a file.  InvalidArgument: the file is no dump of this version."""
    with open(path, encoding="utf-8", errors="replace") as file:
        try:
            found = json.load(file)
        except (ValueError, RecursionError, MemoryError) as error:
            raise InvalidArgument(f"{path} is no dump of strata: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidArgument(f"{path} is no dump of strata, or of another version: {FORMAT!r} is expected in it")
    try:  # whoever loads it is going to show it
        text.whole(found)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError, MemoryError) as error:
        raise InvalidArgument(f"{path} is no dump of strata: damaged ({error!r})") from None
    return found
