"""Flags, from the host: words of fabric memory that gates wait for."""

from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t

from strata._core.abi cimport ST_EDEAD, ST_EINTR, ST_EREG, ST_ETIMEOUT, ST_OK, st_ctx, st_wait_policy
from strata._core.space cimport Context, deadline_of, st_raise_pending
from strata._core.submission cimport st_lane

from strata import errors
from strata._core.descriptors import POISON, phrase


cdef extern from "st_flag.h" nogil:
    int st_flag_read(st_ctx *ctx, uint64_t va, uint64_t *value)
    int st_flag_write(st_ctx *ctx, uint64_t va, uint64_t value)
    int st_flag_wait(st_ctx *ctx, uint64_t va, uint64_t value, uint32_t die, const st_lane *lane,
                     const st_wait_policy *policy, uint64_t timeout_ns)


def read(Context context, uint64_t va):
    """What the flag at an address holds."""
    cdef uint64_t value = 0
    failed(context, st_flag_read(&context.ctx, va, &value), va)
    return value


def write(Context context, uint64_t va, uint64_t value):
    """Raises the flag at an address, and rings the DMA thread of the die that has it."""
    failed(context, st_flag_write(&context.ctx, va, value), va)


def wait(Context context, uint64_t va, uint64_t value, uint32_t die, timeout):
    """Waits until the flag has come to ``value``; PeerDead if ``die`` (another one) dies first."""
    cdef uint64_t ns = deadline_of(timeout, context)
    cdef int rc
    with nogil:
        rc = st_flag_wait(&context.ctx, va, value, die, NULL, &context.ctx.wait, ns)
    if rc == ST_EINTR:
        st_raise_pending()
    failed(context, rc, va, die, value)


cdef object failed(Context context, int rc, uint64_t va, object die=None, uint64_t wanted=0):
    cdef uint64_t value = 0
    if rc == ST_OK:
        return
    if va % 8:
        what = "is no flag: its address is no multiple of 8"
    elif die is not None and st_flag_read(&context.ctx, va, &value) == ST_OK and value & <uint64_t>POISON:
        what = f"is poisoned, since what was to raise it has failed: {phrase(rc)}"
    elif rc == ST_EREG:
        what = "is not there, or may not be written to: it was never allocated, or has been given back"
    elif rc == ST_EDEAD and die is not None:
        what = f"was not raised: rank {die} died, or left the job"
    elif rc == ST_ETIMEOUT:
        what = f"did not come to {wanted} in time: it holds {value}"
    else:
        what = phrase(rc)
    raise errors.from_status(rc, f"flag {va:#x} {what}", errno=errno, ranks=() if die is None else (die,),
                             operation="sdma")
