"""Plans to tasks of the timing plane: the front of ``st_timing_load.h`` and ``st_timing_write.h``."""

cimport numpy as cnp
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

import numpy as np

from strata.errors import InvalidArgument

cnp.import_array()


cdef extern from "st_plan.h" nogil:
    struct st_unit:
        pass
    struct st_operand:
        pass


cdef extern from "st_timing.h" nogil:
    struct st_timing_task:
        pass
    struct st_timing_use:
        pass
    struct st_timing_lane:
        pass
    struct st_timing_flag:
        pass


cdef extern from "st_timing_load.h" nogil:
    enum:
        ST_LOAD_NPORTS
        ST_LOAD_HBM
        ST_NTIERS
    struct st_load_die:
        int32_t die, package, node
        int32_t port[9]
        double slow
    struct st_load_plan:
        const st_unit *units
        const st_operand *operands
        const uint32_t *core_begin
        uint32_t nunits, noperands, cores
        int32_t member
        const uint64_t *rows
        uint64_t nrows
    struct st_load_memory:
        double remote, local, ratio, read, written
    struct st_load:
        const st_load_die *dies
        const double *slow
        int32_t n, flat, sdma, reduces
        int64_t alpha_ps[4]
        int64_t seen_ps[4]
        int64_t poll_ps, issue_ps, row_ps, descriptor_ps, handover_ps
        double rate[4]
        double stream[4]
        double write[4]
        double engine[4]
        double accumulate, loss, backlog, jitter
        uint64_t block, seed
        int32_t operation
        uint32_t ahead
        uint64_t *bytes
        double *demand
        st_load_memory *memory
        int32_t *nflags
        int32_t *stamp
        uint32_t *entries
        double *mix
        double *mix_ps
        double *mix_out
        uint64_t nuses, ntasks, nlanes
        const int32_t *pair
        const int64_t *flag_base
        int32_t *poster
        int64_t flag_zero


cdef extern from "st_timing_count.h" nogil:
    int st_load_measure(st_load *l, const st_load_plan *p, uint32_t *at) noexcept
    void st_load_posts(st_load *l, const st_load_plan *p, st_timing_flag *flags) noexcept


cdef extern from "st_timing_write.h" nogil:
    struct st_load_place:
        pass
    struct st_load_lanes:
        pass
    struct st_load_out:
        st_timing_task *tasks
        st_timing_use *uses
        st_timing_lane *lanes
        st_timing_flag *flags
        uint64_t ntasks, nuses, nlanes
    void st_load_write(const st_load *l, st_load_out *out, const st_load_plan *p, int32_t start, int32_t drained,
                       const st_load_place *place, st_load_lanes *lanes, int64_t submitted, int32_t cores) noexcept


cdef tuple WRONG = (  # enum st_load_status
    "",
    "follows cores that do not span the units",
    "has an unknown kind, operator or dtype",
    "has operands beyond the plan's, of no member, or partial though it does not reduce",
    "has a flag, or a wait_peer, out of range",
    "has no bytes, too many, or some though it only synchronises",
    "reduces, which the machine's SDMA engine does not: path mte does",
    "has more operands than can be timed: 10922",
    "moves rows, and these are not whole, or its entries are not there, or of none of its operands",
)


cdef void *_data(object array, object dtype, Py_ssize_t size) except NULL:
    """Where a contiguous array of this dtype and size (-1: any) has its elements; else ValueError."""
    cdef cnp.ndarray a = array
    if (a.dtype != dtype or not cnp.PyArray_IS_C_CONTIGUOUS(a) or (size >= 0 and cnp.PyArray_SIZE(a) != size)):
        raise ValueError(f"an array of {a.dtype}, shape {array.shape}, where {size} of {dtype} were expected")
    return cnp.PyArray_DATA(a)


