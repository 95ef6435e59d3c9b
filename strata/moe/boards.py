"""Boards of a group: made by all members together, used by one Buffer after another.

Others may write to a board as long as their Buffers live, and Buffers end at different times on different members.  So
a board is never given back while its group lives; the next Buffer of the group takes it over, if all members have it
free at the same round.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from strata import errors
from strata._core import heap, memory
from strata._core import moe as core
from strata._core.front import OPERATIONS
from strata.failure import people

__all__ = ["Lease", "lease"]

_GATHER = OPERATIONS.index("all_gather")
OFFERED = 8  # free boards that a member tells the others of


class Lease:
    """A board, and the number of its next round.

    ``ours``  of rounds whose arrays are the library's, that number and these: others may read them still
    """

    def __init__(self, number: int, board: core.Board, round: int) -> None:
        self.number, self.board, self.round = number, board, round
        self.ours: deque[tuple[int, Any]] = deque()

    def posted(self) -> None:
        """The next round has been posted, so all have read the one that had its slot."""
        while self.ours and self.ours[0][0] <= self.round - core.ROUNDS:
            self.ours.popleft()
        self.round += 1


class _Boards:
    """What a group has."""

    def __init__(self) -> None:
        self.made = 0
        self.free: dict[int, Lease] = {}


def _of(group: Any) -> _Boards:
    found: _Boards | None = getattr(group, "_moe_boards", None)
    if found is None:
        found = group._moe_boards = _Boards()
    return found


def release(group: Any, held: Lease) -> None:
    """The next Buffer may have the board: nothing on it is in progress, and all is in order."""
    _of(group).free[held.number] = held


def lease(group: Any, wishes: dict[str, int], timeout: float | None) -> Lease:
    """A board that all members have; called by all.  ``wishes``: arguments that must be alike.

    CollectiveMismatch on all members: they are not; FabricMemoryError; what an exchange of the group raises.
    """
    boards = _of(group)
    free = sorted(boards.free.items())[:OFFERED]
    record = np.zeros(1 + 2 * OFFERED + len(wishes), np.int64)
    record[0] = boards.made
    for i, (number, held) in enumerate(free):
        record[1 + 2 * i : 3 + 2 * i] = number, held.round
    record[1 + 2 * OFFERED :] = list(wishes.values())
    try:
        table = group.exchange(_GATHER, 8, 0, record, timeout)
    except errors.CollectiveTimeout as error:
        raise errors.CollectiveTimeout(f"{people(list(error.ranks))} did not make a moe.Buffer of this group in time; "
                                       "all of its members do", ranks=error.ranks, group=group.name,
                                       operation="moe.Buffer", number=error.number) from error
    _compare(group, wishes, table[:, 1 + 2 * OFFERED :])
    listed = table[:, 1 : 1 + 2 * OFFERED].reshape(len(table), -1, 2)
    offers = [{(int(number), int(at)) for number, at in row if number} for row in listed]
    common = set.intersection(*offers)
    if common:
        return boards.free.pop(min(common)[0])
    boards.made = int(table[:, 0].max()) + 1
    return _make(group, boards.made, timeout)


def _compare(group: Any, wishes: dict[str, int], table: np.ndarray) -> None:
    if (table == table[0]).all():
        return
    bad = []
    for column, name in enumerate(wishes):
        if (table[:, column] != table[0, column]).any():
            said = zip(table[:, column], group.ranks, strict=True)
            bad.append(f"{name} is " + ", ".join(f"{value} on rank {rank}" for value, rank in said))
    raise errors.CollectiveMismatch("members made different Buffers: " + "; ".join(bad), ranks=sorted(group.ranks),
                                    group=group.name, operation="moe.Buffer", number=group.number)


def _make(group: Any, number: int, timeout: float | None) -> Lease:
    failure, at = None, 0
    room = np.zeros(0, np.uint8)
    try:
        nbytes = core.board_bytes(group.size) + 64
        room = memory.alloc_array(group.context, (nbytes,), np.dtype(np.uint8), True, heap.GROUP)
        at = core.format_board(room, group.size)
    except errors.StrataError as error:
        failure = error
    addresses = group.exchange(_GATHER, 8, 0, np.array([at], np.int64), timeout)[:, 0]
    if failure is not None:
        raise failure
    without = [group.ranks[m] for m in np.flatnonzero(addresses == 0)]
    if without:
        raise errors.FabricMemoryError(f"{people(without)} had no memory for a board", ranks=without, group=group.name,
                                       operation="moe.Buffer")
    return Lease(number, core.Board(group, room, [int(a) for a in addresses]), 1)
