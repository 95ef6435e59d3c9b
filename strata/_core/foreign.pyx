"""Shared file mappings of others, in this die's segment: where peers find them."""

cimport cython
from libc.errno cimport errno
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset
cimport numpy as cnp

from strata._core.abi cimport ST_AGAIN, ST_OK, st_ctx
from strata._core.space cimport Context

from strata import errors

cnp.import_array()


cdef extern from "<unistd.h>" nogil:
    int close(int fd)


cdef extern from "st_foreign_own.h" nogil:
    uint32_t ST_FOREIGN_SLOTS
    struct st_foreign:
        uint64_t device
        uint64_t inode
        uint64_t offset
        uint64_t bytes
        uint32_t fd
    int st_foreign_reachable(const st_ctx *ctx)
    int st_foreign_open(st_ctx *ctx, const st_foreign *f, int writes, uint64_t *va, uint32_t *slot)
    int st_foreign_close(st_ctx *ctx, uint64_t va, uint64_t nbytes, uint32_t slot)


SLOTS = ST_FOREIGN_SLOTS


@cython.final
@cython.no_gc
cdef class Window:
    """Part of a file in this die's segment.  Goes when the last array over it has gone."""

    cdef Context ctx
    cdef uint64_t va, nbytes
    cdef uint32_t slot
    cdef int fd

    def __init__(self):
        raise TypeError("use window()")

    def __dealloc__(self):
        if self.va:
            with nogil:
                st_foreign_close(&self.ctx.ctx, self.va, self.nbytes, self.slot)
                close(self.fd)


def reachable(Context ctx):
    """Whether all dies can open this process's descriptors, as far as can be told here."""
    return bool(st_foreign_reachable(&ctx.ctx))


def window(Context ctx, int fd, uint64_t device, uint64_t inode, uint64_t offset, uint64_t nbytes, bint writes):
    """Bytes of a file as a uint8 array at an address that all dies share.

    ``offset`` is a multiple of the host's page size.  The descriptor is the array's then, and stays
    open as long as that lives.  None, with the descriptor untouched, if the die has SLOTS of
    them already; FabricMemoryError if its segment has no such range of addresses.
    """
    cdef st_foreign f
    cdef Window self = Window.__new__(Window)
    cdef cnp.npy_intp size = <cnp.npy_intp>nbytes
    cdef cnp.ndarray array
    cdef uint64_t va = 0
    cdef uint32_t slot = 0
    cdef int rc, err
    memset(&f, 0, sizeof(f))
    f.device, f.inode, f.offset, f.bytes, f.fd = device, inode, offset, nbytes, <uint32_t>fd
    with nogil:
        rc = st_foreign_open(&ctx.ctx, &f, writes, &va, &slot)
        err = errno
    if rc == ST_AGAIN:
        return None
    if rc != ST_OK:
        raise errors.from_status(rc, f"{nbytes} bytes of a file cannot be mapped in the die's segment", errno=err)
    self.ctx, self.va, self.nbytes, self.slot, self.fd = ctx, va, nbytes, slot, fd
    array = cnp.PyArray_SimpleNewFromData(1, &size, cnp.NPY_UINT8, <void *><uintptr_t>va)
    if not writes:
        array.flags.writeable = False
    cnp.set_array_base(array, self)
    return array
