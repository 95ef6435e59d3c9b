"""What a program is made of: stages, and which of them are over when another begins."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import InvalidArgument

if TYPE_CHECKING:
    from strata.exec.timed.assembly import Part


class Stage:
    """Something that dies do.

    ``index``  its number in the program;  ``kind``: "operation", "compute", "map", "delay"
    ``dies``   i32: of its members, in their order
    ``before`` stages that are over on a die when this begins there, as bits: one number, or one for each of ``dies``
    """

    def __init__(self, index: int, name: str, kind: str, dies: np.ndarray, after: Sequence[Stage], part: Part) -> None:
        self.index, self.name, self.kind, self.dies, self.after, self.part = index, name, kind, dies, after, part
        self.before = _before(dies, after)
        dies.setflags(write=False)

    def __repr__(self) -> str:
        return f"<Stage {self.index} {self.name!r}, {self.kind} on {len(self.dies)} dies>"

    @functools.cached_property
    def member(self) -> dict[int, int]:
        """Which member a die is."""
        return {int(die): m for m, die in enumerate(self.dies)}

    def over(self, other: Stage | int) -> np.ndarray:
        """Whether another stage is over on each of ``dies`` when this begins there, bool."""
        bit = other if isinstance(other, int) else other.index
        if isinstance(self.before, int):
            return np.full(len(self.dies), bool(self.before >> bit & 1))
        return np.array([bool(b >> bit & 1) for b in self.before])


def _before(dies: np.ndarray, after: Sequence[Stage]) -> int | list[int]:
    """Bits of the stages that are over, of all dies alike or one by one."""
    alike = 0
    for a in after:
        if not isinstance(a.before, int) or not _covers(a.dies, dies):
            break
        alike |= a.before | 1 << a.index
    else:
        return alike
    found = []
    for die in dies.tolist():
        bits = 0
        for a in after:
            m = a.member.get(die)
            if m is not None:
                bits |= (a.before if isinstance(a.before, int) else a.before[m]) | 1 << a.index
        found.append(bits)
    return found


def _covers(these: np.ndarray, those: np.ndarray) -> bool:
    """Whether all of ``those`` are among ``these``."""
    return these is those or np.array_equal(these, those) or bool(np.isin(those, these).all())


def stages(after: Stage | Iterable[Stage] | None, known: Sequence[Stage]) -> tuple[Stage, ...]:
    """``after`` as a tuple of different stages of this program."""
    given = () if after is None else (after,) if isinstance(after, Stage) else tuple(after)
    for a in given:
        if not isinstance(a, Stage) or a.index >= len(known) or known[a.index] is not a:
            raise InvalidArgument(f"after has {a!r}, which is no stage of this program")
    return tuple(dict.fromkeys(given))


def whole(number: object) -> bool:
    """Whether it is a whole number, which True is not."""
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool)


def members(dies: Sequence[int] | np.ndarray, ndies: int) -> np.ndarray:
    """``dies`` as i32; InvalidArgument unless they are different dies of the program."""
    try:
        found = np.array(dies, ndmin=1)
    except ValueError:
        found = np.zeros(0)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise InvalidArgument(f"dies is {dies!r}: a list of die numbers is expected")
    if found.min() < 0 or found.max() >= ndies:
        raise InvalidArgument(f"dies has {int(found.min() if found.min() < 0 else found.max())}, and the program has "
                              f"{ndies}: 0 to {ndies - 1}")  # fmt: skip
    if len(np.unique(found)) != len(found):
        raise InvalidArgument("dies names a die twice")
    return found.astype(np.int32)
