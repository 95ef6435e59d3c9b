"""Groups whose operations something is told of: strata.clock, or strata.checking."""

from libc.stdint cimport uint64_t

from strata._core.abi cimport ST_EMISMATCH, ST_OK
from strata._core.front cimport Front
from strata._core.group cimport CoreGroup, st_item_done, st_request, st_transfer, st_worker_idle
from strata._core.planned cimport PlanHandle
from strata._core.transfer cimport Draft, Transfers
from strata._core.work cimport Work


cdef class TimedWork(Work):

    def wait(self, timeout=None):
        """As of any Work; afterwards the die's clock, if it has one, is no earlier than the operation's end."""
        if self.told is not None and not self.finished:
            self.told.waits()
        try:
            result = Work.wait(self, timeout)
        except BaseException as error:
            if self.finished and self.told is not None:
                self.told.raised(error)
            raise
        if self.told is not None:
            self.told.join()
        return result

    def done(self):
        """As of any Work."""
        if not Work.done(self):
            return False
        if self.told is not None:
            if self.error is None:
                self.told.seen()
            else:
                self.told.raised(self.error)
        return True

    def exception(self):
        """As of any Work."""
        self.done()
        return self.error

    def deliver(self, destination, temporary, result):
        """As of any Work; what is copied is told when somebody has waited for it."""
        if self.told is not None:
            destination, temporary = self.told.delivers(destination, temporary)
        return Work.deliver(self, destination, temporary, result)

    def outcome(self):
        """How the operation ended: "well", "mismatch" or "failed"; None: it goes on.  Never waits."""
        if not st_item_done(&self.item):
            return None
        return "well" if self.item.status == ST_OK else "mismatch" if self.item.status == ST_EMISMATCH else "failed"


cdef class Clocked(Collectives):

    cdef bint casts(self, Draft d) except -1:
        return False  # whoever is late must be seen to be: the clock, and the check, know broadcasts

    cdef object make_work(self):
        cdef TimedWork work = TimedWork.__new__(TimedWork)
        work.told, self.next = self.next, None
        if work.told is not None:
            work.told.begun(work)
        return work

    cdef object run(self, st_request *r, object src, object out, object scratch, PlanHandle handle):
        with self.track.turn:  # threads that share the group: they are told of in the order in which they run
            told = self.tell(r, handle, None, False, src, out)
            try:
                CoreGroup.run(self, r, src, out, scratch, handle)
            except BaseException as error:
                told.fail(error)
                raise
            told.well()
        told.join()

    cdef object submit(self, st_request *r, object keep, object result, bint async_op, object stream):
        with self.track.turn:
            src, out, handle = (None, None, None) if keep is None else (keep[0], keep[1], keep[3])
            self.next = told = self.tell(r, handle, stream, True, src, out)
            try:
                work = Front.submit(self, r, keep, result, True, stream)
            except BaseException as error:
                told.fail(error)
                raise
        if async_op:
            return work
        return work.wait() if stream is None else result

    cdef object carry(self, st_transfer *t, object array, object temporary, uint64_t ns, bint async_op, object stream):
        self.next = told = self.track.transfer(bool(t.receive), t.peer, t.tag, t.bytes, stream,
                                               async_op or not st_worker_idle(&self.transfers), temporary)
        try:
            result = Transfers.carry(self, t, array, temporary, ns, async_op, stream)
        except BaseException as error:
            told.fail(error)
            raise
        finally:
            if self.next is told:
                self.next = None
        told.well()
        if not async_op and stream is None:
            told.join()
        return result

    cdef object tell(self, st_request *r, object handle, object stream, bint handed, object src, object out):
        """An operation that is about to begin."""
        cdef uint64_t copied = r.solo if r.src != r.out else 0
        return self.track.collective(r.desc, None if handle is None else (<PlanHandle>handle).plan, copied, stream,
                                     handed, src, out)
