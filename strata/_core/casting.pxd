from strata._core.front cimport Front
from strata._core.group cimport st_request, st_transfer
from strata._core.transfer cimport Draft


cdef class Casts(Front):
    cdef bint casts(self, Draft d) except -1
    cdef int open_cast(self) except -1
    cdef int bound_by_all(self, Draft d) except -1
    cdef object cast_again(self, Draft d, bint async_op)
