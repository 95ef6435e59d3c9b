"""The words of a failed operation: who, what, and what now."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from strata import errors
from strata._core import array, front
from strata.dtypes import OPS
from strata.plan import algorithms

__all__ = ["check_counts", "describe", "raise_collective", "raise_transfer"]

_STATUS = {status.name: code for code, status in enumerate(errors.STATUS)}
DEAD, TIMEOUT, MISMATCH, BROKEN = (_STATUS[f"ST_E{n}"] for n in ("DEAD", "TIMEOUT", "MISMATCH", "BROKEN"))
SYSTEM, INTERRUPTED, UNREGISTERED = _STATUS["ST_ESYS"], _STATUS["ST_EINTR"], _STATUS["ST_EREG"]
NESTED = _STATUS["ST_EDEADLOCK"]

_NOTHING = front.OPERATIONS.index("nothing (it failed)")  # st_group.h: ST_DESC_NOTHING
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_PHASES = ("before it arrived", "during the operation", "before it had finished its part")


def operation_name(desc: int) -> str:
    """The operation in a fingerprint."""
    op = desc & 0xFF
    names = front.OPERATIONS
    return names[op] if op < len(names) else f"operation {op}"


def describe(desc: int, count: int) -> str:
    """A fingerprint in words, such as "all_reduce sum of 10 float32"."""
    name = operation_name(desc)
    if desc & front.BINDS:
        return f"bind of {describe(desc & ~front.BINDS, count)}"
    if name == "barrier" or desc & 0xFF >= len(front.OPERATIONS) - 1:
        return name
    redop, dtype, root = desc >> 8 & 0xFF, desc >> 16 & 0xFFFF, desc >> 32 & 0xFFFF
    words = [name]
    if redop:
        words.append(OPS[redop] if redop < len(OPS) else f"op {redop}")
    words.append(f"of {count} {array.dtype_name(dtype)}")
    if name in _ROOTED:
        words.append(f"with root {root}")
    elif root:  # of a bound all_to_all_v
        words.append(f"with counts #{root:04x}")
    digest = front.digest_of(desc)
    if digest:
        words.append(f"by {algorithms.by_digest(digest)}")
    return " ".join(words)


def people(ranks: list[int]) -> str:
    """ "rank 3" or "ranks 0, 2"."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def mismatch_text(lines: list[tuple[int, int]], ranks: tuple[int, ...]) -> str:
    """Who asked for what; the same on every member."""
    wishes: dict[str, list[int]] = {}
    for member, (desc, count) in enumerate(lines):
        wishes.setdefault(describe(desc, count), []).append(ranks[member])
    return "members asked for different operations: " + "; ".join(
        f"{people(who)}: {what}" for what, who in wishes.items()
    )


def _first_failure(group: Any, status: int, info: dict[str, Any]) -> str:
    who = [group.ranks[m] for m in info["members"]]
    phase = _PHASES[min(info["phase"], 2)]
    if status == DEAD:
        return f"{people(who)} died (or left the job) {phase}"
    if status == TIMEOUT:
        verb = "has" if len(who) == 1 else "have"
        what = "not arrived" if info["phase"] == 0 else "not finished"
        return f"{people(who)} {verb} {what} in time, and {'is' if len(who) == 1 else 'are'} not dead"
    by = group.ranks[info["failed_by"]]
    if status == BROKEN:
        return f"rank {by} gave the operation up (interrupted) {phase}"
    reason = errors.STATUS[status].phrase or getattr(errors.STATUS[status].error, "phrase", "it failed")
    return f"rank {by} failed {phase}: {reason}"


def _refused(status: int, what: str, writes: bool) -> str | None:
    """Why an operation could not use this die's own array."""
    if status != UNREGISTERED:
        return None  # the status' own phrase
    return (f"{what} is fabric memory that may not be {'written' if writes else 'read'} here: "
            "nothing is mapped there (any more), or strata.vmm.set_access gave no such access")  # fmt: skip


