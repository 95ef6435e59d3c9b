"""Point to point: the front of send and recv."""

from cpython.long cimport PyLong_CheckExact
from libc.stdint cimport uint64_t
from libc.string cimport memset

import numpy as np
from numpy.lib.array_utils import byte_bounds

from strata._core.abi cimport ST_AGAIN, ST_OK, st_ctx, st_owner
from strata._core.array cimport Array, look
from strata._core.group cimport (
    ST_DESC,
    CoreGroup,
    st_group,
    st_now_ns,
    st_transfer,
    st_worker,
    st_worker_idle,
    st_worker_submit,
)
from strata._core.space cimport deadline_of
from strata._core.stream cimport CoreStream, current
from strata._core.work cimport Work

from strata import errors
from strata._core.names import OPERATIONS


cdef extern from "Python.h":
    bint PyIndex_Check(object)


cdef extern from "st_alias.h" nogil:
    bint st_alias_shared(const st_ctx *ctx, uint64_t a, uint64_t na, uint64_t b, uint64_t nb)


cdef extern from "st_p2p_run.h" nogil:
    uint64_t ST_EAGER_BYTES
    int st_p2p_try(st_group *g, st_transfer *t)
    int st_p2p_run(st_group *g, st_transfer *t, uint64_t timeout_ns)


cdef enum:
    OP_SEND = 10


cdef class Draft:
    pass


