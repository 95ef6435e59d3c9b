from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.engine cimport Engine, st_engine
from strata._core.group cimport st_group
from strata._core.planned cimport st_plan
from strata._core.rows cimport st_rows
from strata._core.submission cimport st_lane


cdef extern from "st_rows_sdma.h" nogil:
    uint32_t ST_ROWS_LANES
    uint32_t ST_ROWS_BATCH
    uint32_t ST_ROWS_DEPTH

    struct st_descriptor:
        pass

    struct st_rows_engine:
        st_engine *e
        st_lane lanes[4]
        st_descriptor *batch
        uint64_t *shared
        unsigned char *scratch
        uint64_t scratch_bytes
        uint64_t timeout_ns

    int st_lane_open(st_ctx *ctx, const st_lane *lane)
    int st_exec_rows_sdma(st_group *g, const st_plan *p, const st_rows *r, st_rows_engine *s)


cdef class RowsEngine:
    """Rings for runs of rows, one run at a time, and what else the DMA thread needs for them."""
    cdef st_rows_engine c
    cdef Engine engine
    cdef list rings              # their indices
    cdef object memory           # array of the futex word and flags
    cdef object scratch

    cdef int open(self, Engine engine) except -1
    cdef bint usable(self, Engine engine) noexcept
    cdef int lend(self, uint64_t nbytes) except -1
    cdef int close(self) except -1
