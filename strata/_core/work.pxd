from strata._core.group cimport CoreGroup, st_item, st_request, st_transfer


cdef class Work:
    cdef st_item item
    cdef CoreGroup group
    cdef object keep          # arrays the operation uses
    cdef object result
    cdef object copyback      # (destination, temporary) or None
    cdef object error
    cdef bint finished
    cdef bint transfer
    cdef object __weakref__
    cdef int settle(self) except -1
