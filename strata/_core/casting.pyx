"""Casts: bound broadcasts of few bytes, in which the root waits for nobody (st_cast.h)."""

cimport numpy as cnp
from libc.stdint cimport uint64_t
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport ST_EMISMATCH
from strata._core.array cimport Array, look
from strata._core.front cimport OP_BROADCAST, Front
from strata._core.group cimport ST_DESC, st_group, st_request, st_transfer
from strata._core.heap cimport ST_HEAP_CHANNEL
from strata._core.stream cimport current
from strata._core.transfer cimport Draft

cnp.import_array()


cdef extern from "st_cast.h" nogil:
    uint64_t ST_CAST_BYTES
    uint64_t st_cast_bytes(uint64_t n)
    void st_cast_open(st_group *g, uint64_t va)


cdef extern from "st_item.h" nogil:
    int st_request_failed(st_group *g, st_request *r, int status)


cdef class Casts(Front):
    """Base of Collectives: what becomes of a draft once its arguments are checked."""

    cdef bint casts(self, Draft d) except -1:
        """Whether a bound operation is a cast: alike on all members that have bound the same."""
        return (self.g.n > 1 and d.shape.op == OP_BROADCAST and d.shape.variant == 0 and d.by is None
                and d.a.nbytes <= ST_CAST_BYTES)

    cdef int open_cast(self) except -1:
        """This member's cast ring, made at first use."""
        if self.rank not in self._channels:
            memory = self._allocate(st_cast_bytes(self.g.n), ST_HEAP_CHANNEL)
            st_cast_open(&self.g, <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>memory))
            self._channels[self.rank] = memory
        return 0

    cdef int bound_by_all(self, Draft d) except -1:
        """Returns when all members have bound the same; a small broadcast is a cast from then on."""
        cdef bint cast = self.casts(d)
        cdef st_transfer *t = &d.transfer
        if cast and d.shape.root == self.g.me:
            try:
                self.open_cast()
            except Exception:
                self.abstain(d.timeout)  # the others must not wait for this die
                raise
        self.agree(d)
        if cast:
            memset(t, 0, sizeof(st_transfer))
            t.cast = 1
            t.receive = d.shape.root != self.g.me
            t.peer = d.shape.root
            t.desc = ST_DESC(OP_BROADCAST, 0, d.a.dtype, d.shape.root, 0)
            t.count = d.a.count
            t.bytes = d.a.nbytes
            t.buf = d.a.data
            d.ns = d.request.timeout_ns
            d.ready = d.a.contiguous
            d.message = True
        return 0

    cdef object cast_again(self, Draft d, bint async_op):
        """A call of a bound cast that is on a stream, captured, asynchronous, or not where its bytes can be."""
        cdef st_transfer t = d.transfer
        cdef Array a
        cdef object array = d.result, temporary = array
        cdef object stream = current()
        self.check_here()
        if self.context.recorders is not None and self.recorder is not None:
            return self.again(d, async_op)  # a graph has no host that could cast
        if stream is not None:
            self.check_queued(array)
        if self.g.ctx.vmm and t.receive:
            self.check_frames(d.shape.op, None, array)
        if not d.a.contiguous:
            temporary = np.empty(array.shape, array.dtype) if t.receive else np.ascontiguousarray(array)
            look(temporary, &a)
            t.buf = a.data
        return self.carry(&t, array, temporary, d.ns, async_op, stream)

    cdef object transfer_failed(self, int status, st_transfer *t):
        """Raises the error of a message; of a cast as that of the broadcast that it is."""
        cdef st_request r
        if not t.cast:
            return Front.transfer_failed(self, status, t)
        memset(&r, 0, sizeof(r))
        st_request_failed(&self.g, &r, status)
        if status == ST_EMISMATCH:
            self._cast_refused({"peer": t.peer, "mine": (t.desc, t.count), "theirs": (t.m.desc, t.m.count),
                                "number": self.g.number})
        r.desc = t.desc
        r.number = self.g.number
        r.err = t.err
        if t.refused:
            r.refused = 2 if t.receive else 1
        return self.failed(status, &r, None)
