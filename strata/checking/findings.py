"""What a finding says: both sides, why nothing orders them, and the cure."""

from __future__ import annotations

from collections.abc import Sequence

from strata.checking.events import Op
from strata.checking.memory import Memory
from strata.checking.operations import Record, title
from strata.checking.places import Place
from strata.checking.reports import Report, Side
from strata.checking.shadow import ATOMIC_READ, ATOMIC_WRITE, FREE, Access

__all__ = ["Blocked", "deadlock", "leak", "mismatch", "race", "unowned"]

_VERB = ("reads", "writes", "reads (atomic)", "accumulates to (atomic)", "allocates", "frees")
_PLAIN = (
    "order them: group.barrier() between the two, a message (send and recv), or a flag that one side raises after "
    "its access and the other waits for before its own"
)


def _side(access: Access) -> Side:
    what = f"{_VERB[access.kind]} them" + (f" ({access.what.strip()})" if access.what else "")
    return Side(access.die, access.task, what, access.doing.operation, access.place, access.doing.since())


def _last(first: Access, second: Access) -> str:
    """The last synchronisation of both sides, in a sentence."""
    a, b = first.doing.since(), second.doing.since()
    who = [f"rank {x.die}" + (f" (task {x.task})" if x.task else "") for x in (first, second)]
    if a == b:
        return f"The last synchronisation of both sides before it was {a}."
    if who[0] == who[1]:
        return f"The last synchronisation of {who[0]}: {a}; and before the other access: {b}."
    return f"The last synchronisation before it: of {who[0]} {a}; of {who[1]} {b}."


def race(old: Access, new: Access, lo: int, hi: int, memory: Memory) -> Report:
    """Two accesses to the same bytes, one of them a write, that nothing orders."""
    a, b = _VERB[old.kind], _VERB[new.kind]
    if old.die == new.die:
        head = f"rank {old.die} {a} and {b} the same bytes in two of its tasks, and nothing orders the two"
    else:
        head = f"rank {old.die} {a} and rank {new.die} {b} the same bytes, and nothing orders the two"
    atomic = {ATOMIC_READ, ATOMIC_WRITE}
    if old.die == new.die and (old.doing.operation or new.doing.operation):
        cure = (
            "wait for the operation that runs beside the program (Work.wait(), synchronize() of the stream) before "
            "the array is touched again"
        )
    elif (old.kind in atomic) != (new.kind in atomic):
        cure = (
            "an atomic access orders itself with atomic ones only: use the same functions on both sides (a flag is "
            "read by waiting for it, not as an element of an array), or order them by group.barrier()"
        )
    elif old.doing.operation or new.doing.operation:
        op = old if old.doing.operation else new
        cure = (
            f"{op.doing.operation} is over for rank {op.die} when it returns there; that it has returned on another "
            "rank says nothing of it. Put group.barrier() between the operation and the other access"
        )
    else:
        cure = _PLAIN
    why = "no synchronisation of the program leads from one to the other, so either may come first. " + _last(old, new)
    return Report("race", head, (_side(old), _side(new)), why, cure + ".", memory.describe(lo, hi), lo, hi)


def _accessing(access: Access) -> str:
    verb = _VERB[access.kind]
    return f"rank {access.die} {verb}"


def unowned(access: Access, mark: Access, lo: int, hi: int, memory: Memory, ordered: bool) -> Report:
    """An access to bytes that are no array any more (mark: the free), or another one by now (mark: the alloc)."""
    if mark.kind == FREE:
        kind, head = "use after free", f"{_accessing(access)} bytes of an array that rank {mark.die} frees"
        if ordered:
            why = f"the array had been freed before, as rank {access.die} could have known."
        else:
            why = "nothing orders the access before the free. " + _last(access, mark)
        cure = (
            f"rank {mark.die} has to keep the array (a reference to it) until the others are done with it: "
            "group.barrier() before it is deleted or its function returns."
        )
        sides: tuple[Side, ...] = (_side(access), _side(mark))
    elif mark.previous is not None:
        kind = "stale"
        head = f"{_accessing(access)} bytes by an old address, where rank {mark.die} freed an array and made another"
        why = f"what rank {access.die} holds is of the array that was freed at {mark.previous.place}. "
        why += "The access is ordered after that." if ordered else _last(access, mark)
        cure = (
            "tell the address anew after each allocation, and order it: exchange, then group.barrier(); and keep the "
            "old array until the others are done with it."
        )
        sides = (_side(access), _side(mark), _side(mark.previous))
    else:
        kind = "race"
        head = f"{_accessing(access)} bytes of an array that rank {mark.die} makes, and nothing orders the two"
        why = f"rank {access.die} cannot know that the array is there yet. " + _last(access, mark)
        cure = "group.barrier() after the array was made, before others touch it."
        sides = (_side(mark), _side(access))
    return Report(kind, head, sides, why, cure, memory.describe(lo, hi), lo, hi)


