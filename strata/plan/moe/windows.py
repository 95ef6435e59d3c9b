"""From counts to offsets: what a die receives in dispatch, and where its tokens' rows lie in combine.

*High throughput*: a window is what one source sends to one die, every token once; windows follow each other in the
receive buffer by source, so receive sizes are exact.  *Low latency*: a window is what one source sends to one slot;
each slot has a fixed part of the receive buffer, in which windows follow each other by source.  Within a window rows
are in the order of tokens (and of choices, where a token names a slot twice).

Nothing here looks at tokens: the cost grows with members and slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.records import ROW_BITS


class Windows(NamedTuple):
    """What die ``rank`` receives.

    ``pairs``   i64 (n, n): rows from each source to each destination
    ``table``   i64 (windows, 4), by source and then by slot: the source, rows, the first in the list of all rows that
                the die receives (``gathered``), the first in its receive buffer; windows of no rows are left out
    ``room``    rows of the receive buffer
    """

    rank: int
    pairs: np.ndarray
    table: np.ndarray
    room: int


class Sums(NamedTuple):
    """What die ``rank`` adds up for its own tokens.

    ``pairs``    i64 (n, n): rows from each expert's die to each token's die
    ``members``  i64: those it reads from, by rank; their number here is the operand's
    ``base``     i64, of each die (high throughput) or slot (low latency): entry of the first of this die's rows there,
                 operand number included; -1: there is none
    ``room``     i64 (n): rows of each member's array
    """

    rank: int
    pairs: np.ndarray
    members: np.ndarray
    base: np.ndarray
    room: np.ndarray


def high_throughput(counts: np.ndarray, rank: int) -> Windows:
    """``counts``: integers (n, n), tokens that each source sends to each die."""
    pairs = _matrix(counts, rank)
    mine = pairs[:, rank]
    source = np.flatnonzero(mine)
    rows = mine[source]
    ends = np.cumsum(rows)
    table = np.stack((source, rows, ends - rows, ends - rows), axis=1)
    return Windows(rank, pairs, table, int(rows.sum()))


def low_latency(counts: np.ndarray, first: np.ndarray, rank: int, window: int) -> Windows:
    """``counts``: integers (n, P), choices of each source for each slot; ``first``: of the placement; ``window``: rows
    of the receive buffer that each slot has.  InvalidArgument if a slot receives more."""
    counts = _counts(counts, first, rank)
    begin, end = int(first[rank]), int(first[rank + 1])
    mine = counts[:, begin:end]
    before = np.cumsum(mine, axis=0)
    most = int(before[-1].max(initial=0))
    if most > window:
        slot = begin + int(before[-1].argmax())
        raise InvalidArgument(f"slot {slot} of die {rank} receives {most} rows, and its window has {window}")
    at = np.flatnonzero(mine)
    rows = mine.reshape(-1)[at]
    source, slot = np.divmod(at, max(end - begin, 1))
    out = slot * window + (before - mine).reshape(-1)[at]
    table = np.stack((source, rows, np.cumsum(rows) - rows, out), axis=1)
    return Windows(rank, pairs_of(counts, first), table, (end - begin) * window)


def ranges(counts: np.ndarray, first: np.ndarray, rank: int) -> np.ndarray:
    """i64 (slots of the die, n): where each source's rows lie in a slot's window, begin << 32 | number."""
    mine = _counts(counts, first, rank)[:, int(first[rank]) : int(first[rank + 1])]
    return np.ascontiguousarray(((np.cumsum(mine, axis=0) - mine) << 32 | mine).T)


def pairs_of(counts: np.ndarray, first: np.ndarray) -> np.ndarray:
    """i64 (n, n) rows from source to die, of ``counts`` (n, P) by slot."""
    sums = np.zeros((len(counts), counts.shape[1] + 1), np.int64)
    np.cumsum(counts, axis=1, out=sums[:, 1:])
    ends = sums[:, np.asarray(first, np.int64)]
    return ends[:, 1:] - ends[:, :-1]


def gathered(lists: list[np.ndarray | None], windows: Windows) -> np.ndarray:
    """u64: the source's row of each row that the die receives, windows after each other.  ``lists``: what each source's
    ``by_rank`` or ``by_slot`` made, whole (None: it sends nothing to anybody)."""
    rank, pairs = windows.rank, windows.pairs
    begin = pairs[:, :rank].sum(axis=1).tolist()
    rows = np.empty(int(pairs[:, rank].sum()), np.uint64)
    at = 0
    for source, number in enumerate(pairs[:, rank].tolist()):
        if not number:
            continue
        listed = lists[source]
        part = None if listed is None else listed[begin[source] : begin[source] + number]
        if part is None or len(part) != number:
            have = 0 if listed is None else len(listed)
            raise InvalidArgument(
                f"the list of die {source} has {have} tokens; {begin[source] + number} up to die {rank}"
            )
        rows[at : at + number] = part
        at += number
    return rows


def high_throughput_sums(
    counts: np.ndarray, rank: int, out: np.ndarray | None = None, begins: np.ndarray | None = None
) -> Sums:
    """Of a dispatch with these ``counts``, as ``high_throughput`` put it.

    ``out``     bool (n): dies that are left out, whose rows are not added; None: nobody
    ``begins``  integers (n): the first of this die's rows in each die's receive buffer; None: as ``counts`` say.  Where
                members may have left out different others, only the receiver knows
    """
    sent = _matrix(counts, rank)
    if begins is None:
        begins = sent[:rank].sum(axis=0)
    pairs, members, operand = _members(sent.T, rank, out)
    base = np.where(operand >= 0, np.asarray(begins, np.int64) + (operand << ROW_BITS), -1)
    return Sums(rank, pairs, members, base, sent.sum(axis=0))


def low_latency_sums(
    counts: np.ndarray, first: np.ndarray, rank: int, window: int, out: np.ndarray | None = None,
    begins: np.ndarray | None = None,
) -> Sums:  # fmt: skip
    """Of a dispatch with these ``counts``, as ``low_latency`` put it; ``out`` as of ``high_throughput_sums``,
    ``begins`` of each slot: the first of this die's rows in the slot's window."""
    counts = _counts(counts, first, rank)
    first = np.asarray(first, np.int64)
    if begins is None:
        begins = counts[:rank].sum(axis=0)
    pairs, members, operand = _members(pairs_of(counts, first).T, rank, out)
    slots = np.diff(first)
    die = np.repeat(np.arange(len(pairs)), slots)
    row = (np.arange(len(die)) - first[die]) * window + np.asarray(begins, np.int64)
    base = np.where((counts[rank] > 0) & (operand[die] >= 0), row + (operand[die] << ROW_BITS), -1)
    return Sums(rank, pairs, members, base, slots * window)


def _members(pairs: np.ndarray, rank: int, out: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs without those left out, whom the die reads from, and the operand's number of each die, or -1."""
    if out is not None and out.any():
        pairs = pairs.copy()
        pairs[out] = pairs[:, out] = 0
    members = np.flatnonzero(pairs[:, rank])
    operand = np.full(len(pairs), -1, np.int64)
    operand[members] = np.arange(len(members))
    return pairs, members, operand


def _matrix(counts: np.ndarray, rank: int) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.dtype.kind not in "iu":
        raise InvalidArgument(f"counts are {counts.dtype} of shape {counts.shape}: integers (dies, dies) are expected")
    if not 0 <= rank < len(counts):
        raise InvalidArgument(f"rank is {rank} of {len(counts)} dies")
    return counts.astype(np.int64)


def _counts(counts: np.ndarray, first: np.ndarray, rank: int) -> np.ndarray:
    counts, shape = np.asarray(counts), (len(first) - 1, int(first[-1]))
    if counts.shape != shape or counts.dtype.kind not in "iu":
        raise InvalidArgument(f"counts are {counts.dtype} of shape {counts.shape}: integers {shape} are expected")
    if not 0 <= rank < len(counts):
        raise InvalidArgument(f"rank is {rank} of {len(counts)} dies")
    return counts.astype(np.int64)