def raise_collective(group: Any, status: int, info: dict[str, Any]) -> NoReturn:
    """Raises the error of a collective: the same kind and text on all members."""
    operation, number = operation_name(info["desc"]), info["number"]
    context: dict[str, Any] = {"group": group.name, "operation": operation, "number": number}
    if status == MISMATCH:
        everyone = sorted(group.ranks)
        context["operation"] = operation_name(info["lines"][0][0])  # the same on all members
        lost = sorted({count - 1 for desc, count in info["lines"] if desc == _NOTHING and count})
        if lost:
            who = [r for r, (desc, count) in zip(group.ranks, info["lines"], strict=True) if desc == _NOTHING and count]
            raise errors.PeerDead(f"{people(lost)} died (or left the job), so a stream of {people(who)} has failed and "
                                  "did nothing here; this group is whole", ranks=lost, **context)  # fmt: skip
        raise errors.CollectiveMismatch(mismatch_text(info["lines"], group.ranks), ranks=everyone, **context)
    if status == INTERRUPTED:
        raise errors.GroupBroken(f"{operation} was given up: its group was closed before it ended", **context)
    if info["refused"] and status not in (DEAD, TIMEOUT, BROKEN):
        raise errors.from_status(
            status, _refused(status, f"{operation}: this die's {info['refused']} array", info["refused"] == "output"),
            errno=info["errno"], ranks=(group.ranks[group.rank],), **context,
        )  # fmt: skip
    if status == NESTED:
        context["number"] = None
        raise errors.Deadlock(
            f"{operation} has not begun: this thread is in another operation of the group, which a signal handler or "
            "finalizer interrupted; call it when that has returned, or on a group of its own", **context
        )  # fmt: skip
    if status == TIMEOUT and not number:
        context["number"] = None
        raise errors.CollectiveTimeout(
            f"{operation} has not begun: another operation of this die in the group took all the time", **context
        )
    who = [group.ranks[m] for m in info["members"]]
    first = _first_failure(group, status, info)
    late = [group.ranks[m] for m in info["late"]]
    if late:
        first += f"; {people(late)} may still write to this die's output array, do not reuse it"
    elif status == TIMEOUT:
        first += "; no peer will write to this die's arrays any more"
    mine = group.ranks[group.rank]
    if info["failed_number"] not in (0, number):
        earlier = f"{operation_name(info['failed_desc'])} #{info['failed_number']}"
        raise errors.GroupBroken(
            f"the group broke in {earlier}: {first}; shrink() gives a group of the survivors", ranks=who, **context
        )
    if status == BROKEN or (status == TIMEOUT and mine in who):
        cause = "its peers stopped waiting for this die" if mine in who and status == TIMEOUT else first
        raise errors.GroupBroken(f"{cause}; shrink() gives a working group", ranks=who, **context)
    if status in (DEAD, TIMEOUT) or info["failed_by"] == group.rank or status == SYSTEM:
        raise errors.from_status(status, first, errno=info["errno"], ranks=who, **context)
    raise errors.GroupBroken(f"{first}; shrink() gives a working group", ranks=who, **context)


def raise_transfer(group: Any, status: int, info: dict[str, Any]) -> NoReturn:
    """Raises the error of a send or receive.  Only a dead peer or a broken group is final."""
    receive, peer = info["receive"], group.ranks[info["peer"]]
    operation = "recv" if receive else "send"
    way = f"from rank {peer}" if receive else f"to rank {peer}"
    context: dict[str, Any] = {"group": group.name, "operation": operation, "ranks": (peer,)}
    tag = f"tag {info['tag']}"
    if info["refused"]:
        raise errors.from_status(status, _refused(status, f"{operation} {way}, {tag}: the array", receive),
                                 errno=info["errno"], **context)  # fmt: skip
    if status == MISMATCH and info["theirs"][0] == _NOTHING:
        _raise_nothing(group, f"{operation} {way}, {tag}", info, context)
    if status == MISMATCH:
        mine, theirs = info["mine"], info["theirs"]
        sent, asked = (theirs, mine) if receive else (mine, theirs)
        source, target = (peer, group.ranks[group.rank]) if receive else (group.ranks[group.rank], peer)
        text = (
            f"rank {source} sent {sent[1]} {array.dtype_name(sent[0] >> 16 & 0xFFFF)} and rank {target} asked "
            f"for {asked[1]} {array.dtype_name(asked[0] >> 16 & 0xFFFF)} ({tag}); the message is gone"
        )
        raise errors.CollectiveMismatch(text, **context)
    if status == INTERRUPTED:
        raise errors.GroupBroken(f"{operation} {way}, {tag}, was given up: its group was closed", **context)
    if status == DEAD:
        raise errors.PeerDead(f"rank {peer} died (or left the job); {operation} {way}, {tag}", **context)
    if status == TIMEOUT:
        what = "nothing came in time" if receive else "nobody received it in time; the message is withdrawn"
        if info["tags"]:  # mostly it is one of them that was meant
            what += f", but of rank {peer} there is a message of tag {', '.join(map(str, info['tags']))}"
        raise errors.CollectiveTimeout(f"{operation} {way}, {tag}: {what}", **context)
    if status == BROKEN or group.broken:
        who = [group.ranks[m] for m in info["members"]]
        context["ranks"] = who or context["ranks"]
        why = f" ({people(who)})" if who else ""
        raise errors.GroupBroken(
            f"{operation} {way}, {tag}: a collective of the group has failed{why}; shrink() gives a working group",
            **context,
        )
    raise errors.from_status(status, f"{operation} {way}, {tag}", errno=info["errno"], **context)


