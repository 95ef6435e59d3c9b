"""Which die has which expert: a table of slots, several of which may hold one expert."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata._core import routing
from strata.errors import InvalidArgument

MASKED = -1  # a choice that names no expert
MAX_SLOTS = 1 << 20


@dataclass(frozen=True, eq=False)
class Placement:
    """Logical experts on physical slots, which are numbered die by die.

    ``logical``  i32 (slots): the expert that a slot holds
    ``first``    i32 (dies + 1): die d has slots first[d] to first[d + 1]; it may have none

    An expert in several slots is a redundant one: its *replicas*, in the order of slots.  An expert in no slot
    can be named by no token.  ``experts``: how many there are; None: one more than the largest in ``logical``.
    InvalidArgument for what is no such table.
    """

    logical: np.ndarray
    first: np.ndarray
    experts: int | None = None
    table: np.ndarray = field(init=False, repr=False)  # i32 (experts, most replicas): slots of each; -1 behind
    replicas: np.ndarray = field(init=False, repr=False)  # i32 (experts)

    def __post_init__(self) -> None:
        logical, first = _integers("logical", self.logical), _integers("first", self.first)
        if len(first) < 2 or first[0] or first[-1] != len(logical) or (np.diff(first) < 0).any():
            raise InvalidArgument(
                f"first is {_short(first)}: 0, then the end of each die's slots, up to {len(logical)}, is expected"
            )
        experts = int(logical.max(initial=-1)) + 1 if self.experts is None else int(self.experts)
        if len(logical) and not 0 <= logical.min() <= logical.max() < experts:
            raise InvalidArgument(f"logical holds {logical.min()} to {logical.max()}, and there are {experts} experts")
        if not 1 <= experts <= MAX_SLOTS:
            raise InvalidArgument(f"{experts} experts: 1 to {MAX_SLOTS} are expected")
        replicas = np.bincount(logical, minlength=experts)
        order = np.argsort(logical, kind="stable")
        begin = np.cumsum(replicas) - replicas
        table = np.full((experts, max(int(replicas.max()), 1)), -1, np.int32)
        table[logical[order], np.arange(len(order)) - begin[logical[order]]] = order
        for name, array in (("logical", logical), ("first", first), ("table", table), ("replicas", replicas)):
            array = np.ascontiguousarray(array, np.int32)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "experts", experts)

    @classmethod
    def default(cls, experts: int, dies: int) -> Placement:
        """Every expert once, in order; the first experts % dies dies have one more than the others."""
        if experts < 1 or dies < 1:
            raise InvalidArgument(f"{experts} experts on {dies} dies: at least one of each is expected")
        if experts > MAX_SLOTS:
            raise InvalidArgument(f"{experts} experts: 1 to {MAX_SLOTS} are expected")
        return cls(np.arange(experts), even(experts, dies), experts)

    @property
    def dies(self) -> int:
        return len(self.first) - 1

    @property
    def slots(self) -> int:
        return len(self.logical)

    def of_die(self, die: int) -> np.ndarray:
        """The logical experts of a die's slots, in their order."""
        if not 0 <= die < self.dies:
            raise InvalidArgument(f"die is {die} of {self.dies}")
        return self.logical[self.first[die] : self.first[die + 1]]

    def physical(self, topk_idx: np.ndarray, rank: int) -> np.ndarray:
        """The slot of each choice, i64 of the shape of ``topk_idx`` (tokens, k): of replicas that whose number is
        (rank + token) % replicas, so that dies and tokens take turns; -1 stays.  InvalidArgument for what is no expert
        of the table."""
        table = np.asarray(topk_idx)
        if table.ndim != 2 or table.dtype.kind not in "iu":
            raise InvalidArgument(f"topk_idx is {table.dtype} of shape {table.shape}, not integers (tokens, k)")
        try:
            return routing.physical(np.ascontiguousarray(table, np.int64), self.table, self.replicas, rank)
        except ValueError as error:
            raise InvalidArgument(f"topk_idx of rank {rank}: {error}") from None

    def digest(self) -> int:
        """64 bits, equal for equal tables on every host."""
        import hashlib

        data = b"".join([self.first.tobytes(), self.logical.tobytes(), str(self.experts).encode()])
        return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Placement) and self.experts == other.experts
            and np.array_equal(self.first, other.first) and np.array_equal(self.logical, other.logical)
        )  # fmt: skip

    def __hash__(self) -> int:
        return self.digest()

    def load(self, load: np.ndarray) -> np.ndarray:
        """What each die has to do, f64, if experts have ``load`` and replicas share it evenly."""
        each = np.asarray(load, np.float64) / np.maximum(self.replicas, 1)
        sums = np.concatenate([[0.0], np.cumsum(each[self.logical])])
        return sums[self.first[1:]] - sums[self.first[:-1]]

    # ---- EPLB's tables -------------------------------------------------------------------

    @classmethod
    def from_eplb(cls, physical_to_logical: np.ndarray, dies: int, experts: int | None = None) -> Placement:
        """Of one layer's ``physical_to_logical_map`` of EPLB, whose slots are shared out evenly among ``dies``."""
        logical = _integers("physical_to_logical", physical_to_logical)
        if len(logical) % dies:
            raise InvalidArgument(f"{len(logical)} slots on {dies} dies: EPLB has as many on each")
        return cls(logical, even(len(logical), dies), experts)

    def to_eplb(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(physical_to_logical i64 (slots), logical_to_physical i64 (experts, most replicas), -1 behind,
        counts i64 (experts)), as EPLB's rebalance has them of each layer."""
        return self.logical.astype(np.int64), self.table.astype(np.int64), self.replicas.astype(np.int64)


def even(number: int, dies: int) -> np.ndarray:
    """``first`` of so many slots: as numpy.array_split, the first number % dies dies one more."""
    each, more = divmod(number, dies)
    return np.arange(dies + 1) * each + np.minimum(np.arange(dies + 1), more)


def _integers(name: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size) or array.size > MAX_SLOTS:
        raise InvalidArgument(f"{name} is {array.dtype} of shape {array.shape}: integers in one dimension are expected")
    return array.astype(np.int64)


def _short(array: np.ndarray) -> str:
    return str(array.tolist()[:8])[:-1] + (", ...]" if len(array) > 8 else "]")
