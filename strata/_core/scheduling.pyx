"""Slices to the units of cores: the front of ``st_schedule.h``, which has the method."""

cimport numpy as cnp
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

import numpy as np

from strata.errors import InvalidArgument

cnp.import_array()


cdef extern from "numpy/arrayobject.h":
    object PyArray_NewFromDescr(type subtype, cnp.dtype descr, int nd, const cnp.npy_intp *dims,
                                const cnp.npy_intp *strides, void *data, int flags, PyObject *prototype)


cdef extern from "st_plan.h" nogil:
    struct st_slice:
        pass
    struct st_operand:
        pass
    struct st_unit:
        pass
    enum:
        ST_NBUFS
        ST_NTIERS


cdef extern from "st_schedule.h" nogil:
    struct st_sched_bundle:
        pass
    struct st_sched_wait:
        pass
    struct st_sched_stage:
        pass
    struct st_sched_key:
        pass
    struct st_sched_run:
        pass
    struct st_sched_entry:
        pass
    struct st_sched_core:
        int64_t load
        uint32_t core
    struct st_sched:
        const st_slice *slices
        const uint8_t *tier
        const double *rate
        const int64_t *alpha
        const int64_t *unit
        const int64_t *cap
        uint32_t nslices, cores, itemsize
        int32_t rank, nranks
        uint8_t balanced, local_first, dtype, whole
        st_sched_bundle *bundles
        st_operand *operands
        st_sched_wait *waits
        st_sched_stage *stages
        uint32_t *wait_ids
        uint32_t nbundles
        st_sched_entry *entries
        uint32_t *core
        uint32_t *order
        uint32_t *core_begin
        st_sched_core *loads
        st_sched_core *trial
        st_sched_run *runs
        uint64_t nentries, room
        int64_t makespan, bound
        uint32_t *table
        uint32_t *waiting
        uint32_t *next
        uint32_t *tail
        uint32_t *push_first
        uint32_t *push_last
        uint32_t *heads
        uint32_t *seen
        uint8_t *used
        st_sched_key *keys
        st_sched_key *spare
        uint32_t mask
        uint32_t *at
        uint32_t *met
        uint32_t *number
        st_unit *units
        st_operand *out
        uint32_t *begin
        uint64_t *extent
        uint64_t nunits, nout
    enum:
        ST_SCHED_RUNS
        ST_SCHED_MAX_UNITS
        ST_SCHED_LEAST
    int st_sched_fuse(st_sched *s, uint32_t *at) noexcept
    uint64_t st_sched_room(st_sched *s) noexcept
    void st_sched_place(st_sched *s) noexcept


cdef extern from "st_schedule_write.h" nogil:
    int st_sched_walk(st_sched *s, int fill) noexcept
    void st_sched_stripes(st_sched *s) noexcept
    void st_sched_extents(st_sched *s) noexcept


MAX_UNITS = ST_SCHED_MAX_UNITS  # of a die, beyond a few for each bundle; larger operations get larger units
LEAST_UNIT = ST_SCHED_LEAST     # bytes; balancing cuts no finer

cdef enum:
    PIECE = 16 << 20  # bytes of memory that plans share
    LARGE_PAGE = 2 << 20

cdef tuple WRONG = (  # enum st_sched_status
    "",
    "is neither a pull nor a push nor a synchronisation",
    "is a transfer of no bytes, or a synchronisation with some",
    "has one of wait_peer and wait_flag without the other",
    "has a lower step than the one before it: steps fall along the slices",
    "is a push with an operator, which must be atomic",
    "belongs to operands of one destination that have different operators",
    "belongs to slices of one destination that post different flags",
    "is a transient reduction that is pushed nowhere",
    "has a partial operand, though it is no reduction",
    "has a peer that is no member",
    "has a code, flag, offset or length out of range",
    "is atomic without an operator, or a mean",
    "makes more units or operands than a plan can have",
)


cdef class _Room:
    """Memory of a call, given out in pieces; taken anew where the next die needs no more."""

    cdef char *base
    cdef size_t at, size

    def __dealloc__(self):
        PyMem_RawFree(self.base)

    cdef int take(self, size_t bytes) except -1:
        self.at = 0
        if bytes <= self.size:
            return 0
        PyMem_RawFree(self.base)
        self.size = 0
        self.base = <char *>PyMem_RawMalloc(bytes)
        if self.base == NULL:
            raise MemoryError
        self.size = bytes
        return 0

    cdef void *piece(self, size_t bytes) noexcept:
        cdef void *found = self.base + self.at
        self.at += (bytes + 15) & ~<size_t>15
        return found

    cdef int check(self) except -1:
        if self.at > self.size:
            raise AssertionError("the scheduler's memory is miscounted")
        return 0


