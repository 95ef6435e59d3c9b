"""The collectives as nccl-tests counts them: how much each rank sends, what it must receive, busbw.

A `Case` is one operation of one size on this die: it knows its buffers, fills them, binds the call
and counts wrong elements. Counts per rank are rounded down to 16 bytes where nccl-tests does so.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from collectives_lib import data

ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
SHARED = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter")
NO_IN_PLACE = ("alltoallv", "sendrecv")


def program(name):
    return f"{name}_perf"


def bandwidths(name, param, itemsize, seconds, n):
    """(algbw, busbw) in GB/s, GB = 1e9 bytes."""
    total = param * itemsize * (n if name in SHARED else 1)
    factor = 1 if name in ("broadcast", "reduce", "sendrecv") else (n - 1) / n
    factor *= 2 if name == "all_reduce" else 1
    algbw = total / 1e9 / seconds if seconds > 0 else 0.0
    return algbw, algbw * factor


def peer_count(src, dst, total_bytes, itemsize, n):
    """Elements that `src` sends to `dst` in alltoallv: the farther around the ring, the more."""
    if n == 1:
        return (total_bytes & ~15) // itemsize
    share = (dst - src) % n / (n * (n - 1) // 2)
    return (int(share * total_bytes) & ~15) // itemsize


def counts(name, nbytes, itemsize, n):
    """(elements a rank sends, receives, and the count that the table shows)."""
    count = nbytes // itemsize
    if name not in SHARED:
        return count, count, count
    base = (count // n) & ~(16 // itemsize - 1)
    if name == "alltoallv":
        total = sum(peer_count(0, dst, base * n * itemsize, itemsize, n) for dst in range(n))
        return total, total, base
    sends = base * n if name in ("reduce_scatter", "alltoall", "scatter") else base
    recvs = base * n if name in ("all_gather", "alltoall", "gather") else base
    return sends, recvs, base


@dataclass
class Case:
    """One operation on one die. `send` and `recv` are byte arrays of the fabric, large enough."""

    name: str
    group: object
    type_name: str
    op: str             # a reduction, or "none"
    root: int           # -1 where there is none
    nbytes: int
    in_place: bool
    timeout: float

    def __post_init__(self):
        self.n, self.rank = self.group.size, self.group.rank
        self.dtype = data.dtype(self.type_name)
        self.sends, self.recvs, self.param = counts(self.name, self.nbytes, self.dtype.itemsize, self.n)
        self.at_root = self.root in (-1, self.rank)
        if self.name == "alltoallv":
            total, size = self.param * self.n * self.dtype.itemsize, self.dtype.itemsize
            self.to = [peer_count(self.rank, r, total, size, self.n) for r in range(self.n)]
            self.of = [peer_count(r, self.rank, total, size, self.n) for r in range(self.n)]

    @property
    def moved(self):
        """Bytes in the table's first column: the larger of the two buffers."""
        return max(self.sends, self.recvs) * self.dtype.itemsize

    def place(self, send, recv):
        """Views of the two buffers: in place, both lie in `recv`, one inside the other."""
        whole = recv[: max(self.sends, self.recvs) * self.dtype.itemsize].view(self.dtype)
        mine = slice(self.rank * self.param, (self.rank + 1) * self.param)
        if not self.in_place:
            self.src = send[: self.sends * self.dtype.itemsize].view(self.dtype)
            self.out = whole[: self.recvs]
        elif self.name in ("all_gather", "gather"):
            self.src, self.out = whole[mine], whole
        elif self.name in ("reduce_scatter", "scatter"):
            self.src, self.out = whole, whole[mine]
        else:
            self.src = self.out = whole
        return self

    def bind(self):
        """The call, all arguments bound."""
        g, src, out = self.group, self.src, self.out
        more = {"timeout": self.timeout} if self.timeout else {}
        if self.name in ("all_gather", "gather"):
            out = out.reshape(self.n, self.param)
        if self.name == "all_reduce":
            return partial(g.all_reduce, src, None if self.in_place else out, op=self.op, **more)
        if self.name == "reduce_scatter":
            return partial(g.reduce_scatter, src, out, op=self.op, **more)
        if self.name == "all_gather":
            return partial(g.all_gather, src, out, **more)
        if self.name == "alltoall":
            return partial(g.all_to_all, src, out, **more)
        if self.name == "alltoallv":
            return partial(g.all_to_all_v, src, self.to, out, self.of, **more)
        if self.name == "sendrecv":
            return self._ring(more)
        if self.name == "broadcast":    # one buffer a rank: out of place, the root's is its send buffer
            return partial(g.broadcast, src if self.at_root else out, root=self.root, **more)
        if self.name == "reduce":
            return partial(g.reduce, src, out if self.at_root else None, root=self.root, op=self.op, **more)
        if self.name == "gather":
            return partial(g.gather, src, out if self.at_root else None, root=self.root, **more)
        return partial(g.scatter, src if self.at_root else None, out, root=self.root, **more)

    def _ring(self, more):
        g, src, out = self.group, self.src, self.out
        nxt, prev = (self.rank + 1) % self.n, (self.rank - 1) % self.n

        def call():
            sent = g.send(src, nxt, async_op=True, **more)
            g.recv(out, prev, **more)
            sent.wait()
        return call

    def fill(self, salt):
        """Fresh data where it is sent, poison where answers go."""
        self.salt = salt
        self.out.view(np.uint8)[:] = data.POISON
        if self.name in ("broadcast", "scatter") and not self.at_root:
            return      # what is not the root's is not sent
        data.pour(self.src, self._operand(self.rank))

    def _operand(self, rank):
        return data.operand(self.type_name, self.op, rank, self.n, self.salt)

    def wrong(self):
        """Elements of this die's answer that are not what they must be."""
        if self.name in ("reduce", "gather") and not self.at_root:
            return 0
        if self.name in REDUCING:
            start = self.rank * self.param if self.name == "reduce_scatter" else 0
            return data.wrong(self.out, data.reduced(self.type_name, self.op, self.n, self.salt), start,
                              data.slack(self.type_name, self.op, self.n))
        if self.name == "broadcast":
            return data.wrong(self.src if self.at_root else self.out, self._operand(self.root))
        if self.name == "scatter":
            return data.wrong(self.out, self._operand(self.root), self.rank * self.param)
        if self.name == "sendrecv":
            return data.wrong(self.out, self._operand((self.rank - 1) % self.n))
        return self._wrong_blocks()

    def _wrong_blocks(self):
        """all_gather, gather, alltoall, alltoallv: one block from every rank."""
        count = at = 0
        for r in range(self.n):
            if self.name == "alltoallv":
                size = self.dtype.itemsize
                total = self.param * self.n * size
                length = self.of[r]
                start = sum(peer_count(r, d, total, size, self.n) for d in range(self.rank))
            else:
                length = self.param
                start = self.rank * self.param if self.name == "alltoall" else 0
            count += data.wrong(self.out[at: at + length], self._operand(r), start)
            at += length
        return count
