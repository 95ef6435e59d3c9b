"""Reads the UB space of any job of this user from outside: read-only, without a lock, whatever is in it.

What comes out is plain dicts and lists; strata.inspection makes sense of them.
"""

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from strata._core.abi cimport ST_EABI, ST_ESYS, ST_OK

import os

from strata import errors


cdef extern from "st_abi.h" nogil:
    enum:
        ST_NCANDIDATES
        ST_FLIGHT_RECORDS
        ST_FLIGHT_GROUPS
        ST_FLIGHT_NOBODY
        ST_FLIGHT_OPEN
        ST_FLIGHT_LOST
        ST_FLIGHT_ASYNC
        ST_CLOCK_TICKS

    struct st_die:
        uint32_t state
        uint32_t pid
        uint64_t start_time
        uint64_t pid_ns
        uint64_t window_mask
        uint64_t incarnation
        uint64_t log_head
        uint64_t pages_reserved
        uint64_t sdma
        uint32_t dead

    struct st_flight_record:
        uint64_t state
        uint64_t group
        uint64_t number
        uint64_t desc
        uint64_t count
        uint64_t bytes
        uint64_t begin
        uint64_t end

    struct st_flight_group:
        uint64_t id
        uint64_t va
        uint32_t n
        uint32_t me
        char *name

    struct st_flight:
        uint64_t time_ns
        uint32_t clock
        uint64_t late_maps
        uint64_t late_map_ns
        uint64_t cached_bytes
        uint64_t heap_bytes
        uint64_t lost
        st_flight_group *groups
        st_flight_record *records

    struct st_group_header:
        uint64_t magic
        uint64_t id[2]
        uint32_t nmembers
        uint64_t mailbox_bytes
        uint32_t fail_state
        uint32_t fail_status
        uint32_t fail_by
        uint32_t fail_phase
        uint64_t fail_number
        uint64_t fail_desc
        uint64_t *fail_mask

    struct st_arrival:
        uint64_t epoch
        uint64_t desc
        uint64_t count

    struct st_member:
        uint64_t done
        uint64_t began
        uint64_t shrink
        uint64_t left

    uint64_t ST_MAGIC
    enum:
        ST_FAIL_PUBLISHED


cdef extern from "st_abi_sdma.h" nogil:
    uint64_t ST_SDMA_MAGIC
    enum:
        ST_SDMA_RINGS

    struct st_sdma:
        uint64_t magic
        uint32_t open
        uint32_t top
        uint64_t *rings

    struct st_ring:
        uint64_t magic
        uint64_t opened
        uint32_t depth
        uint64_t tail
        uint64_t head
        uint64_t failed
        uint64_t gated_ns


cdef extern from "st_group_layout.h" nogil:
    uint64_t st_group_ranks_off()
    uint64_t st_group_arrivals_off(uint64_t n)
    uint64_t st_group_members_off(uint64_t n)


cdef extern from "st_inspect.h" nogil:
    struct st_inspect_header "st_header":
        uint64_t object_bytes
        uint64_t control_offset
        uint64_t hbm_bytes
        uint64_t seg_bytes
        uint64_t token[2]
        uint64_t world_off
        uint64_t cursors_off
        uint32_t ndies
        uint64_t *candidates

    struct st_inspect:
        uint64_t base
        st_inspect_header h

    int st_space_layout(st_inspect_header *h, uint32_t ndies, uint64_t hbm_bytes, uint64_t mailbox_bytes,
                        uint64_t window_base)
    int st_inspect_open(st_inspect *v, int fd)
    int st_inspect_control(const st_inspect *v, uint64_t offset, void *to, uint64_t nbytes)
    int st_inspect_va(const st_inspect *v, uint64_t va, void *to, uint64_t nbytes)
    int st_inspect_die(const st_inspect *v, uint32_t die, st_die *d)
    void st_inspect_window(st_inspect *v, uint64_t mask)
    int st_inspect_locked(const st_inspect *v, uint32_t die)
    int st_inspect_flight(const st_inspect *v, uint32_t die, st_flight *f)
    uint64_t st_inspect_time(const st_flight *f, uint64_t ticks, uint64_t now, uint64_t now_ns)
    uint64_t st_flight_ticks(uint32_t clock)


