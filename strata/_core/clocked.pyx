"""Groups of dies with a virtual clock: what strata.clock is told of their operations."""

from libc.stdint cimport uint64_t

from strata._core.abi cimport ST_EMISMATCH, ST_OK
from strata._core.front cimport Front
from strata._core.group cimport CoreGroup, st_item_done, st_request, st_transfer
from strata._core.planned cimport PlanHandle
from strata._core.transfer cimport Transfers
from strata._core.work cimport Work


cdef class TimedWork(Work):

    def wait(self, timeout=None):
        """As of any Work; afterwards the die's clock is no earlier than the operation's end."""
        result = Work.wait(self, timeout)
        if self.told is not None:
            self.told.join()
        return result

    def outcome(self):
        """How the operation ended: "well", "mismatch" or "failed"; None: it goes on.  Never waits."""
        if not st_item_done(&self.item):
            return None
        return "well" if self.item.status == ST_OK else "mismatch" if self.item.status == ST_EMISMATCH else "failed"


cdef class Clocked(Collectives):

    cdef object make_work(self):
        cdef TimedWork work = TimedWork.__new__(TimedWork)
        work.told, self.next = self.next, None
        if work.told is not None:
            work.told.begun(work)
        return work

    cdef object run(self, st_request *r, object src, object out, object scratch, PlanHandle handle):
        with self.track.turn:  # threads that share the group: they are told of in the order in which they run
            told = self.tell(r, handle, None)
            try:
                CoreGroup.run(self, r, src, out, scratch, handle)
            except BaseException as error:
                told.fail(error)
                raise
            told.well()
        told.join()

    cdef object submit(self, st_request *r, object keep, object result, bint async_op, object stream):
        with self.track.turn:
            self.next = told = self.tell(r, None if keep is None else keep[3], stream)
            try:
                work = Front.submit(self, r, keep, result, True, stream)
            except BaseException as error:
                told.fail(error)
                raise
        if async_op:
            return work
        return work.wait() if stream is None else result

    cdef object carry(self, st_transfer *t, object array, object temporary, uint64_t ns, bint async_op, object stream):
        self.next = told = self.track.transfer(bool(t.receive), t.peer, t.tag, t.bytes, stream)
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

    cdef object tell(self, st_request *r, object handle, object stream):
        """An operation that is about to begin."""
        cdef uint64_t copied = r.solo if r.src != r.out else 0
        return self.track.collective(r.desc, None if handle is None else (<PlanHandle>handle).plan, copied, stream)
