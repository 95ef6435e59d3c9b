"""Where in the user's program something happens: the innermost frame outside the library, with some that called it."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["Sites", "inner"]

DEEP = 8  # frames of a stack that are told
KEYED = 3  # of them, the innermost tell one place from another
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUNNER = _PACKAGE + os.path.join("launch", "runner.py")  # runs the program: what called it is the launcher
_SKIPPED = (os.sep + os.path.join("site-packages", "numpy") + os.sep, os.sep + os.path.join("dist-packages", "numpy"))
_known: dict[str, bool] = {}  # file -> whether it is the library's, or numpy's


def inner(file: str) -> bool:
    """Whether a file is no part of the user's program."""
    found = _known.get(file)
    if found is None:
        found = file.startswith((_PACKAGE, "<frozen")) or any(part in file for part in _SKIPPED)
        _known[file] = found
    return found


class Sites:
    """Numbers places; ``tell`` sends what a new number means."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._numbers: dict[Any, int] = {}

    def here(self) -> int:
        """The number of this thread's place."""
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and inner(frame.f_code.co_filename):
            frame = frame.f_back
        key: list[Any] = []
        at = frame
        while at is not None and len(key) < 2 * KEYED:
            key += [at.f_code, at.f_lineno]
            at = at.f_back
        number = self._numbers.get(known := tuple(key))
        if number is None:
            number = self._numbers[known] = len(self._numbers)
            self._tell(_place(number, frame))
        return number


def _place(number: int, frame: Any) -> dict[str, Any]:
    stack = []
    at = frame
    while at is not None and len(stack) < DEEP and at.f_code.co_filename != _RUNNER:
        if not inner(at.f_code.co_filename):
            stack.append([at.f_code.co_filename, at.f_lineno, at.f_code.co_name])
        at = at.f_back
    file, line, function = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
    text = linecache.getline(file, line, frame.f_globals).strip()
    return {"e": "site", "id": number, "file": file, "line": line, "function": function, "text": text[:200],
            "stack": stack}  # fmt: skip
