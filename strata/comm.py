"""Group: the collectives users call."""

from __future__ import annotations

import hashlib
import operator
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from strata import bootstrap, clock, errors, failure, growing, operations, selection, staging
from strata._core import array as codes
from strata._core import crew
from strata._core.clocked import Clocked
from strata._core.front import OPERATIONS
from strata._core.memory import alloc_array
from strata._core.space import Context
from strata._core.spans import spanned
from strata._core.stream import current_stream
from strata.dtypes import OP_CODES, OPS
from strata.plan import algorithms
from strata.plan.build import PlanCache, build
from strata.plan.operations import sizes
from strata.plan.plan import Plan, PlanError
from strata.plan.select import Ask, Choice
from strata.plan.spec import Spec
from strata.plan.user import check_algorithm

__all__ = ["Group", "world"]

_OP = {name: code for code, name in enumerate(OPERATIONS)}


def _whole(what: str, value: Any) -> int:
    """An argument of split(): an integer, as a member's record has it."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}={value!r}: an integer is expected (of a color, None too: in no group)") from None
    if not -(1 << 63) <= whole < 1 << 63:
        raise ValueError(f"{what}={value!r}: an integer of 64 bits is expected")
    return whole


class Group(operations.Operations):
    """Members that run collectives together, numbered 0 ... size - 1.

    ``rank``   this die's number in the group
    ``size``   members
    ``ranks``  world ranks of the members, in the group's order
    ``name``   "world", or how the group was made; the same on all members

    All operations take ``timeout`` (seconds to wait for the members; None: option timeout,
    inf: for ever) and ``async_op=True`` (returns a Work at once; its wait() returns what the
    call would); ``algorithm``, ``path`` (mte, cores move the bytes; sdma, the DMA engine),
    ``cores`` (emulated cores of this die at most) and ``partition`` choose how, None leaves
    it to the library (``strata.explain`` says why).  Any numpy array is accepted; those outside
    the fabric, and strided ones, are staged when they are too large for a mailbox.  They raise
    CollectiveMismatch on all members that did not ask for the same (the group stays usable),
    PeerDead, CollectiveTimeout and GroupBroken; TypeError and ValueError on the member whose
    arguments are wrong, before anything begins.

    All state is the group's own, so groups may overlap and be used in any order, as
    long as the members of each group call its operations in one order.  A member
    that waits in one thread does not hinder operations of other groups in other threads.
    """

    track: Any = None  # of a group whose dies have a clock: what it is told

    def __init__(self, context: Context, ranks: Iterable[int], name: str, key: bytes, timeout: float | None = None,
                 lives: Iterable[int] | None = None, memory: Any = None):  # fmt: skip
        super().__init__(context, ranks, name, key, timeout, lives, memory)
        self._key = key or bytes.fromhex(context.token)
        _groups.add(self)
        self._calls: dict[Any, int] = {}
        self._cache = PlanCache()
        self._selector = selection.Selector(self.size)

    def __repr__(self) -> str:
        return f"<strata.Group {self.name}: rank {self.rank} of {self.size}, world ranks {list(self.ranks)}>"

    # ---- groups ----------------------------------------------------------------------

    @spanned("split")
    def split(self, color: int | None, key: int = 0, *, timeout: float | None = None) -> Group | None:
        """Members of one ``color`` form a group, ordered by ``key``, then by rank.

        Called by all members; a color of None takes part and gets None.
        """
        color, key = None if color is None else _whole("color", color), _whole("key", key)
        call = self._count("split")
        record = np.array([color is not None, 0 if color is None else color, key], np.int64)
        table = self.exchange(_OP["all_gather"], 8, 0, record, timeout)
        if color is None:
            return None
        members = [m for m in range(self.size) if table[m, 0] and table[m, 1] == color]
        members.sort(key=lambda m: (int(table[m, 2]), m))
        return self._form(members, ("split", call, int(color)), f"{self.name}.split{call}({color})", timeout)

    @spanned("subgroup")
    def subgroup(self, ranks: Iterable[int], *, timeout: float | None = None) -> Group:
        """A group of the members ``ranks`` (numbers in this group), in that order.

        Called by those members only, with the same list.
        """
        members = [int(r) for r in ranks]
        if len(set(members)) != len(members) or not members or not all(0 <= m < self.size for m in members):
            raise ValueError(f"ranks={members}: distinct numbers from 0 to {self.size - 1} are expected")
        if self.rank not in members:
            raise ValueError(f"ranks={members} do not contain this member ({self.rank}); only members call subgroup")
        what = ("subgroup", tuple(members))
        call = self._count(what)
        listed = ",".join(map(str, members[:8])) + (",..." if len(members) > 8 else "")
        try:
            return self._form(members, (*what, call), f"{self.name}.subgroup({listed})#{call}", timeout)
        except BaseException as error:
            if isinstance(error, errors.CollectiveTimeout) or not isinstance(error, errors.StrataError):
                self._calls[what] -= 1  # the group may still come about: the next call asks for it again
            raise

    @spanned("shrink")
    def shrink(self, *, timeout: float | None = None) -> Group:
        """After a failure: a working group of the members that are still alive, in order.

        Called by all of them; waits for each to call or die.  CollectiveTimeout names those
        that did neither.  If one dies meanwhile the new group may contain it, and its next
        operation says so: call shrink() on that.
        """
        return growing.shrink(self, timeout)

    @spanned("grow")
    def grow(self, ranks: Iterable[int] | None = None, *, timeout: float | None = None) -> Group:
        """A group of this one's members and of dies that were started again (``strata-run --restarts``), by world rank.

        Called by all members.  ``ranks``: world ranks that are missing here (None: all); each must wait, as a new
        process, in ``strata.world()``.  CollectiveTimeout names those that do not, and the group stays usable.
        """
        return growing.grow(self, ranks, timeout)

    def _count(self, what: Any) -> int:
        self.uncapturable(what if isinstance(what, str) else what[0])
        self._calls[what] = self._calls.get(what, 0) + 1
        return self._calls[what]

    def _form(self, members: list[int], what: Any, name: str, timeout: float | None) -> Group:
        digest = hashlib.blake2b(repr(what).encode(), key=self._key, digest_size=16).digest()
        who = [(self.ranks[m], self.lives[m]) for m in members]
        return type(self)(self.context, [r for r, _ in who], name, digest, timeout, [life for _, life in who])

    # ---- what the core asks of this class ------------------------------------------------

    def _choose_plan(self, *, operation: str, count: int, itemsize: int, dtype: int, redop: int, root: int,
                     mode: str, in_place: bool, variant: int, overlap: bool) -> tuple[Spec, Choice]:  # fmt: skip
        spec = Spec(operation, count, itemsize, dtype, redop, root, self.size, mode, None, in_place)
        return spec, self._choose(spec, variant, overlap)

    def _choose(self, spec: Spec, variant: int, overlap: bool) -> Choice:
        """How it is carried out; what it refuses, it refuses on all members."""
        choice = self._selector.choose(spec, variant, overlap)
        if algorithms.is_users(choice.algorithm.name):  # before it touches anything
            check_algorithm(choice.algorithm.name, spec, self._selector.settings.topology)
        return choice

    def _build(self, spec: Spec, choice: Choice) -> Plan:
        """This member's plan; an error may be its own."""
        where = self._selector.settings.topology
        name = choice.algorithm.name
        find = build if algorithms.is_users(name) else self._cache.get  # a user may give the name to another
        plan = find(spec, self.rank, choice.cores, algorithm=name, path=choice.path, policy=choice.partition,
                    cost=self._selector.settings.cost, topology=where)  # fmt: skip
        everyone = range(self.size)
        limits = np.array([(*sizes(spec, m), choice.algorithm.scratch(spec, m, where)) for m in everyone], np.uint64)
        if (plan.buffer_bytes > limits).any():
            raise PlanError(f"{name} reaches beyond its buffers in {spec}")
        return plan

    def asked(self, variant: int) -> Ask:
        """What a call asked for, by its number."""
        return self._selector.ask(variant)

    def _check_reducible(self, op: str, src: Any, redop: str) -> None:
        if not codes.reducible(src.dtype, OP_CODES[redop]):
            good = [name for name, code in OP_CODES.items() if codes.reducible(src.dtype, code)]
            can = f"it takes {', '.join(good)}" if good else "this dtype can only be moved"
            raise errors.UnsupportedType(f"{op}: op={redop!r} of {src.dtype} is not defined; {can}", operation=op)

    def _failed(self, status: int, info: dict[str, Any]) -> None:
        failure.raise_collective(self, status, info)

    def _transfer_failed(self, status: int, info: dict[str, Any]) -> None:
        failure.raise_transfer(self, status, info)

    def _cast_refused(self, info: dict[str, Any]) -> None:
        failure.raise_cast(self, info)

    def _stage(self, op: int, stage_src: bool, stage_out: bool, mailbox: bool, src: Any, out: Any, result: Any,
               timeout: Any, async_op: bool, redop: int, root: int, variant: int) -> Any:  # fmt: skip
        return staging.run(self, OPERATIONS[op], stage_src, stage_out, mailbox, src, out, result, timeout, async_op,
                           OPS[redop] if redop else None, root, variant)  # fmt: skip

    def _temporary(self, a: np.ndarray, empty: bool) -> np.ndarray:
        staging.check_access(self, a, empty)
        return np.empty(a.shape, a.dtype) if empty else staging.fabric_source(self, a)

    def _copy_of(self, a: np.ndarray) -> np.ndarray:
        stream = current_stream()
        if stream is not None:
            self.check_queued(a)
        try:
            staging.check_access(self, a, False)
            if stream is None:
                return staging.fabric_copy(self, a)
            copy = alloc_array(self.context, a.shape, a.dtype, False)
            stream.copy(copy, a)  # when its turn comes
            return copy
        except (MemoryError, errors.RegistrationError):
            self.abstain(None)  # the others must not wait for this die
            raise

    def _out_for(self, op: str, src: Any, out: Any, k: int) -> np.ndarray:
        try:
            return staging.check_out(self, op, src, out, k)
        except MemoryError:
            self.abstain(None)
            raise

    def _bad_out(self, op: str, src: np.ndarray, out: np.ndarray, shape: tuple[int, ...]) -> None:
        raise ValueError(f"{op}: out must be {src.dtype} of shape {shape}, not {out.dtype} of shape {out.shape}")

    def _check_overlap(self, op: str, src: np.ndarray, out: np.ndarray) -> None:
        staging.check_overlap(op, src, out, self.size, self.rank)


