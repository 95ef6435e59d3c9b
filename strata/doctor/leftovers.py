"""Checks of what others have left behind, and of who else is here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from strata.doctor.findings import Finding, note, ok, warning
from strata.doctor.host import Host
from strata.inspection import finding

__all__ = ["clean", "jobs", "objects"]

_STRATA = re.compile(r"strata\.(\d+)\.[0-9a-f]{32}")
_OTHERS = re.compile(
    r"(vader_segment|sm_segment|osc_rdma|ompi|pmix|prrte|mpich|psm[23]?_|psm_shm|ucx_shm|nccl-|torch_|"
    r"MPI|mvapich|intel_mpi|impi_shm|gloo|ray|hwloc)"
)
YOUNG = 10.0  # seconds: an object has a name for a moment when a job begins


def _held(host: Host) -> set[tuple[int, int]] | None:
    """(device, inode) of all files that processes have open or mapped; None: some cannot be looked at."""
    found: set[tuple[int, int]] = set()
    for pid in filter(str.isdigit, host.names("/proc")):
        folder = host.path(f"/proc/{pid}")
        try:
            if host.uid() not in (0, os.stat(folder).st_uid):
                continue
            for name in os.listdir(f"{folder}/fd"):
                try:
                    st = os.stat(f"{folder}/fd/{name}")
                except OSError:
                    continue
                found.add((st.st_dev, st.st_ino))
            with open(f"{folder}/maps", encoding="utf-8", errors="replace") as file:
                for line in file:
                    fields = line.split()
                    if len(fields) > 5 and fields[4] != "0":
                        major, _, minor = fields[3].partition(":")
                        found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
        except FileNotFoundError:
            continue  # it has ended
        except ProcessLookupError:
            continue
        except OSError:
            return None
    return found


def _stale(host: Host, mine: re.Pattern[str]) -> list[tuple[str, os.stat_result, float]]:
    """Objects in /dev/shm by name: path, stat, age in seconds."""
    found = []
    for name in host.names("/dev/shm"):
        if mine.match(name):
            path = host.path(f"/dev/shm/{name}")
            try:
                st = os.lstat(path)
            except OSError:
                continue
            found.append((path, st, max(0.0, time.time() - st.st_mtime)))
    return found


def _age(seconds: float) -> str:
    for name, unit in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _abandoned(host: Host) -> list[str]:
    held = _held(host)
    if held is None:
        return []
    return [path for path, st, age in _stale(host, _STRATA)
            if _STRATA.fullmatch(os.path.basename(path)) and st.st_uid == host.uid() and age > YOUNG
            and (st.st_dev, st.st_ino) not in held]  # fmt: skip


def objects(host: Host) -> Iterator[Finding]:
    """Names in /dev/shm that jobs have left."""
    mine = _abandoned(host)
    if mine:
        nbytes = sum(os.lstat(path).st_blocks * 512 for path in mine if os.path.exists(path))
        yield warning("stale objects", f"{len(mine)} of strata's in /dev/shm that no process has open "
                      f"({nbytes >> 20} MiB): {', '.join(map(os.path.basename, mine[:4]))}",
                      "a job was killed in the moment in which its memory had a name; it stays until it is removed",
                      "strata doctor --clean")
    else:
        yield ok("stale objects", "none of strata's")
    others = _stale(host, _OTHERS)
    if others:
        text = ", ".join(f"{os.path.basename(path)} (uid {st.st_uid}, {_age(age)} old, {st.st_blocks * 512 >> 20} MiB)"
                         for path, st, age in others[:6])  # fmt: skip
        yield note("objects of others", f"{len(others)} in /dev/shm: {text}", "other libraries' memory, of jobs that "
                   "run or are dead; it takes room of yours", "rm, once you know that their owners have ended")


def clean(host: Host) -> list[str]:
    """Removes strata's own objects of this user that no process has open; their paths."""
    gone = []
    for path in _abandoned(host):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        gone.append(path)
    return gone


def jobs(host: Host) -> Iterator[Finding]:
    """Other jobs of this user."""
    running = finding.find(host.path("/proc"))
    if running:
        yield note("other jobs", "; ".join(job.text() for job in running),
                   "they share CPUs and memory with what you start", "strata top")  # fmt: skip
    else:
        yield ok("other jobs", "none of this user")
