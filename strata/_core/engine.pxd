from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.space cimport Context


cdef extern from "st_engine.h" nogil:
    struct st_descriptor:
        pass

    struct st_gate:
        uint32_t die, ring
        uint64_t va, value

    struct st_event:
        uint32_t ring, ncycle
        uint64_t index
        st_descriptor failed
        st_gate *cycle

    struct st_engine_counters:
        uint64_t descriptors, bytes, failed, sleeps, gates, notifies

    struct st_engine:  # in strata._core.abi it is opaque
        st_engine_counters count
        st_event *events


cdef class Engine:
    """A die's DMA engine: its thread, its rings, its events."""
    cdef st_engine *e
    cdef readonly Context context
    cdef readonly bint running    # rings take descriptors
    cdef readonly object lock
    cdef object shared            # array that peers find the rings by
    cdef dict rings               # index -> array
    cdef dict spare               # depth -> arrays of rings that were closed
    cdef dict live                # submissions that have not ended
    cdef object flags             # array of flags for submissions to other dies' rings
    cdef list free_flags
    cdef list orphans             # (place of a flag, what to keep): of submissions whose ring was closed under them

    cdef int start(self, bint thread) except -1
    cdef int reap(self, int most) except -1
    cdef object take_flag(self)


cpdef Engine engine_of(Context context)
