from libc.stdint cimport int64_t, uint32_t, uint64_t

from strata._core.abi cimport st_ctx
from strata._core.space cimport Context


cdef extern from "st_times.h" nogil:
    uint32_t ST_TIMES_DEPTH_MAX

    struct st_times_record:
        uint64_t channel
        uint64_t number
        int64_t begin_ps
        uint64_t way

    struct st_board:
        st_ctx *ctx
        uint64_t *written
        uint64_t *taken
        uint64_t *lane
        uint64_t *depth

    uint64_t st_times_bytes(uint32_t ndies, uint32_t depth)
    void st_times_open(st_board *b, uint64_t va, uint32_t depth)
    int st_times_put(st_board *b, uint32_t die, const st_times_record *what)
    int st_times_take(st_board *b, uint32_t die, st_times_record *what)


cdef class Board:
    """What this die tells its peers of its virtual time, and what it hears from them."""
    cdef st_board b
    cdef readonly Context context
    cdef readonly uint32_t depth
    cdef object memory           # array
    cdef object private          # array of the counters

    cdef int check(self, uint32_t die) except -1