cdef class Transfers(CoreGroup):
    """send and recv.  Documented in Group (comm.py)."""

    def send(self, x, dst, tag=0, *, timeout=None, async_op=False):
        """Sends ``x`` (any array) to member ``dst``, who receives it under the same ``tag`` (an int).

        Up to 4 KiB it returns at once; a larger one when the receiver has it.  PeerDead,
        CollectiveTimeout (the message is withdrawn), CollectiveMismatch if the receiver asked
        for another count or dtype.  ``async_op=True``: returns a Work.
        """
        return self.start(False, x, dst, tag, timeout, async_op)

    def recv(self, out, src, tag=0, *, timeout=None, async_op=False):
        """Receives into ``out`` the oldest message of member ``src`` under ``tag``; returns ``out``.

        ``out`` has the sender's count and dtype, or CollectiveMismatch is raised (the message is
        gone then).  PeerDead, CollectiveTimeout.  ``async_op=True``: returns a Work.
        """
        return self.start(True, out, src, tag, timeout, async_op)

    def check_queued(self, *arrays):
        """InvalidArgument unless arrays can be used by an operation on a stream: as they lie, since nobody is there
        when it runs, or has run, to copy them."""
        cdef Array a
        for x in arrays:
            if x is None:
                continue
            look(x, &a)
            if not a.contiguous:
                raise errors.InvalidArgument("on a stream arrays must be contiguous, and this one is strided: use a "
                                             "contiguous part, or call outside the stream")
            if a.nbytes and st_owner(self.g.ctx, <uint64_t>a.data) < 0:
                raise errors.InvalidArgument("on a stream arrays must be fabric memory, and this one is not: make it "
                                             "with strata.empty or its like, or call outside the stream")

    def check_member(self, number, what):
        """TypeError, ValueError unless it is a number in the group; 0.5 is none, and not 0 either."""
        if not PyIndex_Check(number):
            raise TypeError(f"{what}={number!r}: a number in the group, 0 to {self.size - 1}, is expected, and no "
                            f"{type(number).__name__}")
        if not 0 <= number < self.size:
            raise ValueError(f"{what}={number}: a number in the group, 0 to {self.size - 1}, is expected")

    def check_frames(self, uint32_t op, src, out):
        """ValueError if the arrays, though apart from each other, lie on the same frames of
        physical memory, or the output has a frame twice (mappings made with strata.vmm)."""
        if not self.g.ctx.vmm:
            return
        what = None
        if src is not None and src is not out and not np.may_share_memory(src, out) and self.shared(src, out):
            what = "input and output are"
        elif self.shared(out, out):
            what = "parts of the output are"
        if what:
            raise ValueError(f"{OPERATIONS[op]}: {what} the same physical memory under two addresses (strata.vmm "
                             "mapped a handle twice); use arrays on memory of their own")

    cdef bint shared(self, object a, object b) except -1:
        cdef uint64_t low_a, high_a, low_b, high_b
        low_a, high_a = byte_bounds(a)
        low_b, high_b = byte_bounds(b)
        return (low_a < high_a and low_b < high_b and st_owner(self.g.ctx, low_a) >= 0
                and st_owner(self.g.ctx, low_b) >= 0
                and st_alias_shared(self.g.ctx, low_a, high_a - low_a, low_b, high_b - low_b))

    cdef object start(self, bint receive, object array, object peer, object tag, object timeout,
                      object async_op):
        cdef st_transfer t
        cdef Array a
        cdef uint64_t ns
        cdef bint later = False, fits
        cdef Draft draft = None
        cdef object temporary = array
        if async_op is not False:
            if isinstance(async_op, Draft):
                draft = <Draft>async_op
            else:
                later = async_op
        stream = current() if draft is None else None
        self.check_here()
        self.uncapturable("recv" if receive else "send")
        look(array, &a)
        if not PyLong_CheckExact(peer) or not 0 <= peer < self.size:
            self.check_member(peer, "src" if receive else "dst")
        if receive and not a.writeable:
            raise ValueError("recv: the array is read-only")
        if stream is not None:
            self.check_queued(array)
        # A receiver may have any memory: it alone writes there.
        fits = a.contiguous and (receive or a.nbytes <= ST_EAGER_BYTES or peer == self.rank
                                 or st_owner(self.g.ctx, <uint64_t>a.data) >= 0)
        if not fits and draft is None:
            temporary = self._temporary(array, receive)
            look(temporary, &a)
        ns = deadline_of(timeout, self.context)
        memset(&t, 0, sizeof(t))
        t.receive = receive
        t.peer = peer
        t.tag = tag
        t.desc = ST_DESC(OP_SEND, 0, a.dtype, 0, 0)
        t.count = a.count
        t.bytes = a.nbytes
        t.buf = a.data
        if not receive:
            self.open_channel(t.peer)
        if draft is None:
            return self.carry(&t, array, temporary, ns, later, stream)
        draft.group, draft.message, draft.ready, draft.transfer, draft.ns = self, True, fits, t, ns
        draft.a = draft.b = a
        draft.src, draft.out = (None, array) if receive else (array, None)
        draft.timeout, draft.result = timeout, draft.out

    cdef object make_work(self):
        """Of an operation that is handed to a thread."""
        return Work.__new__(Work)

    cdef object carry(self, st_transfer *t, object array, object temporary, uint64_t ns, bint async_op, object stream):
        """Carries a message; ``temporary``: what is used instead of the array, or itself."""
        cdef Work work
        cdef bint queued = False
        cdef int rc
        cdef object result = array if t.receive or t.cast else None
        cdef st_worker *worker = &self.collectives if t.cast else &self.transfers  # casts keep their place among them
        if async_op or stream is not None or not st_worker_idle(worker):
            work = self.make_work()
            work.group = self
            work.keep = temporary
            work.transfer = True
            work.result = result
            if t.receive and temporary is not array:
                work.copyback = (array, temporary)
            work.item.transfer = t[0]
            work.item.deadline_ns = st_now_ns() + ns if ns else 0
            work.item.timeout_ns = ns
            if stream is not None:
                (<CoreStream>stream).begin(&work.item)
                work.progress = (<CoreStream>stream).progress
            try:
                self.remember(work)
                queued = st_worker_submit(worker, &work.item) == ST_OK
            finally:
                if stream is not None:
                    (<CoreStream>stream).end(work if queued else None)
            if not queued:
                self.forget(work)
                raise errors.HostError("no thread could be made for asynchronous operations "
                                       "(raise `ulimit -u` or `ulimit -v`)")
            if async_op:
                return work
            return work.wait() if stream is None else result
        rc = st_p2p_try(&self.g, t)
        if rc == ST_AGAIN:
            with nogil:
                rc = st_p2p_run(&self.g, t, ns)
        if rc != ST_OK:
            self.transfer_failed(rc, t)
        if t.receive and temporary is not array:
            array[...] = temporary
        return result
