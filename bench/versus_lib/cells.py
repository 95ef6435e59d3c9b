"""What one cell of the comparison is: an operation, its buffers, and the answer it must give.

Needs numpy alone, since it runs inside every contender's own environment.
"""

import numpy as np

OPS = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "sendrecv")
TRIPS = {"sendrecv": 2}     # a call goes there and back; its figure is one way
SIZES = (8, 1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
ITEM = 4        # float32
PERIOD = 8191   # prime, so that no power-of-two chunk put in a wrong place looks right
TOP = 251       # values are 0..250: sums of up to 65536 ranks stay exact in float32


def shape(op, nbytes, n):
    """(send, recv) element counts of one rank.

    `nbytes` is the larger of a rank's two buffers. A share is at least one element, so the
    smallest cells of all_gather, reduce_scatter and all_to_all hold n elements, not two.
    """
    if op == "barrier":
        return 0, 0
    whole = max(1, nbytes // ITEM)
    share = max(1, whole // n)
    return {
        "all_reduce": (whole, whole),
        "broadcast": (whole, whole),
        "sendrecv": (whole, whole),
        "all_gather": (share, share * n),
        "reduce_scatter": (share * n, share),
        "all_to_all": (share * n, share * n),
    }[op]


def grid(ops, sizes, n):
    """(op, bytes) cells of n ranks in the order they are run; barrier has no size, sendrecv is between two."""
    return [(op, b) for op in ops if op != "sendrecv" or n == 2 for b in ([0] if op == "barrier" else sizes)]


def wave(rank, salt):
    """One period of rank's data: a mix of position, rank and salt, all of them visible."""
    x = np.arange(PERIOD, dtype=np.uint64) + np.uint64(rank * 1000003 + salt * 7919)
    x = (x * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (x % np.uint64(TOP)).astype(np.float32)


def pour(out, pattern):
    """Fill `out` with repetitions of `pattern`."""
    full = len(out) // PERIOD
    out[: full * PERIOD].reshape(full, PERIOD)[:] = pattern
    out[full * PERIOD:] = pattern[: len(out) - full * PERIOD]


def wrong(got, pattern, start=0):
    """How many elements of `got` differ from `pattern` repeated, read from position `start`."""
    pattern = np.roll(pattern, -(start % PERIOD))
    full = len(got) // PERIOD
    body = np.count_nonzero(got[: full * PERIOD].reshape(full, PERIOD) != pattern)
    return int(body + np.count_nonzero(got[full * PERIOD:] != pattern[: len(got) - full * PERIOD]))


def prepare(op, rank, salt, send, recv):
    """Put rank's data into its buffers, and values that are never right where answers go."""
    recv.fill(-1.0)
    if op == "broadcast":      # in place: the root's buffer is `recv` too
        if rank == 0:
            pour(recv, wave(0, salt))
    elif op != "barrier":
        pour(send, wave(rank, salt))


def errors(op, rank, n, salt, recv):
    """Elements of `recv` that are not the operation's answer."""
    if op == "barrier":
        return 0
    if op == "broadcast":
        return wrong(recv, wave(0, salt))
    if op == "sendrecv":
        return wrong(recv, wave(1 - rank, salt))
    if op in ("all_reduce", "reduce_scatter"):
        total = sum(wave(r, salt) for r in range(n))
        return wrong(recv, total, rank * len(recv) if op == "reduce_scatter" else 0)
    share = len(recv) // n
    start = rank * share if op == "all_to_all" else 0
    return sum(wrong(recv[r * share:(r + 1) * share], wave(r, salt), start) for r in range(n))