cdef extern from "st_wait.h" nogil:
    uint64_t st_now_ns()


STATES = ("absent", "joined", "left")
# In the order of enum st_flight_kind and enum st_phase.
KINDS = ("", "collective", "send", "recv", "posts", "drain", "join", "group", "shrink", "late map", "submit", "event",
         "flag", "stream", "work", "replay", "lock", "cast")
PHASES = ("arrival", "execution", "completion")


def now_ns():
    """CLOCK_MONOTONIC, which all times of records are in."""
    return st_now_ns()


def candidates(uint32_t ndies, uint64_t hbm_bytes):
    """Where the window of such a job may lie, in order of preference."""
    cdef st_inspect_header h
    if st_space_layout(&h, ndies, hbm_bytes, 8192, 0) != ST_OK:
        raise errors.InvalidArgument(f"no UB space of {ndies} dies with {hbm_bytes} bytes of HBM each")
    return [h.candidates[i] for i in range(ST_NCANDIDATES)]


cdef str status_name(uint32_t status):
    if status == ST_FLIGHT_OPEN:
        return ""
    if status == ST_FLIGHT_LOST:
        return "lost"
    return errors.STATUS[status].name if status < len(errors.STATUS) else f"invalid ({status})"


def _date(records):
    """Records without a begin get that of their neighbours: operations that found all members there, so that nobody
    looked at the clock."""
    records.sort(key=lambda r: r["index"])
    indices = [r["index"] for r in records] or [0]
    if max(indices) - min(indices) > 1 << 23:  # they have 24 bits
        records.sort(key=lambda r: (r["index"] < 1 << 23, r["index"]))
    last = 0
    for record in records:
        record["begin_ns"] = record["begin_ns"] or last
        last = record["end_ns"] or record["begin_ns"]
    for record in reversed(records):
        record["begin_ns"] = record["begin_ns"] or last
        last = record["begin_ns"]


