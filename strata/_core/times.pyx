"""Records of virtual time between dies: strata.clock says what they mean."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport ST_AGAIN, ST_EFULL, ST_OK
from strata._core.heap cimport ST_HEAP_GROUP
from strata._core.space cimport Context

from strata import errors
from strata._core.memory import alloc_array

cnp.import_array()

cdef enum:
    MOST = 2 << 20  # bytes of a board, by which the depth goes


cdef class Board:

    def __cinit__(self):
        memset(&self.b, 0, sizeof(self.b))

    def __init__(self, Context context):
        """Makes it and shows it to the others.  FabricMemoryError."""
        cdef uint32_t n = context.ndies, depth = ST_TIMES_DEPTH_MAX
        cdef uint64_t at
        while depth > 16 and st_times_bytes(n, depth) > MOST:
            depth //= 2
        self.context, self.depth = context, depth
        self.private = np.zeros(4 * n, np.uint64)
        self.b.ctx = &context.ctx
        self.b.written = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>self.private)
        self.b.taken, self.b.lane, self.b.depth = self.b.written + n, self.b.written + 2 * n, self.b.written + 3 * n
        self.memory = alloc_array(context, (st_times_bytes(n, depth) + 64,), np.dtype(np.uint8), True, ST_HEAP_GROUP)
        at = <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>self.memory)
        st_times_open(&self.b, (at + 63) // 64 * 64, depth)

    def put(self, uint32_t die, uint64_t channel, uint64_t number, int64_t begin_ps, uint64_t way):
        """Tells a die (world rank); False: its ring is full, try again when it has read."""
        cdef st_times_record r
        self.check(die)
        r.channel, r.number, r.begin_ps, r.way = channel, number, begin_ps, way
        return st_times_put(&self.b, die, &r) != ST_EFULL

    def take(self, uint32_t die):
        """The next (channel, number, begin_ps, way) from a die (world rank), or None.  Never waits.

        RegistrationError, CorruptSpace: its memory cannot be read.
        """
        cdef st_times_record r
        cdef int rc
        self.check(die)
        rc = st_times_take(&self.b, die, &r)
        if rc == ST_AGAIN:
            return None
        if rc != ST_OK:
            raise errors.from_status(rc, f"the virtual times of rank {die} cannot be read", errno=errno, ranks=(die,))
        return r.channel, r.number, r.begin_ps, r.way

    cdef int check(self, uint32_t die) except -1:
        if die >= self.context.ndies or die == self.context.rank:
            raise errors.InvalidArgument(f"die {die} is none of the others, of {self.context.ndies}")
        return 0
