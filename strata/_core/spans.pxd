"""Calls and probes in traces, for what is written in Cython: a call is

    cdef uint64_t began = enter(ctx)
    try:
        ...
    finally:
        if began:
            leave(context, began, "name", nbytes)
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.group cimport CoreGroup
from strata._core.space cimport Context
from strata._core.tracing cimport st_trace_mode


cdef enum:
    NOBODY = 0xffff
    # What a call was, in the place of an event's core.
    LATER = 1    # it returned before it was over: async_op=True, or on a stream
    BOUND = 2
    FAILED = 4   # it raised
    BEGINS = 8   # binds, or begins, instead of running


cdef st_ctx *here  # of the die that this process is, or has been; NULL: none yet


cdef inline bint on() noexcept:
    """Whether this die is traced."""
    return here != NULL and st_trace_mode(here) != 0


cdef inline uint64_t enter(st_ctx *ctx) noexcept:
    """A call begins; not 0: leave() is to be called."""
    return 0 if st_trace_mode(ctx) == 0 else entered(ctx)


cdef uint64_t entered(st_ctx *ctx) noexcept
cdef int leave(Context context, uint64_t began, str name, uint64_t nbytes, uint32_t flags=*, uint32_t peer=*,
               CoreGroup group=*, uint64_t number=*) except -1
cdef uint32_t waiting(CoreGroup group) noexcept
cdef object traced(object function, str name, PyObject **args, size_t nargsf, PyObject *names)
cdef uint64_t numbers(CoreGroup group, uint64_t before, uint32_t queued, bint later) noexcept
