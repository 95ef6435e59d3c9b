"""What members tell each other of a round: its routing block, and what they must agree on.

A routing block is u32 words: HEAD words of what is asked for, rows for each member, rows for each slot, and then the
tokens' numbers, by destination (member, or slot).
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from strata import errors
from strata._core import array as codes
from strata.failure import people

__all__ = ["Asked", "Head", "block_of", "fingerprint", "mismatch", "parse"]

HEAD = 16
COMPARED = 13
WORST = 13  # the first of the words that are each member's own

KINDS = ("", "dispatch", "dispatch with a handle", "combine", "low_latency_dispatch", "low_latency_combine",
         "clean_low_latency_buffer")
DISPATCH, CACHED, COMBINE, LOW_DISPATCH, LOW_COMBINE, CLEAN = range(1, 7)
FP8, ROUND, UE8M0, INT8 = 1, 2, 4, 8
CASTS = {FP8: "use_fp8", ROUND: "round_scale", UE8M0: "use_ue8m0", INT8: "use_int8"}


class Asked(NamedTuple):
    """What all members must ask for alike."""

    kind: int
    hidden: int = 0
    dtype: int = 0
    scales: int = 0  # bytes of a row's
    topk: int = 0
    weights: int = 0
    slots: int = 0
    tokens: int = 0  # most of a member, low latency
    casts: int = 0
    placement: int = 0
    handle: int = 0

    @property
    def name(self) -> str:
        return KINDS[self.kind] if self.kind < len(KINDS) else f"operation {self.kind}"

    def words(self) -> list[int]:
        low = 0xFFFFFFFF
        return [*self[:9], self.placement & low, self.placement >> 32, self.handle & low, self.handle >> 32]

    def __str__(self) -> str:
        said = [self.name]
        if self.kind == CLEAN:
            return f"{self.name} for {self.tokens} tokens of hidden {self.hidden}, {self.slots} experts"
        said.append(f"of hidden {self.hidden} {codes.dtype_name(self.dtype)}")
        if self.scales:
            said.append(f"with {self.scales} bytes of scales")
        if self.tokens:
            said.append(f"for {self.tokens} tokens at most")
        if self.slots:
            said.append(f"to {self.slots} experts")
        if self.topk:
            said.append(f"top-{self.topk}")
        if self.weights:
            said.append("with topk_weights")
        said += [name for bit, name in CASTS.items() if self.casts & bit]
        if self.placement:
            said.append(f"placement {self.placement:016x}")
        if self.handle:
            said.append(f"handle of round {self.handle}")
        return ", ".join([" ".join(said[:2]), *said[2:]])


def asked_in(words: np.ndarray) -> Asked:
    """What ``Asked.words`` wrote."""
    found = [int(w) for w in words[:COMPARED]]
    return Asked._make([*found[:9], found[9] | found[10] << 32, found[11] | found[12] << 32])


def fingerprint(asked: Asked) -> tuple[int, int]:
    """desc and count of a post."""
    digest = hashlib.blake2b(repr(asked.words()).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little"), asked.hidden << 8 | asked.kind


def block_of(asked: Asked, worst: int, rows: np.ndarray, slots: np.ndarray, tokens: np.ndarray, out: Any) -> np.ndarray:
    """A routing block.  ``out(words)``: gives the memory for it."""
    n, p = len(rows), len(slots)
    made: np.ndarray = out(HEAD + n + p + len(tokens))
    made[:HEAD] = [*asked.words(), worst & 0xFFFFFFFF, worst >> 32, n]
    made[HEAD : HEAD + n] = rows
    made[HEAD + n : HEAD + n + p] = slots
    made[HEAD + n + p :] = tokens
    return made


class Head(NamedTuple):
    """The begin of a member's block.  ``rows``, ``slots``: of each destination."""

    asked: Asked
    worst: int
    rows: np.ndarray
    slots: np.ndarray


def parse(words: np.ndarray, n: int) -> Head:
    """CorruptSpace: it is no block of a group of ``n``."""
    if len(words) < HEAD + n or int(words[HEAD - 1]) != n:
        raise errors.CorruptSpace("a routing block is not one", operation="moe")
    worst = int(words[WORST]) | int(words[WORST + 1]) << 32
    rows = words[HEAD : HEAD + n].astype(np.int64)
    return Head(asked_in(words), worst, rows, words[HEAD + n :].astype(np.int64))


def mismatch(asked: dict[int, Asked], ranks: tuple[int, ...], group: str, number: int) -> errors.CollectiveMismatch:
    """The error that all members raise; ``asked`` by member."""
    wishes: dict[str, list[int]] = {}
    alike = len({what.placement for what in asked.values()} - {0}) < 2
    for member, what in sorted(asked.items()):
        what = what._replace(placement=0) if alike else what
        wishes.setdefault(str(what), []).append(ranks[member])
    text = "; ".join(f"{people(who)}: {what}" for what, who in wishes.items())
    return errors.CollectiveMismatch(f"members asked for different operations: {text}", ranks=sorted(ranks),
                                     group=group, operation=asked[min(asked)].name, number=number)
