from libc.stdint cimport uint32_t, uint64_t

from strata._core.array cimport Array
from strata._core.group cimport st_request
from strata._core.planned cimport PlanHandle
from strata._core.transfer cimport Transfers

cdef enum:
    OP_BARRIER = 0
    OP_ALL_REDUCE = 1
    OP_ALL_GATHER = 2
    OP_REDUCE_SCATTER = 3
    OP_ALL_TO_ALL = 4
    OP_ALL_TO_ALL_V = 5
    OP_BROADCAST = 6
    OP_REDUCE = 7
    OP_GATHER = 8
    OP_SCATTER = 9
    OP_ABSTAIN = 11


cdef struct Shape:
    # What an operation is, apart from the arrays.
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


cdef class Front(Transfers):
    cdef bint overlaps(self, bint async_op, object stream) noexcept
    cdef bint outside(self, Array *a) noexcept
    cdef bint shared(self, object a, object b) except -1
    cpdef uint32_t variant(self, str operation, object algorithm, object path, object cores,
                           object partition) except? 0xffffffff
    cdef object miss(self, Shape *s, st_request *q, uint64_t key, uint32_t itemsize, bint mailbox,
                     uint32_t dtype, bint overlap, object timeout)
    cdef object lanes(self, st_request *r, PlanHandle handle, object timeout)
    cdef object record(self, Shape *s, Array *src, Array *out, object src_array, object out_array, object result,
                       bint mailbox, bint async_op)
    cdef object submit(self, st_request *r, object keep, object result, bint async_op, object stream)
    cdef object launch(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                       object result, object timeout, bint async_op)
