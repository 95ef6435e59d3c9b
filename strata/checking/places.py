"""Where in a program something is, and what its task was doing there."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["UNKNOWN", "Doing", "Place"]

FRAMES = 12  # of a stack that are shown


def _shown(file: str) -> str:
    """A file as seen from here, if it is below."""
    here = os.getcwd() + os.sep
    return file[len(here) :] if file.startswith(here) else file


class Place:
    """A line of a program and the calls that led there, ``stack``: (file, line, function), innermost first."""

    __slots__ = ("file", "function", "line", "stack", "text")

    def __init__(
        self, file: str, line: int, function: str = "", text: str = "", stack: tuple[tuple[str, int, str], ...] = ()
    ) -> None:
        self.file = file
        self.line = line
        self.function = function
        self.text = text.strip()
        self.stack = stack or ((file, line, function),)

    def __str__(self) -> str:
        return f"{_shown(self.file)}:{self.line}" if self.line else self.file

    def lines(self) -> list[str]:
        """The stack, a line for each call, the innermost with its source."""
        if not self.line:
            return []
        found = [f"{_shown(file)}:{line} in {function or '?'}" for file, line, function in self.stack[:FRAMES]]
        if found and self.text:
            found[0] += f":  {self.text}"
        if len(self.stack) > FRAMES:
            found.append(f"... and {len(self.stack) - FRAMES} more")
        return found


UNKNOWN = Place("a place that is not known", 0)


class Doing(NamedTuple):
    """``operation``: of which an access is part ("" none); ``sync``: the task's last synchronisation, and where."""

    operation: str
    sync: str
    place: Place

    def since(self) -> str:
        """The last synchronisation, for a sentence."""
        where = f" ({self.place})" if self.place.line else ""
        return self.sync + where
