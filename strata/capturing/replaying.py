"""Graphs, and their replays."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from typing import Any

import numpy as np

from strata import bootstrap, clock, errors, failure
from strata._core import descriptors, graph
from strata._core.spans import spanned
from strata.capturing import recording
from strata.capturing.recording import Entry
from strata.streams import current_stream

__all__ = ["Graph", "Replay"]

_graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
_busy: set[Graph] = set()  # with replays that nobody has waited for: they must not end with the last reference


class Graph:
    """Captured operations, to be replayed.  Made by ``strata.capture()``.

    ``operations``  what it holds, in words, in order
    ``replays``     how many have begun
    ``state``       "capturing", "ready", "abandoned" (the block failed), "failed" (a replay did), "closed"
    """

    def __init__(self) -> None:
        self.state = "capturing"
        self.operations: tuple[str, ...] = ()
        self._tape: graph.Tape | None = None
        self._entries: list[Entry] = []
        self._keep: Any = None
        self._why: BaseException | None = None  # there is no graph, or none any more
        self._good = 0  # replays that are known to have ended well
        self._times: Any = None  # what the die's clock is told, if it has one
        self._mutex = threading.RLock()

    def _made(self, tape: graph.Tape, entries: list[Entry], keep: Any) -> None:
        self._tape, self._entries, self._keep, self.state = tape, entries, keep, "ready"
        self.operations = tuple(e.text if e.group is None else f"{e.group.name}: {e.text}" for e in entries)
        self._times = times_of(entries, keep)
        _graphs.add(self)

    def _abandoned(self, why: BaseException) -> None:
        self._why, self.state = why.with_traceback(None), "abandoned"

    @property
    def replays(self) -> int:
        """How many have begun."""
        return self._tape.begun if self._tape is not None else 0

    def __repr__(self) -> str:
        words = f"{len(self.operations)} operations, {self.replays} replays" if self._tape is not None else "empty"
        return f"<strata.Graph {self.state}, {words}>"

    # ---- replays --------------------------------------------------------------------------------

    @spanned("replay")
    def replay(self, *, timeout: float | None = None, async_op: bool = False) -> Replay | None:
        """Runs the operations once more, on what is in the arrays now.

        Every member of the graph's groups replays its graph as often.  Replays of one graph come one after another.
        ``timeout``: seconds from the end of the replay before it (None: option timeout; inf: for ever).
        ``async_op=True`` returns a Replay at once, whose wait() returns at the end.

        PeerDead, CollectiveTimeout (naming who has not come), RegistrationError (memory that was given back),
        GroupBroken (another member has given the replay up, or closed its graph).  After an error there is no graph
        any more, on all members, and the group is broken as after a failed call.
        """
        self._ready()
        queued = current_stream()
        if queued is not None:  # the host keeps the order
            queued.synchronize()
        with self._mutex:
            tape = self._ready()  # another thread may have closed it
            while not tape.room:
                self._settle(self._good + 1, timeout, True)
            if tape.broken():
                raise self._fail()
            tape.begin(timeout)
            number = tape.begun
            if self._times is not None:
                self._times.begin(number, functools.partial(_ended, weakref.ref(self), tape, number))
            if async_op and queued is None:
                _busy.add(self)
                return Replay(self, number, timeout)
        self._settle(number, timeout, True)
        self._join(number)
        return Replay(self, number, timeout) if async_op else None

    def _join(self, number: int) -> None:
        if self._times is not None:
            self._times.join(number)

    def _ready(self) -> graph.Tape:
        if self.state == "capturing":
            raise errors.InvalidArgument("the graph is being captured: replay it after the block", operation="replay")
        if self._why is not None:
            raise self._again()
        assert self._tape is not None
        if recording.active(self._tape.engine.context):
            raise errors.InvalidArgument("Graph.replay cannot be captured: call it before or after the block",
                                         operation="capture")  # fmt: skip
        return self._tape

    def _again(self) -> errors.StrataError:
        """The error of a graph that has failed, for who replays it once more."""
        why = self._why
        known: dict[str, Any] = {"ranks": getattr(why, "ranks", ()), "group": getattr(why, "group", "")}
        kind = type(why) if isinstance(why, errors.PeerDead | errors.NotInJob) else errors.GroupBroken
        if self.state == "closed":
            return errors.InvalidArgument("the graph is closed: capture again", operation="replay")
        what = "its block failed" if self.state == "abandoned" else "a replay has failed"
        text = f"there is no graph any more, since {what}: {type(why).__name__}: {why}"
        return kind(text, operation="replay", **known)

    def _settle(self, count: int, timeout: float | None, final: bool) -> bool:
        """Waits for the first ``count`` replays, one after another; False: the last of them goes on."""
        tape = self._tape
        while self._good < count:
            if self._why is not None:
                raise self._why if isinstance(self._why, errors.StrataError) else self._again()
            at = self._good + 1
            assert tape is not None  # while there is no reason why not
            try:
                end = tape.wait(at, timeout, final)
            except BaseException as error:
                self._fail(error)
                raise
            if end == "goes on":
                return False
            if end == "failed":
                raise self._fail()
            self._good = max(self._good, at)
        self._idle()
        return True

    def _idle(self) -> None:
        if self._tape is None or self._good >= self._tape.begun or self._why is not None:
            _busy.discard(self)

    def _fail(self, why: BaseException | None = None) -> BaseException:
        """The graph has failed."""
        with self._mutex:
            if self._why is None:
                assert self._tape is not None
                verdict = self._tape.verdict()
                self._why, self.state = why or _error(self, verdict), "failed"
                _busy.discard(self)
            return self._why

    # ---- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Frees what the graph holds.  Replays in progress are given up; other members' replays raise GroupBroken."""
        if self.state == "capturing":
            raise errors.InvalidArgument("the graph is being captured: close it after the block", operation="capture")
        with self._mutex:
            _busy.discard(self)
            tape = self._tape
            if tape is not None and self.state in ("ready", "failed"):
                if self._why is None and tape.ended > self._good:
                    with contextlib.suppress(errors.StrataError):
                        self._settle(tape.ended, 0, False)  # these have not been given up
                tape.leave(self._keep)
            if self.state != "abandoned":
                self.state = "closed"
                self._why = self._why or errors.Cancelled("the graph was closed", operation="replay")
            self._tape, self._entries, self._keep = None, [], None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # modules may be half gone
            self.close()


