"""What /proc says of processes."""

from __future__ import annotations

import os
from typing import NamedTuple

__all__ = ["Process", "command", "look", "pids"]

_START, _CPU, _UTIME = 22 - 3, 39 - 3, 14 - 3  # fields of stat, from the state on, which is the third


class Process(NamedTuple):
    """``state`` is a letter as in ps, ``start`` in ticks since boot, ``seconds`` of CPU time so far."""

    pid: int
    name: str
    state: str
    parent: int
    start: int
    cpu: int
    seconds: float


def pids(proc: str = "/proc") -> list[int]:
    """All processes that can be seen."""
    return [int(name) for name in os.listdir(proc) if name.isdigit()]


def look(pid: int, proc: str = "/proc") -> Process | None:
    """None: there is no such process (any more)."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            before, _, after = file.read(4096).rpartition(b")")
    except OSError:
        return None
    fields = after.split()
    try:
        name = before.partition(b"(")[2].decode(errors="replace")
        seconds = (int(fields[_UTIME]) + int(fields[_UTIME + 1])) / os.sysconf("SC_CLK_TCK")
        return Process(pid, name, fields[0].decode(), int(fields[1]), int(fields[_START]), int(fields[_CPU]), seconds)
    except (IndexError, ValueError):
        return None


def command(pid: int, proc: str = "/proc") -> list[str]:
    """The words of its command line; [] if it cannot be read."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            return file.read(65536).decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []
