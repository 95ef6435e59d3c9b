"""What a thread calls while it captures."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from strata import errors, failure
from strata._core import front, memory
from strata._core.planned import PlanHandle
from strata._core.space import Context
from strata.comm import Group
from strata.plan.plan import Plan

__all__ = ["Entry", "Recording", "active", "begin", "end"]

_lock = threading.Lock()


class Entry(NamedTuple):
    """A captured operation, or a copy that concerns this die alone (``group`` None)."""

    group: Group | None
    desc: int  # the fingerprint
    count: int  # type: ignore[assignment]  # hides tuple.count, on purpose
    text: str
    handle: PlanHandle | None  # None: no bytes move
    src: int  # addresses
    out: int
    nbytes: int  # of a copy
    timed: Plan | None = None  # what it is on the machine of the dies' clock


def begin(context: Context) -> Recording:
    """From now on this thread's collectives are recorded.  InvalidArgument: they are already."""
    made = Recording(context)
    with _lock:
        if active(context):
            raise errors.InvalidArgument("this thread is capturing already, and captures do not nest: end the outer "
                                         "block first", operation="capture")  # fmt: skip
        context.recorders = {**(context.recorders or {}), threading.get_ident(): made}
    return made


def active(context: Context) -> bool:
    """Whether this thread captures."""
    return threading.get_ident() in (context.recorders or {})


def end(context: Context) -> None:
    """They run again."""
    with _lock:
        others = {k: v for k, v in (context.recorders or {}).items() if k != threading.get_ident()}
        context.recorders = others or None


class Recording:
    """Operations in the order in which they were called, and what they need to live."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.entries: list[Entry] = []
        self.keep: list[Any] = []

    def groups(self, extra: Iterable[Group] = ()) -> list[Group]:
        """Those with peers, in an order that all dies share, so that nobody waits in a circle."""
        found = [*extra, *(e.group for e in self.entries if e.group is not None)]
        unlike = {id(g): g for g in found if g.size > 1}
        return sorted(unlike.values(), key=lambda g: (g.name, g.ranks))

    def fingerprints(self, group: Group) -> list[tuple[int, int]]:
        """Of the operations of a group."""
        return [(e.desc, e.count) for e in self.entries if e.group is group]

    # ---- what groups call ---------------------------------------------------------------------

    def record(self, group: Group, desc: int, src: Any, out: Any, at: tuple[int, int], *, pushes: bool, mail: int,
               variant: int, in_place: bool, **ask: Any) -> None:  # fmt: skip
        """Takes an operation down.

        ``src``, ``out``: the arrays that count, or None, and ``at`` their addresses as the operation takes them;
        ``pushes``: peers may write to out; ``mail``: bytes of a payload; ``ask``: of Group._choose_plan, with the mode
        that a call would have.
        """
        name, count = ask["operation"], ask["count"]
        asked = group.asked(variant)
        if asked.path == "mte" or asked.cores not in (None, 1) or asked.partition not in (None, "balanced"):
            raise errors.InvalidArgument(
                f"{name}: a graph is one list of descriptors, so path='mte', several cores and partition='naive' mean "
                "nothing in a capture; leave them out", operation=name,
            )  # fmt: skip
        self._check(name, "source", src)
        self._check(name, "output", out)
        handle, timed, nbytes = None, None, 0
        if group.size == 1:
            nbytes = 0 if out is None or at[0] == at[1] else out.nbytes
        elif name != "barrier":
            # The algorithm is a call's, and so are the bits; a list of descriptors is one core.
            spec, choice = group._choose_plan(in_place=in_place, variant=variant, overlap=False, **ask)
            spec = spec._replace(mode="zero_copy", in_place=bool(in_place))
            plan = group._build(spec, choice._replace(cores=1, path="mte"))
            timed = None if group.track is None else group._build(spec, choice)
            handle = PlanHandle(plan, group.size, 0, False, group.context.ndies)
            desc = front.fingerprint(desc, handle.digest)
            if out is not None and ask["redop"] and (pushes or handle.exposes_out) and at[1] % out.itemsize:
                raise ValueError(f"{name}: the output is not aligned to its elements of {out.itemsize} bytes, and "
                                 "peers may add to it atomically: use one that is")  # fmt: skip
        text = failure.describe(desc, count)
        self.entries.append(Entry(group, desc, count, text, handle, *at, nbytes, timed))
        self.keep.append((group, src, out))

    def copy_of(self, group: Group, a: np.ndarray) -> np.ndarray:
        """Fabric memory that has, when this place is replayed, what the array has then."""
        self._check("all_to_all", "source", a)
        made = memory.alloc_array(self.context, a.shape, a.dtype, False)
        at = memory.pointer(a), memory.pointer(made)
        self.entries.append(Entry(None, 0, a.size, "copy", None, *at, a.nbytes))
        self.keep.append((group, a, made))
        return made

    def _check(self, name: str, what: str, a: np.ndarray | None) -> None:
        if a is None:
            return
        if a.nbytes and memory.owner(self.context, a) < 0:
            raise ValueError(f"{name}: the {what} is not fabric memory, and a capture cannot stage it: use an array of "
                             "strata.empty() or its like")  # fmt: skip
        if not a.flags.c_contiguous:
            raise ValueError(f"{name}: the {what} is strided, and a capture cannot stage it: use a contiguous array")
