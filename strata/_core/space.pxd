from libc.stdint cimport uint64_t

from strata._core.abi cimport st_ctx


cdef class Context:
    cdef st_ctx ctx
    cdef object __weakref__
    cdef bint attached
    cdef public object config
    cdef public object token
    cdef uint64_t timeout_ns
    cdef public object heap  # of its fabric memory: memory.heap_of()


cpdef Context current()
cdef uint64_t timeout_to_ns(object timeout, double default) except? 1
cdef uint64_t deadline_of(object timeout, Context context) except? 1