class Replay:
    """A replay in progress, as ``Graph.replay(async_op=True)`` returns it."""

    def __init__(self, of: Graph, number: int, timeout: float | None) -> None:
        self._graph, self._number, self._timeout = of, number, timeout
        self._error: BaseException | None = None
        self._ended = False

    @spanned("wait replay")
    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end.  Raises the replay's error.

        ``timeout`` (seconds; None: as long as the replay's own deadline lets it live) bounds this wait alone:
        CollectiveTimeout is raised, and the replay goes on.
        """
        if not self._ended:
            try:
                own = timeout is None
                ended = self._graph._settle(self._number, self._timeout if own else timeout, own)
            except BaseException as error:
                if isinstance(error, errors.StrataError):
                    self._end(error)
                raise
            if not ended:
                raise errors.CollectiveTimeout(f"the replay has not ended within {timeout} s; it goes on",
                                               operation="replay", number=self._number)  # fmt: skip
            self._graph._join(self._number)
            self._end(None)
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Whether it has ended, well or not.  Never waits."""
        tape = self._graph._tape
        if not self._ended and (tape is None or tape.poll(self._number) != "goes on"):
            with contextlib.suppress(errors.StrataError):
                self.wait()
        return self._ended

    def exception(self) -> BaseException | None:
        """Its error, or None: it went well, or has not ended."""
        self.done()
        return self._error

    def _end(self, error: BaseException | None) -> None:
        self._error, self._ended = error, True

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._error is not None else "done"
        return f"<strata.Replay {state}, number {self._number} of {self._graph!r}>"


# ---- the clock -----------------------------------------------------------------------------------


def times_of(entries: list[Entry], keep: list[Any]) -> Any:
    """What is told of replays; strata.checking, on a die that it checks, has its own in this place."""
    return clock.replays(bootstrap.context(), [_step(e) for e in entries])


def _step(e: Entry) -> clock.Step:
    """A captured operation as the die's clock is told of it."""
    if e.group is None:
        return clock.Step(None, "copy", None, e.nbytes)
    return clock.Step(e.group.track, failure.operation_name(e.desc), e.timed, e.nbytes)


def _ended(of: weakref.ref[Graph], tape: graph.Tape, number: int) -> str | None:
    """How a replay has ended: "well" or "failed"; None: it goes on.  Never waits."""
    made = of()
    if made is not None and number > made._good and made._why is not None:
        return "failed"
    return tape.told(number)


# ---- words ---------------------------------------------------------------------------------------

_STATUS = {status.name: code for code, status in enumerate(errors.STATUS)}
DEAD, TIMEOUT, BROKEN, NOJOB = (_STATUS[f"ST_E{n}"] for n in ("DEAD", "TIMEOUT", "BROKEN", "NOJOB"))


def _error(of: Graph, verdict: dict[str, Any]) -> errors.StrataError:
    """The error of a graph that was given up."""
    status, ranks, cause = verdict["status"], list(verdict["ranks"]), verdict["cause"]
    tape = of._tape
    assert tape is not None
    me = tape.engine.context.rank
    group = tape.groups[verdict["part"]] if verdict["part"] is not None else None
    context: dict[str, Any] = {"operation": "replay", "number": verdict["replay"], "ranks": ranks}
    if group is not None:
        context["group"] = group.name
    where = _where(of, verdict["step"])
    late = list(verdict["late"])
    tail = f"; {failure.people(late)} may still write to this die's arrays, do not reuse them" if late else ""
    if status == NOJOB and cause != "poisoned":
        return errors.NotInJob("strata.finalize() has ended the replay", operation="replay")
    if status == NOJOB or (status == DEAD and ranks and cause != "poisoned"):
        return errors.PeerDead(f"{failure.people(ranks)} died (or left the job), {where}{tail}", **context)
    if cause == "engine":
        what = descriptors.describe(np.frombuffer(verdict["failed"], descriptors.DESCRIPTOR)[0])
        text = f"{where}: {what}: {_phrase(status)}{tail}"
        return errors.from_status(status, text, **context)
    if cause == "here" and status == TIMEOUT and ranks == [me]:
        text = "this die's DMA thread has not come to the end in time"
        return errors.CollectiveTimeout(f"{text}, {where}{tail}", **context)
    if status == TIMEOUT and me not in ranks and cause != "poisoned":
        verb = "has" if len(ranks) == 1 else "have"
        text = f"{failure.people(ranks)} {verb} not come in time, and {'is' if len(ranks) == 1 else 'are'} not dead"
        return errors.CollectiveTimeout(f"{text}, {where}{tail}", **context)
    if cause == "closed":
        text = f"{failure.people(ranks)} has closed its graph after fewer replays"
    elif cause == "declared":
        who = failure.people([verdict["by"]])
        text = f"{who} gave up: {_phrase(status)}" if me not in ranks else "its peers stopped waiting for this die"
    else:
        text = f"{failure.people(ranks)} has given the replay up: {_phrase(status)}"
    return errors.GroupBroken(f"{text}, {where}{tail}", **context)


def _phrase(status: int) -> str:
    known = errors.STATUS[status] if 0 <= status < len(errors.STATUS) else errors.STATUS[0]
    if known.name == "ST_EBROKEN":
        return "interrupted, or its group had failed"
    return known.phrase or (known.error.phrase if known.error is not None else known.name)


def _where(of: Graph, step: int) -> str:
    steps = [k for k, e in enumerate(of._entries) if e.nbytes or (e.group is not None and e.group.size > 1)]
    if step >= len(steps):
        return "in a graph"
    return f"at operation {steps[step] + 1} of a graph ({of._entries[steps[step]].text})"


def sweep() -> None:
    """Lets go of graphs whose replays have ended, and of what closed ones have left."""
    for busy in list(_busy):
        tape = busy._tape
        if tape is None or tape.ended >= tape.begun:
            _busy.discard(busy)
    if bootstrap.initialized():
        graph.sweep()
