"""What a die's clock has counted, and the last of what happened, for tables and traces."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.clock.items import Item

__all__ = ["Books"]

EVENTS = 1 << 16  # that a die keeps, the last ones; fewer of many dies
HOST = "host"


class Books:
    """``events``: (track, name, begin, length, bytes), picoseconds.  A track's events may overlap."""

    def __init__(self, rank: int, ndies: int) -> None:
        self.rank = rank
        self.failed = 0  # operations
        self.spent: dict[str, int] = {"compute": 0, "advance": 0}
        self.kinds: dict[str, list[int]] = {}  # calls, bytes, picoseconds, of them exposed
        self.events: deque[tuple[str, str, int, int, int]] = deque(maxlen=min(EVENTS, (1 << 21) // ndies))
        self.seen = 0

    def _event(self, track: str, name: str, begin: int, ps: int, nbytes: int = 0) -> None:
        self.seen += 1
        self.events.append((track, name, begin, ps, nbytes))

    def host(self, kind: str, begin: int, ps: int) -> None:
        """The host was busy: "compute" or "advance"."""
        self.spent[kind] += ps
        if ps:
            self._event(HOST, kind, begin, ps)

    def ended(self, item: Item) -> None:
        """An operation's end is known."""
        if not item.kind or item.begin is None or item.end is None:
            return
        row = self._kind(item.kind)
        row[0] += 1
        row[1] += item.nbytes
        row[2] += item.end - item.begin
        self._event(item.where, item.kind, item.begin, item.end - item.begin, item.nbytes)

    def exposed(self, item: Item, now: int) -> None:
        """The host is blocked from ``now`` until an item ends: by it, and by those before it that end later."""
        assert item.end is not None
        kind, until, at = item.kind, item.end, item.end
        self._event(HOST, f"waits: {kind}" if kind else "waits", now, until - now)
        this: Item | None = item
        while this is not None and at > now:
            begin = max(now, min(at, this.begin or 0))
            if at > begin:
                self._kind(this.kind)[3] += at - begin
            at, kind, before = begin, this.kind, this.before
            this.before, this = None, before
        if at > now:
            self._kind(kind)[3] += at - now

    def _kind(self, name: str) -> list[int]:
        return self.kinds.setdefault(name or "wait", [0, 0, 0, 0])

    def summary(self, now_ps: int) -> dict[str, Any]:
        """In microseconds; ``operations`` by name."""
        rows = {
            name: {"calls": calls, "bytes": nbytes, "time_us": ps / 1e6, "exposed_us": exposed / 1e6}
            for name, (calls, nbytes, ps, exposed) in sorted(self.kinds.items())
        }
        time = sum(row[2] for row in self.kinds.values())
        exposed = sum(row[3] for row in self.kinds.values())
        return {
            "rank": self.rank,
            "time_us": now_ps / 1e6,
            "compute_us": self.spent["compute"] / 1e6,
            "advance_us": self.spent["advance"] / 1e6,
            "exposed_us": exposed / 1e6,
            "operations_us": time / 1e6,
            "overlapped_us": max(0, time - exposed) / 1e6,
            "failed": self.failed,
            "operations": rows,
            "dropped_events": self.seen - len(self.events),
        }

    def trace(self) -> list[tuple[str, str, int, int, int]]:
        """The events that are kept, by begin."""
        return sorted(self.events, key=lambda e: (e[2], e[0], -e[3], e[1], e[4]))
