"""Plans of units that move rows, carried out by the die's DMA engine: st_rows_sdma.h."""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

import threading

import numpy as np

from strata._core.abi cimport ST_EFULL, ST_EINTR, ST_ENOJOB, ST_EREG, ST_ETIMEOUT, ST_OK, st_is_die, st_owner
from strata._core.engine cimport Engine, engine_of
from strata._core.group cimport CoreGroup
from strata._core.heap cimport ST_HEAP_SDMA
from strata._core.lanes cimport close_rings, open_rings
from strata._core.planned cimport PlanHandle
from strata._core.rows cimport Columns
from strata._core.space cimport deadline_of, st_raise_pending

from strata import errors
from strata._core.memory import alloc_array

cnp.import_array()

cdef enum:
    DESCRIPTOR_BYTES = 64
    SCRATCH = 8 << 20  # bytes that rows of sums are pulled into, at least

_idle = []  # RowsEngine each, of this process's die
_lock = threading.Lock()


cdef class RowsEngine:

    def __cinit__(self):
        memset(&self.c, 0, sizeof(self.c))
        self.rings = []

    cdef int open(self, Engine engine) except -1:
        self.engine = engine
        self.memory = alloc_array(engine.context, (8 * (ST_ROWS_LANES + 1),), np.dtype(np.uint8), True, ST_HEAP_SDMA)
        self.c.e = engine.e
        self.c.shared = <uint64_t *>cnp.PyArray_DATA(<cnp.ndarray>self.memory)
        self.c.batch = <st_descriptor *>calloc(ST_ROWS_BATCH, DESCRIPTOR_BYTES)
        if self.c.batch == NULL:
            raise MemoryError
        open_rings(engine, self.rings, self.c.lanes, ST_ROWS_LANES, ST_ROWS_DEPTH)
        return 0

    cdef bint usable(self, Engine engine) noexcept:
        """Whether its rings are open still."""
        cdef uint64_t k
        for k in range(ST_ROWS_LANES):
            if self.engine is not engine or st_lane_open(&engine.context.ctx, &self.c.lanes[k]) != ST_OK:
                return False
        return True

    cdef int lend(self, uint64_t nbytes) except -1:
        """Has scratch of at least so many bytes."""
        if self.c.scratch_bytes < nbytes:
            self.c.scratch_bytes, self.scratch = 0, None
            self.scratch = alloc_array(self.engine.context, (nbytes,), np.dtype(np.uint8), False, ST_HEAP_SDMA)
            self.c.scratch = <unsigned char *>cnp.PyArray_DATA(<cnp.ndarray>self.scratch)
            self.c.scratch_bytes = nbytes
        return 0

    def __del__(self):
        self.close()

    def __dealloc__(self):
        free(self.c.batch)

    cdef int close(self) except -1:
        """Gives all back; no run has it."""
        cdef Engine engine = self.engine
        if engine is None or not st_is_die(&engine.context.ctx):
            return 0
        self.engine = None
        close_rings(engine, self.rings, self.c.lanes, ST_ROWS_DEPTH)
        return 0


cdef RowsEngine take(Engine engine):
    """One that nobody else has."""
    cdef RowsEngine made
    with _lock:
        while _idle:
            made = _idle.pop()
            if made.usable(engine):
                return made
    made = RowsEngine()
    try:
        made.open(engine)
    except BaseException:
        made.close()
        raise
    return made


def run_rows_sdma(CoreGroup group, PlanHandle handle, columns, timeout=None):
    """Runs a plan of rows, all of which are gathered or all summed, by the DMA engine; sums are made by the caller.

    ``columns``  as of run_rows(); what is gathered goes into fabric memory of this die
    ``timeout``  seconds in which the engine must have done about a thousand rows

    RegistrationError: rows cannot be read; FabricMemoryError: no room for rings or scratch; CollectiveTimeout.
    """
    cdef Columns c = Columns()
    cdef RowsEngine s
    cdef uint64_t k, largest
    cdef int rc
    group.check_here()
    c.fill(group, handle, columns)
    units = handle.plan.units
    if not units.size:
        return
    largest = int((units["row"].astype(np.uint64) * units["total"]).max())
    if not largest:
        for k in range(c.rows.ncolumns):
            if c.c[k].out_bytes and st_owner(group.g.ctx, <uint64_t>c.c[k].out) < 0:
                raise errors.InvalidArgument("the DMA engine writes to fabric memory alone: out is none",
                                             group=group.name, operation="moe")
    s = take(engine_of(group.context))
    if largest:
        s.lend(max(2 * largest, SCRATCH))
    s.c.timeout_ns = deadline_of(timeout, group.context)
    with nogil:
        rc = st_exec_rows_sdma(&group.g, &handle.c, &c.rows, &s.c)
    with _lock:
        _idle.append(s)
    if rc == ST_OK:
        return
    if rc == ST_EINTR:
        st_raise_pending()
    if rc == ST_EREG:
        c.failed(rc, group)
    what = {ST_ETIMEOUT: "the DMA engine has not done it in time", ST_ENOJOB: "the DMA engine of this die has ended",
            ST_EFULL: "no event is free, or rows are too long for scratch"}.get(rc)
    raise errors.from_status(rc, what, errno=errno, group=group.name, operation="moe")
