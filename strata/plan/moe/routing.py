"""Routings to plan and to predict with: uniform, skewed, or recorded from a real gate.

A trace is an npz archive (``Routing.save``) of

* ``topk_idx``  i32 (tokens, k): of all steps and ranks, one after the other; -1 is a masked choice
* ``tokens``    i64 (steps, ranks): how many tokens of each
* ``experts``   i64: logical experts
* ``note``      u8: UTF-8 text, where it comes from
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.errors import InvalidArgument, writing
from strata.plan.archive import WRONG, members
from strata.plan.moe.placement import MASKED, MAX_SLOTS, Placement

UNPACKED, PACKED = 64 << 20, 64  # bytes that any trace may have unpacked, and times the bytes of its file
CHUNK = 1 << 12  # tokens drawn at once
TINY = np.finfo(np.float32).tiny
FIELDS = {"topk_idx": ("<i4", 2), "tokens": ("<i8", 2), "experts": ("<i8", 0), "note": ("|u1", 1)}


@dataclass(frozen=True, eq=False)
class Routing:
    """What each rank's tokens chose, step by step.

    ``experts``  logical experts
    ``steps``    of each step, of each rank: i32 (tokens, k), -1 masked; one k throughout
    ``note``     where it comes from

    InvalidArgument for what is no such thing.
    """

    experts: int
    steps: tuple[tuple[np.ndarray, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.experts <= MAX_SLOTS:
            raise InvalidArgument(f"{self.experts} experts: 1 to {MAX_SLOTS} are expected")
        made = tuple(tuple(np.asarray(table) for table in step) for step in self.steps)
        if not made or not made[0] or any(len(step) != len(made[0]) for step in made):
            raise InvalidArgument("a routing has a step and a rank at least, and as many ranks in each step")
        for s, step in enumerate(made):
            for rank, table in enumerate(step):
                who = f"step {s}, rank {rank}"
                if table.ndim != 2 or table.dtype.kind not in "iu" or table.shape[1] != made[0][0].shape[1]:
                    raise InvalidArgument(f"{who}: {table.dtype} of shape {table.shape}, not integers (tokens, k)")
                if table.size and not MASKED <= table.min() <= table.max() < self.experts:
                    raise InvalidArgument(f"{who} names experts {table.min()} to {table.max()} of {self.experts}")
        object.__setattr__(self, "steps", tuple(tuple(t.astype(np.int32) for t in step) for step in made))

    @property
    def ranks(self) -> int:
        return len(self.steps[0])

    @property
    def topk(self) -> int:
        return self.steps[0][0].shape[1]

    @property
    def tokens(self) -> np.ndarray:
        """i64 (steps, ranks)."""
        return np.array([[len(table) for table in step] for step in self.steps], np.int64)

    def load(self) -> np.ndarray:
        """i64 (experts): choices of each, of all steps and ranks; what ``balance`` takes."""
        found = np.zeros(self.experts, np.int64)
        for table in (table for step in self.steps for table in step):
            found += np.bincount(table[table != MASKED], minlength=self.experts)
        return found

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the trace."""
        flat = np.concatenate([table for step in self.steps for table in step]).astype(FIELDS["topk_idx"][0])
        note = np.frombuffer(self.note.encode(), np.uint8)
        with writing(file), open(file, "wb") as out:
            np.savez_compressed(out, topk_idx=flat, tokens=self.tokens, experts=np.int64(self.experts), note=note)


def load(file: str | os.PathLike[str]) -> Routing:
    """Reads a trace; InvalidArgument if the file is none, OSError as of open."""
    with open(file, "rb") as opened:
        data = opened.read()
    try:
        every = members(data, max(UNPACKED, PACKED * len(data)))
        found = {name: every[name] for name in FIELDS}
    except WRONG as error:
        raise InvalidArgument(f"{os.fspath(file)} is no trace of a routing: {error!r:.200}") from None
    for name, (dtype, ndim) in FIELDS.items():
        if found[name].dtype != np.dtype(dtype) or found[name].ndim != ndim:
            what = f"{name} is {found[name].dtype} of shape {found[name].shape}"
            why = f"{what}, not {dtype} of {ndim} dimensions"
            raise InvalidArgument(f"{os.fspath(file)} is no trace of a routing: {why}")
    tokens, flat = found["tokens"], found["topk_idx"]
    ends = np.cumsum(tokens)
    if not tokens.size or tokens.min() < 0 or tokens.max() > len(flat) or ends[-1] != len(flat):
        raise InvalidArgument(f"{os.fspath(file)} is no trace of a routing: it has {len(flat)} tokens, and says others")
    tables = np.split(flat, ends[:-1])
    steps = tuple(tuple(tables[s * tokens.shape[1] : (s + 1) * tokens.shape[1]]) for s in range(len(tokens)))
    return Routing(int(found["experts"]), steps, found["note"].tobytes().decode("utf-8", "replace"))


