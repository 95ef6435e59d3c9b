"""Flags, from the host: words of fabric memory that gates wait for."""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport ST_EINTR, ST_ETIMEOUT, ST_OK, st_ctx, st_wait_policy
from strata._core.space cimport Context, deadline_of, st_raise_pending

from strata import errors


cdef extern from "st_flag.h" nogil:
    int st_flag_read(st_ctx *ctx, uint64_t va, uint64_t *value)
    int st_flag_write(st_ctx *ctx, uint64_t va, uint64_t value)
    int st_flag_wait(st_ctx *ctx, uint64_t va, uint64_t value, uint32_t die, const st_wait_policy *policy,
                     uint64_t timeout_ns)


def read(Context context, uint64_t va):
    """What the flag at an address holds."""
    cdef uint64_t value = 0
    failed(st_flag_read(&context.ctx, va, &value), va)
    return value


def write(Context context, uint64_t va, uint64_t value):
    """Raises the flag at an address, and rings the DMA thread of the die that has it."""
    failed(st_flag_write(&context.ctx, va, value), va)


def wait(Context context, uint64_t va, uint64_t value, uint32_t die, timeout):
    """Waits until the flag has come to ``value``; PeerDead if ``die`` (another one) dies first."""
    cdef uint64_t ns = deadline_of(timeout, context)
    cdef int rc
    with nogil:
        rc = st_flag_wait(&context.ctx, va, value, die, &context.ctx.wait, ns)
    if rc == ST_EINTR:
        st_raise_pending()
    failed(rc, va, die)


cdef object failed(int rc, uint64_t va, object die=None):
    if rc != ST_OK:
        ranks = () if die is None else (die,)
        what = "did not come to the value in time" if rc == ST_ETIMEOUT else \
            f"is poisoned, or no flag: {errors.STATUS[rc].name}"
        raise errors.from_status(rc, f"flag {va:#x} {what}", errno=errno, ranks=ranks, operation="sdma")
