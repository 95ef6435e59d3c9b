"""Slices to units on cores: fuse, cut, order, place.  The work is done in C (``st_schedule*.h``).

Slices of one step that work on the same bytes become one *bundle*: the pulls of a reduction with
the pushes of its result, or a slice by itself.  A bundle is cut at whole lines of its destination
(and whole elements) into units of about its tier's size.  Each core keeps the order of the steps;
within a step the order is the scheduler's.

**Balance.**  ``balanced`` is LPT list scheduling: the units of a step by falling cost, each to the
core that is free first, given what cores have from earlier steps.  For ``m`` cores:

* one step: makespan <= (4/3 - 1/(3m)) of the best partition of these units (Graham 1969);
* any steps: makespan <= average load + (1 - 1/m) of the largest unit (Graham 1966), so within 4/3
  of ``bound_ps`` wherever no unit is above a third of the average load.

Nothing better can be claimed of given units: ``m + 1`` equal ones need two of them on one core.
So where units of the tier's size do not come within 2 % of the average, the step is cut finer, its
tail finest, until no unit is above a third of the step's average.  Small units pay more start-ups: if
the step is then still 3 % above what no cut can be below (what it moves by ``m``, and one start-up),
units about equal are tried too, 1 to 4 a core.  Of all these cuts the one that is done first is taken.
Hence of one step: makespan <= 4/3 of the bound of the finer cut, where no unit must be cut below
``LEAST_UNIT`` bytes for it, and but for these 3 % no later than one equal unit a core.

**Order.**  Units of one cost are dealt round the peers, from ``rank + 1`` on in a flat group and
turned by rank within each farther tier, so that dies do not start on one peer.  ``naive`` gives each
peer its own cores, whatever there is to move and how far.

**Stripes.**  A core has one unit in a stripe, in its order, and at most ``cap[tier]`` cores are on
one peer in it (a copy's or an accumulation's; a reduction has many).

**No deadlock.**  Cores run strictly in order, and every core's order is that of the steps.  So if a
slice waits only for what slices of earlier steps, or of other dies, post, and these waits form no
cycle over (die, step), then neither do they over units: a unit that waits stands behind units of its
own and earlier steps alone.  Several waits become sync units before it, those of a core once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from strata._core import scheduling
from strata._core.scheduling import LEAST_UNIT, MAX_UNITS
from strata.plan.cost import Cost
from strata.plan.records import OPERAND_DTYPE, UNIT_DTYPE
from strata.plan.spec import Spec

__all__ = ["LEAST_UNIT", "MAX_UNITS", "POLICIES", "Units", "schedule", "schedule_all"]

POLICIES = ("balanced", "naive")
FEW = 64  # dies that another thread is worth its start for
MAX_THREADS = 4  # the rest waits for the interpreter


class Units(NamedTuple):
    """What scheduling gives: arrays of a plan, and the cost model's view of it.

    ``loads``        i64, picoseconds of each core
    ``makespan_ps``  the largest of them
    ``bound_ps``     no partition of these units is faster: average load, largest unit, and of one
                     step balanced the k + 1 smallest of the k * cores + 1 largest units
    """

    units: np.ndarray
    operands: np.ndarray
    core_begin: np.ndarray
    buffer_bytes: np.ndarray
    loads: np.ndarray
    makespan_ps: int
    bound_ps: int


def schedule(
    slices: np.ndarray,
    spec: Spec,
    rank: int,
    cores: int,
    *,
    policy: str,
    cost: Cost,
    tiers: np.ndarray,
    local_first: bool,
) -> Units:
    """The units of ``slices`` on ``cores`` cores of one die, in per-core order.

    ``tiers``: u8, the tier of each member as the die sees it (``Topology.seen``).  Peers come in turn
    from ``rank + 1`` on; what is the die's own comes last, or first with ``local_first``.
    Reductions go before copies of their cost.  InvalidArgument for slices that are none.
    """
    return Units(
        *scheduling.schedule(
            slices, tiers, cost.alpha_ps, cost.ps_per_byte, cost.units, cost.caps, UNIT_DTYPE, OPERAND_DTYPE,
            rank=rank, cores=cores, balanced=policy == "balanced", local_first=local_first, dtype=spec.dtype,
            itemsize=spec.itemsize,
        )
    )  # fmt: skip


def schedule_all(
    slices: list[np.ndarray],
    spec: Spec,
    ranks: np.ndarray,
    cores: int,
    *,
    policy: str,
    cost: Cost,
    tiers: list[np.ndarray],
    local_first: bool,
) -> list[Units]:
    """``schedule`` of each of ``ranks``, which ``slices`` and ``tiers`` go by; their arrays share memory.

    Each is what it is by itself, so several threads share them out where that pays.
    """

    def part(begin: int, end: int) -> list[Units]:
        which = slice(begin, end)
        made = scheduling.schedule_all(
            slices[which], tiers[which], cost.alpha_ps, cost.ps_per_byte, cost.units, cost.caps, UNIT_DTYPE,
            OPERAND_DTYPE, ranks=ranks[which].tolist(), cores=cores, balanced=policy == "balanced",
            local_first=local_first, dtype=spec.dtype, itemsize=spec.itemsize,
        )  # fmt: skip
        return [Units._make(one) for one in made]

    number = len(ranks)
    threads = max(1, min(len(os.sched_getaffinity(0)), number // FEW, MAX_THREADS))
    return _together(part, [number * i // threads for i in range(threads + 1)])


def _together(part: Callable[[int, int], list[Units]], bounds: list[int]) -> list[Units]:
    """``part`` of each two bounds, one thread each, this one too; of several errors the first in order."""
    made: list[list[Units]] = [[] for _ in bounds[1:]]
    failed: list[BaseException | None] = [None for _ in bounds[1:]]

    def run(i: int) -> None:
        try:
            made[i] = part(bounds[i], bounds[i + 1])
        except BaseException as e:  # raised below, in the caller's thread
            failed[i] = e

    others = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(1, len(made))]
    for thread in others:
        thread.start()
    run(0)
    for thread in others:
        thread.join()
    for error in failed:
        if error is not None:
            raise error
    return [units for several in made for units in several]
