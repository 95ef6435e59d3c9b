"""Reductions and copies for the modules that run plans, without compiling them again."""

from libc.stdint cimport uint64_t


from strata._core.abi cimport st_accumulate_fn, st_reduce_fn, st_reduce_partial_fn


cdef extern from "st_kernels_api.h" nogil:
    ctypedef int st_weigh_fn(int dtype, void *dst, const void *const *src, const float *weights, int nsrc,
                             const void *const *bias, uint64_t count) noexcept
    ctypedef void st_copy_fn(void *dst, const void *src, uint64_t bytes, int nt) noexcept


# The kernels of this process; never NULL.
cdef st_reduce_fn *reduce_fn() noexcept nogil
cdef st_reduce_partial_fn *reduce_partial_fn() noexcept nogil
cdef st_accumulate_fn *accumulate_fn() noexcept nogil
cdef st_copy_fn *copy_fn() noexcept nogil
cdef st_weigh_fn *weigh_fn() noexcept nogil
