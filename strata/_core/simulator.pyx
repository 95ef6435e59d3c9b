"""What is simulated to when it happens: the front of ``st_sim.h``, which has the method."""

cimport numpy as cnp
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memmove, memset
from posix.mman cimport madvise
from posix.stdlib cimport posix_memalign

import numpy as np

from strata.errors import Deadlock, InvalidArgument, StrataError

cnp.import_array()


cdef extern from "st_timing.h" nogil:
    enum:
        ST_TIMING_NONE
        ST_TIMING_WAITS
    struct st_timing_link:
        double capacity
    struct st_timing_use:
        uint32_t link
    struct st_timing_task:
        double work
        int32_t wait[2]
        int32_t post, operation, unit
        uint32_t use_first
        uint16_t nuse
        uint8_t kind
    struct st_timing_lane:
        int32_t die, core
    struct st_timing_flag:
        int32_t need
    struct st_timing_member:
        int32_t start
    struct st_timing_rendezvous:
        uint32_t first, count
    struct st_timing_times:
        int64_t done


cdef extern from "st_sim.h" nogil:
    enum:
        ST_SIM_NONE
        ST_SIM_MORE
        ST_SIM_OK
        ST_SIM_EDEADLOCK
        ST_SIM_ETIME
        ST_SIM_MOST
        ST_SIM_LAST
        ST_SIM_NWRONG
    struct st_mm:
        pass
    struct st_sim_lane:
        uint32_t at, end, flow
    struct st_sim_slot:
        uint32_t task
    struct st_sim:
        const st_timing_link *links
        const st_timing_use *uses
        const st_timing_task *tasks
        const st_timing_lane *lanes
        const st_timing_flag *flags
        const st_timing_member *members
        const st_timing_rendezvous *rendezvous
        uint64_t nlinks, nuses, ntasks, nlanes, nflags, nmembers, nrendezvous
        int32_t package, node
        int flat, check
        int64_t window
        st_timing_times *times
        int64_t *raised
        int64_t now, end
        uint64_t digest, events, batches, solves, undone
        double residual
        st_sim_lane *lane
        st_sim_slot *slot
    int st_sim_check(const st_sim *s, uint8_t *owner, uint64_t *at)
    int st_sim_count(st_sim *s)
    size_t st_sim_arena(st_sim *s, char *base)
    void st_sim_load(st_sim *s)
    int st_sim_run(st_sim *s, uint64_t budget)


cdef uint64_t BUDGET = 1 << 21  # events and flows between two looks for signals: some 10 ms

_TIMES = np.dtype([(name, "<i8") for name in ("ready", "begun", "flowing", "done")])  # TIMES_DTYPE of the records

cdef tuple WRONG = (  # enum st_sim_wrong: array, what is wrong with the record
    ("", ""),
    ("links", "capacity or loss is negative or above 1e30"),
    ("links", "no such kind"),
    ("uses", "no such link"),
    ("uses", "weight is neither 0 nor from 1e-30 to 1e30"),
    ("uses", "its link has a loss, and peer is no die"),
    ("tasks", "hold_ps, latency_ps or wait_ps is negative or above 2**53"),
    ("tasks", "work is negative or above 1e30"),
    ("tasks", "it has work and a bound that is not above 0"),
    ("tasks", "it has work and neither a finite bound nor a link"),
    ("tasks", "its uses end beyond the array"),
    ("tasks", "wait or post is no flag"),
    ("tasks", "no such kind"),
    ("tasks", "backlog is outside 0 to 2**20"),
    ("tasks", "it belongs to no lane"),
    ("lanes", "its tasks end beyond the array"),
    ("lanes", "it has a task of another lane"),
    ("lanes", "pool is no link of kind POOL"),
    ("lanes", "ahead is neither 0 nor 1"),
    ("flags", "need is negative"),
    ("flags", "no such rendezvous, or none of its members arrives with this flag"),
    ("members", "die is negative"),
    ("members", "arrive or start is no flag"),
    ("members", "its arrive flag names another rendezvous, or is another member's, too"),
    ("members", "its start flag needs no posts, so it is raised at time 0"),
    ("rendezvous", "base_ps or seen_ps is negative or above 2**53"),
    ("rendezvous", "its members are none, end beyond the array, or are another's, too"),
)


cdef extern from "<sys/mman.h>" nogil:
    enum:
        MADV_HUGEPAGE

cdef enum:
    KEPT = 8                 # blocks that nobody has, the oldest first,
    KEPT_BYTES = 512 << 20   # of so many addresses at most; a third of that is pages
    LARGE = 2 << 20          # smaller ones are not kept

cdef size_t kept_bytes[KEPT]
cdef char *kept[KEPT]
cdef int nkept = 0


