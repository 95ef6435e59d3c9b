"""Submissions to descriptor rings: who waits for them, and what they keep alive."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

import numpy as np

from strata._core.abi cimport (
    ST_ECANCELED,
    ST_EDEAD,
    ST_EINTR,
    ST_ENOJOB,
    ST_OK,
    st_ctx,
    st_is_die,
    st_wait_policy,
)
from strata._core.engine cimport Engine, st_engine, st_event
from strata._core.space cimport st_raise_pending, timeout_to_ns
from strata._core.spans cimport enter
from strata._core.spans cimport leave as told

from strata import errors
from strata._core.descriptors import DESCRIPTOR, GATE, NOTIFY, POISON, WRITE, failure

cnp.import_array()


cdef extern from "st_sdma.h" nogil:
    int st_lane_open(st_ctx *ctx, const st_lane *lane)
    int st_flag_status(uint64_t value)

cdef extern from "st_submission.h" nogil:
    int st_lane_past(const st_lane *lane, uint64_t index)
    int st_lane_failed(const st_lane *lane, uint64_t first, uint64_t count, int status, uint64_t *index)

cdef extern from "st_flag.h" nogil:
    int st_flag_read(st_ctx *ctx, uint64_t va, uint64_t *value)
    int st_flag_wait(st_ctx *ctx, uint64_t va, uint64_t value, uint32_t die, const st_lane *lane,
                     const st_wait_policy *policy, uint64_t timeout_ns)

cdef extern from "st_engine.h" nogil:
    uint32_t st_event_take(st_engine *e, uint32_t *also_word, uint32_t *also_sleepers)
    void st_event_give(st_engine *e, uint32_t event)
    uint64_t st_event_count(const st_engine *e, uint32_t event)
    int st_event_status(const st_engine *e, uint32_t event)
    void st_event_cancel(st_engine *e, uint32_t event, int status)
    int st_event_wait(st_engine *e, uint32_t event, uint64_t count, const st_wait_policy *policy, uint64_t timeout_ns)


cdef int here(Engine engine) except -1:
    """NotInJob in a forked child of the die."""
    if not st_is_die(&engine.context.ctx):
        raise errors.NotInJob("this process was forked from a die and is not one itself", operation="sdma")
    return 0


cdef bint poisoned(st_ctx *ctx, object raw, int rc) except -1:
    """Whether a descriptor is a gate whose flag says that what was to raise it has failed with ``rc``."""
    cdef uint64_t value = 0
    d = np.frombuffer(raw, DESCRIPTOR)[0]
    return (d["type"] == GATE and st_flag_read(ctx, d["src"], &value) == ST_OK and value & <uint64_t>POISON
            and st_flag_status(value) == rc)


cdef class Submission:

    def __init__(self):
        raise TypeError("Submission is what Ring.submit() returns")

    cdef bint take(self) except -1:
        """An event of this die's, or a flag for another die's DMA thread; False: none is free."""
        if self.local:
            self.event = self.event or st_event_take(self.engine.e, NULL, NULL)
            return self.event != 0
        if self.place < 0:
            self.place, self.flag = self.engine.take_flag() or (-1, 0)
        return self.place >= 0

    cdef object notified(self, batch):
        """The batch with this submission's notification behind it."""
        cdef uint64_t n = batch.size
        d = np.zeros(n + 1, DESCRIPTOR)
        d[:n] = batch
        if self.local:
            d["event"] = self.event
            d["type"][n] = NOTIFY
        else:
            d["type"][n], d["dst"][n], d["value"][n] = WRITE, self.flag, 1
        return d

    cdef int abandon(self, uint64_t done) except -1:
        """It did not come into the ring as a whole, or the ring was closed: nobody will be notified."""
        self.lost = True  # what it holds is held until the ring is past it
        if done == 0:
            return self.settle(ST_ECANCELED)
        if self.local:
            st_event_cancel(self.engine.e, self.event, ST_ECANCELED)
        return self.look()

    cdef int leave(self) except -1:
        """Lets go of what it holds; if it may still be executed, only once its flag says that it was."""
        cdef Engine e = self.engine
        with e.lock:
            e.live.pop(self, None)
            if self.waiters:  # they look at the event, or at the flag, and the last of them comes here again
                return 0
            if self.place >= 0 and self.ended:
                e.free_flags.append(self.place)
            elif self.place >= 0:
                e.orphans.append((self.place, self.keep))
            if self.event:
                st_event_give(e.e, self.event)
            self.place, self.event = -1, 0
        self.keep = self.made = None
        return 0

    cdef int look(self) except -1:
        """Takes the outcome over if there is one.  Never waits."""
        cdef st_ctx *ctx = &self.engine.context.ctx
        cdef uint64_t value = 0
        cdef int rc
        if self.finished:
            return 0
        if self.local and self.lost:
            rc = ST_ECANCELED if st_lane_past(&self.lane, self.head) else ST_OK
        elif self.local:
            if st_event_count(self.engine.e, self.event):
                return self.settle(st_event_status(self.engine.e, self.event))
            rc = ST_OK
        else:
            rc = st_lane_open(ctx, &self.lane)  # first: what is raised then was its last deed
            if rc == ST_OK and self.lost:
                rc = ST_ECANCELED if st_lane_past(&self.lane, self.head) else ST_OK
            elif st_flag_read(ctx, self.flag, &value) == ST_OK and value:
                return self.settle(st_flag_status(value) if value & <uint64_t>POISON else ST_OK)
        if rc == ST_OK and not self.engine.running:
            rc = ST_ENOJOB
        return 0 if rc == ST_OK else self.settle(rc)

    def done(self):
        """Whether all of it has been executed, or has failed.  Never waits."""
        if not self.finished:
            here(self.engine)
            self.look()
        return self.finished

    def wait(self, timeout=None):
        """Returns when all of it has been executed; raises what went wrong first.

        ``timeout``: seconds (None: for as long as its gates wait); CollectiveTimeout then, and it goes on.
        """
        cdef uint64_t ns = timeout_to_ns(float("inf") if timeout is None else timeout, 0.0), began
        if not self.done():
            began = enter(&self.engine.context.ctx)
            try:
                self.await_end(timeout, ns)
            finally:
                if began:
                    told(self.engine.context, began, "wait sdma.submit", 0)
        if self.error is not None:
            raise self.error

    cdef int await_end(self, object timeout, uint64_t ns) except -1:
        cdef st_ctx *ctx = &self.engine.context.ctx
        cdef int rc
        if not self.finished:
            self.waiters += 1  # its event stays its own
            with nogil:
                if self.local:
                    rc = st_event_wait(self.engine.e, self.event, 1, &ctx.wait, ns)
                else:
                    rc = st_flag_wait(ctx, self.flag, 1, self.lane.die, &self.lane, &ctx.wait, ns)
            self.waiters -= 1
            if self.finished:
                self.leave()  # another thread has waited, too
            elif rc == ST_EINTR:
                st_raise_pending()
            with self.engine.lock:  # not while the engine is being stopped
                self.look()
            if not self.finished and rc == ST_ENOJOB:
                raise errors.NotInJob("this die has no DMA thread now", operation="sdma")
            if not self.finished:
                raise errors.CollectiveTimeout(f"the submission has not ended within {timeout} s; it goes on",
                                               ranks=(self.lane.die,), operation="sdma")
        return 0

    def exception(self):
        """Its error, or None: it went well, or has not ended."""
        self.done()
        return self.error

    def cancel(self):
        """Gives up what of it has not been executed yet: it ends with Cancelled.  Does not wait."""
        if self.done():
            return
        if not self.local:
            raise errors.InvalidArgument("what is in another die's ring cannot be cancelled", operation="sdma")
        st_event_cancel(self.engine.e, self.event, ST_ECANCELED)

    cdef int settle(self, int rc) except -1:
        """Takes the outcome over, once."""
        cdef const st_lane *lane = &self.lane
        cdef uint64_t index = 0
        cdef st_event *v
        if self.finished:
            return 0
        self.finished = True
        self.ended = rc != ST_ENOJOB or self.local
        if rc != ST_OK and self.local and st_event_count(self.engine.e, self.event):
            v = &self.engine.e.events[self.event]
            cycle = [(v.cycle[i].die, v.cycle[i].ring, v.cycle[i].va, v.cycle[i].value) for i in range(v.ncycle)]
            raw = (<char *>&v.failed)[:DESCRIPTOR.itemsize]
            self.error = failure(rc, lane.die, v.ring, v.index, raw, cycle, poisoned(&self.engine.context.ctx, raw, rc))
        elif rc == ST_ENOJOB:
            self.error = errors.NotInJob(f"the DMA thread of rank {lane.die} has ended, or its ring is closed",
                                         ranks=(lane.die,), operation="sdma")
        elif rc == ST_EDEAD and not self.local:
            self.error = errors.PeerDead(f"rank {lane.die} died, or left the job, with a submission in its ring "
                                         f"{lane.index}", ranks=(lane.die,), operation="sdma")
        elif rc != ST_OK and not self.lost and st_lane_open(&self.engine.context.ctx, lane) == ST_OK and st_lane_failed(
                lane, self.first, self.count, rc, &index):
            raw = self.made[index - self.first].tobytes()
            self.error = failure(rc, lane.die, lane.index, index, raw, [], poisoned(&self.engine.context.ctx, raw, rc))
        elif rc != ST_OK:
            self.error = errors.from_status(
                rc, f"a submission to ring {lane.index} of rank {lane.die} failed: {errors.STATUS[rc].name}",
                errno=errno, ranks=(lane.die,), operation="sdma")
        return self.leave()

    def __repr__(self):
        forked = not st_is_die(&self.engine.context.ctx)
        state = ("of another process" if forked else "in progress" if not self.done() else
                 "failed" if self.error is not None else "done")
        return (f"<Submission {state}, {self.count} descriptors from {self.first} on in ring {self.lane.index} "
                f"of rank {self.lane.die}>")