def raise_cast(group: Any, info: dict[str, Any]) -> NoReturn:
    """Raises the error of a bound broadcast whose root has cast something else.  The root knows nothing of it."""
    mine, theirs, root = info["mine"], info["theirs"], group.ranks[info["peer"]]
    me = group.ranks[group.rank]
    context = {"group": group.name, "operation": "broadcast", "ranks": (root,), "number": info["number"]}
    if theirs[0] == _NOTHING:
        _raise_nothing(group, "bound broadcast", {**info, "members": []}, context)
    where = f"and rank {me} a bound {describe(*mine)}"
    if theirs == mine:
        where = f"and rank {me} too, but not as the same one of the group's"
    raise errors.CollectiveMismatch(
        f"rank {root} has called a bound {describe(*theirs)}, {where}: members call their bound broadcasts in "
        "different orders; this one is passed over", **context,
    )  # fmt: skip


def _raise_nothing(group: Any, what: str, info: dict[str, Any], context: dict[str, Any]) -> NoReturn:
    """The peer's stream had failed before it came to the message, and nothing stands in its place."""
    peer, lost = info["peer"], info["theirs"][1] - 1
    why = f"{what}: a stream of rank {group.ranks[peer]} had failed before it came to this message"
    if lost >= 0:
        context["ranks"] = (lost,)
        raise errors.PeerDead(f"{why}, since rank {lost} died (or left the job)", **context)
    dead = [group.ranks[m] for m in info["members"]]
    if dead:
        context["ranks"] = tuple(dead)
        raise errors.GroupBroken(f"{why}, as the group had ({people(dead)}); shrink() gives a working group", **context)
    raise errors.CollectiveMismatch(f"{why}; nothing came, or was taken", **context)


def check_counts(group: Any, sent: np.ndarray, asked: np.ndarray, rows: np.ndarray, room: np.ndarray) -> None:
    """CollectiveMismatch unless what members of all_to_all_v send and expect, (n, n) by sender and by receiver, the
    bytes of their rows, and the rows of their outputs (-1: none given) agree; all members see the same."""
    ranks, bad = group.ranks, []
    for receiver, sender in np.argwhere((asked >= 0) & (asked != sent.T))[:8]:
        bad.append(f"rank {ranks[sender]} sends {sent[sender, receiver]} rows to rank {ranks[receiver]}, "
                   f"which expects {asked[receiver, sender]}")  # fmt: skip
    if (rows != rows[0]).any():
        bad.append("rows have " + ", ".join(f"{b} bytes on rank {ranks[m]}" for m, b in enumerate(rows)))
    for m, need in enumerate(sent.sum(axis=0)):
        if 0 <= room[m] < need:
            bad.append(f"rank {ranks[m]} receives {need} rows, but its out has {room[m]}")
    if bad:
        raise errors.CollectiveMismatch(
            "the counts do not agree: " + "; ".join(bad),
            ranks=sorted(ranks), group=group.name, operation="all_to_all_v", number=group.number,
        )  # fmt: skip
