"""Algorithms that users write: ``strata.algorithm``, a decorator on a generator of slices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.plan import algorithms, operations
from strata.plan.algorithms.trees import FLAGS
from strata.plan.build import build
from strata.plan.frontends import frontend
from strata.plan.frontends._common import share
from strata.plan.plan import Plan, PlanError
from strata.plan.records import (
    ATOMIC,
    BUFFER_NAMES,
    DTYPE_NAMES,
    NONE,
    OP_NAMES,
    OUT,
    PARTIAL_DST,
    PARTIAL_SRC,
    PULL,
    PUSH,
    SCRATCH,
    SLICE_DTYPE,
    SLICE_NAMES,
    SRC,
    SYNC_SLICE,
    partial_bytes,
    partial_length,
)
from strata.plan.spec import MAX_BYTES, OPERATIONS, Spec, normal
from strata.plan.topology import HOST, Topology

MAX_CHECKED = 64  # members up to which a user's algorithm is verified at its first use
MAX_STEP = (1 << 16) - 1
MAX_SLICES = 1 << 18  # of a member; a generator that has no end is stopped there
SPREAD = 8  # cores that it is also verified on, since one core keeps an order that several do not


class Place(NamedTuple):
    """A place in a member's buffer: offset in bytes; ``partial``: accumulators, not elements."""

    buf: int
    offset: int
    partial: bool = False


class Slice(NamedTuple):
    """One transfer or synchronisation, as ``Op`` makes them."""

    kind: int
    peer: int
    nbytes: int
    src: Place
    dst: Place
    wait: tuple[int, int] | None
    post: int | None
    step: int
    redop: int = 0
    atomic: bool = False

    def __str__(self) -> str:
        what = SLICE_NAMES.get(self.kind, "?")
        if self.kind == SYNC_SLICE:
            return what
        return f"{what} of {self.nbytes} bytes {'to' if self.kind == PUSH else 'from'} member {self.peer}"


class Op:
    """What a user's algorithm is told of the operation, and what it makes slices with.

    ``operation`` ``ranks`` ``count`` ``nbytes`` (of ``count`` elements) ``itemsize`` ``dtype``
    ``redop`` ``root`` ``topology``; ``in_place``: this member's own (where its source lies in OUT
    already, as ``operations.own_place`` says).  Offsets are in bytes.
    """

    def __init__(self, spec: Spec, topology: Topology = HOST) -> None:
        self.spec, self.topology = spec, topology
        self.operation, self.ranks, self.count, self.nbytes = spec.operation, spec.nranks, spec.count, spec.part
        self.itemsize, self.root, self.in_place = spec.itemsize, spec.root, spec.in_place
        self.dtype, self.redop = DTYPE_NAMES[spec.dtype], OP_NAMES[spec.redop]
        self.partial_itemsize = partial_bytes(spec.dtype, spec.redop) if spec.redop else spec.itemsize

    def src(self, offset: int = 0) -> Place:
        """A place in SRC, the member's source."""
        return Place(SRC, _whole(offset))

    def out(self, offset: int = 0) -> Place:
        """A place in OUT, its result."""
        return Place(OUT, _whole(offset))

    def scratch(self, offset: int = 0, partial: bool = False) -> Place:
        """A place in SCRATCH.  ``partial``: sums on their way, ``partial_itemsize`` bytes each, rounded
        (and divided, in a mean) only when they become whole elements."""
        return Place(SCRATCH, _whole(offset), bool(partial))

    def share(self, number: int) -> tuple[int, int]:
        """Start and bytes of a member's share of ``nbytes``; some are empty if there are few."""
        return share(self.nbytes, self.itemsize, self.ranks, number)

    def pull(self, peer: int, nbytes: int, *, src: Place | int = 0, dst: Place | int = 0,
             wait: tuple[int, int] | None = None, post: int | None = None, step: int = 0,
             atomic: bool = False) -> Slice:  # fmt: skip
        """Reads ``src`` of the peer (SRC, if only an offset) into own ``dst`` (OUT).  ``wait``: (member, flag)
        raised before it begins; ``post``: own flag, raised when all slices that carry it are done;
        ``atomic``: combine with what is there, atomically."""
        return Slice(PULL, _whole(peer), _whole(nbytes), _place(src, SRC), _place(dst, OUT), wait, post, step,
                     self._redop(atomic), atomic)  # fmt: skip

    def push(self, peer: int, nbytes: int, *, src: Place | int = 0, dst: Place | int = 0,
             wait: tuple[int, int] | None = None, post: int | None = None, step: int = 0,
             atomic: bool = False) -> Slice:  # fmt: skip
        """Writes own ``src`` (OUT, if only an offset) into the peer's ``dst`` (OUT); the rest as in ``pull``."""
        return Slice(PUSH, _whole(peer), _whole(nbytes), _place(src, OUT), _place(dst, OUT), wait, post, step,
                     self._redop(atomic), atomic)  # fmt: skip

    def reduce(self, operands: Iterable[tuple[Any, ...]], nbytes: int, *, dst: Place | int = 0,
               post: int | None = None, step: int = 0) -> list[Slice]:  # fmt: skip
        """Combines ``operands``, (member, place) or (member, place, wait), in their order into own ``dst``
        (OUT, if only an offset), which is written once."""
        self._redop(True)
        return [Slice(PULL, _whole(o[0]), _whole(nbytes), _place(o[1], SRC), _place(dst, OUT),
                      o[2] if len(o) > 2 else None, post, step, self.spec.redop) for o in operands]  # fmt: skip

    def sync(self, *, wait: tuple[int, int] | None = None, post: int | None = None, step: int = 0) -> Slice:
        """No bytes: all slices after it wait for its flag; ``post`` tells that all before it are done."""
        return Slice(SYNC_SLICE, 0, 0, Place(SRC, 0), Place(SRC, 0), wait, post, step)

    def _redop(self, wanted: bool) -> int:
        if wanted and not self.spec.redop:
            raise InvalidArgument(f"{self.operation} does not reduce; pull or push without combining")
        return self.spec.redop if wanted else 0


