from libc.stdint cimport uint32_t, uint64_t

from strata._core.engine cimport Engine


cdef extern from "st_sdma.h" nogil:
    struct st_lane:
        uint32_t die
        uint32_t depth
        uint32_t index


cdef int here(Engine engine) except -1


cdef class Submission:
    """Descriptors on their way; see strata.sdma."""
    cdef st_lane lane
    cdef Engine engine
    cdef bint local               # the ring is this die's: an event says when they have been executed; else a flag
    cdef uint32_t event           # 0: none
    cdef uint64_t flag            # address
    cdef int place                # of the flag among the engine's; -1: none
    cdef bint lost                # it is in the ring in part only
    cdef uint64_t head            # index after the last descriptor that is in the ring
    cdef readonly uint64_t first  # index of the first
    cdef readonly uint64_t count  # how many, with the notification
    cdef object made              # the descriptors
    cdef object keep
    cdef object error
    cdef bint finished
    cdef bint ended               # nothing of it is executed any more
    cdef int waiters              # threads that are in wait()

    cdef bint take(self) except -1
    cdef object notified(self, object batch)
    cdef int abandon(self, uint64_t done) except -1
    cdef int leave(self) except -1
    cdef int look(self) except -1
    cdef int await_end(self, object timeout, uint64_t ns) except -1
    cdef int settle(self, int rc) except -1
