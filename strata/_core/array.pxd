from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    RAW = 0x8000  # dtype codes of the fingerprint from here on: data movement only


cdef struct Array:
    void *data
    uint64_t nbytes
    uint64_t count
    uint32_t dtype      # code in the fingerprint
    uint32_t itemsize
    bint contiguous
    bint writeable


cdef int look(object a, Array *d) except -1
