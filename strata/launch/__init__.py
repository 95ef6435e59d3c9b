"""strata-run and spawn: start the dies of a job, watch them, and leave nothing behind.

Three kinds of process take part.  The *front* is what the user sees: it has the
pid, gets the signals, and returns the exit status.  It forks the *keeper*, which
makes the UB space, forks the dies, forwards their output and decides when to end
them.  Front and keeper each adopt orphans, so whichever is killed, the other
still finds every process of the job, however deep, and ends it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["main", "spawn"]

_HOME = {"main": "strata.launch.main", "spawn": "strata.launch.spawning"}


def __getattr__(name: str) -> Any:
    # The front stays small: nothing is imported before it is used.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
