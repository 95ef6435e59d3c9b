"""A group that loses dies, and one that takes in dies which were started again: shrink(), both sides of grow()."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from strata import errors, failure
from strata._core import growing as core
from strata._core.front import OPERATIONS
from strata._core.space import Context

__all__ = ["grow", "join", "shrink"]

_GATHER = OPERATIONS.index("all_gather")
_INT64 = 8  # dtype code of int64
LATE = 10.0  # seconds that members wait longer for the first one, which says who did not come
_FINE, _MISSING, _NO_MEMORY = range(3)  # what it says


def shrink(group: Any, timeout: float | None) -> Any:
    """See Group.shrink."""
    while True:
        call = group._count("shrink")
        members, missing = group.survivors(call, timeout)
        if missing:
            late = [group.ranks[m] for m in missing]
            raise errors.CollectiveTimeout(f"{failure.people(late)} neither called shrink() nor died", ranks=late,
                                           group=group.name, operation="shrink")  # fmt: skip
        try:
            smaller = group._form(members, ("shrink", call, tuple(members)), f"{group.name}.shrink{call}", timeout)
        except BaseException as error:
            group.agreed(call, members, False)
            if isinstance(error, errors.PeerDead):
                continue  # the first member died before it had made the group, or before this one had found it
            raise
        if group.agreed(call, members, True, timeout):
            return smaller
        del smaller  # somebody has come too late for the first member's memory


def grow(group: Any, ranks: Iterable[int] | None, timeout: float | None) -> Any:
    """See Group.grow."""
    context = group.context
    if context.config.clock:
        raise errors.InvalidArgument("grow: virtual clocks of dies that come later are not defined; run without",
                                     group=group.name, operation="grow")  # fmt: skip
    wanted = _wanted(group, ranks)
    limit = context.config.timeout if timeout is None else float(timeout)
    deadline = time.monotonic() + limit
    call = group._count("grow")
    _agree(group, wanted, limit)
    name = _name(group.name)
    if not wanted:
        return group._form(list(range(group.size)), ("grow", call), name, timeout)
    made: list[int] = []  # newcomers that this die has a claim on
    try:
        memory, record, key = _offer(group, wanted, call, name, deadline, made)
        table = group.exchange(_GATHER, _INT64, 0, record, limit + LATE)
        grown, error = None, _said(group, wanted, table[0])
        if error is None:
            grown, error = _bind(group, wanted, table[0], key, name, memory, deadline)
            done = group.exchange(_GATHER, _INT64, 0, np.array([error is None], np.int64), limit + LATE)
            late = [r for r, row in zip(group.ranks, done, strict=True) if not row[0]]
            if late and error is None:
                error = errors.RegistrationError(f"{failure.people(late)} could not go on to the new group",
                                                 ranks=late, group=group.name, operation="grow")  # fmt: skip
        if error is not None:
            raise error
        if made:
            gone = core.offer(context, made, core.address(memory), memory.nbytes)
            if gone:
                core.declare_dead(grown, [grown.ranks.index(r) for r in gone])
            made.clear()
    finally:
        core.retract(context, made)
    grown.barrier(timeout=max(1.0, deadline - time.monotonic()))
    return grown


def _wanted(group: Any, ranks: Iterable[int] | None) -> list[int]:
    ndies = group.context.ndies
    if ranks is None:
        return [r for r in range(ndies) if r not in group.ranks]
    wanted = sorted(int(r) for r in ranks)
    if len(set(wanted)) != len(wanted) or not all(0 <= r < ndies for r in wanted):
        raise ValueError(f"ranks={wanted}: distinct world ranks from 0 to {ndies - 1} are expected")
    inside = [r for r in wanted if r in group.ranks]
    if inside:
        raise ValueError(f"ranks={wanted}: {failure.people(inside)} are members of {group.name} already")
    return wanted


def _name(name: str) -> str:
    """world.shrink1 grows to world.grow1, and that, when it has shrunk, to world.grow2."""
    found = re.fullmatch(r"(.*?)((?:\.(?:shrink|grow)\d+)*)", name)
    assert found is not None  # it matches anything
    grown = re.findall(r"\.grow(\d+)", found[2])
    return f"{found[1]}.grow{int(grown[-1]) + 1 if grown else 1}"


def _agree(group: Any, wanted: list[int], limit: float) -> None:
    """CollectiveMismatch on all members unless all want the same dies."""
    digest = int.from_bytes(hashlib.blake2b(repr(wanted).encode(), digest_size=7).digest(), "little")
    table = group.exchange(_GATHER, _INT64, 0, np.array([digest, len(wanted)], np.int64), limit)
    if (table != table[0]).any():
        said = ", ".join(f"rank {r}: {row[1]}" for r, row in zip(group.ranks, table, strict=True))
        raise errors.CollectiveMismatch(f"members of grow want different dies (how many: {said})",
                                        ranks=sorted(group.ranks), group=group.name, operation="grow")  # fmt: skip


def _offer(group: Any, wanted: list[int], call: int, name: str, deadline: float,
           made: list[int]) -> tuple[Any, np.ndarray, bytes]:  # fmt: skip
    """The first member's part: waits for the newcomers, and makes memory.  What it tells the others, and the key."""
    record = np.zeros(4 + 2 * len(wanted), np.int64)
    seed = repr(("grow", call, wanted)).encode()
    key = hashlib.blake2b(seed, key=group._key, digest_size=16).digest()
    if group.rank:
        return None, record, key
    memory = None
    try:
        lives, missing, dead = core.claim(group, wanted, max(0.0, deadline - time.monotonic()))
        record[4:] = [*lives, *(r in missing for r in wanted)]
        if not missing and not dead:
            made[:] = wanted
            members, their = _union(group, wanted, lives)
            memory = core.format_memory(group, members, their, key, name)
            record[1:4] = core.address(memory), memory.nbytes, group.context.incarnation
    except MemoryError:
        record[0] = _NO_MEMORY
    except BaseException:
        group.abstain(LATE)  # the others must not wait for this die
        raise
    if record[0] == _FINE and memory is None:
        record[0] = _MISSING
    return memory, record, key


