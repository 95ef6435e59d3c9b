cimport numpy as cnp
from libc.stdint cimport uint64_t

from strata._core.abi cimport st_ctx, st_wait_policy
from strata._core.engine cimport Engine, st_descriptor
from strata._core.submission cimport st_lane


cdef class Ring:
    """A descriptor ring, this die's own or another die's."""
    cdef st_lane lane
    cdef readonly Engine engine
    cdef readonly bint open

    cdef int raise_failed(self, int rc, uint64_t done, uint64_t count) except -1
    cdef object put(self, cnp.ndarray d, bint notify, uint64_t ns, object keep)
    cdef object prepare(self, keep)
