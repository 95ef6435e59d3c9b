"""Rounds of a Buffer: post, wait for the others' posts, agree, and say when all has been read.

Rounds are numbered, and every member must ask for the same ones in the same order.  What goes wrong on one member
before it has posted is its own affair: the others wait until it asks again.  What goes wrong afterwards, and is its own
(no memory for what comes), lets the round end for the others.  When a member is lost the Buffer ends, unless it masks.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from strata import errors
from strata._core import heap, memory
from strata._core import moe as core
from strata.failure import people
from strata.moe import boards
from strata.moe.agreement import CLEAN, HEAD, Asked, Head, block_of, fingerprint, mismatch, parse
from strata.moe.events import Receiver, Task

__all__ = ["Posted", "Rounds", "stop"]

SLICE = 0.05  # seconds of a wait, after which it is looked whether the job has ended
FIRST = 0.001  # the first part of a wait for posts; the next are twice as long each, up to SLICE
LOST = (errors.PeerDead, errors.CollectiveTimeout, errors.GroupBroken, errors.CorruptSpace, errors.RegistrationError,
        errors.NotInJob)
STATUS = {status.error: code for code, status in reversed(list(enumerate(errors.STATUS))) if status.error}

_all: weakref.WeakSet[Rounds] = weakref.WeakSet()


class Posted:
    """A round that this member has posted.  ``known``: its fingerprint;  ``arrays``: what must live until all have
    read it."""

    def __init__(self, number: int, asked: Asked, known: tuple[int, int], arrays: tuple[Any, ...],
                 masking: bool, ours: bool) -> None:
        self.number, self.asked, self.known, self.arrays = number, asked, known, arrays
        self.masking, self.ours = masking, ours
        self.posts: np.ndarray | None = None
        self.waited: np.ndarray | None = None
        self.ended = False
        self.gone: list[int] = []  # world ranks that have given up, or gone on without this die, and are masked now

    def present(self, member: int) -> bool:
        """Whether the member has posted the round, and is not masked."""
        assert self.posts is not None
        return bool(self.posts[member]["epoch"])


class Rounds:
    """Of one Buffer.

    ``timeout``  seconds that a wait may take (None: option timeout)
    """

    def __init__(self, group: Any, wishes: dict[str, int], timeout: float | None) -> None:
        self.group, self.context = group, group.context
        self.timeout = group.context.config.timeout if timeout is None else timeout
        self.failure: tuple[str, tuple[int, ...]] | None = None  # why the Buffer cannot be used any more, and by whom
        self._held = boards.lease(group, wishes, timeout)
        self.board = self._held.board
        self.receiver = Receiver(f"strata.moe {group.name}", self._give_back)
        self._behind: deque[tuple[int, threading.Event]] = deque()  # rounds of the receiver's, and their ends
        _all.add(self)

    @property
    def next(self) -> int:
        return self._held.round

    def check(self) -> None:
        """GroupBroken: an earlier round has failed; NotInJob: the group is closed."""
        if self.receiver.stopping.is_set():
            raise errors.NotInJob("strata.finalize() has closed the group, and ended its rounds", group=self.group.name,
                                  operation="moe")
        self._sound()

    def _sound(self) -> None:
        if self.failure is not None:
            why, ranks = self.failure
            raise errors.GroupBroken(f"this Buffer has failed: {why}; make a new one, on group.shrink() if a member "
                                     "has died", group=self.group.name, ranks=ranks, operation="moe")

    # ---- a round ----------------------------------------------------------------------

    def words(self, n: int) -> np.ndarray:
        """Memory for a routing block."""
        made: np.ndarray = memory.alloc_array(self.context, (n,), np.dtype(np.uint32), False, heap.STAGING)
        return made

    def post(self, asked: Asked, tokens: int, columns: list[np.ndarray], rows: np.ndarray, slots: np.ndarray,
             lists: np.ndarray, worst: int = 0, masking: bool = False, keep: tuple[Any, ...] = (),
             ours: bool = False) -> Posted:
        """Posts the next round.  If it raises, nothing has been posted.  ``ours``: no column is the caller's."""
        self._keep_up()
        block = block_of(asked, worst, rows, slots, lists, self.words)
        desc, count = known = fingerprint(asked)
        number = self._held.round
        ranges = [(memory.pointer(c) or 0, c.nbytes) if c.nbytes else (0, 0) for c in columns]
        where = (memory.pointer(block) or 0, block.nbytes)
        post = self.board.post
        try:
            self._await(lambda seconds: post(number, desc, count, tokens, ranges, where, seconds), masking)
            self._held.posted()
        except LOST as error:
            raise self.lost(error, number) from None
        except BaseException as error:
            if self._has_posted(number):  # interrupted just behind it, and nobody here will receive the round
                self.fail(error, number)
            raise
        return Posted(number, asked, known, (block, columns, keep), masking, ours)

    def _has_posted(self, number: int) -> bool:
        try:
            self.board.wait(number, 0.0)
        except errors.StrataError as error:
            return not isinstance(error, errors.InvalidArgument)
        return True

    def _keep_up(self) -> None:
        """Waits until this member, too, has received the round whose slot the next one takes.  Each of the receiver's
        waits ends by itself."""
        while self._behind and self._behind[0][0] <= self.next - core.ROUNDS:
            if self._behind[0][1].wait(SLICE):
                self._behind.popleft()
            else:
                self.check()

    def gather(self, posted: Posted) -> None:
        """Waits for the others' posts, and compares what all ask for.  CollectiveMismatch on all members."""
        began = time.monotonic_ns()
        arrived = np.full(self.group.size, -1, np.int64)  # ns until each was seen; exact in a wait's last part
        arrived[self.group.rank] = 0
        part = FIRST

        def attempt(seconds: float) -> Any:
            nonlocal part
            while True:
                now, length = time.monotonic_ns() - began, min(part, seconds)
                try:
                    posts, waited = self.board.wait(posted.number, length)
                except errors.CollectiveTimeout as error:
                    missing = np.isin(self.group.ranks, error.ranks)
                    arrived[(arrived < 0) & ~missing] = time.monotonic_ns() - began
                    seconds -= length
                    part = min(2 * part, SLICE)
                    if seconds <= 0:
                        raise
                else:
                    return posts, np.where(arrived >= 0, arrived, np.where(now > 1e9 * FIRST, now, 0) + waited)

        try:
            posted.posts, posted.waited = self._await(attempt, posted.masking, posted.gone)
        except errors.CollectiveTimeout as error:
            name, who = posted.asked.name, people(list(error.ranks))
            raise errors.CollectiveTimeout(
                f"{who} did not call {name} within {self.timeout:g} s (Buffer(timeout=), option timeout)",
                ranks=error.ranks, group=self.group.name, operation=name, number=posted.number) from None
        here = [m for m in range(self.group.size) if posted.present(m)]
        desc, count = (posted.posts[name][here].tolist() for name in ("desc", "count"))
        if any(known != posted.known for known in zip(desc, count, strict=True)):
            found = {m: self.head(posted, m).asked for m in here}
            raise mismatch(found, self.group.ranks, self.group.name, posted.number)

    def head(self, posted: Posted, member: int, slots: int = 0) -> Head:
        """What a member says of the round, with its rows for so many slots; CorruptSpace."""
        n = self.group.size
        return parse(self.piece(posted, member, 0, HEAD + n + slots), n)

    def piece(self, posted: Posted, member: int, begin: int, words: int) -> np.ndarray:
        """A copy of words of a member's block, u32."""
        assert posted.posts is not None
        row = posted.posts[member].copy()
        first = begin & ~1  # the board takes addresses that are multiples of 8
        if words == 0:
            return np.zeros(0, np.uint32)
        if 4 * (begin + words) > int(row["block_bytes"]):
            raise errors.CorruptSpace(f"the routing block of rank {self.group.ranks[member]} is too short",
                                      ranks=[self.group.ranks[member]], group=self.group.name, operation="moe")
        row["block"] += 4 * first
        row["block_bytes"] = 4 * (begin - first + words)
        found: np.ndarray = self.board.block(row)[begin - first :]
        return found

    def end(self, posted: Posted) -> None:
        """This member has read what it wants, and waits until all have, if their reading concerns the caller."""
        posted.ended = True
        before = self.board.mask
        self.board.done(posted.number, posted.masking)
        posted.gone += [self.group.ranks[m] for m in np.flatnonzero(self.board.mask & ~before)]
        if posted.ours:
            self._held.ours.append((posted.number, posted.arrays))
            posted.arrays = ()
            return
        self._await(lambda seconds: self.board.drain(posted.number, seconds), posted.masking)
        posted.arrays = ()

    @contextlib.contextmanager
    def part(self, posted: Posted) -> Iterator[None]:
        """A part of a round: an error of this member's own ends the round; any other ends the Buffer, and so does what
        a signal handler raises in a wait for the others."""
        try:
            yield
        except LOST as error:
            raise self.lost(error, posted.number) from error.__cause__
        except Exception as error:
            if posted.posts is None or posted.ended:
                self.fail(error, posted.number)
            else:
                with self.part(posted):
                    self.end(posted)
            raise
        except BaseException as error:  # interrupted in the middle
            self.fail(error, posted.number)
            raise

    def run(self, what: str, posted: Posted, receive: Callable[[], None], later: bool) -> Task | None:
        """Receives: here and now, or (``later``, or others are before it) on the Buffer's thread.  None: it is done."""

        def work() -> None:
            with self.part(posted):
                self._sound()
                receive()
                self.end(posted)
            if posted.gone and posted.asked.kind != CLEAN:  # in step all the same
                gone = sorted(posted.gone)
                raise errors.GroupBroken(
                    f"{people(gone)} gave up, or went on without this die, before it had read their rows: what {what} "
                    "returned may be anything; masked from now on", ranks=gone, group=self.group.name,
                    operation=what, number=posted.number)

        if not later and not self.receiver.busy:
            work()
            return None
        with self.part(posted):
            task = self.receiver.submit(Task(f"{what} (round {posted.number})", work))
            self._behind.append((posted.number, task.ended))
        if later:
            return task
        task.wait(self.context)
        return None

    # ---- waiting ----------------------------------------------------------------------

    def _await(self, attempt: Callable[[float], Any], masking: bool, gone: list[int] | None = None) -> Any:
        """Repeats ``attempt(seconds)`` until it does not time out, the timeout is over, or the job ends.

        ``masking``: members that are lost are masked, and the rest waited for; those that neither died nor are late are
        added to ``gone``.
        """
        end = time.monotonic() + self.timeout
        while True:
            left = max(0.0, end - time.monotonic())
            try:
                return attempt(min(left, SLICE))
            except errors.CollectiveTimeout as error:
                self.check()  # whether a round on the other thread has failed, or the job has ended
                if left > SLICE:
                    continue
                if not masking:
                    raise
                self._mask(error)
            except (errors.PeerDead, errors.GroupBroken) as error:
                if not masking or not error.ranks:
                    raise
                self._mask(error)
                if gone is not None and isinstance(error, errors.GroupBroken):
                    gone += error.ranks

    def _mask(self, error: errors.StrataError) -> None:
        mask = self.board.mask
        for rank in error.ranks:
            mask[self.group.ranks.index(rank)] = True
        self.board.mask = mask

    # ---- the end ----------------------------------------------------------------------

    def lost(self, error: errors.StrataError, number: int) -> errors.StrataError:
        """The error of a round that ends the Buffer.  Members that gave up since another died are not its cause."""
        if isinstance(error, errors.GroupBroken):
            ranks, mask = self.group.ranks, self.board.mask
            dead = [r for r, out in zip(ranks, mask, strict=True) if not out and not self.context.die_info(r)["alive"]]
            if dead:
                error = errors.PeerDead(f"round {number}: {people(dead)} died, and others have given up", ranks=dead,
                                        group=self.group.name, operation="moe", number=number)
        self.fail(error, number)
        return error

    def fail(self, error: BaseException, number: int) -> None:
        """The Buffer ends here; whoever waits for this member is told."""
        if self.failure is not None:
            return
        self.failure = str(error) or type(error).__name__, getattr(error, "ranks", ())
        if isinstance(error, errors.NotInJob):
            return  # they see that this die is gone
        status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), STATUS[errors.GroupBroken])
        with contextlib.suppress(errors.NotInJob):  # meanwhile
            self.board.fail(status, number)

    def _give_back(self) -> None:
        """No round is in progress, and none will come."""
        sound = self.failure is None and not self.board.mask.any()
        if sound and self.context.here and not self.receiver.stopping.is_set():
            boards.release(self.group, self._held)


def stop() -> None:
    """Rounds in progress end, with NotInJob (at finalize)."""
    for rounds in list(_all):
        if rounds.context.here:
            rounds.receiver.stopping.set()
            rounds.receiver.end()
    for rounds in list(_all):
        if rounds.context.here:
            rounds.receiver.join(1.0)