cdef int _fusing(st_sched *s, _Room room) except -1:
    """Gives ``s`` what st_sched_fuse needs, as st_schedule_fuse.h says."""
    cdef size_t n = s.nslices + 1, table = 1
    while table < 2 * n:
        table *= 2
    s.mask = <uint32_t>(table - 1)
    room.take(n * (sizeof(st_sched_bundle) + 3 * sizeof(st_operand) + sizeof(st_sched_wait)
                   + sizeof(st_sched_stage) + 2 * sizeof(st_sched_key) + 33) + 8 * table + 16 * 16)
    s.table = <uint32_t *>room.piece(4 * table)
    s.waiting = <uint32_t *>room.piece(4 * table)
    s.seen = <uint32_t *>room.piece(4 * n)
    s.used = <uint8_t *>room.piece(n)
    memset(room.base, 0, room.at)
    s.bundles = <st_sched_bundle *>room.piece(n * sizeof(st_sched_bundle))
    s.operands = <st_operand *>room.piece(3 * n * sizeof(st_operand))
    s.waits = <st_sched_wait *>room.piece(n * sizeof(st_sched_wait))
    s.stages = <st_sched_stage *>room.piece(n * sizeof(st_sched_stage))
    s.keys = <st_sched_key *>room.piece(n * sizeof(st_sched_key))
    s.spare = <st_sched_key *>room.piece(n * sizeof(st_sched_key))
    s.wait_ids = <uint32_t *>room.piece(4 * n)
    s.next = <uint32_t *>room.piece(4 * n)
    s.tail = <uint32_t *>room.piece(4 * n)
    s.push_first = <uint32_t *>room.piece(4 * n)
    s.push_last = <uint32_t *>room.piece(4 * n)
    s.heads = <uint32_t *>room.piece(4 * n)
    return room.check()


cdef int _placing(st_sched *s, _Room memory) except -1:
    """Gives ``s`` what st_sched_place and st_sched_stripes need."""
    cdef size_t cores = s.cores, runs = 2 * ST_SCHED_RUNS * <size_t>(s.nbundles + 1)
    cdef size_t room = st_sched_room(s) + 1, keys, members = 4 * <size_t>s.nranks
    s.room = room
    keys = max(room, runs, cores, <size_t>s.nslices + 1)
    memory.take(room * (sizeof(st_sched_entry) + 8) + 8 * (cores + 1) + 3 * cores * sizeof(st_sched_core)
                + 2 * members + runs * sizeof(st_sched_run) + 2 * keys * sizeof(st_sched_key) + 16 * 16)
    s.core_begin = <uint32_t *>memory.piece(4 * (cores + 1))
    s.at = <uint32_t *>memory.piece(4 * cores)
    s.met = <uint32_t *>memory.piece(members)
    s.number = <uint32_t *>memory.piece(members)
    s.loads = <st_sched_core *>memory.piece(cores * sizeof(st_sched_core))
    s.trial = <st_sched_core *>memory.piece(2 * cores * sizeof(st_sched_core))
    s.runs = <st_sched_run *>memory.piece(runs * sizeof(st_sched_run))
    s.entries = <st_sched_entry *>memory.piece(room * sizeof(st_sched_entry))
    s.core = <uint32_t *>memory.piece(4 * room)
    s.order = <uint32_t *>memory.piece(4 * room)
    s.keys = <st_sched_key *>memory.piece(keys * sizeof(st_sched_key))
    s.spare = <st_sched_key *>memory.piece(keys * sizeof(st_sched_key))
    return memory.check()


cdef object _raise(int rc, uint32_t at):
    raise InvalidArgument(f"slice {at} {WRONG[rc]}")


cdef object _given(object array, char kind, Py_ssize_t itemsize, Py_ssize_t size):
    """The array itself if it is contiguous and of this layout; else ValueError, a caller's mistake."""
    cdef cnp.ndarray a = array
    cdef cnp.dtype d = a.dtype
    if (d.kind != kind or d.itemsize != itemsize or a.ndim != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(a)
            or (size >= 0 and cnp.PyArray_SIZE(a) != size)):
        raise ValueError(f"an array of {a.dtype}, shape {array.shape}, where another was expected")
    return array


