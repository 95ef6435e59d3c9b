from libc.stdint cimport uint64_t

from strata._core.group cimport CoreGroup, st_item, st_request, st_transfer
from strata._core.stream cimport Progress


cdef class Work:
    cdef st_item item
    cdef CoreGroup group
    cdef object keep          # arrays the operation uses
    cdef object result
    cdef object copyback      # (destination, temporary) or None
    cdef object error
    cdef bint finished
    cdef bint transfer
    cdef Progress progress    # of the stream it is on, or None
    cdef object __weakref__

    cdef int await_end(self, object timeout, uint64_t ns) except -1
    cdef int settle(self) except -1
    cdef object operation(self)