def uniform(ranks: int, tokens: int | Sequence[int], topk: int, experts: int, seed: int = 0, steps: int = 1) -> Routing:
    """Every set of ``topk`` experts is as likely; ``tokens`` of each rank, or a number for each."""
    return zipf(ranks, tokens, topk, experts, 0.0, seed, steps)


def zipf(
    ranks: int, tokens: int | Sequence[int], topk: int, experts: int, s: float = 1.2, seed: int = 0, steps: int = 1
) -> Routing:
    """The r-th most liked expert has a chance of r ** -s, drawn ``topk`` times without putting back (Gumbel's way).

    Who is liked is drawn once from ``seed``, and the same on all ranks and steps.
    """
    ranks, topk, experts, steps = (
        _least(name, value, 1)
        for name, value in (("ranks", ranks), ("topk", topk), ("experts", experts), ("steps", steps))
    )
    each = tokens if isinstance(tokens, Sequence | np.ndarray) else [tokens] * ranks
    sizes = [_least("tokens", size, 0) for size in each]
    if len(sizes) != ranks:
        raise InvalidArgument(f"tokens has {len(sizes)} numbers for {ranks} ranks: one for each, or one for all")
    if experts > MAX_SLOTS:
        raise InvalidArgument(f"{experts} experts: 1 to {MAX_SLOTS} are expected")
    if topk > experts:
        raise InvalidArgument(f"topk is {topk}, and there are {experts} experts: a token names each once at most")
    if not 0 <= s <= 100:
        raise InvalidArgument(f"the exponent of Zipf's law is {s}: 0 (all alike) to 100 is expected")
    chance = np.random.default_rng(seed)
    liked = -s * np.log(np.arange(1, experts + 1))[chance.permutation(experts)].astype(np.float32)
    made = tuple(tuple(_drawn(chance, liked, size, topk) for size in sizes) for _ in range(steps))
    return Routing(experts, made, f"uniform, seed {seed}" if s == 0 else f"Zipf {s}, seed {seed}")


def _least(name: str, value: Any, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: a whole number is expected") from None
    if number < least:
        raise InvalidArgument(f"{name} is {number}: at least {least} is expected")
    return number


def _drawn(chance: np.random.Generator, liked: np.ndarray, tokens: int, topk: int) -> np.ndarray:
    """i32 (tokens, topk), the most wanted first."""
    found = np.empty((tokens, topk), np.int32)
    for begin in range(0, tokens, CHUNK):
        number = min(CHUNK, tokens - begin)
        keys = np.log(np.maximum(chance.standard_exponential((number, len(liked)), np.float32), TINY)) - liked
        best = np.argpartition(keys, topk - 1, axis=1)[:, :topk]
        order = np.argsort(np.take_along_axis(keys, best, 1), axis=1, kind="stable")
        found[begin : begin + number] = np.take_along_axis(best, order, 1)
    return found


def statistics(tables: Sequence[np.ndarray], placement: Placement) -> dict[str, float]:
    """Of one step: ``tokens``; ``choices`` that are not masked; ``rows`` that dies receive in high throughput, a token
    once a die; ``away``, the share of these that come from another die; and of what experts, slots and dies receive the
    largest in averages: ``expert``, ``slot``, ``die`` (1.0 is even)."""
    slots = [placement.physical(table, rank) for rank, table in enumerate(tables)]
    die = np.repeat(np.arange(placement.dies), np.diff(placement.first))
    rows = np.zeros((len(slots), placement.dies), np.int64)
    for rank, slot in enumerate(slots):
        token, choice = np.nonzero(slot >= 0)
        pairs = np.unique(token * placement.dies + die[slot[token, choice]])
        rows[rank] = np.bincount(pairs % placement.dies, minlength=placement.dies)
    by_slot = sum(np.bincount(slot[slot >= 0], minlength=placement.slots) for slot in slots)
    by_expert = np.bincount(placement.logical, by_slot, placement.experts)
    total = int(rows.sum())
    return {
        "tokens": float(sum(map(len, slots))),
        "choices": float(by_slot.sum()),
        "rows": float(total),
        "away": float(total - np.trace(rows)) / total if total else 0.0,
        "expert": _largest(by_expert),
        "slot": _largest(by_slot),
        "die": _largest(rows.sum(axis=0)),
    }


def _largest(counts: np.ndarray) -> float:
    return float(counts.max() / counts.mean()) if counts.sum() else 1.0
