"""What strata.moe must give, by plain numpy in one process, for all dies at once.

Written from the interface's documentation, with no code of the library.  Arguments and results of an operation are
lists with one element a die.  An expert is logical; a *slot* is a place for one on a die; a placement says which
expert a slot holds, and which slots a die has.

Sums: float32 accumulators that begin with the biases (or zero), one product and one sum for each entry, each rounded,
in the order of entries; one rounding to the type of the rows at the end.  float64 stays float64.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
BF16 = np.dtype(ml_dtypes.bfloat16)
GROUP = 128  # elements that share a scale
LEAST = np.float32(1e-4)  # amax of a group is at least this


class Placement(NamedTuple):
    """``logical``: (slots) the expert in each; ``first``: (dies + 1) where each die's slots begin."""

    logical: np.ndarray
    first: np.ndarray

    @property
    def dies(self) -> int:
        return len(self.first) - 1

    @property
    def die(self) -> np.ndarray:
        """The die of each slot."""
        return np.repeat(np.arange(self.dies), np.diff(self.first))


def even(experts: int, dies: int) -> Placement:
    """Experts in order, one slot each; the first dies have one more where they do not divide."""
    sizes = [experts // dies + (d < experts % dies) for d in range(dies)]
    return Placement(np.arange(experts), np.concatenate([[0], np.cumsum(sizes)]).astype(int))


def slots_of(placement: Placement, topk_idx: np.ndarray, rank: int) -> np.ndarray:
    """The slot of each choice; -1 stays.  Replicas take turns by token and rank."""
    found = np.full(topk_idx.shape, -1, np.int64)
    for token, nth in np.argwhere(topk_idx >= 0):
        replicas = np.flatnonzero(placement.logical == topk_idx[token, nth])
        found[token, nth] = replicas[(rank + token) % len(replicas)]
    return found


# ---- layout --------------------------------------------------------------------------


class Layout(NamedTuple):
    per_rank: np.ndarray  # (dies) tokens to each: a token once
    per_slot: np.ndarray  # (slots) choices of each: duplicates count
    in_rank: np.ndarray  # (tokens, dies)


def layout(placement: Placement, topk_idx: np.ndarray, rank: int) -> Layout:
    slot = slots_of(placement, topk_idx, rank)
    in_rank = np.zeros((len(slot), placement.dies), bool)
    per_slot = np.zeros(len(placement.logical), np.int64)
    for token, nth in np.argwhere(slot >= 0):
        in_rank[token, placement.die[slot[token, nth]]] = True
        per_slot[slot[token, nth]] += 1
    return Layout(in_rank.sum(axis=0), per_slot, in_rank)


# ---- high throughput -----------------------------------------------------------------


class Received(NamedTuple):
    """What a die has after a dispatch: rows by source die, then token."""

    source: np.ndarray  # (rows) die
    token: np.ndarray  # (rows) its number there: recv_src_idx
    columns: list[np.ndarray]  # what was sent, by these rows
    topk_idx: np.ndarray | None  # (rows, topk): number of the slot on this die, or -1
    topk_weights: np.ndarray | None  # 0 where topk_idx is -1
    per_slot: list[int]  # choices of each slot of this die
    prefix: np.ndarray  # (dies, dies): rank_prefix_matrix: rows that dies up to the first send to the second


def dispatch(placement, columns, topk_idx, topk_weights=None, alignment=1) -> list[Received]:
    """``columns``  of each die a list of arrays of its tokens: x, its scales ..."""
    n = placement.dies
    layouts = [layout(placement, idx, rank) for rank, idx in enumerate(topk_idx)]
    prefix = np.cumsum([made.per_rank for made in layouts], axis=0)
    found = []
    for die in range(n):
        picked = [np.flatnonzero(made.in_rank[:, die]) for made in layouts]
        begin, end = placement.first[die], placement.first[die + 1]
        indices, weights = [], []
        for rank, tokens in enumerate(picked):
            slot = slots_of(placement, topk_idx[rank], rank)[tokens]
            here = (slot >= begin) & (slot < end)
            indices.append(np.where(here, slot - begin, -1))
            if topk_weights is not None:
                weights.append(np.where(here, topk_weights[rank][tokens], np.float32(0)).astype(np.float32))
        total = sum(made.per_slot[begin:end] for made in layouts)
        found.append(
            Received(
                np.repeat(np.arange(n), [len(tokens) for tokens in picked]),
                np.concatenate(picked),
                [joined([columns[rank][c][picked[rank]] for rank in range(n)]) for c in range(len(columns[0]))],
                np.concatenate(indices),
                np.concatenate(weights) if topk_weights is not None else None,
                [int(-(-count // alignment) * alignment) for count in total],
                prefix,
            )
        )
    return found


def combine(received: list[Received], x, in_rank, topk_weights=None, bias=None):
    """(combined x, combined topk_weights or None) of each die: its tokens' rows, summed in order of dies.

    ``x``        of each die the rows that it sends back, as it received them
    ``in_rank``  of each die (tokens, dies), of its layout
    ``bias``     of each die (b0 or None, b1 or None)
    """
    made, n = [], len(received)
    for rank in range(n):
        tokens = len(in_rank[rank])
        entries, weights = [], np.zeros((tokens, 0 if topk_weights is None else topk_weights[0].shape[1]), np.float32)
        for die in range(n):
            rows = np.flatnonzero(received[die].source == rank)
            where = np.full(tokens, -1)
            where[received[die].token[rows]] = rows
            assert np.array_equal(where >= 0, in_rank[rank][:, die])
            entries.append((die, where))
            if topk_weights is not None:
                weights[where >= 0] += topk_weights[die][where[where >= 0]]
        order = [np.array([die for die, w in entries if w[t] >= 0], int) for t in range(tokens)]
        rows = [[x[die][entries[die][1][t]] for die in order[t]] for t in range(tokens)]
        made.append((
            weighted(rows, None, x[rank].shape[1], x[rank].dtype, bias[rank] if bias else (None, None)),
            weights if topk_weights is not None else None,
        ))  # fmt: skip
    return made


def weighted(rows, weights, hidden: int, dtype, bias=(None, None)) -> np.ndarray:
    """(tokens, hidden): of each token the sum of its rows, with weights (None: of 1), after the biases."""
    dtype = np.dtype(dtype)
    wide = np.float64 if dtype == np.float64 else np.float32
    acc = np.zeros((len(rows), hidden), wide)
    given = [np.asarray(b).astype(wide) for b in bias if b is not None]
    with np.errstate(all="ignore"):
        if given:
            acc = given[0] if len(given) == 1 else given[0] + given[1]
        for token, mine in enumerate(rows):
            for nth, row in enumerate(mine):
                value = row.astype(wide)
                acc[token] += value if weights is None else wide(weights[token][nth]) * value
        return acc.astype(dtype)


# ---- low latency ---------------------------------------------------------------------


class Window(NamedTuple):
    """What a slot has after a dispatch: rows by source die, token, number of the choice."""

    source: np.ndarray
    token: np.ndarray
    nth: np.ndarray
    columns: list[np.ndarray]
    range: np.ndarray  # (dies) begin << 32 | count


def low_latency_dispatch(placement, columns, topk_idx, masked=()) -> list[list[Window]]:
    """Of each die its slots' windows.  Columns are of tokens, as they travel (see fp8, int8).

    ``masked``  dies that nothing comes from
    """
    n = placement.dies
    slots = [slots_of(placement, idx, rank) for rank, idx in enumerate(topk_idx)]
    found = []
    for die in range(n):
        windows = []
        for slot in range(placement.first[die], placement.first[die + 1]):
            chosen = [np.argwhere((slots[r] == slot) & (r not in masked)) for r in range(n)]
            count = np.array([len(rows) for rows in chosen])
            begin = np.cumsum(count) - count
            windows.append(
                Window(
                    np.repeat(np.arange(n), count),
                    np.concatenate([rows[:, 0] for rows in chosen]),
                    np.concatenate([rows[:, 1] for rows in chosen]),
                    [joined([columns[r][c][chosen[r][:, 0]] for r in range(n)]) for c in range(len(columns[0]))],
                    begin.astype(np.int64) << 32 | count,
                )
            )
        found.append(windows)
    return found


def low_latency_combine(placement, windows, y, topk_idx, topk_weights, masked=()) -> list[np.ndarray]:
    """Of each die its tokens' sums, in order of logical experts, then of choices.

    ``y``       of each die (slots, rows, hidden): a result in the place of each row of its windows
    ``masked``  dies that nothing comes from
    """
    made = []
    for rank in range(placement.dies):
        slot = slots_of(placement, topk_idx[rank], rank)
        rows, weights = [], []
        for token in range(len(slot)):
            chosen = [k for k in range(slot.shape[1]) if slot[token, k] >= 0]
            chosen = [k for k in chosen if placement.die[slot[token, k]] not in masked]
            chosen.sort(key=lambda k, t=token: (topk_idx[rank][t, k], k))
            mine = []
            for k in chosen:
                die = placement.die[slot[token, k]]
                nth = slot[token, k] - placement.first[die]
                window = windows[die][nth]
                at = np.flatnonzero((window.source == rank) & (window.token == token) & (window.nth == k))
                assert len(at) == 1
                mine.append(y[die][nth, at[0]])
            rows.append(mine)
            weights.append([topk_weights[rank][token, k] for k in chosen])
        made.append(weighted(rows, weights, y[rank].shape[2], y[rank].dtype))
    return made


# ---- small types ---------------------------------------------------------------------


def fp8(x: np.ndarray, round_scale: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """(float8_e4m3fn like x, float32 scales (rows, groups)); the last group of a row may be short.

    ``round_scale``  scales are powers of two, rounded up
    """
    amax = np.maximum(_groups(np.abs(x.astype(np.float32))).max(axis=2), LEAST)
    with np.errstate(all="ignore"):
        scales = amax / np.float32(448)
        factor = np.float32(448) / amax
        if round_scale:
            fraction, exponent = np.frexp(scales)  # fraction in [0.5, 1)
            exponent -= fraction == 0.5
            scales, factor = np.ldexp(np.float32(1), exponent), np.ldexp(np.float32(1), -exponent)
        return (x.astype(np.float32) * _spread(factor, x.shape[1])).astype(FP8), scales


def ue8m0(scales: np.ndarray) -> np.ndarray:
    """Scales that are powers of two as their exponents, four in an int32; the number of groups is a multiple of 4."""
    return np.ascontiguousarray((scales.view(np.uint32) >> 23).astype(np.uint8)).view(np.int32)


def int8(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 like x, float32 scales (rows, 1)): one scale a token."""
    wide = x.astype(np.float32)
    amax = np.maximum(np.abs(wide).max(axis=1, keepdims=True, initial=0), LEAST)
    return np.clip(np.rint(wide * (np.float32(127) / amax)), -127, 127).astype(np.int8), amax / np.float32(127)


def back(q: np.ndarray, scales: np.ndarray, dtype=BF16) -> np.ndarray:
    """fp8 or int8 rows as numbers: the product in float32, rounded to ``dtype``."""
    if scales.dtype == np.int32:
        scales = (np.ascontiguousarray(scales).view(np.uint8).astype(np.uint32) << 23).view(np.float32)
    wide = scales if scales.shape[1] == 1 and q.dtype == np.int8 else _spread(scales, q.shape[1])
    return (q.astype(np.float32) * wide).astype(dtype)


def _groups(x: np.ndarray) -> np.ndarray:
    """(rows, groups, GROUP); filled up with zeros."""
    groups = -(-x.shape[1] // GROUP)
    filled = np.zeros((len(x), groups * GROUP), x.dtype)
    filled[:, : x.shape[1]] = x
    return filled.reshape(len(x), groups, GROUP)


def _spread(scales: np.ndarray, hidden: int) -> np.ndarray:
    return np.repeat(scales, GROUP, axis=1)[:, :hidden]


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """np.concatenate along the first axis, of any dtype."""
    out = np.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    return np.concatenate(parts, out=out)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether shape, dtype and bits agree; any NaN is like any other."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    a, b = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    if a.tobytes() == b.tobytes():
        return True
    if a.dtype.kind not in "fV":
        return False
    bits = f"u{a.dtype.itemsize}"
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(((a.view(bits) == b.view(bits)) | nan).all())
