"""A plan's descriptors as data, for those who keep them: what the executor makes as it goes along."""

cimport numpy as cnp
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

import numpy as np

from strata._core.abi cimport ST_OK
from strata._core.planned cimport PlanHandle
from strata._core.space cimport Context

from strata import errors
from strata._core.descriptors import DESCRIPTOR

cnp.import_array()


cdef uint64_t block_of(object block) except 0:
    if not 64 <= block <= 64 << 20 or block % 64:
        raise errors.InvalidArgument(f"block={block}: bytes of a descriptor, a multiple of 64 up to 64 MiB, are wanted")
    return block


def room(PlanHandle handle, block=ST_SDMA_BLOCK):
    """(Descriptors, operands in the lists of reductions) of a plan whose descriptors carry ``block`` bytes at most."""
    cdef uint64_t descriptors = 0, operands = st_lower_operands(&handle.c, block_of(block), &descriptors)
    return descriptors, operands


def lower(Context context, PlanHandle handle, uint32_t me, bases, flag_at, *, uint64_t number, uint64_t counters,
          uint64_t lists, uint64_t space, block=ST_SDMA_BLOCK, uint64_t wake_at=0, uint32_t event=0,
          uint8_t flags=0):
    """The descriptors of each core of member ``me``'s plan, in order: a list of arrays of DESCRIPTOR, sealed.

    ``bases``     u64 (members, 3): addresses of each member's SRC, OUT and SCRATCH
    ``flag_at``   u64 (members,): where each member's flags begin; with WORLD in ``flags``, in the world group's memory
    ``number``    that flags are raised to and waited for; with RELATIVE in ``flags``, what a call adds to
    ``counters``  address of a u64 for each of the plan's flags, zero whenever the descriptors begin: fabric memory
    ``lists``     address of room for ``space`` operands of 16 bytes (``room``), which is filled: fabric memory
    ``wake_at``   as ``flag_at``: the futex word, its sleepers behind it, before own flags; 0: none
    ``flags``     WORLD, RELATIVE and SILENT of the descriptors that touch flags
    """
    cdef st_lowering l
    cdef cnp.ndarray b = np.ascontiguousarray(bases, np.uint64), f = np.ascontiguousarray(flag_at, np.uint64), out
    cdef uint64_t u, k, n, at
    cdef uint32_t c
    cdef int rc
    memset(&l, 0, sizeof(l))
    if (<object>b).shape != handle.shape or (<object>f).shape != (handle.shape[0],) or me >= handle.shape[0]:
        raise ValueError(f"bases {(<object>b).shape}, flag_at {(<object>f).shape}, me {me}: the plan has members and "
                         f"buffers {handle.shape}")
    l.ctx, l.p, l.me, l.event = &context.ctx, &handle.c, me, event
    l.bases = <const st_base *>cnp.PyArray_DATA(b)
    l.flag_at = <const uint64_t *>cnp.PyArray_DATA(f)
    l.number, l.counters, l.lists, l.room, l.wake_at = number, counters, lists, space, wake_at
    l.flag_bits, l.block = flags, block_of(block)
    cores = []
    for c in range(handle.c.cores):
        n = 0
        for u in range(handle.c.core_begin[c], handle.c.core_begin[c + 1]):
            n += st_lower_pieces(&handle.c.units[u], l.block)
        out = np.empty(n, DESCRIPTOR)
        at = <uint64_t>cnp.PyArray_DATA(out)
        for u in range(handle.c.core_begin[c], handle.c.core_begin[c + 1]):
            for k in range(st_lower_pieces(&handle.c.units[u], l.block)):
                rc = st_lower(&l, &handle.c.units[u], k, <st_descriptor *>at)
                if rc != ST_OK:
                    raise errors.from_status(rc, f"the lists of the plan's reductions need more than {space} operands")
                at += 64
        cores.append(out)
    return cores
