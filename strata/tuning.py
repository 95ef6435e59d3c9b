"""Measuring the algorithms on this host, for the table that selection can go by."""

from __future__ import annotations

import math
import random
import socket
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from strata import comm
from strata.errors import InvalidArgument
from strata.fabric import arrays
from strata.launch import spawn
from strata.plan import algorithms
from strata.plan.records import DTYPE_NAMES, OP_NAMES
from strata.plan.spec import PARTED, REDUCTIONS, Spec
from strata.plan.table import Table
from strata.selection import settings

__all__ = ["OPERATIONS", "measure", "sizes", "tune"]

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")
_GATHERS = ("all_gather", "gather")

Row = tuple[str, int, int, dict[str, float]]


def sizes(begin: int, end: int, factor: int = 4) -> list[int]:
    """Sizes from ``begin`` to ``end`` bytes, each ``factor`` times the one before."""
    if not 0 < begin <= end or factor < 2:
        raise InvalidArgument(f"sizes from {begin} to {end} by a factor of {factor}")
    count = int(math.log(end / begin, factor) + 1e-9) + 1
    return [begin * factor**i for i in range(count)]


def tune(
    ranks: Iterable[int],
    nbytes: Sequence[int],
    operations: Sequence[str] = OPERATIONS,
    *,
    rounds: int = 5,
    seconds: float = 0.02,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Table:
    """A table of this host's times: every algorithm that the library may choose, in each operation, at
    each number of members and size (bytes of a member's largest array).

    ``rounds``   of each algorithm, in an order that changes; the median counts
    ``seconds``  that a round takes, about
    """
    rows: list[Row] = []
    for n in ranks:
        if progress:
            progress(f"{n} dies")
        rows += spawn(measure, n, list(nbytes), list(operations), rounds, seconds, seed)[0]
    return Table(f"{socket.gethostname()}, {time.strftime('%Y-%m-%d')}", rows)


def measure(nbytes: list[int], operations: list[str], rounds: int, seconds: float, seed: int,
            free: bool = True) -> list[Row]:  # fmt: skip
    """What ``tune`` runs on every die: rows of a table, the same on all dies.

    ``free``: only algorithms that the library may choose; else baselines as well.
    """
    group = comm.world()
    rows: list[Row] = []
    for operation in operations:
        for size in nbytes:
            row = _cell(group, operation, size, rounds, seconds, random.Random(f"{seed} {operation} {size}"), free)
            rows += [row] if row else []
    return rows


def _cell(group: Any, operation: str, size: int, rounds: int, seconds: float, chance: random.Random,
          free: bool) -> Row | None:  # fmt: skip
    n = group.size
    part = size // n if operation in PARTED or operation in _GATHERS else size
    part -= part % 4
    if part <= 0:
        return None
    spec = spec_of(operation, n, part)
    names = [a.name for a in algorithms.available(spec, settings().topology) if a.chosen_freely or not free]
    call = _call(group, operation, part)
    times: dict[str, list[float]] = {name: [] for name in names}
    counts = {name: _count(group, call, name, seconds) for name in names}
    for _ in range(rounds):
        for name in chance.sample(names, len(names)):
            times[name].append(_time(group, call, name, counts[name]))
    return operation, n, part, {name: round(statistics.median(t), 3) for name, t in times.items()}


def spec_of(operation: str, n: int, part: int) -> Spec:
    """What is measured: float32, sums where there is a choice, ``part`` bytes as a table's rows count them."""
    reduces = operation in REDUCTIONS
    return Spec(operation, part // 4, 4, DTYPE_NAMES.index("f32") if reduces else 0,
                OP_NAMES.index("sum") if reduces else 0, nranks=n)  # fmt: skip


def _call(group: Any, operation: str, part: int) -> Callable[[str], Any]:
    """The operation on arrays of its own; float32, ``part`` bytes as a spec counts them."""
    n, elements = group.size, part // 4
    src = arrays.ones(elements * (n if operation in PARTED else 1), "f4")
    shape = elements * n if operation in _GATHERS else elements
    out = src if operation == "all_reduce" else arrays.ones(src.shape if operation == "all_to_all" else shape, "f4")
    run = getattr(group, operation)
    if operation == "broadcast":
        return lambda name: run(out, algorithm=name)
    if operation == "all_reduce":
        return lambda name: run(out, op="max", algorithm=name)
    return lambda name: run(src, out, algorithm=name)


def _count(group: Any, call: Callable[[str], Any], name: str, seconds: float) -> int:
    """Calls that take about ``seconds``, alike on all dies; the first call builds the plan."""
    call(name)
    once = _time(group, call, name, 1)
    return max(1, min(1000, int(seconds * 1e6 / max(once, 0.1))))


def _time(group: Any, call: Callable[[str], Any], name: str, count: int) -> float:
    """Microseconds of a call, of the slowest die."""
    group.barrier()
    begin = time.perf_counter_ns()
    for _ in range(count):
        call(name)
    mine = np.array([(time.perf_counter_ns() - begin) / 1e3 / count])
    group.all_reduce(mine, op="max")
    return float(mine[0])
