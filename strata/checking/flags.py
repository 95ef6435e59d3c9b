"""Flags, messages and chains: what one task posts and others take."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from strata.checking.clocks import Clock, acquire
from strata.checking.events import Post, Take
from strata.checking.places import Place

if TYPE_CHECKING:
    from strata.checking.tasks import Task

__all__ = ["Flag", "Flags", "words"]

MOST = 1 << 16  # flags that are remembered although everybody knows all of their posts
TURN = "host:"  # key of the turns that a die's threads take
MESSAGE = "p2p:"  # keys of messages
WORD = "flag:"  # keys of flags in memory; an address follows


class Flag:
    """One key.  ``base``: the highest value whose post everybody knows; what it carried is dropped."""

    __slots__ = ("_clocks", "_values", "adds", "added", "base", "sites", "taken", "waiters")

    def __init__(self) -> None:
        self._values: list[int] = []
        self._clocks: list[Clock] = []  # of all posts up to the value
        self.base = -1
        self.adds = 0
        self.added: Clock = {}
        self.taken = 0  # the highest value
        self.sites: dict[int, tuple[int, Place]] = {}  # value -> (rank, place), of messages that nobody has taken
        self.waiters: list[Any] = []

    def post(self, value: int, add: int, clock: Clock) -> None:
        """It was raised to ``value``, or by ``add``."""
        if add:
            self.adds += add
            acquire(self.added, clock)
            return
        at = bisect_left(self._values, value)
        if at < len(self._values) and self._values[at] == value:
            acquire(self._clocks[at], clock)
        else:
            if at:
                clock = dict(clock)
                acquire(clock, self._clocks[at - 1])
            self._values.insert(at, value)
            self._clocks.insert(at, clock)
        for later in self._clocks[at + 1 :]:
            acquire(later, clock)

    def unpost(self, value: int) -> None:
        """What was posted last, ``value``, is withdrawn, if nobody has taken it."""
        if self._values and self._values[-1] == value > self.taken:
            del self._values[-1], self._clocks[-1]
        elif self.base == value > self.taken:
            self.base -= 1
        self.sites.pop(value, None)

    def reached(self, value: int) -> bool:
        """Whether a wait for ``value`` is over."""
        top = max(self.base, self._values[-1] if self._values else -1)
        return (max(top, 0) + self.adds if self.adds else top) >= value

    def take(self, value: int, clock: Clock) -> bool:
        """``clock`` gets what the posts up to the first value that ends the wait know; False: none does yet."""
        if not self.reached(value):
            return False
        if self.adds:
            upto = len(self._values)
            acquire(clock, self.added)
        elif self.base >= value:
            upto = bisect_right(self._values, value)
        else:
            upto = bisect_left(self._values, value) + 1
        if upto:
            acquire(clock, self._clocks[upto - 1])
        self.taken = max(self.taken, value)
        return True

    def drop(self, known: Clock) -> bool:
        """Forgets what all tasks know; True if nothing else is left."""
        count = 0
        for clock in self._clocks:
            if any(known.get(slot, 0) < n for slot, n in clock.items()):
                break
            count += 1
        if count:
            self.base = max(self.base, self._values[count - 1])
            del self._values[:count], self._clocks[:count]
        if self.adds and all(known.get(slot, 0) >= n for slot, n in self.added.items()):
            self.added = {}
        return not (self._values or self.added or self.waiters or self.sites)


class Flags:
    """All keys of a job."""

    def __init__(self) -> None:
        self._flags: OrderedDict[str, Flag] = OrderedDict()
        self._words: list[int] = []  # addresses of flags, ascending

    def __getitem__(self, key: str) -> Flag:
        flag = self._flags.get(key)
        if flag is None:
            flag = self._flags[key] = Flag()
            if key.startswith(WORD):
                with suppress(ValueError):  # a name of the user's own
                    insort(self._words, int(key[len(WORD) :], 16))
        return flag

    def __len__(self) -> int:
        return len(self._flags)

    def forget(self, lo: int, hi: int) -> None:
        """The flag words in [lo, hi) are no longer, or new ones: what was posted there says nothing of those."""
        first = bisect_left(self._words, lo)
        last = bisect_left(self._words, hi)
        for word in self._words[first:last]:
            old = self._flags.pop(f"{WORD}{word:x}", None)
            if old is not None and old.waiters:
                self._flags[f"{WORD}{word:x}"] = new = Flag()
                new.waiters = old.waiters
        del self._words[first:last]

    def post(self, key: str, value: int, add: int, clock: Clock, rank: int, place: Place) -> list[Any]:
        """Returns the tasks that may go on."""
        flag = self[key]
        flag.post(value, add, clock)
        if key.startswith(MESSAGE) and value > flag.taken:
            flag.sites[value] = (rank, place)
        waiters, flag.waiters = flag.waiters, []
        return waiters

    def take(self, key: str, value: int, clock: Clock, task: Task) -> bool:
        """False: ``task`` has to wait, and is told by post()."""
        task.thread |= key.startswith(TURN)
        flag = self[key]
        if not flag.take(value, clock):
            flag.waiters.append(task)
            return False
        flag.sites.pop(value, None)
        return True

    def reached(self, key: str, value: int) -> bool:
        """Whether posts that were analysed end a wait."""
        return key in self._flags and self._flags[key].reached(value)

    def messages(self) -> list[tuple[str, int, int, Place]]:
        """Those that nobody has taken: key, number, sender, place."""
        return [(key, n, *sent) for key, flag in self._flags.items() for n, sent in flag.sites.items()]

    def vain(self, tasks: list[Task]) -> list[Task]:
        """Those that go on without the program, and have not gone on: no message or flag came, and none is on its way.

        A thread tells of a message when it has come, or waits for the end of a task that has got it.
        """
        lost: dict[Task, str] = {}
        for task in tasks:
            event = task.queue[0][0] if task.queue else None
            if isinstance(event, Take) and task.number and not task.thread and not task.joiners:
                if not self.reached(event.key, event.value):
                    lost[task] = event.key
        while True:  # what one of the others may post yet is not lost
            coming = {e.key for task in tasks if task not in lost for e, _ in task.queue if isinstance(e, Post)}
            saved = [task for task, key in lost.items() if key in coming]
            if not saved:
                return list(lost)
            for task in saved:
                del lost[task]

    def drop(self, known: Clock) -> None:
        """Forgets what all tasks know, and the oldest keys of which there is nothing else."""
        idle = [key for key, flag in self._flags.items() if flag.drop(known)]
        for key in idle[: max(0, len(idle) - MOST)]:
            del self._flags[key]


def words(key: str) -> str:
    """A key in words."""
    kind, _, rest = key.partition(":")
    if kind == "flag":
        return f"the flag at 0x{rest}"
    if kind == "p2p" and rest.count(":") >= 3:
        _, source, to, tag = rest.split(":", 3)
        return f"messages from rank {source} to rank {to}, tag {tag}"
    names = {"chain": "the operation before in its group", "stream": "the stream", "host": "another thread"}
    return names.get(kind, key)
