"""Work: the handle of an asynchronous operation."""

from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport ST_ECANCELED, ST_EINTR, ST_ETIMEOUT, ST_OK
from strata._core.group cimport st_item_done, st_item_wait
from strata._core.space cimport st_raise_pending, timeout_to_ns
from strata._core.spans cimport NOBODY, enter, leave

from strata import errors


cdef class Work:
    """An operation in progress, as ``async_op=True`` returns it.

    It keeps the arrays it uses alive until it is done, whether anybody waits or not.
    """

    def __cinit__(self):
        memset(&self.item, 0, sizeof(self.item))

    def __dealloc__(self):
        free(self.item.request.lines)

    def __init__(self):
        raise TypeError("Work is what operations with async_op=True return")

    def done(self):
        """Whether the operation has ended, well or not.  Never waits."""
        if not self.finished and st_item_done(&self.item):
            self.settle()
        return self.finished

    def wait(self, timeout=None):
        """Waits for the end and returns what the operation returns.

        Raises the operation's error.  ``timeout`` (seconds; None: as long as the operation's
        own deadline lets it live) bounds this wait alone: CollectiveTimeout is raised, and the
        operation goes on.
        """
        cdef unsigned long long ns = timeout_to_ns(float("inf") if timeout is None else timeout, 0.0), began
        self.group.check_here()
        if not self.finished:
            began = enter(self.group.g.ctx)
            try:
                self.await_end(timeout, ns)
            finally:
                if began:
                    leave(self.group.context, began, "wait " + self.operation(), 0, 0, NOBODY, self.group,
                          self.item.request.number if self.finished and not self.transfer else 0)
        if self.error is not None:
            raise self.error
        return self.result

    cdef int await_end(self, object timeout, uint64_t ns) except -1:
        cdef int rc
        with nogil:
            rc = st_item_wait(&self.item, &self.group.g.ctx.wait, ns)
        if rc == ST_EINTR:
            st_raise_pending()
        if rc == ST_ETIMEOUT:
            raise errors.CollectiveTimeout(
                f"the operation has not ended within {timeout} s; it goes on", group=self.group.name
            )
        return self.settle()

    def exception(self):
        """The operation's error, or None: it went well, or has not ended."""
        Work.done(self)
        return self.error

    def deliver(self, destination, temporary, result):
        """What wait() does besides: copies ``temporary`` to ``destination`` and returns ``result``.
        For the fronts of operations that stage."""
        self.copyback = (destination, temporary) if destination is not None else None
        self.result = result
        return self

    cdef int settle(self) except -1:
        """Takes the outcome over, once."""
        if self.finished:
            return 0
        try:
            if self.item.cancelled and self.item.status == ST_ECANCELED:
                raise self.progress.cancelled(self.operation(), self.group.name, self.item.request.number,
                                              self.item.turn)
            elif self.item.status != ST_OK:
                if self.transfer:
                    self.group.transfer_failed(self.item.status, &self.item.transfer)
                else:
                    self.group.failed(self.item.status, &self.item.request, self.keep)
            elif self.copyback is not None:
                np.copyto(self.copyback[0], self.copyback[1])
        except Exception as error:
            self.error = error
            self.result = None
        self.finished = True
        self.keep = self.copyback = self.progress = None
        self.group.forget(self)
        return 0

    cdef object operation(self):
        """Its name."""
        from strata._core.front import OPERATIONS
        if self.transfer:
            return "recv" if self.item.transfer.receive else "send"
        return OPERATIONS[self.item.request.desc & 0xff]

    def __repr__(self):
        state = "running" if not self.done() else "failed" if self.error is not None else "done"
        return f"<Work {state} of group {self.group.name}>"
