from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from strata._core.space cimport Context


cdef extern from "Python.h":
    int PyTraceMalloc_Track(unsigned int domain, uintptr_t ptr, size_t size) noexcept
    int PyTraceMalloc_Untrack(unsigned int domain, uintptr_t ptr) noexcept


cdef extern from "st_heap.h" nogil:
    uint64_t ST_HEAP_PAGE
    enum:
        ST_HEAP_ARRAY
        ST_HEAP_GROUP
        ST_HEAP_CHANNEL
        ST_HEAP_STAGING
        ST_HEAP_FOREIGN
        ST_HEAP_RAW
        ST_HEAP_SDMA
        ST_HEAP_TAGS
        ST_HEAP_ZEROED
    struct st_heap:
        uint64_t pool_pages
    struct st_heap_config:
        uint64_t base
        uint64_t segment_pages
        uint64_t most_pages
        uint64_t cache_bytes
        uint64_t limit_bytes
        int (*map)(void *arg, uint64_t npages, uint64_t *va) noexcept
        int (*extend)(void *arg, uint64_t va, uint64_t npages) noexcept
        int (*unmap)(void *arg, uint64_t va, uint64_t npages) noexcept
        void *arg
    struct st_heap_stat:
        uint64_t now[3]
        uint64_t peak[3]
        uint64_t added[3]
    struct st_heap_stats_t "st_heap_stats":
        st_heap_stat count
        st_heap_stat allocated
        st_heap_stat requested
        st_heap_stat reserved
        st_heap_stat segments
        st_heap_stat holes
        st_heap_stat hole_bytes
        uint64_t cached_bytes
        uint64_t maps
        uint64_t unmaps
        uint64_t remaps
        uint64_t remapped_pages
        uint64_t flushes
        uint64_t refusals
        uint64_t bad_frees
        uint64_t unmap_errors
        uint64_t largest_free
    struct st_heap_range:
        uint64_t va
        uint64_t bytes
        uint64_t requested
        uint32_t kind
        uint32_t fresh
        uint32_t tag
    struct st_heap_ranges:
        st_heap_range *item
        uint64_t room
        uint64_t count
    struct st_heap_node:
        pass


cdef enum:
    TRACE_DOMAIN = 0x53545241  # under which tracemalloc knows fabric memory
    NUMPY_DOMAIN = 389047  # numpy's, for what it allocates itself when it is intercepted


cdef class Heap:
    cdef st_heap *h
    cdef void *arena
    cdef size_t arena_bytes
    cdef readonly object source  # what the pages come from; kept as long as the heap
    cdef readonly object limit  # most bytes that may be reserved; None: all that the source has
    cdef tuple groups  # memory cgroups with a limit
    cdef uint64_t take(self, uint64_t nbytes, int tag, int *fresh) except 0
    cdef uint64_t grow(self, uint64_t nbytes, int tag, int *fresh, int rc) except 0


cdef Heap make_heap(const st_heap_config *config, object source, tuple groups)
cpdef Heap heap_of(Context ctx)