def _place(place: Place | int, buf: int) -> Place:
    return place if isinstance(place, Place) else Place(buf, _whole(place))


def _whole(number: Any) -> int:
    """A member, offset or size as an int, or InvalidArgument (a ValueError)."""
    try:
        if int(number) == number:
            return int(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgument(f"{number!r} is no whole number; members, offsets and bytes are (divide by //)")


Body = Callable[[Op, int], Iterable[Any]]


def algorithm(operation: str | Iterable[str], *, name: str | None = None,
              scratch: Callable[[Op, int], int] | None = None, order: str = "") -> Callable[[Body], Body]:  # fmt: skip
    """Makes an algorithm of a generator ``body(op, rank)`` of slices (``Op.pull``, ``push``, ``reduce``, ``sync``).

    ``operation``: one name, or several.  ``name``: for ``algorithm=`` of collectives, the
    function's own if None.  ``scratch(op, rank)``: bytes of fabric memory that the member lends.
    ``order``: in which order operands are reduced, for documents.  Slices of one ``step`` may
    run in any order on several cores; steps do not fall along the list.  A slice without bytes is left
    out with its flags.  One member, or no bytes, need no algorithm: ``body`` is not asked.  Before the
    first use of a shape it is verified (``check_algorithm``); a wrong one raises PlanError and
    moves nothing.  InvalidArgument for operations that do not exist and names that are taken.
    """
    names = frozenset((operation,) if isinstance(operation, str) else operation)
    unknown = names - set(OPERATIONS)
    if unknown or not names:
        raise InvalidArgument(f"unknown operation {sorted(unknown)}; there are {', '.join(OPERATIONS)}")

    def decorate(body: Body) -> Body:
        called = name or body.__name__

        def lent(spec: Spec, rank: int, topology: Topology) -> int:
            if scratch is None or not _moves(spec):
                return 0
            found = scratch(Op(spec._replace(in_place=False), topology), rank)
            if not isinstance(found, (int, np.integer)) or not 0 <= found < MAX_BYTES:
                raise PlanError(f"algorithm {called}, member {rank}: scratch of {found!r} bytes; return a whole "
                                "number, 0 or more", ranks=[rank], operation=spec.operation)  # fmt: skip
            return int(found)

        def slices(spec: Spec, rank: int, topology: Topology) -> np.ndarray:
            if not _moves(spec):
                return frontend(spec, rank)
            return _rows(called, body, spec, rank, topology, lent)

        algorithms.register(
            algorithms.Algorithm(called, names, slices, lent, order=order, chosen_freely=False)
        )
        with _lock:
            _checked.clear()
        return body

    return decorate


def _moves(spec: Spec) -> bool:
    return operations.remote(spec)


def _rows(called: str, body: Body, spec: Spec, rank: int, topology: Topology, lent) -> np.ndarray:
    """The slices that ``body`` yields, checked one by one."""
    rows, step = [], 0
    room: dict[int, tuple[int, ...]] = {m: (*operations.sizes(spec, m), lent(spec, m, topology))
                                        for m in range(spec.nranks)}  # fmt: skip
    made = body(Op(spec, topology), rank)
    if not isinstance(made, Iterable):
        raise PlanError(f"algorithm {called}, member {rank}: it returned {made!r}, no slices; yield them",
                        ranks=[rank], operation=spec.operation)  # fmt: skip
    for number, s in enumerate(_flat(made)):
        def wrong(why: str, number: int = number, s: Any = s) -> PlanError:
            return PlanError(f"algorithm {called}, member {rank}, slice {number} ({s}): {why}",
                             ranks=[rank], operation=spec.operation)  # fmt: skip

        if not isinstance(s, Slice):
            raise wrong("not a slice; yield what op.pull, op.push, op.reduce and op.sync return")
        if number >= MAX_SLICES:
            raise wrong(f"more than {MAX_SLICES} slices: does it come to an end?")
        problem = _shape(s) or _problem(s, spec, rank, room, step)
        if problem:
            raise wrong(problem)
        step = s.step
        if not s.nbytes and s.kind != SYNC_SLICE:
            continue
        flags = ATOMIC * s.atomic | PARTIAL_SRC * s.src.partial | PARTIAL_DST * s.dst.partial
        rows.append((s.peer if s.kind != SYNC_SLICE else rank, s.kind, s.redop, s.src.buf, s.dst.buf, s.src.offset,
                     s.dst.offset, s.nbytes, *(s.wait or (NONE, NONE)), NONE if s.post is None else s.post,
                     flags, s.step))  # fmt: skip
    return np.array(rows, SLICE_DTYPE)


def _flat(slices: Iterable[Any]) -> Iterable[Any]:
    for s in slices:
        if isinstance(s, list):
            yield from s
        else:
            yield s


def _shape(s: Slice) -> str | None:
    """What is of the wrong type, if anything."""
    if s.kind not in SLICE_NAMES or not all(isinstance(p, Place) and p.buf in (SRC, OUT, SCRATCH) for p in s[3:5]):
        return "not a slice as op.pull, op.push, op.reduce and op.sync make them, of op.src, op.out and op.scratch"
    numbers = [s.peer, s.nbytes, s.src.offset, s.dst.offset, s.step, 0 if s.post is None else s.post]
    if s.wait is not None:
        if not isinstance(s.wait, tuple) or len(s.wait) != 2:
            return f"it waits for {s.wait!r}, not for (member, flag)"
        numbers += s.wait
    odd = next((x for x in numbers if not isinstance(x, (int, np.integer))), None)
    return None if odd is None and None not in numbers else f"{odd!r} is no whole number"


def _problem(s: Slice, spec: Spec, rank: int, room: dict[int, tuple[int, ...]], step: int) -> str | None:
    """What is wrong with a slice by itself, and the cure."""
    if not 0 <= s.peer < spec.nranks:
        return f"there is no member {s.peer} of {spec.nranks}; take the peer modulo op.ranks"
    if not step <= s.step <= MAX_STEP:
        return (f"its step {s.step} is not {step} to {MAX_STEP}: steps never fall along the list; yield it earlier, "
                "or give it a later step")  # fmt: skip
    if s.post is not None and not 0 <= s.post < FLAGS:
        return f"it posts flag {s.post}; flags are 0 to {FLAGS - 1}"
    if s.wait is not None and not (0 <= s.wait[0] < spec.nranks and 0 <= s.wait[1] < FLAGS):
        return f"it waits for {s.wait}: (member, flag) with members below {spec.nranks} and flags below {FLAGS}"
    if s.kind == SYNC_SLICE:
        return None
    if s.nbytes < 0 or (s.redop and s.nbytes % spec.itemsize):
        return f"{s.nbytes} bytes are no whole elements of {spec.itemsize}"
    if (s.src.partial or s.dst.partial) and (not s.redop or s.atomic):
        return "a partial place is read and written by op.reduce alone"
    if s.atomic and s.dst.offset % spec.itemsize:
        return f"it adds atomically at byte {s.dst.offset}, which is no multiple of the {spec.itemsize} of an element"
    mine, theirs = rank, s.peer
    for side, place, member in (("source", s.src, mine if s.kind == PUSH else theirs),
                                ("target", s.dst, theirs if s.kind == PUSH else mine)):  # fmt: skip
        wide = partial_length(s.nbytes, spec.dtype, s.redop) if place.partial else s.nbytes
        has = room[member][place.buf]
        if place.offset < 0 or place.offset + wide > has:
            cure = "; give scratch= to the decorator" if place.buf == SCRATCH else ""
            return (f"its {side} is bytes {place.offset} to {place.offset + wide} of {BUFFER_NAMES[place.buf]} "
                    f"of member {member}, which has {has}{cure}")  # fmt: skip
    return None


_lock = threading.Lock()
_checked: set[Any] = set()


def check_algorithm(name: str, spec: Spec, topology: Topology = HOST) -> bool:
    """Verifies an algorithm for one spec: once for each shape, up to ``MAX_CHECKED`` members.

    True if it is proved (or was before); False if there are too many members.  PlanError names the
    slice, or the member, core and unit, and what to do.  The library's own are proved by its tests,
    and taken as they are.
    """
    spec = normal(spec)
    found = algorithms.get(name, spec, topology)
    if not algorithms.is_users(name) or not _moves(spec):
        return True
    if spec.nranks > MAX_CHECKED:
        return False
    counts = None if spec.counts is None else spec.counts.tobytes()
    key = (found, spec._replace(counts=counts, in_place=False), topology)
    with _lock:
        if key in _checked:
            return True
    from strata.plan.verifier import verify  # loaded by those who verify

    def plans(cores: int, *masks: bool) -> list[Plan]:  # in place or not, in turn
        return [build(spec._replace(in_place=masks[m % len(masks)]), m, cores, algorithm=name, topology=topology)
                for m in range(spec.nranks)]  # fmt: skip

    apart = plans(1, False)
    sets = [apart]
    if spec.operation not in ("all_to_all", "all_to_all_v"):
        sets += [plans(1, True), plans(1, False, True)]
        _same_flags(apart, sets[1])
    for each in sets:
        _few_flags(each)
        posted(each)
        verify(each)
    most = max(len(plan.slices) for plan in apart)
    if most > 1:
        verify(plans(min(most, SPREAD), False))
    with _lock:
        _checked.add(key)
    return True


def _same_flags(apart: list[Plan], in_place: list[Plan]) -> None:
    """PlanError for a flag that a member posts in place only, or only if not, which others cannot know."""
    for a, b in zip(apart, in_place, strict=True):
        odd = (set(a.slices["post_flag"].tolist()) ^ set(b.slices["post_flag"].tolist())) - {NONE}
        if odd:
            raise PlanError(
                f"algorithm {a.algorithm}, member {a.rank}: flag {min(odd)} is posted in place only, or only if not, "
                "and op.in_place is each member's own; post it in either case (op.sync)",
                ranks=[a.rank], operation=a.spec.operation,
            )  # fmt: skip


def _few_flags(plans: list[Plan]) -> None:
    """PlanError for the first member that has more flags than executors: all members must refuse it alike."""
    for plan in plans:
        most = max(int(plan.slices[name].max(initial=NONE)) for name in ("post_flag", "wait_flag"))
        if most >= FLAGS:
            raise PlanError(
                f"algorithm {plan.algorithm}, member {plan.rank}: it has flag {most}, and flags are 0 to {FLAGS - 1}; "
                "move the data in fewer pieces", ranks=[plan.rank], operation=plan.spec.operation,
            )  # fmt: skip


def posted(plans: list[Plan]) -> None:
    """PlanError for the first slice that waits for a flag which nobody posts, with the cure."""
    posts = [set(plan.slices["post_flag"].tolist()) for plan in plans]
    for plan in plans:
        for number, s in enumerate(plan.slices):
            member, flag = int(s["wait_peer"]), int(s["wait_flag"])
            if flag != NONE and flag not in posts[member]:
                raise PlanError(
                    f"algorithm {plan.algorithm}, member {plan.rank}, slice {number} "
                    f"({SLICE_NAMES[int(s['kind'])]} of {int(s['bytes'])} bytes, member {int(s['peer'])}): waits for "
                    f"flag {flag} of member {member}, which posts {sorted(posts[member] - {NONE}) or 'none'}; give "
                    f"post={flag} to the slice of member {member} that it is to wait for",
                    ranks=[plan.rank], operation=plan.spec.operation,
                )  # fmt: skip