cdef class _Machine:
    """What the units of an operation's members have in common, and memory to schedule one after the other."""

    cdef st_sched s
    cdef _Room fusing, placing
    cdef tuple held  # the arrays whose memory ``s`` points into
    cdef cnp.dtype unit, operand

    cdef int take(self, object alpha, object rate, object unit, object cap, object unit_dtype, object operand_dtype,
                  int cores, bint balanced, bint local_first, int dtype, int itemsize) except -1:
        cdef st_sched *s = &self.s
        self.held = (alpha, rate, unit, cap)
        self.unit, self.operand = unit_dtype, operand_dtype
        if self.unit.itemsize != sizeof(st_unit) or self.operand.itemsize != sizeof(st_operand):
            raise ValueError(f"units of {self.unit.itemsize} bytes, operands of {self.operand.itemsize}")
        if not 1 <= cores <= 65535 or itemsize < 0:
            raise ValueError(f"cores {cores} or itemsize {itemsize} is out of range")
        s.alpha = <const int64_t *>cnp.PyArray_DATA(_given(alpha, c"i", 8, ST_NTIERS))
        s.rate = <const double *>cnp.PyArray_DATA(_given(rate, c"f", 8, ST_NTIERS))
        s.unit = <const int64_t *>cnp.PyArray_DATA(_given(unit, c"i", 8, ST_NTIERS))
        s.cap = <const int64_t *>cnp.PyArray_DATA(_given(cap, c"i", 8, ST_NTIERS))
        s.cores = cores
        s.balanced, s.local_first, s.dtype, s.itemsize = balanced, local_first, dtype, itemsize
        self.fusing, self.placing = _Room(), _Room()
        return 0

    cdef int place(self, object slices, object tiers, int rank) except -1:
        """All but the writing, of one die; then s.nunits and s.nout say how much is to be written."""
        cdef st_sched *s = &self.s
        cdef uint32_t at = 0
        cdef int rc
        s.slices = <const st_slice *>cnp.PyArray_DATA(_given(slices, c"V", sizeof(st_slice), -1))
        s.tier = <const uint8_t *>cnp.PyArray_DATA(_given(tiers, c"u", 1, -1))
        if not 0 <= rank < cnp.PyArray_SIZE(tiers):
            raise ValueError(f"rank {rank} is out of range")
        if cnp.PyArray_SIZE(slices) >= 1 << 26:
            raise InvalidArgument(f"{cnp.PyArray_SIZE(slices)} slices are too many")
        s.nslices, s.rank, s.nranks = cnp.PyArray_SIZE(slices), rank, cnp.PyArray_SIZE(tiers)
        _fusing(s, self.fusing)
        with nogil:
            rc = st_sched_fuse(s, &at)
        if rc:
            _raise(rc, at)
        _placing(s, self.placing)
        with nogil:
            st_sched_place(s)
            rc = st_sched_walk(s, 0)
        if rc:
            _raise(rc, at)
        return 0

    cdef int write(self, cnp.ndarray units, cnp.ndarray operands, cnp.ndarray begin, cnp.ndarray extent) except -1:
        """Fills arrays of s.nunits, s.nout, cores + 1 and (nranks, ST_NBUFS)."""
        cdef st_sched *s = &self.s
        s.units = <st_unit *>cnp.PyArray_DATA(units)
        s.out = <st_operand *>cnp.PyArray_DATA(operands)
        s.begin = <uint32_t *>cnp.PyArray_DATA(begin)
        s.extent = <uint64_t *>cnp.PyArray_DATA(extent)
        with nogil:
            st_sched_walk(s, 1)
            st_sched_stripes(s)
            st_sched_extents(s)
        return 0


cdef object _array(object memory, size_t *at, cnp.dtype dtype, int nd, cnp.npy_intp first, cnp.npy_intp second):
    """An array of ``memory``, from *at on, which goes on behind it; at whole cache lines."""
    cdef cnp.npy_intp shape[2]
    cdef cnp.ndarray array
    shape[0], shape[1] = first, second
    Py_INCREF(dtype)  # the call takes a reference away
    array = PyArray_NewFromDescr(cnp.ndarray, dtype, nd, shape, NULL, cnp.PyArray_BYTES(memory) + at[0],
                                 cnp.NPY_ARRAY_CARRAY, NULL)
    cnp.set_array_base(array, memory)
    at[0] += (cnp.PyArray_NBYTES(array) + 63) & ~<size_t>63
    return array


