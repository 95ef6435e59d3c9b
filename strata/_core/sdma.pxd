from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx, st_wait_policy
from strata._core.engine cimport Engine, st_descriptor, st_engine


cdef extern from "st_sdma.h" nogil:
    struct st_lane:
        uint32_t die
        uint32_t depth
        uint32_t index


cdef class Ring:
    """A descriptor ring, this die's own or another die's."""
    cdef st_lane lane
    cdef readonly Engine engine
    cdef readonly bint open

    cdef int raise_failed(self, int rc, uint64_t done, uint64_t count) except -1


cdef class Submission:
    """Descriptors on their way; see strata.sdma."""
    cdef Ring ring
    cdef Engine engine
    cdef uint32_t event           # 0: the ring is another die's
    cdef uint64_t flag            # address, if so
    cdef int place                # of the flag among the engine's
    cdef bint lost                # it is in the ring in part only
    cdef uint64_t head            # index after the last descriptor
    cdef readonly uint64_t first  # index of the first
    cdef readonly uint64_t count  # how many, with the notification
    cdef object keep
    cdef object error
    cdef bint finished

    cdef int settle(self, int rc) except -1
