"""Reductions and copies for the modules that run plans, without compiling them again."""

from libc.stdint cimport uint64_t


cdef extern from "st_kernels_api.h" nogil:
    ctypedef int st_reduce_fn(int dtype, int op, void **dst, int ndst, const void **src,
                              int nsrc, uint64_t count, int nt) noexcept
    ctypedef void st_copy_fn(void *dst, const void *src, uint64_t bytes, int nt) noexcept


# st_reduce and st_copy of this process; never NULL.
cdef st_reduce_fn *reduce_fn() noexcept nogil
cdef st_copy_fn *copy_fn() noexcept nogil
