"""Traces of what the dies of a job do: spans and marks of a program's own, and tracing from within it.

    with strata.probe("forward"), strata.tag(step=3):
        ...
    strata.trace_start()                # all dies of the job
    ...
    strata.trace_stop()
    strata.trace_dump("train.json.gz")  # on one die: for Perfetto, and for strata trace

``strata-run --trace FILE`` traces a whole job without a change to it, ``strata top JOB --trace`` one that runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from os import PathLike

from strata import bootstrap
from strata._core import tracemode
from strata._core.marks import tag
from strata._core.spans import PROBES, probe
from strata.errors import InvalidArgument

__all__ = ["c_functions", "probe", "tag", "trace_dump", "trace_start", "trace_stop"]

MODES = {"ring": tracemode.RING, "stop": tracemode.STOP}


def trace_start(mode: str = "ring", *, ranks: Iterable[int] | None = None) -> None:
    """Traces dies of the job (world ranks; None: all) from now on.  Joins the job; waits for nobody.

    ``mode``: what to do when a thread's memory (option trace_events) is full: "ring", the newest events stay; "stop",
    the oldest stay.  Both count what is lost.  What a die had written before it was traced is dropped; one that is
    traced already goes on with it, in that mode.  InvalidArgument: an unknown mode, or no such die.
    """
    if mode not in MODES:
        raise InvalidArgument(f"mode={mode!r}: {' or '.join(map(repr, MODES))} is expected")
    context = bootstrap.context()
    for rank in _ranks(ranks):
        if tracemode.mode(context, rank) == tracemode.OFF:
            tracemode.clear(context, rank)
        tracemode.set_mode(context, MODES[mode], rank)


def trace_stop(*, ranks: Iterable[int] | None = None) -> None:
    """Traces dies (world ranks; None: all) no longer.  What they have written stays until they are traced again."""
    context = bootstrap.context()
    for rank in _ranks(ranks):
        tracemode.set_mode(context, tracemode.OFF, rank)


def trace_dump(file: str | PathLike[str], *, ranks: Iterable[int] | None = None) -> int:
    """Writes what dies (world ranks; None: all) have been traced doing, also of those that have died, as JSON that
    Perfetto and ``strata trace`` load; compressed if the name ends in .gz.  Returns the number of events.

    Called on one die, whether tracing goes on or not.  OSError: the file cannot be written.
    """
    from strata.profile import recording

    context = bootstrap.context()
    taken = recording.take(context, context.ndies, _ranks(ranks))
    return recording.save(taken, file, job=context.token, program=os.path.basename(sys.argv[0] or "python"))


def c_functions() -> int:
    """Address of what strata_probes.h declares: begin and end of spans for programs in C."""
    return PROBES


def _ranks(ranks: Iterable[int] | None) -> list[int]:
    ndies = bootstrap.context().ndies
    found = list(range(ndies)) if ranks is None else sorted({int(r) for r in ranks})
    for rank in found:
        if not 0 <= rank < ndies:
            raise InvalidArgument(f"ranks: there is no die {rank}; the job has {ndies}")
    return found
