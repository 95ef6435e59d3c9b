"""Descriptor rings, and submissions to them: what strata.sdma is made of."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

import numpy as np

from strata._core.abi cimport ST_EDEAD, ST_EFULL, ST_EINTR, ST_ENOJOB, ST_ETIMEOUT, ST_OK
from strata._core.engine cimport Engine
from strata._core.space cimport Context, deadline_of, st_raise_pending, timeout_to_ns
from strata._core.spans cimport enter, leave
from strata._core.submission cimport Submission, here

from strata import errors
from strata._core.descriptors import DESCRIPTOR, FILL

cnp.import_array()


cdef extern from "st_sdma.h" nogil:
    uint64_t ST_SDMA_NOWAIT
    int st_lane_attach(st_ctx *ctx, uint32_t die, uint32_t index, st_lane *lane)
    int st_lane_open(st_ctx *ctx, const st_lane *lane)
    uint64_t st_lane_head(const st_lane *lane)
    uint64_t st_lane_tail(const st_lane *lane)
    void st_sdma_seal(const st_ctx *ctx, st_descriptor *d)
    int st_lane_submit(st_ctx *ctx, st_lane *lane, const st_descriptor *d, uint64_t n, const st_wait_policy *policy,
                       uint64_t timeout_ns, uint64_t *first, uint64_t *done)

cdef extern from "st_submission.h" nogil:
    int st_lane_drain(st_ctx *ctx, const st_lane *lane, uint64_t index, const st_wait_policy *policy,
                      uint64_t timeout_ns)


cdef class Ring:

    def __init__(self):
        raise TypeError("rings come from strata.sdma.open_ring() and strata.sdma.ring()")

    @property
    def rank(self):
        """World rank of the die whose DMA thread reads it."""
        return self.lane.die

    @property
    def index(self):
        """Its number among that die's rings."""
        return self.lane.index

    @property
    def depth(self):
        """Descriptors that it holds."""
        return self.lane.depth

    @property
    def head(self):
        """Index of the next descriptor that is executed."""
        self.check()
        return st_lane_head(&self.lane)

    @property
    def tail(self):
        """Index of the next descriptor that is submitted: the doorbell."""
        self.check()
        return st_lane_tail(&self.lane)

    def check(self):
        """Raises NotInJob if the ring is closed, PeerDead if its die is dead."""
        here(self.engine)
        self.raise_failed(ST_ENOJOB if not self.open or not self.engine.running
                          else st_lane_open(&self.engine.context.ctx, &self.lane), 0, 0)

    cdef int raise_failed(self, int rc, uint64_t done, uint64_t count) except -1:
        if rc == ST_OK:
            return 0
        if rc == ST_EINTR:
            st_raise_pending()
        name = f"descriptor ring {self.lane.index} of rank {self.lane.die}"
        if rc == ST_EFULL:
            text = (f"{name} has no room for {count} descriptors (it holds {self.lane.depth}): wait=True waits for "
                    "room, open_ring(depth=) makes a ring that holds more")
        elif rc == ST_ETIMEOUT:
            text = (f"{name} stayed full, and only {done} of {count} descriptors are in it" if done
                    else f"{name} stayed full, or another producer kept it")
        elif rc == ST_ENOJOB:
            text = f"{name} is closed"
        else:
            text = f"{name}: its die is dead" if rc == ST_EDEAD else f"{name} does not look like one"
        raise errors.from_status(rc, text, errno=errno, ranks=(self.lane.die,), operation="sdma")

    def submit(self, batch, *, notify=True, timeout=None, wait=True, keep=None):
        """Puts descriptors into the ring, in order and as one chain, and rings the doorbell.

        ``batch``   a strata.sdma.Batch, or an array of strata.sdma.DESCRIPTOR (used as it is; see ``seal``)
        ``notify``  True: a notification follows, and a Submission is returned, which can be waited for;
                    False: the index of the first descriptor is returned
        ``timeout`` seconds to wait for room in a full ring (None: option timeout)
        ``wait``    False: RingFull at once if not all of it fits
        ``keep``    objects to keep alive until the submission has ended; with ``notify``

        RingFull, CollectiveTimeout (the ring stayed full; the part that is in it is executed, or, of this die's ring
        with ``notify``, given up), NotInJob (closed), PeerDead.
        """
        cdef cnp.ndarray d
        cdef uint64_t ns, began
        here(self.engine)
        if not self.open or not self.engine.running:
            self.raise_failed(ST_ENOJOB, 0, 0)
        made = isinstance(batch, np.ndarray)  # by hand
        if not made:
            if not hasattr(batch, "build"):
                raise TypeError(f"batch: a Batch or an array of strata.sdma.DESCRIPTOR is expected, not {batch!r}")
            keep = (keep, batch)
            batch = batch.build()
        if batch.dtype != DESCRIPTOR:
            raise TypeError(f"batch: an array of strata.sdma.DESCRIPTOR or a Batch is expected, not of {batch.dtype}")
        if made and batch["event"].any():
            raise errors.InvalidArgument("batch: event is for submit() to fill in; 0 is expected", operation="sdma")
        ns = deadline_of(timeout, self.engine.context) if wait else ST_SDMA_NOWAIT
        d = np.ascontiguousarray(batch).reshape(-1)
        began = enter(&self.engine.context.ctx)
        try:
            return self.put(d, notify, ns, keep)
        finally:
            if began:
                moves = d["bytes"][(d["type"] > 0) & (d["type"] <= FILL)]
                leave(self.engine.context, began, "sdma.submit", int(moves.sum(dtype=np.uint64)), 0, self.lane.die)

    cdef object put(self, cnp.ndarray d, bint notify, uint64_t ns, object keep):
        """What submit() does with descriptors that are as they should be."""
        cdef uint64_t first = 0, done = 0, n
        cdef Submission s = None
        cdef int rc
        if notify:
            s = self.prepare(keep)
            s.made = d = s.notified(d)
        n = d.size
        if n == 0:
            return st_lane_tail(&self.lane)
        with nogil:
            rc = st_lane_submit(&self.engine.context.ctx, &self.lane, <const st_descriptor *>cnp.PyArray_DATA(d), n,
                                &self.engine.context.ctx.wait, ns, &first, &done)
        if s is not None:
            s.first, s.count, s.head = first, n, first + done
            if rc != ST_OK:
                s.abandon(done)
        self.raise_failed(rc, done, n)
        return first if s is None else s

    cdef object prepare(self, keep):
        """A submission that has not been made yet."""
        cdef Submission s = Submission.__new__(Submission)
        cdef Engine e = self.engine
        s.lane, s.engine, s.keep, s.place = self.lane, e, keep, -1
        s.local = self.lane.die == e.context.rank
        e.reap(2)
        with e.lock:
            if not s.take():
                e.reap(len(e.live))
            if not s.take():
                raise errors.RingFull("too many submissions are in progress: wait for some of them", operation="sdma")
            e.live[s] = None
        return s

    def close(self):
        """Waits until all that is in it has been executed, and closes it (a ring of this die; of another's ring
        only this object is closed)."""
        cdef Engine e = self.engine
        here(e)
        while self.open and self.lane.die == e.context.rank:
            with e.lock:  # whoever else has closed it may have opened another in its place
                if not e.running or st_lane_open(&e.context.ctx, &self.lane) != ST_OK or e.remove_ring(
                        self.lane.index, self.lane.depth):
                    break
            self.drain()
        self.open = False

    def drain(self, timeout=None):
        """Waits until what is in it now has been executed.  ``timeout``: seconds (None: for as long as its gates
        wait); CollectiveTimeout.  NotInJob: it was closed meanwhile; PeerDead."""
        cdef uint64_t ns = timeout_to_ns(float("inf") if timeout is None else timeout, 0.0), tail
        cdef st_ctx *ctx = &self.engine.context.ctx
        cdef int rc
        self.check()
        tail = st_lane_tail(&self.lane)
        with nogil:
            rc = st_lane_drain(ctx, &self.lane, tail, &ctx.wait, ns)
        if rc == ST_ETIMEOUT:
            raise errors.CollectiveTimeout(f"{self!r} was not drained within {timeout} s", ranks=(self.lane.die,),
                                           operation="sdma")
        self.raise_failed(rc, 0, 0)

    def __repr__(self):
        return f"<descriptor ring {self.lane.index} of rank {self.lane.die}, {self.lane.depth} deep>"