cdef class Inspector:
    """A UB space behind a descriptor, which stays the caller's.

    CorruptSpace: it is none of this version of strata; OSError: it cannot be read.  A die must not
    close a descriptor of its own space that it opened for this: it would lose its liveness lock.
    """
    cdef st_inspect v
    cdef int fd

    def __init__(self, int fd):
        self.fd = fd
        self.check(st_inspect_open(&self.v, fd), "the object is not a UB space of this version of strata")
        self.window()

    cdef int check(self, int rc, str what) except -1:
        if rc == ST_ESYS:
            raise OSError(errno, os.strerror(errno))
        if rc != ST_OK:
            raise errors.from_status(rc if rc == ST_EABI else ST_EABI, what)
        return 0

    def fileno(self):
        """The descriptor."""
        return self.fd

    def window(self):
        """Looks again whether the dies have agreed on a window."""
        cdef st_die d
        cdef uint32_t i
        cdef uint64_t mask = <uint64_t>-1
        for i in range(self.v.h.ndies):
            self.check(st_inspect_die(&self.v, i, &d), "the die table cannot be read")
            mask &= d.window_mask if d.state else 0
        st_inspect_window(&self.v, mask)

    ndies = property(lambda self: (<Inspector>self).v.h.ndies)
    hbm_bytes = property(lambda self: (<Inspector>self).v.h.hbm_bytes)
    object_bytes = property(lambda self: (<Inspector>self).v.h.object_bytes)

    @property
    def token(self):
        """The job's random name."""
        return (self.v.h.token[0].to_bytes(8, "little") + self.v.h.token[1].to_bytes(8, "little")).hex()

    def die(self, uint32_t i):
        """dict of die i: state, pid, start_time, pid_ns, dead (marked so), locked (its process lives),
        incarnation, log_head, reserved (bytes), sdma (address)."""
        cdef st_die d
        self.check(st_inspect_die(&self.v, i, &d), f"the die table has no die {i}")
        return {
            "state": STATES[d.state] if d.state < 3 else f"invalid ({d.state})",
            "pid": d.pid,
            "start_time": d.start_time,
            "pid_ns": d.pid_ns,
            "dead": bool(d.dead),
            "locked": bool(st_inspect_locked(&self.v, i)),
            "incarnation": d.incarnation,
            "log_head": d.log_head,
            "reserved": d.pages_reserved << 21 if d.pages_reserved <= self.v.h.hbm_bytes >> 21 else 0,
            "sdma": d.sdma,
        }

    def lag(self, uint32_t reader, heads):
        """Records of the others' metadata logs, whose lengths are ``heads``, that a die has not followed yet."""
        cdef uint64_t passed, total = 0
        cdef uint32_t owner
        for owner in range(min(<uint32_t>len(heads), self.v.h.ndies)):
            self.check(st_inspect_control(
                &self.v, self.v.h.cursors_off + (<uint64_t>owner * self.v.h.ndies + reader) * 8, &passed, 8),
                "the cursors cannot be read")
            if owner != reader and passed < <uint64_t>heads[owner]:
                total += <uint64_t>heads[owner] - passed
        return total

    def flight(self, uint32_t i):
        """dict of die i's recorder: begun (records ever, modulo 2^24), late_maps, late_map_ns, cached and allocated
        (bytes), lost, groups (open there: id, va, n, me, name) and records in order of time: index, kind, peer (None),
        async, phase, status ("" while it is in progress), group, number, desc, count, bytes, begin_ns, end_ns (0: at
        once, or not over)."""
        cdef st_flight *f = <st_flight *>malloc(sizeof(st_flight))
        cdef uint32_t k
        cdef uint64_t now, at, begun = 0
        if f == NULL:
            raise MemoryError
        try:
            self.check(st_inspect_flight(&self.v, i, f), f"the flight recorder of die {i} cannot be read")
            at = st_now_ns()
            now = st_flight_ticks(f.clock if f.clock == ST_CLOCK_TICKS else 0)
            groups, records = [], []
            for k in range(ST_FLIGHT_GROUPS):
                if f.groups[k].id and 0 < f.groups[k].n <= self.v.h.ndies and f.groups[k].me < f.groups[k].n:
                    groups.append({"id": f.groups[k].id, "va": f.groups[k].va, "n": f.groups[k].n,
                                   "me": f.groups[k].me, "name": f.groups[k].name.decode(errors="replace")})
            for k in range(ST_FLIGHT_RECORDS):
                begun += (f.records[k].state >> 40) // ST_FLIGHT_RECORDS + 1 if f.records[k].state else 0
                record = self.record(&f.records[k], f, k, now, at)
                if record is not None:
                    records.append(record)
            _date(records)
            records.sort(key=lambda r: (r["begin_ns"], r["index"]))
            return {"begun": begun, "late_maps": f.late_maps, "late_map_ns": f.late_map_ns, "lost": f.lost,
                    "cached": f.cached_bytes, "allocated": f.heap_bytes, "groups": groups, "records": records}
        finally:
            free(f)

    cdef object record(self, const st_flight_record *r, const st_flight *f, uint32_t slot, uint64_t now, uint64_t at):
        """A record, or None: there is none, or it makes no sense."""
        cdef uint64_t index = r.state >> 40
        cdef uint32_t kind = r.state >> 16 & 0x7f, peer = r.state >> 24 & 0xffff, phase = r.state >> 8 & 0xff
        if not 0 < kind < <uint32_t>len(KINDS) or phase > 2 or index % ST_FLIGHT_RECORDS != slot:
            return None
        if peer >= self.v.h.ndies and peer != ST_FLIGHT_NOBODY:
            return None
        return {
            "index": index,
            "kind": KINDS[kind],
            "peer": None if peer == ST_FLIGHT_NOBODY else peer,
            "async": bool(r.state >> 16 & ST_FLIGHT_ASYNC),
            "phase": PHASES[phase],
            "status": status_name(r.state & 0xff),
            "group": r.group,
            "number": <int64_t>r.number,
            "desc": r.desc,
            "count": r.count,
            "bytes": r.bytes,
            "begin_ns": (st_inspect_time(f, r.begin, now, at) if r.begin else
                         at if (r.state & 0xff) == ST_FLIGHT_OPEN else 0),
            "end_ns": st_inspect_time(f, r.end, now, at),
        }

    def group(self, uint64_t va, uint32_t n):
        """dict of a group's memory (va 0: the world's): id, ranks, failure (None), lines (for either parity, each
        member's epoch, desc, count) and members (done, began, shrink, left).  None: there is no such group there."""
        cdef st_group_header h
        cdef st_arrival *lines = NULL
        cdef st_member *members = NULL
        cdef uint32_t ranks[1024]
        cdef uint32_t k
        if not 0 < n <= self.v.h.ndies or self.read(va, 0, &h, sizeof(h)) != ST_OK:
            return None
        if h.magic != ST_MAGIC or h.nmembers != n:
            return None
        lines = <st_arrival *>malloc(2 * n * sizeof(st_arrival))
        members = <st_member *>malloc(n * sizeof(st_member))
        try:
            if lines == NULL or members == NULL:
                raise MemoryError
            if (self.read(va, st_group_ranks_off(), ranks, 4 * n) != ST_OK
                    or self.read(va, st_group_arrivals_off(n), lines, 2 * n * sizeof(st_arrival)) != ST_OK
                    or self.read(va, st_group_members_off(n), members, n * sizeof(st_member)) != ST_OK):
                return None
            found = [ranks[k] for k in range(n)]
            if max(found) >= self.v.h.ndies or len(set(found)) != n:
                return None
            failure = None
            if h.fail_state == ST_FAIL_PUBLISHED:
                failure = {
                    "status": status_name(h.fail_status & 0xff), "by": found[h.fail_by] if h.fail_by < n else None,
                    "phase": PHASES[h.fail_phase] if h.fail_phase < 3 else "", "number": h.fail_number,
                    "desc": h.fail_desc,
                    "ranks": [found[k] for k in range(n) if h.fail_mask[k >> 6] >> (k & 63) & 1],
                }
            return {
                "id": h.id[0], "ranks": found, "failure": failure,
                "lines": [[(lines[p * n + k].epoch, lines[p * n + k].desc, lines[p * n + k].count) for k in range(n)]
                          for p in range(2)],
                "members": [{"done": members[k].done, "began": members[k].began, "shrink": members[k].shrink,
                             "left": members[k].left} for k in range(n)],
            }
        finally:
            free(lines)
            free(members)

    cdef int read(self, uint64_t va, uint64_t offset, void *to, uint64_t nbytes) noexcept:
        if va == 0:
            return st_inspect_control(&self.v, self.v.h.world_off + offset, to, nbytes)
        return st_inspect_va(&self.v, va + offset, to, nbytes)

    def rings(self, uint64_t sdma):
        """The open descriptor rings of a die whose struct st_sdma is at an address: index, depth, pending, failed,
        gated_ns (since when it is at a shut gate; 0).  None: there is nothing there."""
        cdef st_sdma *s = <st_sdma *>malloc(sizeof(st_sdma))
        cdef st_ring ring
        cdef uint32_t i
        if s == NULL:
            raise MemoryError
        try:
            if not sdma or st_inspect_va(&self.v, sdma, s, sizeof(st_sdma)) != ST_OK or s.magic != ST_SDMA_MAGIC:
                return None
            found = []
            for i in range(min(s.top, <uint32_t>ST_SDMA_RINGS)):
                if not s.rings[i] or st_inspect_va(&self.v, s.rings[i], &ring, sizeof(ring)) != ST_OK:
                    continue
                if ring.magic == ST_SDMA_MAGIC and ring.opened and ring.tail - ring.head <= ring.depth:
                    found.append({"index": i, "depth": ring.depth, "pending": ring.tail - ring.head,
                                  "failed": ring.failed, "gated_ns": ring.gated_ns})
            return found
        finally:
            free(s)
