from libc.stdint cimport uint32_t, uint64_t

from strata._core.array cimport Array
from strata._core.group cimport CoreGroup, st_request, st_transfer
from strata._core.planned cimport PlanHandle


cdef struct Shape:
    # What a collective is, apart from the arrays.
    uint32_t op
    uint32_t redop
    uint32_t root
    uint32_t fence
    uint32_t like       # operation whose plan it uses; 0: its own
    uint64_t count
    uint64_t mail       # bytes that a contributor would put in its mailbox
    uint64_t payload    # bytes that this member puts there
    bint pushes         # peers write to this member's out
    bint in_place
    uint32_t variant    # how: 0 is the library's choice, else from Front.variant


cdef class Draft:
    """An operation that a call describes instead of running it: what bind() passes as ``async_op``."""
    cdef CoreGroup group      # None: nothing is described
    cdef object src           # arrays
    cdef object out
    cdef object result        # what a call returns
    cdef object timeout
    cdef bint ready           # the request, or the transfer, serves as it is
    # of a collective
    cdef bint anew            # src is copied in each call: its place is out's
    cdef object by            # None, or what a call calls
    cdef Shape shape
    cdef Array a
    cdef Array b
    cdef st_request request
    cdef PlanHandle handle
    cdef object scratch
    cdef object lanes
    # of a message
    cdef bint message
    cdef st_transfer transfer
    cdef uint64_t ns


cdef class Transfers(CoreGroup):
    cdef bint shared(self, object a, object b) except -1
    cdef object start(self, bint receive, object array, object peer, object tag, object timeout,
                      object async_op)
    cdef object carry(self, st_transfer *t, object array, object temporary, uint64_t ns, bint async_op, object stream)
    cdef object make_work(self)
