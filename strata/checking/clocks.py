"""Vector clocks: what a task knows of the others' past.

A clock maps *slots* to counts.  A task has a slot of its own and counts its releases there: an
access made at (slot, count) is ordered before all that is done by a task whose clock has that
slot at ``count`` or more.  The slot of a task that has ended goes to a later task of the die that
knows all of it before it does anything; so the number of slots is that of tasks at one time,
however many there are one after another.

Source of the idea: C. Flanagan, S. Freund: FastTrack (PLDI 2009), sections 2 and 3 (epochs).
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Clock", "Slots", "acquire", "floor"]

Clock = dict[int, int]
KNOWN = 64  # free slots that a fork looks at


def acquire(clock: Clock, other: Clock) -> None:
    """``clock`` also knows what ``other`` does."""
    get = clock.get
    for slot, count in other.items():
        if count > get(slot, 0):
            clock[slot] = count


def floor(clocks: Iterable[Clock]) -> Clock:
    """What all of them know."""
    least: Clock | None = None
    for clock in clocks:
        if least is None:
            least = dict(clock)
        else:
            least = {slot: min(count, clock[slot]) for slot, count in least.items() if slot in clock}
    return least or {}


class Slots:
    """Hands out slots of one job."""

    def __init__(self) -> None:
        self.count = 0
        self._free: dict[int, dict[int, int]] = {}  # die -> slot -> its last count

    def start(self, die: int, clock: Clock) -> int:
        """A slot for a task of ``die`` that begins with ``clock``, which is set to its first count."""
        free = self._free.get(die)
        for tried, (slot, last) in enumerate(reversed(free.items()) if free else ()):
            if clock.get(slot, 0) >= last:
                assert free is not None
                del free[slot]
                clock[slot] = last + 1
                return slot
            if tried >= KNOWN:
                break
        self.count += 1
        clock[self.count] = 1
        return self.count

    def end(self, die: int, slot: int, last: int) -> None:
        """The task that had ``slot`` has ended, at count ``last``."""
        self._free.setdefault(die, {})[slot] = last
