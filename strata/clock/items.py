"""What takes virtual time on a die: when it began, when it ended, and what it waits for to know.

Times are whole picoseconds.  ``begin`` and ``end`` are None until they are known; an item that is ``after`` others
begins when the last of them ends, and not before it was issued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from strata.errors import CollectiveMismatch

if TYPE_CHECKING:
    from strata.clock.die import Clock

DEPTH = 1024  # items that one may have behind it, in memory

__all__ = ["Collective", "Duration", "Item", "Message", "Past"]


class Item:
    """``kind``: what it counts as; ``where``: the track it is drawn on; ``nbytes``: of this die."""

    def __init__(self, clock: Clock, kind: str, where: str, after: Iterable[Item | None], nbytes: int = 0) -> None:
        self.clock, self.kind, self.where, self.nbytes = clock, kind, where, nbytes
        self.issue = clock.now_ps
        self.after = tuple(a for a in after if a is not None and (a.end is None or a.end > self.issue))
        self.begin: int | None = None
        self.end: int | None = None
        self.before: Item | None = None  # the one with whose end it began
        self.depth = 0  # items that are linked so
        self.error: BaseException | None = None  # why its end could not be found

    def look(self) -> bool:
        """Goes on as far as that is possible now; whether the end is known.  The caller has the clock's lock."""
        if self.end is None and self.begin is None and all(a.end is not None for a in self.after):
            self.begin = self._latest()
            self._link()
            self.told()
        if self.end is None and self.begin is not None:
            end = self.find(self.begin)
            if end is not None and self.end is None:  # it has not been dropped
                self.end = end
                self.clock.books.ended(self)
        return self.end is not None

    def _latest(self) -> int:
        return max([self.issue, *(a.end for a in self.after if a.end is not None)])

    def _link(self) -> None:
        """Remembers what it began after, so that who waits for it knows what was waited for."""
        latest = next((a for a in self.after if a.end == self.begin), None)
        if latest is not None and latest.depth < DEPTH:
            self.before, self.depth = latest, latest.depth + 1
        self.after = ()

    def told(self) -> None:
        """Its begin is known."""

    def find(self, begin: int) -> int | None:
        """Its end, if that is known."""
        raise NotImplementedError

    def drop(self, error: BaseException | None = None) -> None:
        """It has failed, and takes no time."""
        if self.begin is None:
            self.begin = self._latest()
        if self.end is None:
            self.end, self.error = self.begin, error
            self.clock.books.failed += 1
        self.after = ()

    def well(self) -> None:
        """It was carried out, unless it was handed to a thread."""

    def waits(self) -> None:
        """The host is about to wait for it."""

    def delivers(self, destination: Any, temporary: Any) -> tuple[Any, Any]:
        """What its output is copied to at its end, and from."""
        return destination, temporary

    def seen(self) -> None:
        """The host has looked, and it has ended: no time passes by that."""

    def raised(self, error: BaseException) -> None:
        """Whoever waited for it has got its error: no time passes by that."""

    def join(self) -> None:
        """The host goes on when it has ended."""
        self.clock.join(self)


class Past(Item):
    """A time that is known: when the host came to something."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, "", "", ())
        self.begin = self.end = self.issue


class Duration(Item):
    """Takes ``ps`` picoseconds, whatever peers do; 0: what comes after it waits for all that it is after."""

    def __init__(self, clock: Clock, kind: str, where: str, after: Iterable[Item | None], ps: int = 0,
                 nbytes: int = 0) -> None:  # fmt: skip
        super().__init__(clock, kind, where, after, nbytes)
        self.ps = ps

    def find(self, begin: int) -> int | None:
        return begin + self.ps


class Shared(Item):
    """An operation with peers: ``key`` (channel, number) is the same on all of them, ``ranks`` their world ranks.

    ``carried`` says whether it was carried out: None, it goes on; ``asked`` finds out ("well", "mismatch", "failed").
    """

    def __init__(self, clock: Clock, kind: str, where: str, after: Iterable[Item | None], nbytes: int,
                 ranks: tuple[int, ...], key: tuple[int, int], way: int) -> None:  # fmt: skip
        super().__init__(clock, kind, where, after, nbytes)
        self.ranks, self.key, self.way = ranks, key, way
        self.carried: bool | None = None
        self.handed = False
        self.asked: Callable[[], str | None] | None = None
        self.listeners = self.speakers = tuple(r for r in ranks if r != clock.rank)  # who is told, and who tells

    def begun(self, work: Any) -> None:
        """It is carried out by a thread, and ``work`` tells of it."""
        self.handed, self.asked = True, work.outcome

    def told(self) -> None:
        self.clock.tell(self.listeners, self.key, self.begin or 0, self.way)

    def find(self, begin: int) -> int | None:
        if self.carried is None and self.asked is not None:
            self._settle(self.asked())
        if not self.carried:
            return None
        self.asked = None
        heard = self.clock.hear(self.speakers, self.key)
        if heard is None:
            return None
        return self.predicted(begin, heard)

    def predicted(self, begin: int, heard: dict[int, tuple[int, int]]) -> int:
        """The end, with what each speaker has told: begin and way."""
        raise NotImplementedError

    def _settle(self, how: str | None) -> None:
        if how is not None:
            self.carried = how == "well"
            if not self.carried:
                self.gone(how == "mismatch")

    def gone(self, mismatch: bool) -> None:
        """It was not carried out; ``mismatch``: on no member."""
        self.drop()
        self.clock.forget(self.key)

    def drop(self, error: BaseException | None = None) -> None:
        untold = self.begin is None
        super().drop(error)
        self.asked = None
        if untold:  # peers for whom it went well must not wait
            self.told()

    def fail(self, error: BaseException) -> None:
        """The host could not carry it out."""
        with self.clock.lock:
            if self.end is None:
                self._settle("mismatch" if isinstance(error, CollectiveMismatch) else "failed")

    def well(self) -> None:
        """It was carried out, unless it was handed to a thread."""
        if not self.handed:
            self.carried = True


class Collective(Shared):
    """``predict``: from begins and ways by world rank to this die's end."""

    def __init__(self, *args: Any, predict: Callable[[dict[int, tuple[int, int]]], int]) -> None:
        super().__init__(*args)
        self._predict = predict

    def predicted(self, begin: int, heard: dict[int, tuple[int, int]]) -> int:
        return self._predict({**heard, self.clock.rank: (begin, self.way)})


class Message(Shared):
    """A send, or a receive: ``ranks`` are (source, target).  A sender does not wait for the receiver of an eager one.

    ``undo``: its number is free again, since nobody has received it.
    """

    def __init__(self, *args: Any, receive: bool, eager: bool, undo: Callable[[], None]) -> None:
        super().__init__(*args)
        self.receive, self.eager, self._undo = receive, eager, undo
        if self.ranks[0] == self.ranks[1]:
            self.listeners, self.speakers = (() if receive else self.ranks[:1]), (self.ranks[:1] if receive else ())
        elif eager:
            self.listeners, self.speakers = (() if receive else self.listeners), (self.speakers if receive else ())

    def predicted(self, begin: int, heard: dict[int, tuple[int, int]]) -> int:
        source, target = self.ranks
        if self.receive:
            sent = heard[source][0]
            return self.clock.predictor.message(source, target, self.nbytes, self.eager, (sent, begin))[1]
        come = begin if self.eager else heard[target][0]
        return self.clock.predictor.message(source, target, self.nbytes, self.eager, (begin, come))[0]

    def gone(self, mismatch: bool) -> None:
        self.drop()
        if mismatch:  # the message is gone
            self.clock.forget(self.key)
        else:
            self._undo()