cdef void _forget(int which) noexcept:
    global nkept
    nkept -= 1
    memmove(&kept[which], &kept[which + 1], (nkept - which) * sizeof(char *))
    memmove(&kept_bytes[which], &kept_bytes[which + 1], (nkept - which) * sizeof(size_t))


cdef class _Memory:
    """Any bytes, of one call or one array.  Large ones are kept for the next: fresh pages, which the kernel clears,
    took a fifth of a simulation."""

    cdef char *base
    cdef size_t bytes

    def __dealloc__(self):
        cdef size_t total = self.bytes
        cdef int i
        if self.bytes < LARGE or self.bytes > KEPT_BYTES:
            free(self.base)
            return
        for i in range(nkept):
            total += kept_bytes[i]
        while nkept and (nkept == KEPT or total > KEPT_BYTES):
            total -= kept_bytes[0]
            free(kept[0])
            _forget(0)
        self.keep()

    cdef void keep(self) noexcept:
        global nkept
        kept[nkept] = self.base
        kept_bytes[nkept] = self.bytes
        nkept += 1

    cdef int take(self, size_t bytes) except -1:
        cdef void *found = NULL
        cdef int i, best = -1
        for i in range(nkept):
            if bytes <= kept_bytes[i] <= 2 * bytes and (best < 0 or kept_bytes[i] < kept_bytes[best]):
                best = i
        if best >= 0:
            self.base, self.bytes = kept[best], kept_bytes[best]
            _forget(best)
            return 0
        bytes = (bytes + LARGE) // LARGE * LARGE if bytes >= LARGE else bytes + 1
        if posix_memalign(&found, LARGE if bytes >= LARGE else 64, bytes):
            raise MemoryError(f"a simulation of this size needs {bytes} bytes")
        if bytes >= LARGE:
            madvise(found, bytes, MADV_HUGEPAGE)
        self.base, self.bytes = <char *>found, bytes
        return 0


def scratch(object dtype, Py_ssize_t number):
    """An array (``number``,) with anything in it: ``numpy.empty`` whose memory, when it goes, is kept for the next."""
    cdef _Memory memory = _Memory()
    cdef cnp.npy_intp bytes = number * dtype.itemsize
    cdef cnp.ndarray made
    memory.take(bytes)
    made = cnp.PyArray_SimpleNewFromData(1, &bytes, cnp.NPY_UINT8, memory.base)
    cnp.set_array_base(made, memory)
    return made.view(dtype)


cdef const void *_given(object array, str name, Py_ssize_t itemsize) except? NULL:
    cdef cnp.ndarray a
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"{name} is {type(array).__name__}, not a numpy array of strata.exec.timed.records")
    a = array
    if a.dtype.kind != "V" or a.dtype.itemsize != itemsize or a.ndim != 1 or not cnp.PyArray_IS_C_CONTIGUOUS(a):
        raise InvalidArgument(f"{name} is not contiguous in one dimension with its dtype of strata.exec.timed.records "
                              f"(records of {itemsize} bytes): {a.dtype}, shape {array.shape}")
    if cnp.PyArray_SIZE(a) >= 1 << 31:
        raise InvalidArgument(f"{name} has {cnp.PyArray_SIZE(a)} records; at most 2**31 - 1 have numbers")
    return cnp.PyArray_DATA(a)


cdef str _place(st_sim *s, uint32_t lane, uint32_t task):
    cdef str core = f", core {s.lanes[lane].core}" if s.lanes[lane].core != ST_TIMING_NONE else ""
    return f"die {s.lanes[lane].die}{core} (operation {s.tasks[task].operation}, unit {s.tasks[task].unit})"


cdef object _unraised(st_sim *s, int32_t flag):
    """Who would raise a flag."""
    cdef uint32_t i, t
    cdef uint64_t m
    for i in range(s.nlanes):
        for t in range(s.lane[i].at, s.lane[i].end):
            if s.tasks[t].post == flag:
                return f"{_place(s, i, t)} would post it"
    for m in range(s.nmembers):
        if s.members[m].start == flag:
            return "it is a rendezvous's, and not all of its members arrive"
    return "nothing posts it as often as it needs"


cdef object _deadlock(st_sim *s):
    """The first lane that is not through, and why."""
    cdef uint32_t i, t
    cdef int32_t flag
    cdef int k
    cdef uint64_t left = s.undone
    for i in range(s.nlanes):
        if s.lane[i].flow != ST_SIM_NONE:
            t = s.slot[s.lane[i].flow].task
            links = [s.uses[u].link for u in range(s.tasks[t].use_first, s.tasks[t].use_first + s.tasks[t].nuse)]
            raise Deadlock(f"{_place(s, i, t)} has work left, and no rate: a link of {links} has no capacity and "
                           f"never will; {left} tasks are not done")
        if s.lane[i].at == s.lane[i].end:
            continue
        t = s.lane[i].at
        for k in range(ST_TIMING_WAITS):
            flag = s.tasks[t].wait[k]
            if flag != ST_TIMING_NONE and s.raised[flag] == ST_TIMING_NONE:
                raise Deadlock(f"{_place(s, i, t)} waits for flag {flag}, which is never raised: {_unraised(s, flag)}; "
                               f"{left} tasks are not done")
    raise StrataError(f"internal error: {left} tasks are not done, and none waits")


