"""The records of a plan as numpy dtypes: slices, transfer units, operands.

Twins of ``st_plan.h`` (which says what each field means) and ``st_types.h``; a
test compares them.  Plans are files too, so codes are appended, never renumbered,
and a change of layout raises ``PLAN_VERSION``.
"""

import numpy as np

from strata.dtypes import DTYPES, OPS

PLAN_VERSION = 2

# Buffers of a member
SRC, OUT, SCRATCH = 0, 1, 2
NBUFS = 3
BUFFER_NAMES = ("SRC", "OUT", "SCRATCH")

# Kinds and flags of slices
PULL, PUSH, SYNC_SLICE = 1, 2, 3
SLICE_NAMES = {PULL: "pull", PUSH: "push", SYNC_SLICE: "sync"}
TRANSIENT, ATOMIC, PARTIAL_SRC, PARTIAL_DST = 1, 2, 4, 8
SLICE_FLAGS = TRANSIENT | ATOMIC | PARTIAL_SRC | PARTIAL_DST

# Kinds of units; flags of operands
COPY, REDUCE, SYNC, ACCUMULATE, ROWS, COMBINE = 1, 2, 3, 4, 5, 6
UNIT_NAMES = {COPY: "copy", REDUCE: "reduce", SYNC: "sync", ACCUMULATE: "accumulate", ROWS: "rows", COMBINE: "combine"}
PARTIAL = 1

# Entries of a plan's rows: a row's number at the source; of COMBINE, the number of the unit's operand above these bits
ROW_BITS = 32
NO_ROW = (1 << 64) - 1
MAX_ENTRIES = 64  # of a row of COMBINE

# Distance classes of a pair of dies
TIER_NAMES = ("local", "sio", "l1", "l2")
NTIERS = 4

# Element types and operators (st_types.h); the index is the code
DTYPE_NAMES = tuple(name for name, _, _ in DTYPES)
DTYPE_BYTES = (0, *(size for _, _, size in DTYPES[1:]))  # raw bytes are no elements
OP_NAMES = OPS

NONE = -1  # of wait_peer, wait_flag, post_flag
MAX_FLAGS = 1 << 20  # flags of a member in one operation; executors may have fewer


def partial_bytes(dtype: int, op: int) -> int:
    """Bytes of an element of a partial reduction: what kernels accumulate in.

    float32 for the floats that are smaller, 64-bit sums for a mean of integers (two for those of
    64 bits: of the low and of the high halves), else the dtype itself.  A partial mean is a sum: whoever
    makes the element whole divides by ``total``.
    """
    name = DTYPE_NAMES[dtype]
    if name in ("f16", "bf16", "f8e4m3fn", "f8e5m2"):
        return 4
    if OP_NAMES[op] == "avg" and name[0] in "iu":
        return 16 if DTYPE_BYTES[dtype] == 8 else 8
    return DTYPE_BYTES[dtype]


def partial_length(nbytes: int, dtype: int, op: int) -> int:
    """Bytes that ``nbytes`` of elements take as a partial operand; 0 of raw bytes, which are none."""
    return nbytes // max(DTYPE_BYTES[dtype], 1) * partial_bytes(dtype, op)


def _record(itemsize: int, **fields: tuple[str, int]) -> np.dtype:
    return np.dtype(
        {
            "names": list(fields),
            "formats": [f for f, _ in fields.values()],
            "offsets": [o for _, o in fields.values()],
            "itemsize": itemsize,
        }
    )


SLICE_DTYPE = _record(
    48,
    peer=("<i4", 0),
    kind=("u1", 4),
    op=("u1", 5),
    src_buf=("u1", 6),
    dst_buf=("u1", 7),
    src=("<u8", 8),
    dst=("<u8", 16),
    bytes=("<u8", 24),
    wait_peer=("<i4", 32),
    wait_flag=("<i4", 36),
    post_flag=("<i4", 40),
    flags=("<u2", 44),
    step=("<u2", 46),
)

OPERAND_DTYPE = _record(
    16,
    member=("<i4", 0),
    buf=("u1", 4),
    flags=("u1", 5),
    pad=("(2,)u1", 6),
    offset=("<u8", 8),
)

UNIT_DTYPE = _record(
    64,
    kind=("u1", 0),
    op=("u1", 1),
    dtype=("u1", 2),
    tier=("u1", 3),
    core=("<u2", 4),
    stripe=("<u2", 6),
    nsrc=("<u2", 8),
    ndst=("<u2", 10),
    src_first=("<u4", 12),
    dst_first=("<u4", 16),
    flags=("<u4", 20),
    bytes=("<u8", 24),
    wait_peer=("<i4", 32),
    wait_flag=("<i4", 36),
    post_flag=("<i4", 40),
    slice=("<u4", 44),
    total=("<u2", 48),
    step=("<u2", 50),
    row=("<u4", 52),
    index=("<u8", 56),
)
