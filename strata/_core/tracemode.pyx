"""The switch of traces, for dies and for whoever looks at a job: strata._core.tracing has the rest."""

from libc.stdint cimport uint32_t

from strata._core.abi cimport st_ctx
from strata._core.space cimport Context

from strata import errors


cdef extern from "st_trace_read.h" nogil:
    enum:
        ST_TRACE_OFF
        ST_TRACE_RING
        ST_TRACE_STOP

    uint32_t st_trace_mode(const st_ctx *ctx)
    uint32_t st_trace_mode_of(const st_ctx *ctx, uint32_t die)
    void st_trace_set_mode(st_ctx *ctx, uint32_t die, uint32_t mode)
    void st_trace_clear(st_ctx *ctx, uint32_t die)


OFF, RING, STOP = ST_TRACE_OFF, ST_TRACE_RING, ST_TRACE_STOP


cdef object dies(Context context, object rank):
    """The dies that are meant: one, or (None) all."""
    if rank is None:
        return range(context.ctx.ndies)
    if not 0 <= rank < context.ctx.ndies:
        raise errors.InvalidArgument(f"die {rank} of {context.ctx.ndies}")
    return (rank,)


def set_mode(Context context, uint32_t mode, rank=None):
    """Switches tracing of a die, or (None) of all dies of the job: OFF, RING (the newest events stay) or STOP (the
    oldest stay).  The context may be one that has attached without being a die."""
    if mode not in (OFF, RING, STOP):
        raise errors.InvalidArgument(f"mode={mode}: {OFF} (off), {RING} (the newest events stay) or {STOP} (the oldest "
                                     "stay) is expected")
    for die in dies(context, rank):
        st_trace_set_mode(&context.ctx, die, mode)


def mode(Context context, rank=None):
    """The mode of a die; None: of this one."""
    if rank is None:
        return st_trace_mode(&context.ctx)
    return st_trace_mode_of(&context.ctx, dies(context, rank)[0])


def clear(Context context, rank=None):
    """What a die, or (None) any die of the job, has written so far is no longer part of its trace."""
    for die in dies(context, rank):
        st_trace_clear(&context.ctx, die)
