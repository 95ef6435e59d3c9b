from libc.stdint cimport uint64_t

from strata._core.abi cimport st_ctx


cdef extern from *:
    """
    /* Raises the exception that a signal handler left pending, if any. */
    static inline int st_raise_pending(void) { return PyErr_Occurred() ? -1 : 0; }
    """
    int st_raise_pending() except -1


cdef class Context:
    cdef st_ctx ctx
    cdef object __weakref__
    cdef bint attached
    cdef public bint published  # has joined once, whether it then left or not
    cdef public object config
    cdef public object token
    cdef uint64_t timeout_ns
    cdef public object heap    # of its fabric memory: memory.heap_of()
    cdef public object recorders  # what its threads capture: thread -> recording; None: nothing
    cdef public object engine  # that executes its descriptors: engine.engine_of(), or None


cpdef Context current()
cdef uint64_t timeout_to_ns(object timeout, double default) except? 1
cdef uint64_t deadline_of(object timeout, Context context) except? 1
