from libc.stdint cimport uint32_t, uint64_t

from strata._core.space cimport Context


cdef class tag:
    """Marks what a thread does in a block."""
    cdef dict own
    cdef list before


cdef int tell_group(Context context, uint64_t id, object group) except -1
cdef uint32_t place(Context context) except? 0xfffffffe
cdef uint64_t tags_of(Context context) except? 0xffffffffffffffff
