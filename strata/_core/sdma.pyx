"""Descriptor rings, and submissions to them: what strata.sdma is made of."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

import numpy as np

from strata._core.abi cimport (
    ST_ECANCELED,
    ST_EDEAD,
    ST_EFULL,
    ST_EINTR,
    ST_ENOJOB,
    ST_ETIMEOUT,
    ST_OK,
    st_is_die,
)
from strata._core.engine cimport Engine, st_event
from strata._core.space cimport Context, deadline_of, st_raise_pending, timeout_to_ns

from strata import errors
from strata._core.descriptors import DESCRIPTOR, NOP, NOTIFY, WRITE, failure

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

cdef extern from "st_flag.h" nogil:
    int st_flag_read(st_ctx *ctx, uint64_t va, uint64_t *value)
    int st_flag_wait(st_ctx *ctx, uint64_t va, uint64_t value, uint32_t die, const st_wait_policy *policy,
                     uint64_t timeout_ns)

cdef extern from "st_engine.h" nogil:
    uint32_t st_event_take(st_engine *e, uint32_t *also_word, uint32_t *also_sleepers)
    void st_event_give(st_engine *e, uint32_t event)
    uint64_t st_event_count(const st_engine *e, uint32_t event)
    int st_event_status(const st_engine *e, uint32_t event)
    void st_event_cancel(st_engine *e, uint32_t event, int status)
    int st_event_wait(st_engine *e, uint32_t event, uint64_t count, const st_wait_policy *policy, uint64_t timeout_ns)


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
        if not st_is_die(&self.engine.context.ctx):
            raise errors.NotInJob("this process was forked from a die and is not one itself", operation="sdma")
        self.raise_failed(st_lane_open(&self.engine.context.ctx, &self.lane) if self.open else ST_ENOJOB, 0, 0)

    cdef int raise_failed(self, int rc, uint64_t done, uint64_t count) except -1:
        if rc == ST_OK:
            return 0
        if rc == ST_EINTR:
            st_raise_pending()
        name = f"descriptor ring {self.lane.index} of rank {self.lane.die}"
        if rc == ST_EFULL:
            text = f"{name} has no room for {count} descriptors"
        elif rc == ST_ETIMEOUT:
            text = (f"{name} stayed full: {done} of {count} descriptors are in it, and it goes on" if done
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
        ``keep``    objects to keep alive until the submission has ended

        RingFull, CollectiveTimeout (the ring stayed full; what is in it is executed), NotInJob (closed), PeerDead.
        """
        cdef cnp.ndarray d
        cdef uint64_t first = 0, done = 0, n, ns
        cdef Submission s = None
        cdef int rc
        self.check()
        if not isinstance(batch, np.ndarray):
            keep = (keep, batch)
            batch = batch.build()
        if batch.dtype != DESCRIPTOR:
            raise TypeError(f"batch: an array of strata.sdma.DESCRIPTOR or a Batch is expected, not of {batch.dtype}")
        if notify:
            self.engine.reap(2)
            s = self.prepare(keep)
            batch = s.notified(batch)
        d = np.ascontiguousarray(batch)
        n = d.size
        if n == 0:
            return st_lane_tail(&self.lane)
        ns = deadline_of(timeout, self.engine.context) if wait else ST_SDMA_NOWAIT
        with nogil:
            rc = st_lane_submit(&self.engine.context.ctx, &self.lane, <const st_descriptor *>cnp.PyArray_DATA(d), n,
                                &self.engine.context.ctx.wait, ns, &first, &done)
        if rc != ST_OK:
            if s is not None:
                s.abandon(done, first)
            self.raise_failed(rc, done, n)
        if s is None:
            return first
        s.first, s.count, s.head = first, n, first + n
        return s

    def prepare(self, keep):
        """A submission that has not been made yet."""
        cdef Submission s = Submission.__new__(Submission)
        cdef Engine e = self.engine
        s.ring, s.engine, s.keep, s.place = self, e, keep, -1
        with e.lock:
            if self.lane.die == e.context.rank:
                s.event = st_event_take(e.e, NULL, NULL)
                if s.event == 0:
                    raise errors.RingFull("no event is free: too many submissions are in progress", operation="sdma")
            else:
                taken = e.take_flag()
                if taken is None:
                    raise errors.RingFull("too many submissions to other dies' rings are in progress", operation="sdma")
                s.place, s.flag = taken
            e.live[s] = None
        return s

    def close(self):
        """Waits until all that is in it has been executed, and closes it (a ring of this die alone)."""
        if not self.open:
            return
        self.open = False
        if self.lane.die != self.engine.context.rank or not self.engine.running:
            return
        while not self.engine.remove_ring(self.lane.index, self.lane.depth):
            self.drain()

    def drain(self, timeout=None):
        """Waits until what is in it now has been executed.  ``timeout``: seconds (None: for as long as its gates
        wait); CollectiveTimeout."""
        cdef uint64_t tail = st_lane_tail(&self.lane)
        nothing = np.zeros(1, DESCRIPTOR)
        nothing["type"] = NOP
        if st_lane_head(&self.lane) < tail:
            self.submit(nothing, timeout=timeout).wait(timeout)

    def __repr__(self):
        return f"<descriptor ring {self.lane.index} of rank {self.lane.die}, {self.lane.depth} deep>"