cdef class Translation:
    """One operation's plans, all members', on the way to tasks.

    ``dies``     i32 (n, 12): of each member's die its number, package, node and links (enum st_load_port)
    ``slow``     f64 (n,): its cores take so many times as long
    ``between``  None, or f64 (n, n): what member i gives j takes so many times as long

    ``cores``, ``units``: of each plan, i64 (n,).  What ``measure`` found, as in st_load: ``bytes`` (n, n), ``demand``
    (2, n, n), ``memory`` (n, 5), ``nflags`` (n,), ``ntasks``, ``nuses``, ``nlanes``; ``busy``: which of all plans'
    cores have units, bool.
    """

    cdef st_load c
    cdef st_load_plan *plans
    cdef st_load_die *dies
    cdef list keep
    cdef readonly object bytes, demand, nflags, cores, units, busy, memory
    cdef object entries, mix
    cdef int32_t n

    def __cinit__(self, plans, unit_dtype, operand_dtype, dies, slow, between):
        cdef int32_t m, k, n = len(plans)
        cdef const int32_t *row
        cdef const double *factor = <const double *>_data(slow, np.float64, n)
        memset(&self.c, 0, sizeof(self.c))
        self.n = self.c.n = n
        self.plans = <st_load_plan *>PyMem_RawCalloc(n + 1, sizeof(st_load_plan))
        self.dies = <st_load_die *>PyMem_RawCalloc(n + 1, sizeof(st_load_die))
        if self.plans == NULL or self.dies == NULL:
            raise MemoryError
        row = <const int32_t *>_data(dies, np.int32, n * (3 + ST_LOAD_NPORTS))
        for m in range(n):
            self.dies[m].die, self.dies[m].package, self.dies[m].node = row[0], row[1], row[2]
            for k in range(ST_LOAD_NPORTS):
                self.dies[m].port[k] = row[3 + k]
            self.dies[m].slow = factor[m]
            row += 3 + ST_LOAD_NPORTS
        self.keep = [between, list(plans)]
        for m in range(n):
            self.take(m, plans[m], unit_dtype, operand_dtype)
        self.cores = np.array([self.plans[m].cores for m in range(n)], np.int64)
        self.units = np.array([self.plans[m].nunits for m in range(n)], np.int64)
        self.busy = np.empty(self.cores.sum(), np.bool_)
        self.c.dies = self.dies
        if between is not None:
            self.c.slow = <const double *>_data(between, np.float64, n * n)

    def __dealloc__(self):
        PyMem_RawFree(self.plans)
        PyMem_RawFree(self.dies)

    cdef int take(self, int32_t m, object plan, object unit_dtype, object operand_dtype) except -1:
        cdef object units = plan.units, operands = plan.operands, begin = plan.core_begin
        cdef st_load_plan *p = &self.plans[m]
        p.units = <const st_unit *>_data(units, unit_dtype, -1)
        p.operands = <const st_operand *>_data(operands, operand_dtype, -1)
        p.core_begin = <const uint32_t *>_data(begin, np.uint32, plan.cores + 1)
        p.nunits, p.noperands = cnp.PyArray_SIZE(units), cnp.PyArray_SIZE(operands)
        p.cores, p.member = plan.cores, m
        self.keep += [units, operands, begin, plan.rows]
        if plan.rows is not None:
            p.rows = <const uint64_t *>_data(plan.rows, np.uint64, -1)
            p.nrows = cnp.PyArray_SIZE(plan.rows)
        return 0

    @property
    def ntasks(self):
        return self.c.ntasks

    @property
    def nuses(self):
        return self.c.nuses

    @property
    def nlanes(self):
        return self.c.nlanes

    @property
    def sdma(self):
        return bool(self.c.sdma)

    def measure(self, *, alpha_ps, seen_ps, rate, stream, write, engine, int64_t poll_ps, int64_t issue_ps,
                int64_t row_ps, int64_t descriptor_ps, int64_t handover_ps, double accumulate, double loss,
                double backlog, double jitter, uint64_t seed, uint64_t block, bint flat, bint sdma, bint reduces,
                uint32_t ahead):
        """Checks the plans and counts what ``write`` will need.  InvalidArgument names member and unit."""
        cdef st_load *load = &self.c
        cdef int32_t m = 0, k
        cdef uint32_t at = 0
        cdef int rc = 0
        cdef cnp.ndarray stamp = np.empty(2 * self.n, np.int32)
        for k in range(ST_NTIERS):
            load.alpha_ps[k], load.seen_ps[k] = alpha_ps[k], seen_ps[k]
            load.rate[k], load.write[k], load.engine[k] = rate[k], write[k], engine[k]
            load.stream[k] = stream[k]
        load.poll_ps, load.issue_ps, load.row_ps = poll_ps, issue_ps, row_ps
        load.descriptor_ps, load.handover_ps = descriptor_ps, handover_ps
        load.accumulate, load.loss, load.backlog = accumulate, loss, backlog
        load.jitter, load.seed = jitter, seed
        load.block, load.flat, load.sdma, load.reduces = block, flat, sdma, reduces
        load.ahead = ahead
        if not block:
            raise ValueError("descriptors of no bytes")
        self.bytes = np.zeros((self.n, self.n), np.uint64)
        self.demand = np.zeros((2, self.n, self.n), np.float64)
        self.nflags = np.zeros(self.n, np.int32)
        self.memory = np.zeros((self.n, 5), np.float64)
        load.memory = <st_load_memory *>_data(self.memory, np.float64, -1)
        load.bytes = <uint64_t *>_data(self.bytes, np.uint64, -1)
        load.demand = <double *>_data(self.demand, np.float64, -1)
        load.nflags = <int32_t *>_data(self.nflags, np.int32, -1)
        load.stamp = <int32_t *>cnp.PyArray_DATA(stamp)
        self.entries, self.mix = np.empty(1 << 16, np.uint32), np.zeros((self.n + 2, self.n))
        load.entries = <uint32_t *>_data(self.entries, np.uint32, -1)
        load.mix = <double *>_data(self.mix, np.float64, -1)
        load.mix_ps = load.mix + self.n * self.n
        load.mix_out = load.mix_ps + self.n
        load.nuses = load.ntasks = load.nlanes = 0
        with nogil:
            for m in range(self.n):
                rc = st_load_measure(load, &self.plans[m], &at)
                if rc:
                    break
        load.stamp = NULL
        if rc:
            raise InvalidArgument(f"the plan of member {m} cannot be timed: unit {at} {WRONG[rc]}", ranks=[m])
        self.note_busy(<uint8_t *>cnp.PyArray_DATA(self.busy))

    cdef void note_busy(self, uint8_t *busy) noexcept:
        cdef int32_t m
        cdef uint32_t c
        for m in range(self.n):
            for c in range(self.plans[m].cores):
                busy[0] = self.plans[m].core_begin[c] != self.plans[m].core_begin[c + 1]
                busy += 1

    def write(self, tasks, uses, lanes, flags, at, *, int32_t operation, memory, pair, flag_base, poster, start,
              drained, place, written, submitted, int32_t cores):
        """Appends tasks, uses and lanes to arrays with room for them, from ``at`` (three numbers) on; where they end.

        ``operation``: of the tasks; ``memory`` i32 (n,): links of the dies' memory, NONE where it cannot be what
        limits; ``pair`` i32 (n, n); ``flag_base`` i64 (n,); ``poster`` i32, one of each of the plans' flags; ``start``,
        ``drained`` i32 (n,): flags; ``place`` i32 (all plans' cores, 6), ``written`` i32 (all plans' cores, 2): as
        st_load_place and st_load_lanes; ``submitted`` i64 (n,): flags of sdma; ``cores`` of a die.
        """
        cdef st_load *load = &self.c
        cdef st_load_out out
        cdef int32_t m
        cdef int64_t c = 0, total = self.cores.sum()
        cdef const int32_t *begins = <const int32_t *>_data(start, np.int32, self.n)
        cdef const int32_t *ends = <const int32_t *>_data(drained, np.int32, self.n)
        cdef const int64_t *doorbell = <const int64_t *>_data(submitted, np.int64, self.n)
        cdef const int32_t *places = <const int32_t *>_data(place, np.int32, 6 * total)
        cdef int32_t *found = <int32_t *>_data(written, np.int32, 2 * total)
        cdef const int32_t *hbm = <const int32_t *>_data(memory, np.int32, self.n)
        memset(&out, 0, sizeof(out))
        for m in range(self.n):
            self.dies[m].port[ST_LOAD_HBM] = hbm[m]
        out.tasks = <st_timing_task *>cnp.PyArray_DATA(tasks)
        out.uses = <st_timing_use *>cnp.PyArray_DATA(uses)
        out.lanes = <st_timing_lane *>cnp.PyArray_DATA(lanes)
        out.flags = <st_timing_flag *>cnp.PyArray_DATA(flags)
        out.ntasks, out.nuses, out.nlanes = at
        load.operation = operation
        load.pair = <const int32_t *>_data(pair, np.int32, self.n * self.n)
        load.flag_base = <const int64_t *>_data(flag_base, np.int64, self.n)
        load.flag_zero = flag_base[0]
        load.poster = <int32_t *>_data(poster, np.int32, self.nflags.sum())
        with nogil:
            for m in range(self.n):
                if load.nflags[m]:
                    st_load_posts(load, &self.plans[m], out.flags)
            for m in range(self.n):
                st_load_write(load, &out, &self.plans[m], begins[m], ends[m], <const st_load_place *>(places + 6 * c),
                              <st_load_lanes *>(found + 2 * c), doorbell[m], cores)
                c += self.plans[m].cores
        return out.ntasks, out.nuses, out.nlanes