def attach(Engine engine, uint32_t die, uint32_t index):
    """Ring ``index`` of die ``die`` (world rank).  NotInJob: that die has no such ring; PeerDead."""
    cdef Ring ring = Ring.__new__(Ring)
    cdef int rc = st_lane_attach(&engine.context.ctx, die, index, &ring.lane)
    ring.engine = engine
    ring.open = True
    if rc == ST_OK:
        rc = st_lane_open(&engine.context.ctx, &ring.lane)
    if rc != ST_OK:
        text = (f"rank {die} has no open descriptor ring {index}" if rc == ST_ENOJOB else
                f"rank {die} is dead, and with it its descriptor rings" if rc == ST_EDEAD else
                f"descriptor ring {index} of rank {die} does not look like one")
        raise errors.from_status(rc, text, ranks=(die,), operation="sdma")
    return ring


def open_ring(Engine engine, depth=None, uint64_t first=0):
    """A new ring of this die: see Engine.add_ring."""
    return attach(engine, engine.context.rank, engine.add_ring(depth, first))


def seal(Context context, cnp.ndarray descriptors):
    """States which memory descriptors mean: if it is given back before they are executed, they fail."""
    cdef uint64_t i, n = descriptors.size
    cdef char *at = <char *>cnp.PyArray_DATA(descriptors)
    if descriptors.dtype != DESCRIPTOR or not descriptors.flags.c_contiguous:
        raise TypeError("a contiguous array of strata.sdma.DESCRIPTOR is expected")
    if not descriptors.flags.writeable:
        raise ValueError("descriptors are read-only, and are written to when they are sealed")
    for i in range(n):
        st_sdma_seal(&context.ctx, <st_descriptor *>(at + 64 * i))