def _op_side(rank: int, op: Op, place: Place, more: str = "") -> Side:
    root = f", root rank {op.root}" if op.root >= 0 else ""
    return Side(rank, op.t, f"calls {op.op}{root}{more}", title(op), place, "")


def mismatch(record: Record, first: int, second: int, status: str = "") -> Report:
    """Two members that call different operations where they should call the same."""
    (a, place_a), (b, place_b) = record.arrived[first], record.arrived[second]
    group = a.name or f"group {a.group[:8]}"
    where = f"operation number {a.n} of {group}"
    more = ("", "")
    if a.op != b.op:
        head = f"{where} is {a.op} for rank {first} and {b.op} for rank {second}"
        why = "all members of a group must call its operations in one order."
        cure = "call the same operations in the same order on all members; look at what the two stacks branch on."
    elif a.root != b.root:
        head = f"{where} ({a.op}) has root rank {a.root} for rank {first} and rank {b.root} for rank {second}"
        why = "one operation has one root."
        cure = "give the same root on all members."
    else:
        head = f"{where} ({a.op}) differs between its members ({status})"
        why = "the operation is the same, but dtype, count, reduction or counts of rows are not."
        cure = "give arrays of the same dtype and size (and the same op=) on all members."
        more = (_bytes(a), _bytes(b))
    sides = (_op_side(first, a, place_a, more[0]), _op_side(second, b, place_b, more[1]))
    return Report("mismatch", head, sides, why, cure)


def _bytes(op: Op) -> str:
    size = [sum((r.hi - r.lo) * r.n for r in ranges) for ranges in (op.reads, op.writes)]
    return f" with {size[0]} bytes read and {size[1]} written in fabric memory" if any(size) else ""


class Blocked:
    """A die that waits, or (``ended``) is there no more: a link of a deadlock."""

    def __init__(
        self, rank: int, what: str, place: Place, ranks: Sequence[int] = (), ended: bool = False, task: int = 0
    ) -> None:
        self.rank = rank
        self.what = what
        self.place = place
        self.ranks = tuple(ranks)  # for which it waits
        self.ended = ended
        self.task = task

    def side(self) -> Side:
        """As the report shows it."""
        if self.ended:
            return Side(self.rank, self.task, self.what, "", self.place, "")
        whom = " and ".join(f"rank {r}" for r in self.ranks) or "any other rank"
        return Side(self.rank, self.task, f"waits for {whom} in {self.what}", "", self.place, "")


def deadlock(links: Sequence[Blocked], late: bool = False) -> Report:
    """Dies that wait for each other, in order, or for one that has ended (the last)."""
    last = links[-1]
    ranks = sorted({link.rank for link in links if not link.ended})
    who = "rank" + ("s " if len(ranks) > 1 else " ") + ", ".join(map(str, ranks))
    verb = "wait" if len(ranks) > 1 else "waits"
    if last.ended and not late:
        head = f"{who} {verb} for rank {last.rank}, which has ended"
        why = "what they wait for can come no more: " + "; ".join(
            f"rank {a.rank} waits for rank {b.rank}" for a, b in zip(links, links[1:], strict=False)
        )
        cure = "all members have to call each operation of their group; look at what the ended rank did not call."
    elif late:
        head = f"rank {links[0].rank} waited in {links[0].what} for rank {last.rank} until its timeout, in vain"
        why = f"rank {last.rank} {last.what}, and never came"
        cure = "all members have to call each operation of their group, in one order."
    else:
        head = f"{who} {verb} for " + ("each other" if len(ranks) > 1 else "itself")
        cycle = [*links, links[0]]
        why = "; ".join(f"rank {a.rank} waits for rank {b.rank}" for a, b in zip(cycle, cycle[1:], strict=False))
        why += ", so none can go on"
        cure = (
            "call what several ranks take part in in one order everywhere: the operations of different groups in the "
            "same order on all ranks, and a send before the recv that waits for its answer."
        )
    return Report("deadlock", head, [link.side() for link in links], why + ".", cure)


_LEAKS = {
    "request": "wait for it (wait()), or close it",
    "stream": "synchronize() and close() it, or use it as a context manager",
    "window": "close() it, or use it as a context manager",
    "mapping": "unmap it",
    "handle": "close() or free it",
    "message": "receive it, or do not send it",
    "graph": "close() it, or use it as a context manager",
}


def leak(rank: int, task: int, kind: str, text: str, place: Place) -> Report:
    """Something that was never closed, waited for or received."""
    side = Side(rank, task, f"leaves a {kind} behind" + (f": {text}" if text else ""), "", place, "")
    cure = _LEAKS.get(kind, "close it") + "."
    why = "it was made here and never let go."
    return Report("leak", f"a {kind} was left at the end of rank {rank}", [side], why, cure)