def _union(group: Any, wanted: list[int], lives: list[int]) -> tuple[list[int], list[int]]:
    both = sorted([*zip(group.ranks, group.lives, strict=True), *zip(wanted, lives, strict=True)])
    return [rank for rank, _ in both], [life for _, life in both]


def _said(group: Any, wanted: list[int], record: np.ndarray) -> errors.StrataError | None:
    """The error that the first member's record stands for."""
    words: dict[str, Any] = {"group": group.name, "operation": "grow"}
    if record[0] == _NO_MEMORY:
        return errors.FabricMemoryError(f"rank {group.ranks[0]} has no memory for the new group", **words)
    if record[0] == _MISSING:
        late = [r for r, flag in zip(wanted, record[4 + len(wanted) :], strict=True) if flag]
        return errors.CollectiveTimeout(
            f"{failure.people(late)} {'has' if len(late) == 1 else 'have'} not come: nobody has been started again "
            "there, or it does not wait in strata.world()", ranks=late, **words,
        )  # fmt: skip
    return None


def _bind(group: Any, wanted: list[int], record: np.ndarray, key: bytes, name: str, memory: Any,
          deadline: float) -> tuple[Any, errors.StrataError | None]:  # fmt: skip
    """This member's new group, or why there is none."""
    context = group.context
    va, nbytes, life, *lives = (int(v) for v in record[1 : 4 + len(wanted)])
    try:
        for rank in wanted:
            _accept(context, rank, deadline)
        ranks, their = _union(group, wanted, lives)
        where = memory if group.rank == 0 else (va, nbytes, life)
        return type(group)(context, ranks, name, key, None, their, where), None
    except errors.StrataError as error:
        return None, error


def _accept(context: Context, rank: int, deadline: float) -> None:
    """Parts with what this die has of the former processes of another."""
    while not core.accept(context, rank):
        if time.monotonic() >= deadline:
            raise errors.CollectiveTimeout(
                f"an operation of this die (rank {context.rank}) with the process that was rank {rank} before has not "
                "ended: another thread waits in it", ranks=(context.rank,), operation="grow",
            )  # fmt: skip
        time.sleep(0.002)


def join(kind: Callable[..., Any], context: Context, timeout: float | None) -> Any:
    """The newcomer's part: waits until a group takes it in, and returns that group."""
    limit = context.config.timeout if timeout is None else float(timeout)
    deadline, me = time.monotonic() + limit, context.rank
    what = f"rank {me} was started again (incarnation {context.incarnation})"
    while True:
        got = core.await_offer(context, max(0.0, deadline - time.monotonic()))
        if got == "timeout":
            raise errors.CollectiveTimeout(f"{what}, and no group has taken it in within {limit:g} s: do the survivors "
                                           "call grow()?", ranks=(me,), operation="world")  # fmt: skip
        if isinstance(got, str):
            others = [r for r in range(context.ndies) if r != me]
            raise errors.PeerDead(f"{what}, and no die is left that could take it in", ranks=others, operation="world")
        va, nbytes, life = got
        offer = core.read_offer(context, va, nbytes)
        if offer is None:
            continue  # it went with the die that made it
        ranks, lives, key, name = offer
        try:
            for rank in ranks:
                _accept(context, rank, deadline)
            group = kind(context, ranks, name, key, None, lives, (va, nbytes, life))
            group.barrier(timeout=max(1.0, deadline - time.monotonic()))
            return group
        except (errors.PeerDead, errors.GroupBroken, errors.RegistrationError):
            continue  # another one died meanwhile: the survivors hear of it, and grow again
