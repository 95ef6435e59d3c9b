from libc.stdint cimport uint32_t, uint64_t

from strata._core.array cimport Array
from strata._core.group cimport st_request
from strata._core.planned cimport PlanHandle
from strata._core.transfer cimport Draft, Shape, Transfers

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

cdef enum:
    ST_BINDS = 0x8000  # in the fingerprint of the operation by which members agree on what they bind


cdef struct Way:
    # How an operation goes, as its plan and its arrays have it.
    bint mailbox
    bint sdma
    bint stage_src
    bint stage_out


cdef class Front(Transfers):
    cdef bint outside(self, Array *a) noexcept
    cpdef uint32_t variant(self, str operation, object algorithm, object path, object cores,
                           object partition) except? 0xffffffff
    cdef object miss(self, Shape *s, st_request *q, uint64_t key, uint32_t itemsize, bint mailbox,
                     uint32_t dtype, bint overlap, object timeout)
    cdef object lanes(self, st_request *r, PlanHandle handle, object timeout)
    cdef object record(self, Shape *s, Array *src, Array *out, object src_array, object out_array, object result,
                       bint mailbox, bint async_op)
    cdef object submit(self, st_request *r, object keep, object result, bint async_op, object stream)
    cdef object settle(self, Shape *s, Array *src, Array *out, object src_array, object out_array, bint overlap,
                       object timeout, st_request *q, Way *way)
    cdef object launch(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                       object result, object timeout, object async_op)
    cdef object describe(self, Shape *s, Array *src, Array *out, object src_array, object out_array,
                         object result, object timeout, Draft d)
    cdef int agree(self, Draft d) except -1
    cdef object in_turn(self, st_request *r)
    cdef object again(self, Draft d, bint async_op)
