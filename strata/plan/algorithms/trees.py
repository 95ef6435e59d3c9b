"""What algorithms of several steps share: trees along which blocks spread, or are reduced.

An algorithm that gathers is told by two matrices: from whom each member has each block, and in
which of its steps.  Read backwards, the same trees reduce: whoever gave a block to others adds up
their operands.  All members compute the same matrices, so that a flag is waited for exactly where
its owner moves bytes under it; what has no bytes is left out on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from strata.plan.frontends._common import grain, joined
from strata.plan.records import (
    NONE,
    OUT,
    PARTIAL_DST,
    PARTIAL_SRC,
    PULL,
    SCRATCH,
    SLICE_DTYPE,
    SRC,
    partial_length,
)
from strata.plan.spec import Spec

FLAGS = 1024  # of a member in one operation, which executors have
CHUNK = 128 << 10  # bytes from which on a block is cut, so that its steps overlap

# (members, blocks) -> buffers and offsets, arrays
Place = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Trees:
    """int64 (members, blocks).  ``parent``: from whom the member has the block, -1 if it does not
    receive it.  ``step``: in which step; -1 as well; later than its parent's."""

    parent: np.ndarray
    step: np.ndarray

    @cached_property
    def last(self) -> int:
        """The last step."""
        return int(self.step.max(initial=-1))

    @cached_property
    def gives(self) -> np.ndarray:
        """Who gives which block to others, bool (members, blocks)."""
        gives = np.zeros(self.parent.shape, bool)
        child, block = np.nonzero(self.parent >= 0)
        gives[self.parent[child, block], block] = True
        return gives

    @cached_property
    def _given(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All edges by giver, block and distance: children and blocks; and where each giver's begin."""
        n = len(self.parent)
        child, block = np.nonzero(self.parent >= 0)
        giver = self.parent[child, block]
        order = np.lexsort(((child - giver) % n, block, giver))
        return child[order], block[order], np.searchsorted(giver[order], np.arange(n + 1))

    def given(self, member: int) -> tuple[np.ndarray, np.ndarray]:
        """To whom the member gives which blocks, by block and then by their distance from it."""
        child, block, first = self._given
        mine = slice(first[member], first[member + 1])
        return child[mine], block[mine]


class Blocks(NamedTuple):
    """Where blocks lie in the buffer that is whole, and in how many chunks each moves."""

    start: np.ndarray
    bytes: np.ndarray
    itemsize: int
    chunks: int

    def chunk(self, number: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start within its block and length of chunk ``number`` of each block; of a column of numbers, rows."""
        unit = grain(self.itemsize)
        grains = -(-self.bytes // unit)
        begin = np.minimum(grains * number // self.chunks * unit, self.bytes)
        end = np.minimum(grains * (number + 1) // self.chunks * unit, self.bytes)
        return begin, end - begin


def chunks(nbytes: int, most: int, steps: int) -> int:
    """In how many chunks blocks of so many bytes move, if a member has flags of ``steps`` steps."""
    return max(min(nbytes // CHUNK, most, FLAGS // max(steps, 1)), 1)


def whole_blocks(spec: Spec, number: int, nchunks: int = 1) -> Blocks:
    """``number`` blocks of ``part`` bytes."""
    each = np.full(number, spec.part, np.int64)
    return Blocks(np.arange(number, dtype=np.int64) * spec.part, each, spec.itemsize, nchunks)


def shares(spec: Spec, number: int, nchunks: int = 1) -> Blocks:
    """``part`` bytes in ``number`` shares: ``frontends._common.share`` for all members."""
    unit, at = grain(spec.itemsize), np.arange(number + 1, dtype=np.int64)
    ends = np.minimum(-(-spec.part // unit) * at // number * unit, spec.part)
    return Blocks(ends[:-1], np.diff(ends), spec.itemsize, nchunks)


def made(**columns) -> np.ndarray:
    """Slices from columns, or tables row by row, SLICE_DTYPE; those without bytes are left out.  Pulls without
    flags unless told otherwise."""
    columns = {"kind": PULL, "wait_peer": NONE, "wait_flag": NONE, "post_flag": NONE, **columns}
    shapes = [column.shape for column in columns.values() if isinstance(column, np.ndarray)]
    slices = np.zeros(np.broadcast_shapes((1,), *shapes), SLICE_DTYPE)
    for name, column in columns.items():
        slices[name] = column
    slices = slices.reshape(-1)
    moving = slices["bytes"] != 0
    return slices if moving.all() else slices[moving]


def ordered(*parts: np.ndarray) -> np.ndarray:
    """Lists of slices as one, by step."""
    slices = joined(*parts) if len(parts) > 1 else parts[0]
    return slices[np.argsort(slices["step"], kind="stable")]


def own_copy(spec: Spec, rank: int, *, dst: int = 0, src: int = 0, skip: bool | None = None) -> np.ndarray:
    """A copy of own SRC into own OUT, unless the member works in place."""
    if spec.in_place if skip is None else skip:
        return np.zeros(0, SLICE_DTYPE)
    return made(peer=rank, src_buf=SRC, dst_buf=OUT, src=src, dst=dst, bytes=spec.part)


def spread(trees: Trees, rank: int, blocks: Blocks, place: Place, *, first: int = 0,
           ready: int | None = None) -> np.ndarray:  # fmt: skip
    """The member's pulls of the blocks it receives.

    ``place`` says where a member has a block.  Chunk k of step s is flag and step
    ``first`` + s * chunks + k.  ``ready``: flag of a block's first chunk at its origin, which has
    it from the beginning if None.
    """
    block = np.flatnonzero(trees.parent[rank] >= 0)
    giver, step = trees.parent[rank, block], trees.step[rank, block]
    given = trees.step[giver, block]
    me = np.full(len(block), rank)
    (src_buf, src), (dst_buf, dst) = place(giver, block), place(me, block)
    k = np.arange(blocks.chunks)[:, None]
    begin, length = (column[:, block] for column in blocks.chunk(k))
    flag = np.where(given >= 0, first + given * blocks.chunks + k, NONE if ready is None else ready + k)
    mine = first + step * blocks.chunks + k
    pulls = made(peer=giver, src_buf=src_buf, src=src + begin, dst_buf=dst_buf, dst=dst + begin, bytes=length,
                 wait_peer=np.where(flag == NONE, NONE, giver), wait_flag=flag, post_flag=mine, step=mine)  # fmt: skip
    return merged(ordered(pulls))


def merged(slices: np.ndarray) -> np.ndarray:
    """Copies that follow on one another in both buffers, under the same flags, as one."""
    if len(slices) < 2:
        return slices
    names = ("peer", "src_buf", "dst_buf", "wait_peer", "wait_flag", "post_flag", "step", "op", "flags", "kind")
    order = np.lexsort([slices[n] for n in ("dst", "wait_flag", "wait_peer", "peer", "step")])
    slices = slices[order]
    a, b = slices[:-1], slices[1:]
    joins = (a["src"] + a["bytes"] == b["src"]) & (a["dst"] + a["bytes"] == b["dst"]) & (b["op"] == 0)
    for name in names:
        joins &= a[name] == b[name]
    heads = np.flatnonzero(np.concatenate(([True], ~joins)))
    joined = slices[heads]
    joined["bytes"] = np.add.reduceat(slices["bytes"], heads)
    return joined


def reduced(trees: Trees, rank: int, blocks: Blocks, spec: Spec, origin: np.ndarray, *, target: np.ndarray,
            in_out: bool = False) -> np.ndarray:  # fmt: skip
    """The member's reductions: of each block that it gives to others along the trees, its own
    operand and theirs, in the order of their distance from it.

    The sum of block b ends at ``origin[b]``, in OUT at ``target[b]``; sums on the way are partial
    and lie in scratch where their elements lie in the whole, or in OUT there (``in_out``, for
    partials no wider than elements).  Step s of the trees is step ``last`` - s here, and the
    origins' is ``last`` + 1; flags as in ``spread``.
    """
    last, nchunks = trees.last, blocks.chunks
    buf = OUT if in_out else SCRATCH
    child, given = trees.given(rank)
    own = np.flatnonzero(trees.gives[rank] | (origin == rank))
    member, block = np.concatenate((np.full(len(own), rank), child)), np.concatenate((own, given))
    order = np.argsort(block, kind="stable")  # own operands before the children's
    member, block = member[order], block[order]
    final = origin[block] == rank
    summed = (member != rank) & trees.gives[member, block]
    mine, theirs = ((last - trees.step[m, block]) * nchunks for m in (rank, member))
    k = np.arange(nchunks)[:, None]
    begin, length = (column[:, block] for column in blocks.chunk(k))
    at = blocks.start[block] + begin
    partial = partial_length(at, spec.dtype, spec.redop)
    sums = made(peer=member, op=spec.redop, bytes=length,
                src_buf=np.where(summed, buf, SRC), src=np.where(summed, partial, at),
                dst_buf=np.where(final, OUT, buf), dst=np.where(final, target[block] + begin, partial),
                flags=np.where(summed, PARTIAL_SRC, 0) | np.where(final, 0, PARTIAL_DST),
                wait_peer=np.where(summed, member, NONE), wait_flag=np.where(summed, theirs + k, NONE),
                post_flag=mine + k, step=mine + k)  # fmt: skip
    return ordered(sums)


def scratch(spec: Spec, whole: int) -> int:
    """Bytes of partial sums for a buffer of ``whole`` bytes."""
    return partial_length(whole, spec.dtype, spec.redop)
