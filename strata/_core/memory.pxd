from libc.stdint cimport uint32_t, uint64_t
cimport numpy as cnp

from strata._core.abi cimport st_ctx
from strata._core.space cimport Context


cdef extern from "st_heap.h" nogil:
    uint64_t ST_HEAP_PAGE
    struct st_heap:
        pass
    struct st_heap_config:
        uint64_t base
        uint64_t segment_pages
        uint64_t most_pages
        uint64_t cache_bytes
        int (*map)(void *arg, uint64_t npages, uint64_t *va) noexcept
        int (*unmap)(void *arg, uint64_t va, uint64_t npages) noexcept
        void *arg
    struct st_heap_stats_t "st_heap_stats":
        uint64_t allocated_bytes
        uint64_t allocated_peak
        uint64_t requested_bytes
        uint64_t reserved_bytes
        uint64_t reserved_peak
        uint64_t cached_bytes
        uint64_t live
        uint64_t allocations
        uint64_t maps
        uint64_t unmaps
        uint64_t flushes
        uint64_t bad_frees
        uint64_t unmap_errors
        uint64_t largest_free
    struct st_heap_range:
        uint64_t va
        uint64_t bytes
        uint64_t requested
        uint32_t kind
        uint32_t fresh
    struct st_heap_ranges:
        st_heap_range *item
        uint64_t room
        uint64_t count
    struct st_heap_node:
        pass


cdef class Heap:
    cdef st_heap *h
    cdef void *arena
    cdef size_t arena_bytes
    cdef readonly object source  # what the pages come from; kept as long as the heap
    cdef tuple groups  # memory cgroups with a limit
    cdef uint64_t take(self, uint64_t nbytes, int *fresh) except 0
    cdef uint64_t grow(self, uint64_t nbytes, int *fresh, int rc) except 0
    cdef object new_array(self, int nd, const cnp.npy_intp *dims, cnp.dtype descr, bint zero)


cdef Heap make_heap(const st_heap_config *config, object source, tuple groups)
cpdef Heap heap_of(Context ctx)
cpdef object alloc_array(Context ctx, object shape, object dtype, bint zero=*)