class TimedGroup(Clocked, Group):
    """A group whose dies have a clock (strata.clock): the same, and its operations move their clocks."""

    def __init__(self, context: Context, ranks: Iterable[int], name: str, key: bytes, *more: Any):
        super().__init__(context, ranks, name, key, *more)
        self.track = clock.track(context, name, self._key, self.ranks)


def kind_of(context: Context) -> type[Group]:
    """What world() is on a die; strata.checking, on one that it checks, has its own in this place."""
    return Group if clock.of(context) is None else TimedGroup


_world: Group | None = None
_groups: weakref.WeakSet[Group] = weakref.WeakSet()


def world(timeout: float | None = None) -> Group:
    """The group of all dies.  Joins the job first (``strata.init()``) if that has not been done.

    In a die that was started again (``strata.incarnation()`` is not 0) it waits, at most ``timeout`` seconds, until
    survivors take it in by Group.grow(), and returns their group.  CollectiveTimeout; PeerDead: none is left.
    """
    global _world
    context = bootstrap.context()
    if _world is None or _world.context is not context:
        kind, first = kind_of(context), not context.incarnation
        _world = kind(context, range(context.ndies), "world", b"") if first else growing.join(kind, context, timeout)
    _world.reopen()  # it may have been closed by finalize()
    crew.start(context, selection.workers(context.ndies))
    return _world


def close() -> None:
    """Stops the threads of all groups (at finalize)."""
    for group in list(_groups):
        if group.context.here:
            group.close()
    for context in {group.context for group in _groups}:
        crew.stop(context)
