"""What a group's operations need of the die's DMA engine: rings of their own, an event, counters, lists."""

cimport numpy as cnp
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import time

import numpy as np

from strata._core.abi cimport ST_EFULL, ST_OK, st_ctx, st_is_die
from strata._core.engine cimport Engine, engine_of
from strata._core.group cimport st_group
from strata._core.heap cimport ST_HEAP_SDMA

from strata import errors
from strata._core.memory import alloc_array

cnp.import_array()


cdef extern from "st_exec_sdma.h" nogil:
    int st_lane_attach(st_ctx *ctx, uint32_t die, uint32_t index, st_lane *lane)
    int st_lane_open(st_ctx *ctx, const st_lane *lane)
    int st_lanes_take(st_lanes *s, st_group *g, uint64_t *flag_at)
    void st_lanes_give(st_lanes *s)


cdef enum:
    DEPTH = 256  # of a ring; half of it, at 1 MiB a descriptor, lasts the DMA thread for longer than a wake-up takes


cdef int open_rings(Engine engine, list rings, st_lane *lanes, uint32_t count, uint32_t depth) except -1:
    """Adds rings to this die: their indices to ``rings``, and to ``lanes`` what submits to them."""
    cdef uint32_t i
    cdef int rc
    for i in range(count):
        rings.append(engine.add_ring(depth))
        rc = st_lane_attach(&engine.context.ctx, engine.context.rank, rings[i], &lanes[i])
        if rc != ST_OK:
            raise errors.from_status(rc, f"descriptor ring {rings[i]} of this die cannot be used")
    return 0


cdef int close_rings(Engine engine, list rings, st_lane *lanes, uint32_t depth) except -1:
    """Removes them, the last first; they are empty, or will be in a moment."""
    while rings:
        index = rings.pop()  # of a ring that the engine, which may have ended, still has
        while st_lane_open(&engine.context.ctx, &lanes[len(rings)]) == ST_OK and not engine.remove_ring(index, depth):
            time.sleep(0)
    return 0


cdef class Lanes:

    def __cinit__(self):
        self.rings = []

    cdef int open(self, Engine engine, st_group *g, uint32_t count, uint32_t nflags, uint64_t operands) except -1:
        cdef int rc
        self.engine = engine
        self.memory = alloc_array(engine.context, (max(8 * nflags + 16 * operands, 64),), np.dtype(np.uint8), True,
                                  ST_HEAP_SDMA)
        self.c.e = engine.e
        self.c.lanes = <st_lane *>calloc(count, sizeof(st_lane))
        self.c.at = <st_lane_at *>calloc(count, sizeof(st_lane_at))
        self.flag_at = <uint64_t *>calloc(g.n, 8)
        if self.c.lanes == NULL or self.c.at == NULL or self.flag_at == NULL:
            raise MemoryError("no ordinary memory for a group's rings: ulimit -v, or a memory cgroup")
        open_rings(engine, self.rings, self.c.lanes, count, DEPTH)
        self.c.count, self.c.nflags = count, nflags
        self.c.l.counters = <uint64_t>cnp.PyArray_DATA(<cnp.ndarray>self.memory)
        self.c.l.lists = self.c.l.counters + 8 * nflags
        self.c.l.room = operands
        rc = st_lanes_take(&self.c, g, self.flag_at)
        if rc != ST_OK:
            raise errors.from_status(rc, "no event is free: too many submissions are in progress" if rc == ST_EFULL
                                     else "the DMA engine of this die has ended")
        return 0

    def __del__(self):
        self.close()

    def __dealloc__(self):
        free(self.c.lanes)
        free(self.c.at)
        free(self.flag_at)

    cdef bint serve(self, PlanHandle handle) noexcept:
        """Whether they are enough for a plan."""
        return (handle.c.cores <= self.c.count and handle.c.nflags <= self.c.nflags
                and handle.listed <= self.c.l.room)

    cdef int close(self) except -1:
        """Gives all back.  No operation has them any more, so that the rings are empty, or will be in a moment."""
        cdef Engine engine = self.engine
        if engine is None or not st_is_die(&engine.context.ctx):
            return 0
        self.engine = None
        close_rings(engine, self.rings, self.c.lanes, DEPTH)
        st_lanes_give(&self.c)
        return 0


cdef Lanes lanes_for(object context, size_t group, PlanHandle handle, Lanes before):
    """Lanes of the group (address of its st_group) that are enough for a plan and for those that served ``before``.

    FabricMemoryError; RingFull, if the die has no ring or event left; HostError, if it can make no DMA thread.
    """
    cdef Lanes lanes = Lanes.__new__(Lanes)
    cdef Engine engine = engine_of(context)
    cdef uint32_t count = handle.c.cores, nflags = handle.c.nflags
    cdef uint64_t operands = handle.listed
    if before is not None and before.engine is engine:
        count, nflags = max(count, before.c.count), max(nflags, before.c.nflags)
        operands = max(operands, before.c.l.room)
    if operands:
        operands = 1 << (<object>operands - 1).bit_length()
    nflags = (nflags + 7) & ~7u
    try:
        lanes.open(engine, <st_group *>group, count, nflags, operands)
    except BaseException:
        lanes.close()
        raise
    return lanes
