"""All dies' part of one dispatch and combine, from their routings: for the timing plane, proofs and tests.

A job's dies do the same with what they tell each other; here one process has it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata._core import routing
from strata.errors import InvalidArgument
from strata.plan.moe import windows
from strata.plan.moe.partition import combine_plan, dispatch_plan
from strata.plan.moe.placement import Placement
from strata.plan.plan import Plan

MODES = ("high_throughput", "low_latency")


@dataclass(frozen=True, eq=False)
class Round:
    """What the passes over all dies' tokens gave.

    ``tokens``    i64 (n)
    ``window``    rows of a slot's window; 0 in high throughput
    ``slots``     of each die, i64 (tokens, k): the slot of each choice
    ``counts``    u32 (n, n) tokens from die to die, or (n, P) choices from die to slot in low latency
    ``lists``, ``positions``  of each die: what ``routing.by_rank`` or ``by_slot`` made
    """

    mode: str
    placement: Placement
    tokens: np.ndarray
    window: int
    slots: list[np.ndarray]
    counts: np.ndarray
    lists: list[np.ndarray]
    positions: list[np.ndarray]

    @property
    def low_latency(self) -> bool:
        return self.mode == MODES[1]

    def windows(self, rank: int) -> windows.Windows:
        """What a die receives."""
        if self.low_latency:
            return windows.low_latency(self.counts, self.placement.first, rank, self.window)
        return windows.high_throughput(self.counts, rank)

    def sums(self, rank: int) -> windows.Sums:
        """What a die adds up."""
        if self.low_latency:
            return windows.low_latency_sums(self.counts, self.placement.first, rank, self.window)
        return windows.high_throughput_sums(self.counts, rank)

    def entries(self, rank: int, sums: windows.Sums) -> tuple[np.ndarray, np.ndarray | None]:
        """u64 (tokens, entries) of a combine plan's rows; and in low latency which choice each entry is."""
        if self.low_latency:
            order = self.placement.logical
            return routing.ll_entries(self.slots[rank], self.positions[rank], sums.base, order)
        return routing.ht_entries(self.positions[rank], sums.base), None


def played(tables: Sequence[np.ndarray], placement: Placement, mode: str, most: int | None = None) -> Round:
    """The round in which each die has the tokens of its table, integers (tokens, k): logical experts, -1 none.

    ``most``: of low latency, tokens that a die may have, which windows are made for (None: as many as one has).
    InvalidArgument for what is no routing.
    """
    if mode not in MODES:
        raise InvalidArgument(f"mode is {mode!r}, not one of {', '.join(MODES)}")
    if len(tables) != placement.dies:
        raise InvalidArgument(f"routings of {len(tables)} dies (ranks) for a placement on {placement.dies}")
    slots = [placement.physical(table, rank) for rank, table in enumerate(tables)]
    tokens = np.array([len(table) for table in slots], np.int64)
    if mode == MODES[1]:
        made = [routing.by_slot(slot, placement.slots) for slot in slots]
        most = int(tokens.max()) if most is None else most
        if tokens.max() > most:
            raise InvalidArgument(f"die {int(tokens.argmax())} has {tokens.max()} tokens, and windows are for {most}")
    else:
        made = [routing.by_rank(routing.layout(slot, placement.first)[2]) for slot in slots]
        most = 0
    counts, lists, positions = zip(*made, strict=True)
    return Round(mode, placement, tokens, len(tables) * most, slots, np.stack(counts), list(lists), list(positions))


def dispatch_plans(
    round: Round, row: int, cores: int = 1, *, ranks: Iterable[int] | None = None, **options: Any
) -> list[Plan]:
    """``dispatch_plan`` of each of ``ranks`` (None: all dies); ``options``: path, policy, cost, topology."""
    found = []
    for rank in range(round.placement.dies) if ranks is None else ranks:
        mine = round.windows(rank)
        found.append(dispatch_plan(mine, windows.gathered(round.lists, mine), row, round.tokens, cores, **options))
    return found


def combine_plans(
    round: Round, row: int, dtype: int, cores: int = 1, *, ranks: Iterable[int] | None = None, **options: Any
) -> list[Plan]:
    """``combine_plan`` of each of ``ranks`` (None: all dies); ``options``: path, policy, cost, topology."""
    found = []
    for rank in range(round.placement.dies) if ranks is None else ranks:
        sums = round.sums(rank)
        found.append(combine_plan(sums, round.entries(rank, sums)[0], row, dtype, cores, **options))
    return found
