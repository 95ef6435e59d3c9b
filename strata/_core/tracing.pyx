"""Traces of dies: writing events from Python, and reading what any die of a job has written, from wherever.

An event is EVENT: begin, end (ticks), kind, core, peer, index, arg; st_abi_trace.h says what they mean for each kind.
"""

cimport numpy as cnp
from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from strata._core.abi cimport ST_AGAIN, ST_EABI, ST_ESYS, ST_OK, st_ctx
from strata._core.space cimport Context

import os

import numpy as np

from strata import errors
from strata._core import tracemode
from strata._core.inspector import Inspector

cnp.import_array()


cdef extern from "st_trace_read.h" nogil:
    enum:
        ST_TRACE_SLICES
        ST_TRACE_NAMES
        ST_TRACE_NAME_MOST
        ST_CLOCK_TICKS

    struct st_trace_die "st_die":
        uint32_t pid
        uint64_t trace_lost

    struct st_trace_header "st_header":
        uint32_t ndies
        uint64_t trace_events

    struct st_inspect:
        st_trace_header h

    struct st_trace:
        uint32_t names_lost

    struct st_trace_event:
        pass

    struct st_trace_found:
        uint64_t first
        uint64_t count
        uint64_t lost
        uint32_t tid
        uint32_t role
        uint32_t index

    int st_inspect_open(st_inspect *v, int fd)
    int st_trace_read(const st_inspect *v, uint32_t die, st_trace_die *d, st_trace *trace)
    int st_trace_names_read(const st_inspect *v, uint32_t die, const st_trace *trace, uint8_t *room, uint32_t *used)
    int st_trace_slice_read(const st_inspect *v, uint32_t die, uint32_t k, st_trace_event *room, st_trace_found *found)
    double st_trace_rate(const st_inspect *v, uint32_t clock, uint64_t ticks, uint64_t ns)
    uint32_t st_trace_name(st_ctx *ctx, const char *text, uint32_t nbytes)
    void st_trace_mark(st_tracer *t)
    void st_trace_span(st_tracer *t, uint64_t what, uint64_t arg)
    uint64_t st_now_ns()
    uint32_t st_flight_clock()
    uint64_t st_flight_ticks(uint32_t clock)
    void st_flight_moment(uint32_t clock, uint64_t *ticks, uint64_t *ns)


OFF, RING, STOP = tracemode.OFF, tracemode.RING, tracemode.STOP
set_mode, mode, clear = tracemode.set_mode, tracemode.mode, tracemode.clear
NOBODY = ST_TRACE_NOBODY
# By their numbers: enum st_trace_kind, st_trace_why, st_trace_role, st_sdma_type.
KINDS = ("", "call", "call more", "probe", "arrive", "wait", "check", "map", "copy", "reduce", "accumulate", "flag set",
         "flag wait", "submit", "doorbell", "dma", "notify", "send", "recv", "mailbox", "sample", "idle")
WHYS = ("arrival", "execution", "completion", "posts", "drain", "work", "stream", "message", "lock")
ROLES = ("", "caller", "core", "worker", "transfers", "engine", "registrar", "other")
DESCRIPTORS = ("", "copy", "reduce", "accumulate", "fill", "write", "add", "count", "gate", "notify", "nop", "call")
EVENT = np.dtype([("begin", "<u8"), ("end", "<u8"), ("kind", "u1"), ("core", "u1"), ("peer", "<u2"), ("index", "<u4"),
                  ("arg", "<u8")])
MORE = KINDS.index("call more")  # whose begin and end are no times
SLACK = 1 << 24  # ticks that an event may end after it was read, by another CPU's counter


cdef dict _names = {}
cdef object _of = None  # the context that they are of


def name(Context context, str text):
    """The number of a text in this die's trace, for events; 0 if the table is full, which is counted.  A text of more
    than 1024 bytes is cut."""
    global _names, _of
    if context is not _of:
        _names, _of = {}, context
    number = _names.get(text)
    if number is None:
        data = text.encode(errors="replace")[:ST_TRACE_NAME_MOST].decode(errors="ignore").encode()
        number = st_trace_name(&context.ctx, data, <uint32_t>len(data))
        if number:
            _names[text] = number
    return number


def ticks(Context context):
    """The clock that events have."""
    return st_flight_ticks(st_flight_clock())


def emit(Context context, uint32_t kind, uint64_t begin, uint64_t end, uint32_t index=0, uint64_t arg=0,
         uint32_t peer=ST_TRACE_NOBODY, uint32_t core=0):
    """Writes an event of the calling thread, if this die is traced."""
    cdef st_tracer *t
    if not 0 < kind < ST_TRACE_KINDS:
        raise errors.InvalidArgument(f"kind={kind}: 1 to {ST_TRACE_KINDS - 1} is expected")
    t = st_trace_on(&context.ctx)
    if t != NULL:
        write(t, kind, begin, end, index, arg, peer, core)


