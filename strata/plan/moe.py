"""MoE dispatch, planned by hierarchy: tokens to expert windows, these to peer windows, these to slices.

Each source die packs the tokens that it sends by expert, in token order. An *expert window* is what one
source sends to one expert: a run in the source's pack, and a run in the expert's receive window, where
sources follow each other by rank. Experts of one die follow each other in its receive buffer. A *peer
window* is what one source sends to one die: since packs are by die, then by expert, one run in the source,
and a run in the receive buffer for each expert. So what the scheduler is given grows with active windows,
not with tokens, and it balances them over cores as it does any slices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.errors import InvalidArgument
from strata.plan.frontends._common import pulls
from strata.plan.spec import MAX_BYTES

MASKED = -1


class Windows(NamedTuple):
    """Who sends how many token rows where; offsets in rows, int64.

    ``order``   experts by die, then by number: the columns of ``count``, ``sent`` and ``received``
    ``die``     of each column
    ``count``   (dies, experts): rows that a source sends to an expert
    ``sent``    ... where they begin in the source's pack
    ``window``  (experts): where an expert's receive window begins in its die's receive buffer
    ``received``  (dies, experts): where a source's rows begin in the expert's window
    """

    order: np.ndarray
    die: np.ndarray
    count: np.ndarray
    sent: np.ndarray
    window: np.ndarray
    received: np.ndarray

    def peers(self) -> np.ndarray:
        """(dies, dies) rows from source to destination: peer windows, and counts of an all_to_all_v."""
        found = np.zeros((len(self.count), len(self.count)), np.int64)
        np.add.at(found.T, self.die, self.count.T)
        return found

    def slices(self, rank: int, row_bytes: int) -> np.ndarray:
        """What die ``rank`` pulls, SLICE_DTYPE: one slice for each active window, by source and then expert, but
        one where a source's windows lie one after the other on both sides.  SRC is the pack, OUT the receive buffer."""
        if not 0 <= rank < len(self.count):
            raise InvalidArgument(f"rank is {rank} of {len(self.count)} dies")
        if row_bytes < 1 or int(self.count.sum()) * row_bytes >= MAX_BYTES:
            raise InvalidArgument(f"rows of {row_bytes} bytes: at least 1, and fewer than {MAX_BYTES} in all")
        mine = np.flatnonzero(self.die == rank)
        source, column = np.nonzero(self.count[:, mine])
        column = mine[column]
        src = self.sent[source, column]
        dst = self.window[column] + self.received[source, column]
        rows = self.count[source, column]
        if not len(rows):
            return pulls(source, 0)
        new = np.ones(len(rows), bool)
        new[1:] = (source[1:] != source[:-1]) | (src[1:] != src[:-1] + rows[:-1]) | (dst[1:] != dst[:-1] + rows[:-1])
        first = np.flatnonzero(new)
        rows = np.add.reduceat(rows, first)
        return pulls(source[first], rows * row_bytes, src=src[first] * row_bytes, dst=dst[first] * row_bytes)


def windows(routing: list[np.ndarray], experts: np.ndarray) -> Windows:
    """Windows of a dispatch.

    ``routing``  of each die, integers (tokens, topk): the experts that a token goes to; -1: none
    ``experts``  the die of each expert

    O(tokens * topk + dies * experts).  InvalidArgument for what is no expert or no die, or for a token
    that goes to one expert twice.
    """
    dies, die_of = len(routing), np.asarray(experts)
    if die_of.ndim != 1 or die_of.dtype.kind not in "iu" or not len(die_of) or not dies:
        raise InvalidArgument("experts: the die of each, at least one, is expected, and the routing of one die or more")
    if die_of.min() < 0 or die_of.max() >= dies:
        raise InvalidArgument(f"an expert is on die {die_of.max() if die_of.min() >= 0 else die_of.min()} of {dies}")
    order = np.argsort(die_of, kind="stable")
    counts = np.stack([_counts(np.asarray(table), len(die_of), rank) for rank, table in enumerate(routing)])[:, order]
    die = die_of[order].astype(np.int64)
    total = counts.sum(axis=0)
    before = np.cumsum(total) - total
    begins = np.flatnonzero(np.diff(die, prepend=-1))
    window = before - np.repeat(before[begins], np.diff(begins, append=len(die)))
    return Windows(order, die, counts, np.cumsum(counts, axis=1) - counts, window, np.cumsum(counts, axis=0) - counts)


def _counts(table: np.ndarray, experts: int, rank: int) -> np.ndarray:
    """Rows to each expert, by one die."""
    if table.ndim != 2 or table.dtype.kind not in "iu":
        what = f"{table.dtype} of shape {table.shape}"
        raise InvalidArgument(f"routing of die {rank} is {what}, not integers (tokens, topk)")
    if table.size and (table.min() < MASKED or table.max() >= experts):
        raise InvalidArgument(f"routing of die {rank} names an expert that is not one of {experts}, nor {MASKED}")
    ordered = np.sort(table, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != MASKED)
    if twice.any():
        token = int(np.flatnonzero(twice.any(axis=1))[0])
        raise InvalidArgument(f"token {token} of die {rank} goes to one expert twice")
    return np.bincount(table[table != MASKED].astype(np.int64), minlength=experts).astype(np.int64)


def pack(table: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """Tokens in the order in which their die packs them, int64: by die, expert, token; a token once for each expert."""
    table, die = np.asarray(table), np.asarray(experts)
    token, nth = np.nonzero(table != MASKED)
    expert = table[token, nth].astype(np.int64)
    return token[np.lexsort((token, expert, die[expert]))]
