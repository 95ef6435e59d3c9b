"""What groups, streams and graphs tell a clock of what they do."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strata._core.front import OPERATIONS
from strata.clock.items import Collective, Duration, Item, Message, Past
from strata.clock.predictor import Asked, way_of
from strata.plan.plan import Plan
from strata.plan.spec import PARTED, Spec

if TYPE_CHECKING:
    from strata.clock.die import Clock

__all__ = ["Lane", "Replays", "Step", "Track"]

REPLAYS = 256  # of a graph that nobody has waited for are remembered
TAILS = 256  # last messages that are kept before those that have ended are let go
EAGER = 4096  # bytes of a message that its sender does not wait with: ST_EAGER_BYTES


def channel(*what: Any) -> int:
    """Members tell each other of operations under numbers in a channel, whose digest is the same on all."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")


def payload(spec: Spec, member: int) -> int:
    """Bytes that a member brings: what strata.simulate calls nbytes."""
    if spec.counts is not None:
        return int(spec.counts[member].sum()) * spec.itemsize
    return spec.part * (spec.nranks if spec.operation in PARTED else 1)


class Step(NamedTuple):
    """A captured operation: of a group by a plan, or (``track`` None) a copy by this die's DMA engine."""

    track: Track | None
    name: str
    plan: Plan | None
    nbytes: int


class Track:
    """A group's operations.  The members call them in one order, and count them alike."""

    def __init__(self, clock: Clock, name: str, key: bytes, ranks: tuple[int, ...]) -> None:
        self.clock, self.name, self.key, self.ranks = clock, name, key, ranks
        self.me = ranks.index(clock.rank)
        self.last: Item | None = None  # of the collectives, which begin one after another
        self.issued = 0
        self.turn = threading.RLock()  # of threads that share the group
        self._channel = channel(key, "calls")
        self._messages: dict[tuple[int, int, int], int] = {}  # source, target, tag -> number of the last
        self._tails: dict[tuple[int, int, int], Item] = {}  # the last of each: the next begins when it has ended

    def collective(self, desc: int, plan: Plan | None, copied: int, stream: Any, *_: Any) -> Item:
        """A call.  ``copied``: bytes of the result in a group of one; ``stream``: that it is queued on, or None; the
        rest is for strata.checking."""
        self.issued += 1
        name = OPERATIONS[desc & 0xFF]
        if plan is not None and plan.spec.operation != name:
            name += " (sizes)"  # which members of scatter and all_to_all_v tell each other first
        lane = None if stream is None else stream.lane
        after = (self.last, None if lane is None else lane.last)
        item = self.item(name, plan, copied, after, (self._channel, self.issued))
        self.last = item
        if lane is not None:
            lane.last = item
        return self.clock.issue(item)

    def item(self, name: str, plan: Plan | None, copied: int, after: Iterable[Item | None],
             key: tuple[int, int]) -> Item:  # fmt: skip
        """Of an operation.  No plan: a barrier, or a group of one."""
        where, n = f"group {self.name}", len(self.ranks)
        if n == 1:
            ps = self.clock.predictor.copy(self.clock.rank, self.clock.rank, copied) if copied else 0
            return Alone(self.clock, name, where, after, ps, copied)
        spec = Spec("barrier", nranks=n) if plan is None else plan.spec
        asked = Asked(spec, "full_mesh" if plan is None else plan.algorithm, self.ranks)
        nbytes = payload(spec, self.me)

        def predict(told: dict[int, tuple[int, int]]) -> int:
            begins, ways = zip(*(told[r] for r in self.ranks), strict=True)
            return self.clock.predictor.collective(asked, ways, begins)[self.me]

        return Collective(self.clock, name, where, after, nbytes, self.ranks, key, way_of(plan), predict=predict)

    def transfer(self, receive: bool, peer: int, tag: int, nbytes: int, stream: Any, *_: Any) -> Item:
        """A send or a receive; the rest is for strata.checking."""
        source, target = (peer, self.me) if receive else (self.me, peer)
        of = (source, target, tag) if source != target else (source, target + len(self.ranks) * receive, tag)
        number = self._messages[of] = self._messages.get(of, 0) + 1

        def undo() -> None:
            if self._messages[of] == number:
                self._messages[of] -= 1

        lane = None if stream is None else stream.lane
        after = (self._tails.get(of), None if lane is None else lane.last)
        ranks = self.ranks[source], self.ranks[target]
        eager = nbytes <= EAGER or source == target
        item = Message(
            self.clock, "recv" if receive else "send", f"messages {self.name}", after, nbytes, ranks,
            (channel(self.key, source, target, tag), number), 0, receive=receive, eager=eager, undo=undo,
        )  # fmt: skip
        if lane is not None:
            lane.last = item
        self._tails[of] = item
        if len(self._tails) > TAILS:
            self._tails = {key: i for key, i in self._tails.items() if i.end is None}
        return self.clock.issue(item)


class Alone(Duration):
    """An operation of a group of one."""

    def begun(self, work: Any) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        with self.clock.lock:
            self.drop()


class Lane:
    """A stream's items, each of which begins when the one before has ended."""

    def __init__(self, clock: Clock, name: str) -> None:
        self.clock, self.name = clock, name
        self.last: Item | None = None

    def moved(self, batch: np.ndarray) -> None:
        """Descriptors have been queued."""
        ps, nbytes = self.clock.predictor.batch(batch)
        self.last = self.clock.issue(Duration(self.clock, "dma", f"stream {self.name}", (self.last,), ps, nbytes))

    def place(self) -> Item:
        """Where the stream is: what an event records."""
        return self.last or Past(self.clock)

    def wait(self, item: Item) -> None:
        """What is queued from now on begins when the item has ended, too."""
        self.last = self.clock.issue(Duration(self.clock, "", "", (self.last, item)))


class Replays:
    """A graph's: each does its steps one after another, after the replay before."""

    def __init__(self, clock: Clock, steps: list[Step]) -> None:
        self.clock, self.steps = clock, steps
        self.last: Item | None = None
        self._ends: dict[int, Item] = {}  # of replays that nobody has waited for
        # Members capture in one order, and have called as much before: so the channels are the same on all of them.
        self._channels = {id(s.track): channel(s.track.key, "graph", s.track.issued) for s in steps if s.track}
        self._used = dict.fromkeys(self._channels, 0)  # numbers

    def begin(self, number: int, outcome: Callable[[], str | None]) -> None:
        """Replay ``number`` (from 1) begins; ``outcome`` tells how it ended, as ``Shared.asked``."""
        clock, last = self.clock, self.last
        for step in self.steps:
            if step.track is None:
                ps = clock.predictor.copy(clock.rank, clock.rank, step.nbytes)
                item: Item = Duration(clock, "copy", "graphs", (last,), ps, step.nbytes)
            else:
                of = id(step.track)
                self._used[of] += 1
                key = self._channels[of], self._used[of]
                item = step.track.item(step.name, step.plan, step.nbytes, (last,), key)
                item.where = "graphs"
                if isinstance(item, Collective):
                    item.asked = outcome
            last = clock.issue(item)
        self.last = last or Past(clock)
        self._ends[number] = self.last
        while len(self._ends) > REPLAYS:
            del self._ends[next(iter(self._ends))]

    def join(self, number: int) -> None:
        """The host has waited for a replay."""
        end = self._ends.pop(number, None)
        if end is not None:
            end.join()