cdef int _loads(_Machine m, cnp.ndarray loads) except -1:
    cdef int64_t *to = <int64_t *>cnp.PyArray_DATA(loads)
    cdef uint32_t c
    for c in range(m.s.cores):
        to[m.s.loads[c].core] = m.s.loads[c].load
    return 0


def schedule(slices, tiers, alpha, rate, unit, cap, unit_dtype, operand_dtype, *, int rank, int cores,
             bint balanced, bint local_first, int dtype, int itemsize, bint whole=False):
    """Units, operands, core_begin, buffer_bytes, core loads, makespan and bound, of one die.

    ``slices`` SLICE_DTYPE; ``tiers`` u8, one of each member; ``alpha``, ``unit``, ``cap`` i64
    and ``rate`` f64 by tier, as in ``strata.plan.cost.Cost``; the rest as in
    ``strata.plan.schedule``.  ``whole``: no slice is cut finer than by its tier's unit size.  InvalidArgument names
    the slice that is wrong.
    """
    cdef _Machine m = _Machine.__new__(_Machine)
    m.take(alpha, rate, unit, cap, unit_dtype, operand_dtype, cores, balanced, local_first, dtype, itemsize)
    m.s.whole = whole
    m.place(slices, tiers, rank)
    units, operands = np.empty(m.s.nunits, unit_dtype), np.empty(m.s.nout, operand_dtype)
    begin, extent = np.empty(m.s.cores + 1, np.uint32), np.empty((m.s.nranks, ST_NBUFS), np.uint64)
    loads = np.empty(m.s.cores, np.int64)
    m.write(units, operands, begin, extent)
    _loads(m, loads)
    return units, operands, begin, extent, loads, m.s.makespan, m.s.bound


def schedule_all(list slices, list tiers, alpha, rate, unit, cap, unit_dtype, operand_dtype, *, list ranks, int cores,
                 bint balanced, bint local_first, int dtype, int itemsize):
    """``schedule`` of many dies: a list of what it returns.

    ``slices`` and ``tiers``: one array of each of ``ranks``.  The arrays of as many dies as fit lie in
    one piece of memory of 16 MiB, which lasts as long as any of them: memory comes from the system by page, and
    large pieces by large pages.  Other threads run meanwhile.
    """
    cdef _Machine m = _Machine.__new__(_Machine)
    cdef size_t at = 0, size = 0, need, align
    cdef Py_ssize_t i
    cdef list made = []
    cdef cnp.dtype u32 = np.dtype(np.uint32), u64 = np.dtype(np.uint64), i64 = np.dtype(np.int64)
    if not len(slices) == len(tiers) == len(ranks):
        raise ValueError(f"{len(slices)} arrays of slices and {len(tiers)} of tiers for {len(ranks)} ranks")
    m.take(alpha, rate, unit, cap, unit_dtype, operand_dtype, cores, balanced, local_first, dtype, itemsize)
    memory = None
    for i in range(len(ranks)):
        m.place(slices[i], tiers[i], ranks[i])
        need = (m.s.nunits * sizeof(st_unit) + m.s.nout * sizeof(st_operand) + 12 * (<size_t>m.s.cores + 1)
                + 8 * ST_NBUFS * <size_t>m.s.nranks + 5 * 64)
        if at + need > size:
            size = max(need, min(<size_t>PIECE, need * <size_t>(len(ranks) - i)))
            align = LARGE_PAGE if size >= LARGE_PAGE else 64
            size = (size + align - 1) & ~(align - 1)
            memory = np.empty(size + align, np.uint8)  # which asks for large pages from 4 MiB on
            at = -<size_t>cnp.PyArray_DATA(memory) & (align - 1)
            size += at
        units = _array(memory, &at, m.unit, 1, m.s.nunits, 0)
        operands = _array(memory, &at, m.operand, 1, m.s.nout, 0)
        begin = _array(memory, &at, u32, 1, m.s.cores + 1, 0)
        extent = _array(memory, &at, u64, 2, m.s.nranks, ST_NBUFS)
        loads = _array(memory, &at, i64, 1, m.s.cores, 0)
        if at > size:
            raise AssertionError("the plans' memory is miscounted")
        m.write(units, operands, begin, extent)
        _loads(m, loads)
        made.append((units, operands, begin, extent, loads, m.s.makespan, m.s.bound))
    return made
