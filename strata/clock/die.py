"""A die's clock: where its host is in virtual time, what is still to be found, and what peers have told."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from strata import errors
from strata._core.space import Context
from strata._core.times import Board
from strata.clock.books import Books
from strata.clock.items import Item
from strata.clock.predictor import Predictor
from strata.machine import Machine
from strata.plan.select import Settings

__all__ = ["Clock"]

QUIET = 64  # looks before a waiter sleeps
PATIENCE = 0.02  # seconds between looks at whether peers live
KEPT = 4096  # operations of which is remembered that they failed
RESTING = 0.2  # seconds without work after which the thread ends
END_PS = 1 << 61  # when clocks end
LAST = 1.0  # seconds that the end of a job gives to what has really ended


class Clock:
    """``now_ps``: when the host is.  One for all threads of a die.

    A die that has come to an operation tells its peers in records (strata._core.times); each finds the end for itself.
    Ends that nobody waits for, but that later operations begin with, are found by a thread.
    """

    def __init__(self, context: Context, machine: Machine, settings: Settings) -> None:
        self.context, self.machine, self.rank = context, machine, context.rank
        self.now_ps = 0
        self.sent: tuple[int, int, int] | None = None  # of what the launcher has been told
        self.lock = threading.RLock()
        self.books = Books(context.rank, context.ndies)
        self.predictor = Predictor(machine, settings, context.rank)
        self._board = Board(context)
        self._pending: list[Item] = []
        self._heard: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self._failed: dict[tuple[int, int], None] = {}
        self._late: dict[int, deque[tuple[int, int, int, int]]] = {}  # by die: what did not fit its ring
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- the host ------------------------------------------------------------------------

    def spend(self, kind: str, ps: int) -> None:
        """The host is busy for so long.  InvalidArgument: the clock ends before."""
        with self.lock:
            if self.now_ps + ps > END_PS:
                raise errors.InvalidArgument(f"{kind}: the clock is at {self.now_ps / 1e6:g} us, and ends at "
                                             f"{END_PS / 1e6:g}")  # fmt: skip
            self.books.host(kind, self.now_ps, ps)
            self.now_ps += ps

    def issue(self, item: Item) -> Item:
        """Takes an item on; its peers are told as soon as its begin is known."""
        with self.lock:
            self._pending.append(item)
            self._look()
            unknown = any(i.begin is None for i in self._pending)
        if unknown or self._late:
            self._follow()
        return item

    def join(self, item: Item) -> None:
        """The host waits for an item.  CollectiveTimeout, PeerDead: its end cannot be found."""
        self._find(item)
        if item.error is not None:
            raise item.error
        with self.lock:
            assert item.end is not None
            if item.end > self.now_ps:
                self.books.exposed(item, self.now_ps)
                self.now_ps = item.end

    def _find(self, item: Item) -> None:
        """Returns when an item's end is known."""
        until = time.monotonic() + self.context.config.timeout
        asked, looks = time.monotonic() + PATIENCE, 0
        while True:
            with self.lock:
                self._look()
                if item.end is not None:
                    return
            looks += 1
            time.sleep(0 if looks < QUIET else 1e-4)
            now = time.monotonic()
            if now < asked:
                continue
            asked = now + PATIENCE
            self._bury()
            if now > until:
                with self.lock:
                    missing = self._silent(item)
                    item.drop()
                raise errors.CollectiveTimeout(
                    f"the operation went well, but its virtual end is not known: ranks {missing} have not told when "
                    "they came to it", ranks=missing, operation=item.kind)  # fmt: skip

    def _silent(self, item: Item) -> list[int]:
        speakers = getattr(item, "speakers", ())
        heard = self._heard.get(getattr(item, "key", (0, 0)), {})
        return [r for r in speakers if r not in heard]

    def _bury(self) -> None:
        """Operations whose begin a dead peer can tell nobody any more take no time."""
        with self.lock:
            self._look()
            for item in list(self._pending):
                if item.begin is None or getattr(item, "carried", None) is None:
                    continue
                if any(not self.context.die_info(r)["alive"] for r in self._silent(item)):
                    item.drop()
            self._look()

    def _look(self) -> None:
        """Finds what can be found now."""
        for die in list(self._late):
            self._flush(die)
        self._pending = [item for item in self._pending if not self._over(item)]

    def _over(self, item: Item) -> bool:
        try:
            return item.look()
        except Exception as error:  # of the prediction: for who waits for it
            item.drop(error)
            return True

    # ---- peers ----------------------------------------------------------------------------

    def tell(self, ranks: Iterable[int], key: tuple[int, int], begin: int, way: int) -> None:
        """Tells dies (world ranks) when this one came to an operation."""
        for die in ranks:
            if die == self.rank:
                self._heard.setdefault(key, {})[die] = (begin, way)
            else:
                self._late.setdefault(die, deque()).append((*key, begin, way))
                self._flush(die)

    def _flush(self, die: int) -> None:
        late = self._late[die]
        while late:
            if not self._board.put(die, *late[0]):
                return
            late.popleft()
        del self._late[die]

    def hear(self, ranks: Sequence[int], key: tuple[int, int]) -> dict[int, tuple[int, int]] | None:
        """What dies have told of an operation, once; None: not all have."""
        if not ranks:
            return {}  # what is there is for another item
        for die in ranks:
            if die == self.rank:
                continue
            while (record := self._board.take(die)) is not None:
                channel, number, begin, way = record
                if (channel, number) not in self._failed:
                    self._heard.setdefault((channel, number), {})[die] = (begin, way)
        found = self._heard.get(key, {})
        if any(r not in found for r in ranks):
            return None
        self._heard.pop(key, None)
        return found

    def forget(self, key: tuple[int, int]) -> None:
        """An operation failed: what peers tell of it is not kept."""
        self._heard.pop(key, None)
        self._failed[key] = None
        if len(self._failed) > KEPT:
            del self._failed[next(iter(self._failed))]

    # ---- the thread -------------------------------------------------------------------------

    def _follow(self) -> None:
        with self.lock:
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="strata-clock", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Finds ends that later begins wait for, until there are none."""
        idle = time.monotonic()
        while self.context.here:
            self._wake.clear()
            with self.lock:
                before = len(self._pending)
                self._look()
                busy = bool(self._late) or any(i.begin is None for i in self._pending)
                moved = len(self._pending) != before
            if not busy:
                self._wake.wait(RESTING)
                with self.lock:
                    if not self._wake.is_set():
                        self._thread = None
                        return
                continue
            now = time.monotonic()
            if moved:
                idle = now
            if now - idle > PATIENCE:
                self._bury()
            time.sleep(1e-4 if now - idle < 0.1 else 2e-3)

    def close(self) -> None:
        """At the end: finds what can still be found, and tells what is still to be told."""
        until = time.monotonic() + LAST
        while True:
            with self.lock:
                self._look()
                rest = [i for i in self._pending if i.begin is None or getattr(i, "carried", None)]
            if not (rest or self._late) or time.monotonic() > until:
                return
            self._bury()
            time.sleep(1e-3)
