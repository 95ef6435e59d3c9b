"""Which array was where: names for addresses, and the array that a view was made of."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from strata.checking.clocks import Clock
from strata.checking.shadow import Access

__all__ = ["Allocation", "Memory"]

OLDER = 4  # arrays at the same place that are remembered
MOST = 1 << 16  # freed arrays that are remembered


class Allocation:
    """An array, from its alloc to its free."""

    __slots__ = ("alloc", "free", "hi", "lo", "older")

    def __init__(self, lo: int, hi: int, alloc: Access) -> None:
        self.lo = lo
        self.hi = hi
        self.alloc = alloc
        self.free: Access | None = None
        self.older: Allocation | None = None  # the one at its place before


class Memory:
    """The arrays of one job, the last one at each address."""

    def __init__(self) -> None:
        self._los: list[int] = []
        self._all: list[Allocation] = []

    def _overlap(self, lo: int, hi: int) -> tuple[int, int]:
        first = max(0, bisect_right(self._los, lo) - 1)
        while first < len(self._all) and self._all[first].hi <= lo:
            first += 1
        return first, max(first, bisect_left(self._los, hi))

    def alloc(self, lo: int, hi: int, access: Access) -> None:
        """A new array takes the place of all that was there."""
        first, last = self._overlap(lo, hi)
        new = Allocation(lo, hi, access)
        new.older = self._all[first] if last > first else None
        self._los[first:last] = [lo]
        self._all[first:last] = [new]
        older: Allocation | None = new
        for _ in range(OLDER):
            older = older.older if older else None
        if older:
            older.older = None

    def free(self, lo: int, hi: int, access: Access) -> None:
        """Arrays in [lo, hi) are gone."""
        first, last = self._overlap(lo, hi)
        for allocation in self._all[first:last]:
            allocation.free = allocation.free or access

    def find(self, address: int) -> Allocation | None:
        """The last array at an address."""
        at = bisect_right(self._los, address) - 1
        return self._all[at] if at >= 0 and address < self._all[at].hi else None

    def seen(self, address: int, clock: Clock) -> Allocation | None:
        """The array at an address as a task with this clock knows it."""
        found = self.find(address)
        while found is not None and not found.alloc.before(clock) and found.older is not None:
            found = found.older
        return found

    def drop(self) -> None:
        """Forgets arrays that were freed, the lowest first, when there are too many."""
        if len(self._all) > MOST:
            kept = [a for k, a in enumerate(self._all) if a.free is None or k >= len(self._all) - MOST // 2]
            self._all = kept
            self._los = [a.lo for a in kept]

    def describe(self, lo: int, hi: int) -> str:
        """Bytes by the array that they are of."""
        found = self.find(lo)
        if found is None:
            return f"{hi - lo} bytes at {lo:#x}"
        place = found.alloc.place
        whose = f"the array that rank {found.alloc.die} made at {place}" + (f" ({place.text})" if place.text else "")
        size = found.hi - found.lo
        if lo == found.lo and hi >= found.hi:
            return f"all {size} bytes of {whose}, at {lo:#x}"
        return f"bytes {lo - found.lo} to {hi - found.lo} (the end excluded) of the {size} of {whose}, at {lo:#x}"
