from strata._core.group cimport CoreGroup


cdef class Transfers(CoreGroup):
    cdef object start(self, bint receive, object array, object peer, object tag, object timeout,
                      bint async_op)
