from libc.stdint cimport uint32_t, uint64_t

from strata._core.engine cimport Engine, st_engine
from strata._core.group cimport st_group
from strata._core.lowering cimport st_lowering
from strata._core.planned cimport PlanHandle
from strata._core.submission cimport st_lane


cdef extern from "st_exec_sdma.h" nogil:
    struct st_lane_at:
        pass

    struct st_lanes:
        st_engine *e
        st_lane *lanes
        st_lane_at *at
        uint32_t count
        uint32_t nflags
        st_lowering l


cdef int open_rings(Engine engine, list rings, st_lane *lanes, uint32_t count, uint32_t depth) except -1
cdef int close_rings(Engine engine, list rings, st_lane *lanes, uint32_t depth) except -1


cdef class Lanes:
    """Rings that a group's operations have to themselves, and what else the DMA thread needs for them."""
    cdef st_lanes c
    cdef Engine engine
    cdef list rings              # their indices
    cdef object memory           # array of counters and lists
    cdef uint64_t *flag_at

    cdef int open(self, Engine engine, st_group *g, uint32_t count, uint32_t nflags, uint64_t operands) except -1
    cdef bint serve(self, PlanHandle handle) noexcept
    cdef int close(self) except -1


cdef Lanes lanes_for(object context, size_t group, PlanHandle handle, Lanes before)
