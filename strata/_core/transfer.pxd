from libc.stdint cimport uint64_t

from strata._core.group cimport CoreGroup, st_transfer


cdef class Transfers(CoreGroup):
    cdef object start(self, bint receive, object array, object peer, object tag, object timeout,
                      bint async_op)
    cdef object carry(self, st_transfer *t, object array, object temporary, uint64_t ns, bint async_op, object stream)
    cdef object make_work(self)