cdef class Submission:

    def __init__(self):
        raise TypeError("Submission is what Ring.submit() returns")

    def __dealloc__(self):
        if self.event and st_is_die(&self.engine.context.ctx):
            st_event_give(self.engine.e, self.event)

    def notified(self, batch):
        """The batch with this submission's notification behind it."""
        cdef uint64_t n = batch.size
        d = np.empty(n + 1, DESCRIPTOR)
        d[:n] = batch
        last = np.zeros(1, DESCRIPTOR)
        if self.event:
            last["type"] = NOTIFY
            d[n:] = last
            d["event"] = self.event
        else:
            last["type"], last["dst"], last["value"] = WRITE, self.flag, 1
            d[n:] = last
        return d

    def abandon(self, uint64_t done, uint64_t first):
        """It did not come into the ring as a whole, and nobody will be notified: what is there is not executed."""
        self.head = first + done
        self.lost = True  # what it holds is held until the ring is past it
        if self.event and done:
            st_event_cancel(self.engine.e, self.event, ST_ECANCELED)
        self.done()

    def leave(self):
        with self.engine.lock:
            self.engine.live.pop(self, None)
            if self.place >= 0:
                self.engine.free_flags.append(self.place)
                self.place = -1
        self.keep = None

    def done(self):
        """Whether all of it has been executed, or has failed.  Never waits."""
        cdef uint64_t value = 0
        if self.finished:
            return True
        if not self.engine.running:
            self.settle(ST_ENOJOB)
        elif self.lost:
            if st_lane_head(&self.ring.lane) >= self.head:
                self.settle(ST_ECANCELED)
        elif self.event:
            if st_event_count(self.engine.e, self.event):
                self.settle(ST_OK)
        elif st_flag_read(&self.engine.context.ctx, self.flag, &value) == ST_OK and value:
            self.wait()
        return self.finished

    def wait(self, timeout=None):
        """Returns when all of it has been executed; raises what went wrong first.

        ``timeout``: seconds (None: for as long as its gates wait); CollectiveTimeout then, and it goes on.
        """
        cdef uint64_t ns = timeout_to_ns(float("inf") if timeout is None else timeout, 0.0)
        cdef st_ctx *ctx = &self.engine.context.ctx
        cdef int rc
        if not self.finished:
            with nogil:
                if self.event:
                    rc = st_event_wait(self.engine.e, self.event, 1, &ctx.wait, ns)
                else:
                    rc = st_flag_wait(ctx, self.flag, 1, self.ring.lane.die, &ctx.wait, ns)
            if rc == ST_EINTR:
                st_raise_pending()
            if rc == ST_ETIMEOUT and ns and not self.passed():
                raise errors.CollectiveTimeout(f"the submission has not ended within {timeout} s; it goes on",
                                               ranks=(self.ring.lane.die,), operation="sdma")
            self.settle(rc)
        if self.error is not None:
            raise self.error

    def passed(self):
        """Whether it has ended with a status of its own."""
        cdef uint64_t value = 0
        if self.event:
            return st_event_count(self.engine.e, self.event) > 0
        return st_flag_read(&self.engine.context.ctx, self.flag, &value) == ST_OK and value > 0

    def exception(self):
        """Its error, or None: it went well, or has not ended."""
        self.done()
        return self.error

    def cancel(self):
        """Gives up what of it has not been executed yet: it ends with Cancelled.  Does not wait."""
        if self.finished:
            return
        if not self.event:
            raise errors.InvalidArgument("what is in another die's ring cannot be cancelled", operation="sdma")
        st_event_cancel(self.engine.e, self.event, ST_ECANCELED)

    cdef int settle(self, int rc) except -1:
        """Takes the outcome over, once."""
        cdef st_event *v
        if self.finished:
            return 0
        if rc == ST_OK and self.event and not self.lost:
            rc = st_event_status(self.engine.e, self.event)
            if rc != ST_OK:
                v = &self.engine.e.events[self.event]
                cycle = [(v.cycle[i].die, v.cycle[i].ring, v.cycle[i].va, v.cycle[i].value) for i in range(v.ncycle)]
                self.error = failure(rc, self.engine.context.rank, v.ring, v.index,
                                     (<char *>&v.failed)[:DESCRIPTOR.itemsize], cycle)
        elif rc == ST_ENOJOB:
            self.error = errors.NotInJob("strata.finalize() has ended the DMA thread", operation="sdma")
        elif rc != ST_OK:
            self.error = errors.from_status(
                rc, f"a submission to ring {self.ring.lane.index} of rank {self.ring.lane.die} failed", errno=errno,
                ranks=(self.ring.lane.die,), operation="sdma")
        self.finished = True
        self.leave()
        return 0

    def __repr__(self):
        state = "in progress" if not self.done() else "failed" if self.error is not None else "done"
        return f"<Submission {state}, {self.count} descriptors from {self.first} on in {self.ring!r}>"


def attach(Engine engine, uint32_t die, uint32_t index):
    """Ring ``index`` of die ``die`` (world rank).  NotInJob: that die has no such ring; PeerDead."""
    cdef Ring ring = Ring.__new__(Ring)
    cdef int rc = st_lane_attach(&engine.context.ctx, die, index, &ring.lane)
    ring.engine = engine
    ring.open = True
    if rc != ST_OK:
        text = (f"rank {die} has no open descriptor ring {index}" if rc == ST_ENOJOB
                else f"descriptor ring {index} of rank {die} does not look like one")
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
    for i in range(n):
        st_sdma_seal(&context.ctx, <st_descriptor *>(at + 64 * i))
