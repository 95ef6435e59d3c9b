"""Traces, for what is written in Cython: a probe is

    cdef st_tracer *t = st_trace_on(&context.ctx)    # NULL: off
    cdef uint64_t begin = st_trace_now(t) if t != NULL else 0
    ...
    if t != NULL:
        write(t, ST_TRACE_CALL, begin, st_trace_now(t), index, arg)

A tracer is the calling thread's, for as long as that lives.
"""

from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport st_ctx


cdef extern from "st_trace.h" nogil:
    enum:
        ST_TRACE_CALL
        ST_TRACE_CALL_MORE
        ST_TRACE_PROBE
        ST_TRACE_SAMPLE
        ST_TRACE_KINDS
        ST_TRACE_CALLER
        ST_TRACE_OTHER
        ST_TRACE_ROLES
        ST_TRACE_NOBODY

    struct st_tracer:
        uint64_t last

    uint32_t st_trace_mode(const st_ctx *ctx)
    st_tracer *st_trace_on(st_ctx *ctx)
    st_tracer *st_trace_as(st_ctx *ctx, uint32_t role, uint32_t index)
    uint64_t st_trace_now(const st_tracer *t)
    void st_trace_put(st_tracer *t, uint64_t what, uint64_t begin, uint64_t end, uint64_t arg)
    uint64_t ST_TRACE_WHAT(uint32_t kind, uint32_t core, uint32_t peer, uint32_t index)


cdef inline void write(st_tracer *t, uint32_t kind, uint64_t begin, uint64_t end, uint32_t index, uint64_t arg,
                       uint32_t peer=0xffff, uint32_t core=0) noexcept nogil:
    """Writes an event; t is not NULL."""
    st_trace_put(t, ST_TRACE_WHAT(kind, core, peer, index), begin, end, arg)
