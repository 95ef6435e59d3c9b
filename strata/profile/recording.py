"""Traces of real jobs: what their dies have written to shared memory, as a trace of the form that viewers load.

``take`` reads it, from a die of the job or from outside, whatever has become of the dies; ``trace`` makes sense of it.
Nothing there is believed: texts, numbers and places are checked, and what makes no sense is left out, and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from strata._core import tracing
from strata.errors import InvalidArgument, StrataError
from strata.profile import flows, tracks
from strata.profile.chrome import Trace
from strata.profile.events import Die

__all__ = ["Taken", "lost", "save", "take", "trace"]


class Taken(NamedTuple):
    """What was read of a job.

    ``dies``     by world rank: what strata._core.tracing.read returns
    ``refused``  by world rank: why it could not be read
    ``samples``  by world rank: of threads (name, spans), spans (begin, end, state, CPU), CLOCK_MONOTONIC ns
    """

    dies: dict[int, dict[str, Any]]
    refused: dict[int, str]
    samples: Mapping[int, Any]


def take(source: Any, ndies: int, ranks: Iterable[int] | None = None,
         samples: Mapping[int, Any] | None = None) -> Taken:  # fmt: skip
    """Reads the traces of a job's dies; ``source`` is a Context, or an Inspector.

    InvalidArgument: there is no such die.
    """
    dies, refused = {}, {}
    for rank in range(ndies) if ranks is None else sorted(set(ranks)):
        if not 0 <= rank < ndies:
            raise InvalidArgument(f"there is no die {rank}: the job has {ndies}")
        try:
            dies[rank] = tracing.read(source, rank)
        except (StrataError, OSError) as error:
            refused[rank] = str(error)
    return Taken(dies, refused, samples or {})


def trace(taken: Taken, **about: Any) -> Trace:
    """All dies of a job on one time, that begins with the first event.

    ``about`` (job, program, ...) is put beside ``clock``, ``machine``, ``dies``, ``lost`` (events by die) and, where
    there are any, ``names_lost`` and ``unreadable``.
    """
    dies = [Die(rank, found) for rank, found in sorted(taken.dies.items())]
    begins = [die.first for die in dies if die.first is not None]
    first = min(begins, default=0)
    names = {rank: found["names_lost"] for rank, found in taken.dies.items() if found["names_lost"]}
    more = {"names_lost": names, "unreadable": taken.refused}
    made = Trace(clock="tsc", machine=os.uname().nodename, dies=len(taken.dies) + len(taken.refused), lost=lost(taken),
                 **{key: value for key, value in more.items() if value}, **about)  # fmt: skip
    rate = float(np.median([found["ns_per_tick"] for found in taken.dies.values()] or [1.0])) / 1e3
    groups = {low: ranks for die in dies for low, ranks in die.members().items()}
    arrows = flows.Arrows()
    for die in dies:
        made.process(die.rank, f"die {die.rank}")
        tracks.write(made, die, first, rate, arrows)
        for key, when, values in flows.counters(die, first, rate, groups):
            made.counter(*key, when, values)
    for key, when, values in flows.ports(dies, first, rate, groups):
        made.counter(*key, when, values)
    arrows.write(made)
    if taken.samples and taken.dies:
        some = next(iter(taken.dies.values()))
        begin = some["ns"] - (some["ticks"] - first) * some["ns_per_tick"] if begins else some["ns"]
        tracks.samples(made, taken.samples, begin)
    return made


def lost(taken: Taken) -> dict[int, int]:
    """Events that are not there, by die; none of dies that have lost none."""
    found = {rank: d["lost"] + sum(s["lost"] for s in d["slices"]) for rank, d in taken.dies.items()}
    return {rank: int(count) for rank, count in found.items() if count}


def save(taken: Taken, file: str | PathLike[str], **about: Any) -> int:
    """Writes a trace as JSON, compressed if the name ends in .gz; the number of its events.  OSError."""
    made = trace(taken, **about)
    made.save(file)
    return made.events