def event_ns(Context context, uint32_t times):
    """Nanoseconds of a span, the mean of many in a loop, on the calling thread's slice: for benchmarks.  0: the die is
    not traced."""
    cdef st_tracer *t = st_trace_on(&context.ctx)
    cdef uint64_t begin = st_now_ns()
    cdef uint32_t k
    if t == NULL:
        return 0.0
    with nogil:
        st_trace_mark(t)
        for k in range(times):
            st_trace_span(t, ST_TRACE_WHAT(ST_TRACE_PROBE, 0, ST_TRACE_NOBODY, 0), k)
    return (st_now_ns() - begin) / <double>times


def thread(Context context, uint32_t role, uint32_t index=0):
    """Says what the calling thread is (its number in ROLES) if it is not one that calls the library."""
    if not 0 < role < ST_TRACE_ROLES:
        raise errors.InvalidArgument(f"role={role}: 1 to {ST_TRACE_ROLES - 1} is expected")
    st_trace_as(&context.ctx, role, index)


cdef int check(int rc, str what) except -1:
    if rc == ST_ESYS:
        raise OSError(errno, os.strerror(errno))
    if rc != ST_OK:
        raise errors.from_status(ST_EABI, what)
    return 0


cdef list names_of(const st_inspect *v, uint32_t rank, const st_trace *trace):
    """The texts of a die by their numbers, of which 0 is none."""
    cdef bytearray room = bytearray(ST_TRACE_NAMES)
    cdef uint32_t used = 0
    check(st_trace_names_read(v, rank, trace, room, &used), f"the names in the trace of die {rank} cannot be read")
    found, at = [""], 0
    while at < <int>used:
        end = at + 2 + (room[at] | room[at + 1] << 8)
        found.append(room[at + 2:end].decode(errors="replace"))
        at = end
    return found


cdef object sound(object events, uint64_t now):
    """Those of the events that can be: others are what a die that writes, or that was killed, left half written."""
    kind = events["kind"]
    times = (events["begin"] <= events["end"]) & (events["end"] <= now + SLACK) | (kind == MORE)
    return events[(kind > 0) & (kind < ST_TRACE_KINDS) & times]


cdef double rate_of(const st_inspect *v, uint32_t clock, uint64_t now, uint64_t now_ns) noexcept:
    """Nanoseconds of a tick, measured here if the job does not tell it."""
    cdef double rate = st_trace_rate(v, clock, now, now_ns)
    cdef uint64_t at = now, at_ns = now_ns
    while rate == 0.0 and at_ns < now_ns + 2000000:
        st_flight_moment(clock, &at, &at_ns)
    return rate if rate else <double>(at_ns - now_ns) / <double>(at - now)


def read(source, uint32_t rank):
    """What a die has traced: a dict.

    slices: of each thread that has: role and index (ROLES), tid, events (an array of EVENT in the order in which they
    were written, that is, by their ends), lost (events that are not among them: written over, or for which there was
    no room).  lost: of threads that have no slice.  names: by their numbers; 0 is none.  names_lost.  ticks, ns: one
    moment, by the events' clock and by CLOCK_MONOTONIC; ns_per_tick; pid of the die.

    ``source``: a Context, or an Inspector of the job.  CorruptSpace: it is no UB space; InvalidArgument: no such die.
    """
    cdef st_inspect v
    cdef st_trace_die die
    cdef st_trace trace
    cdef st_trace_found found
    cdef st_trace_event *room = NULL
    cdef uint64_t now = 0, now_ns = 0
    cdef uint32_t k, clock = st_flight_clock()
    cdef char *part
    cdef int rc
    if not isinstance(source, (Context, Inspector)):
        raise TypeError(f"{source!r}: a Context or an Inspector is expected")
    check(st_inspect_open(&v, (<Context>source).ctx.fd if isinstance(source, Context) else source.fileno()),
          "the object is not a UB space of this version of strata")
    if rank >= v.h.ndies:
        raise errors.InvalidArgument(f"die {rank} of {v.h.ndies}")
    rc = st_trace_read(&v, rank, &die, &trace)
    check(ST_OK if rc == ST_AGAIN else rc, f"the trace of die {rank} cannot be read")
    slices, names = [], [""]
    try:
        if rc == ST_OK:
            names = names_of(&v, rank, &trace)
            room = <st_trace_event *>malloc(v.h.trace_events * sizeof(st_trace_event))
            if room == NULL:
                raise MemoryError
        for k in range(ST_TRACE_SLICES if rc == ST_OK else 0):
            check(st_trace_slice_read(&v, rank, k, room, &found), f"the trace of die {rank} cannot be read")
            st_flight_moment(clock, &now, &now_ns)
            if found.role:
                part = <char *>room
                events = np.frombuffer(part[found.first * sizeof(st_trace_event):
                                            (found.first + found.count) * sizeof(st_trace_event)], EVENT)
                kept = sound(events, now)
                slices.append({"role": ROLES[found.role], "index": found.index, "tid": found.tid, "events": kept,
                               "lost": found.lost + <uint64_t>(len(events) - len(kept))})
    finally:
        free(room)
    st_flight_moment(clock, &now, &now_ns)
    return {"slices": slices, "lost": die.trace_lost, "names": names,
            "names_lost": trace.names_lost if rc == ST_OK else 0, "ticks": now, "ns": now_ns,
            "ns_per_tick": rate_of(&v, clock, now, now_ns), "pid": die.pid}
