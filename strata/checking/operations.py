"""Operations of a group: who has come, with what, and what order they make."""

from __future__ import annotations

from typing import Any

from strata._core.names import OPERATIONS
from strata.checking.clocks import Clock
from strata.checking.events import Op
from strata.checking.places import Place

__all__ = ["FORMING", "LATER", "MISMATCH", "NOTHING", "OK", "ROOT_FIRST", "ROOT_LAST", "TIMEOUT", "Record", "key_of"]

OK, LATER, TIMEOUT, MISMATCH = "ok", "later", "CollectiveTimeout", "CollectiveMismatch"
NOTHING = OPERATIONS[-1]  # what a die does in the place of an operation that is an error of its own there
ROOT_FIRST = frozenset({"broadcast", "scatter"})  # root before -> all after
ROOT_LAST = frozenset({"reduce", "gather"})  # all before -> root after
FORMING = frozenset({"split", "subgroup", "shrink", "grow"})  # numbered apart from what the new group does

Key = tuple[str, bool, int]


def key_of(group: str, op: str, n: int) -> Key:
    """What tells an operation of a job from the others."""
    return group, op in FORMING, n


class Record:
    """One operation, from the first member that comes to it until the last has left it."""

    __slots__ = ("arrived", "clocks", "given_up", "key", "left", "members", "reported", "statuses", "tasks", "waiters")

    def __init__(self, key: Key, members: tuple[int, ...]) -> None:
        self.key = key
        self.members = members
        self.arrived: dict[int, tuple[Op, Place]] = {}  # by world rank, in order of coming
        self.tasks: dict[int, Any] = {}
        self.statuses: dict[int, str] = {}  # the first, then the last
        self.clocks: dict[int, Clock] = {}  # what members knew when they came
        self.left: set[int] = set()
        self.waiters: list[Any] = []
        self.given_up: list[Op] = []  # of members that came once more afterwards
        self.reported = False  # that its members do not agree

    def missing(self) -> list[int]:
        """Members that have not come, as far as events tell."""
        return [rank for rank in self.members if rank not in self.arrived]

    def again(self, rank: int) -> None:
        """A member whose first try has failed comes once more: only forming a group is tried again as the same one."""
        self.given_up.append(self.arrived.pop(rank)[0])
        del self.statuses[rank]
        self.clocks.pop(rank, None)
        self.left.discard(rank)

    def needs(self, op: Op, rank: int) -> tuple[int, ...]:
        """Those whose coming is ordered before the end of the operation at ``rank``."""
        if op.op in ROOT_FIRST and op.root >= 0:
            return () if rank == op.root else (op.root,)
        if op.op in ROOT_LAST and op.root >= 0:
            return op.members if rank == op.root else ()
        return op.members

    def blocks(self, rank: int) -> bool:
        """Whether ``rank`` cannot leave it yet, for all that has been heard."""
        return self.statuses.get(rank, LATER) == LATER and bool(self.missing())


def title(op: Op) -> str:
    """An operation in words."""
    if op.op in FORMING:
        return f"{op.op} that makes {op.name or 'a group'}"
    return f"{op.op} number {op.n} of {op.name or 'group ' + op.group[:8]}"
