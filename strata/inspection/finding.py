"""Which jobs of this user there are, by the descriptors that processes hold of UB spaces."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from strata import config
from strata._core.inspector import Inspector
from strata._core.space import Context
from strata.errors import InvalidArgument, StrataError
from strata.inspection import processes

__all__ = ["Job", "choose", "find", "opened", "writable"]

_LINK = re.compile(r"strata\.(\d+)\.([0-9a-f]{32})")  # of the object's name, which is gone


class Job(NamedTuple):
    """A UB space that processes hold: its token, theirs, and the name of what it runs."""

    token: str
    name: str
    launcher: int  # pid of strata-run's front, or of another launcher; 0: there is none
    holders: tuple[int, ...]
    places: tuple[str, ...]  # /proc paths of the descriptors
    ndies: int

    def text(self) -> str:
        """One line of a list of jobs."""
        by = f"launcher {self.launcher}" if self.launcher else f"pid {self.holders[0]}"
        return f"{self.name} ({by}, {self.ndies} dies, job {self.token[:8]})"


@contextlib.contextmanager
def opened(place: str) -> Iterator[Inspector]:
    """An inspector of the object behind a descriptor of another process, opened for reading."""
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield Inspector(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def writable(job: Job) -> Iterator[Context]:
    """A job's space, mapped to be written to, by a process that is no die of it.  OSError: nobody holds it any more."""
    error: OSError | None = None
    for place in job.places:
        try:
            fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except OSError as refused:
            error = refused
            continue
        yield Context.attach(fd, config.get())
        return
    raise error or OSError("the job has ended")


def find(proc: str = "/proc") -> list[Job]:
    """The jobs of this user (of all, for root) that are there now."""
    held: dict[str, dict[int, str]] = {}
    for pid in processes.pids(proc):
        for token, place in _spaces(pid, proc):
            held.setdefault(token, {}).setdefault(pid, place)
    return [job for token, places in sorted(held.items()) if (job := _job(token, places, proc))]


def _spaces(pid: int, proc: str) -> Iterator[tuple[str, str]]:
    try:
        if os.geteuid() not in (0, os.stat(f"{proc}/{pid}").st_uid):
            return
        names = os.listdir(f"{proc}/{pid}/fd")
    except OSError:
        return
    for name in names:
        place = f"{proc}/{pid}/fd/{name}"
        with contextlib.suppress(OSError):
            found = _LINK.search(os.readlink(place))
            if found:
                yield found[2], place


def _job(token: str, places: dict[int, str], proc: str) -> Job | None:
    ndies, dies = 0, set()
    for place in places.values():
        with contextlib.suppress(OSError, StrataError), opened(place) as space:
            ndies = space.ndies
            dies = {space.die(i)["pid"] for i in range(ndies)}
            break
    if not ndies:
        return None
    keepers = [pid for pid in places if pid not in dies]
    keeper = next((pid for pid in keepers if (p := processes.look(pid, proc)) and p.name == "strata-keeper"), 0)
    found = processes.look(keeper, proc) if keeper else None
    launcher = found.parent if found and found.parent > 1 else keeper
    for pid in sorted(dies & set(places)) or sorted(places):
        name = _name(processes.command(pid, proc))
        if name:
            break
    else:
        name = "?"
    holders = sorted(places)
    return Job(token, name, launcher, tuple(holders), tuple(places[pid] for pid in holders), ndies)


def _name(words: list[str]) -> str:
    """What a command line runs: the script or module of Python's (or of strata-run's), else the program."""
    if not words or not words[0]:
        return ""
    program, rest = os.path.basename(words[0]), words[1:]
    if not program.startswith("python"):
        return program
    if "strata.launch" in rest[:4]:
        rest = rest[rest.index("strata.launch") + 1 :]
    scripts = [i for i, word in enumerate(rest) if word.endswith(".py")]
    modules = [i + 1 for i, word in enumerate(rest[:-1]) if word == "-m"]
    first = min([*scripts, *modules], default=None)
    if first is not None:
        return os.path.basename(rest[first])
    plain = [word for word in rest if not word.startswith("-") and not os.path.basename(word) == "strata-run"]
    return "-c" if "-c" in rest else os.path.basename(plain[0]) if plain else program


def choose(jobs: list[Job], wanted: str | None, proc: str = "/proc") -> Job:
    """The job that is meant: by a pid (of its launcher, or of any of its processes), its name, or the beginning
    of its token; with one job, None will do.  InvalidArgument otherwise, with a list."""
    found = jobs if wanted is None else [job for job in jobs if _meant(job, wanted, proc)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {job.text()}" for job in found or jobs)
    if not jobs:
        raise InvalidArgument("there is no job of this user now; start one with strata-run")
    if not found:
        raise InvalidArgument(f"there is no job {wanted}; there are:{listed}")
    called = "" if wanted is None else f" {wanted}"
    raise InvalidArgument(f"there are {len(found)} jobs{called}; say which by its pid:{listed}")


def _meant(job: Job, wanted: str, proc: str) -> bool:
    if wanted == job.name or (len(wanted) >= 6 and job.token.startswith(wanted)):
        return True
    if not wanted.isdigit():
        return False
    pid = int(wanted)
    if pid == job.launcher or pid in job.holders:
        return True
    for holder in job.holders:  # a wrapper between the launcher and a die
        seen: set[int] = set()
        at: int | None = holder
        while at and at > 1 and at not in seen:
            if at == pid:
                return True
            seen.add(at)
            found = processes.look(at, proc)
            at = found.parent if found else None
    return False
