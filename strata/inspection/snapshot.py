"""What a job looks like at one moment: a plain object, as it is saved in JSON too."""

from __future__ import annotations

import os
import time
from typing import Any

from strata._core import inspector
from strata._core.inspector import Inspector
from strata.errors import StrataError
from strata.inspection import processes, waiting

__all__ = ["FORMAT", "take"]

FORMAT = "strata dump 1"
OWN_NAMESPACE = "/proc/self/ns/pid"


def take(space: Inspector, name: str = "", launcher: int = 0, *, records: int | None = None,
         proc: str = "/proc") -> dict[str, Any]:  # fmt: skip
    """The job's dies, groups and waits now.  ``records``: of each die's history, at most (None: all that is there).

    What cannot be read of a die is told in its ``unreadable``; the others are shown all the same.
    """
    dies = [_die(space, rank, proc) for rank in range(space.ndies)]
    heads = [die.get("log_head", 0) for die in dies]
    first = [_flight(space, die) for die in dies]
    groups = _groups(space, first)
    for die, before in zip(dies, first, strict=True):
        _open(space, die, before, records)
        _more(space, die, heads)
    found: dict[str, Any] = {
        "format": FORMAT,
        "job": space.token,
        "name": name,
        "launcher": launcher,
        "time": time.time(),
        "now_ns": inspector.now_ns(),
        "ndies": space.ndies,
        "hbm_bytes": space.hbm_bytes,
        "dies": dies,
        "groups": groups,
    }
    found["waits"] = waiting.waits(found)
    found["deadlocks"] = waiting.deadlocks(found)
    return found


def _die(space: Inspector, rank: int, proc: str) -> dict[str, Any]:
    die: dict[str, Any] = {"rank": rank, "pid": 0, "state": "unreadable"}
    try:
        die.update(space.die(rank))
    except (StrataError, OSError) as error:
        die["unreadable"] = str(error)
        return die
    process = processes.look(die["pid"], proc) if die["pid"] and _here(die["pid_ns"]) else None
    if process and (process.start != die["start_time"] or process.state in "ZX"):
        process = None
    die["joined"] = die["state"] != "absent"
    joined, die["process"] = die["state"], process.state if process else ""
    die["cpu"], die["cpu_seconds"] = (process.cpu, process.seconds) if process else (None, None)
    if joined.startswith("invalid"):
        die["unreadable"] = f"its state is {joined}: something has written over the die table"
    if joined == "absent":
        die["state"] = "dead" if die["dead"] else "not joined"
    elif joined == "joined" and not process and not die["locked"]:
        die["state"] = "dead"
    elif joined == "joined":
        die["state"] = "stopped" if process and process.state in "Tt" else "running"
    return die


def _here(namespace: int) -> bool:
    """Whether pids of that namespace mean something here."""
    try:
        return os.stat(OWN_NAMESPACE).st_ino == namespace
    except OSError:
        return False


def _flight(space: Inspector, die: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = space.flight(die["rank"])
        return found
    except (StrataError, OSError) as error:
        die["unreadable"] = str(error)
        return {"begun": 0, "late_maps": 0, "late_map_ns": 0, "lost": 0, "cached": 0, "allocated": 0, "groups": [],
                "records": []}  # fmt: skip


def _groups(space: Inspector, flights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All groups that some die has open, once each, with their members' lines as they are now."""
    found: dict[int, dict[str, Any]] = {}
    for flight in flights:
        for open_here in flight["groups"]:
            if open_here["id"] in found:
                continue
            memory = space.group(open_here["va"], open_here["n"])
            if memory is not None and memory["id"] == open_here["id"]:
                found[open_here["id"]] = {"name": open_here["name"], **memory}
    return list(found.values())


def _open(space: Inspector, die: dict[str, Any], before: dict[str, Any], records: int | None) -> None:
    """A die's records.  In progress counts what was so before and after the groups' lines were read: to that, the
    lines belong."""
    after = _flight(space, die)
    was = {r["index"] for r in before["records"] if not r["status"]}
    gone = die["state"] in ("dead", "left", "unreadable")
    die["records"] = after["records"][-records if records else 0 :]
    die["operations"] = [r for r in after["records"] if not r["status"] and (gone or r["index"] in was)]
    for name in ("begun", "late_maps", "late_map_ns", "lost", "cached", "allocated"):
        die[name] = after[name]


def _more(space: Inspector, die: dict[str, Any], heads: list[int]) -> None:
    die["lag"], die["rings"] = 0, []
    try:
        if die["state"] in ("running", "stopped"):
            die["lag"] = space.lag(die["rank"], heads)
            die["rings"] = space.rings(die.get("sdma", 0)) or []
    except (StrataError, OSError) as error:
        die["unreadable"] = str(error)