cdef int _simulate(st_sim *s) except -1:
    cdef int rc = ST_SIM_MORE
    with nogil:
        st_sim_load(s)
    while rc == ST_SIM_MORE:
        PyErr_CheckSignals()
        with nogil:
            rc = st_sim_run(s, BUDGET)
    if rc == ST_SIM_EDEADLOCK:
        _deadlock(s)
    if rc == ST_SIM_ETIME:
        raise InvalidArgument(f"something happens later than 2**61 ps; the clock is at {s.now}")
    if rc != ST_SIM_OK:
        raise StrataError(f"internal error: rates at {s.now} ps are no max-min, relative {s.residual}")
    return 0


def run(links, uses, tasks, lanes, flags, members, rendezvous, *, int package=1, int node=1, bint flat=False,
        int64_t window_ps=0, bint check=False):
    """Simulates what ``st_timing.h`` describes; arrays with the dtypes of ``strata.exec.timed.records``.

    ``package``, ``node``, ``flat``: tiers of pairs of dies, as in ``plan.Topology``.  ``window_ps``: what is due
    within so long after what is due first happens when the last of it is due, so nothing happens before it is due;
    0 is exact.  ``check`` proves each solve.

    A dict: ``times`` TIMES_DTYPE[ntasks], ``raised`` i64[nflags] (ps, -1 never), ``end_ps``, ``digest`` (of all that
    happened, in order), ``solves``, ``events``, ``batches`` (instants), ``window_ps``, ``residual`` (of ``check``: the
    worst relative violation of the max-min certificate; else None).

    InvalidArgument names array and record; Deadlock a task that is never done; StrataError, a solve that
    fails the certificate, is a bug.
    """
    cdef st_sim s
    cdef _Memory owner = _Memory(), memory = _Memory()
    cdef uint64_t at = 0
    cdef int wrong
    cdef cnp.ndarray times, raised
    memset(&s, 0, sizeof(s))
    s.links = <const st_timing_link *>_given(links, "links", sizeof(st_timing_link))
    s.uses = <const st_timing_use *>_given(uses, "uses", sizeof(st_timing_use))
    s.tasks = <const st_timing_task *>_given(tasks, "tasks", sizeof(st_timing_task))
    s.lanes = <const st_timing_lane *>_given(lanes, "lanes", sizeof(st_timing_lane))
    s.flags = <const st_timing_flag *>_given(flags, "flags", sizeof(st_timing_flag))
    s.members = <const st_timing_member *>_given(members, "members", sizeof(st_timing_member))
    s.rendezvous = <const st_timing_rendezvous *>_given(rendezvous, "rendezvous", sizeof(st_timing_rendezvous))
    s.nlinks, s.nuses, s.ntasks, s.nlanes = len(links), len(uses), len(tasks), len(lanes)
    s.nflags, s.nmembers, s.nrendezvous = len(flags), len(members), len(rendezvous)
    if package < 1 or node < package or node % package:
        raise InvalidArgument(f"a node of {node} dies is not made of packages of {package}")
    if not 0 <= window_ps <= ST_SIM_MOST:
        raise InvalidArgument(f"window_ps is {window_ps}: 0 is exact, and at most 2**53 are allowed")
    s.package, s.node, s.flat, s.window, s.check = package, node, flat, window_ps, check
    owner.take(max(s.ntasks, s.nmembers + s.nflags))
    with nogil:
        wrong = st_sim_check(&s, <uint8_t *>owner.base, &at)
    if wrong:
        array, why = WRONG[wrong]
        raise InvalidArgument(f"{array}[{at}]: {why}")
    if not st_sim_count(&s):
        raise InvalidArgument("lanes times uses of a task are more than 2**32: use fewer operands to a unit, or lanes")
    memory.take(st_sim_arena(&s, NULL))
    st_sim_arena(&s, memory.base)
    times = scratch(_TIMES, s.ntasks)
    raised = np.empty(s.nflags, np.int64)
    s.times = <st_timing_times *>cnp.PyArray_DATA(times)
    s.raised = <int64_t *>cnp.PyArray_DATA(raised)
    _simulate(&s)
    return {"times": times, "raised": raised, "end_ps": s.end, "digest": s.digest, "solves": s.solves,
            "events": s.events, "batches": s.batches, "window_ps": window_ps,
            "residual": s.residual if check else None}


if len(WRONG) != ST_SIM_NWRONG:
    raise AssertionError("WRONG and enum st_sim_wrong differ")
