"""C declarations shared by the modules of the core.

Structs that live in shared memory are opaque here on purpose: Cython must
never read or write a field of them (it would compile a poll to an endless
loop).  C functions do.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "st_status.h" nogil:
    enum:
        ST_OK
        ST_EINVAL
        ST_ENOMEM
        ST_ESYS
        ST_EDEAD
        ST_ETIMEOUT
        ST_EMISMATCH
        ST_EBROKEN
        ST_EINTR
        ST_EREG
        ST_ENOJOB
        ST_EABI
        ST_ECORRUPT
        ST_EUNSUPPORTED
        ST_AGAIN
        ST_EMAPS
        ST_EFILE
        ST_ECANCELED
        ST_EDEADLOCK
        ST_EFULL
        ST_NSTATUS


cdef extern from "st_abi.h" nogil:
    uint64_t ST_PAGE_BYTES
    uint64_t ST_MAGIC
    uint32_t ST_MAX_DIES
    uint32_t ST_HEADER_BYTES
    enum:
        ST_DIE_ABSENT
        ST_DIE_JOINED
        ST_DIE_LEFT

    struct st_header:
        uint64_t magic
        uint64_t object_bytes
        uint64_t control_offset
        uint64_t control_bytes
        uint64_t hbm_bytes
        uint64_t seg_bytes
        uint64_t token[2]
        uint64_t world_off
        uint64_t mailbox_bytes
        uint32_t ndies

    struct st_die:
        pass


cdef extern from "st_spread.h" nogil:
    struct st_spread:
        uint32_t me
        uint32_t moves

    void st_spread_leave(st_spread *s)


cdef extern from "st_wait.h" nogil:
    struct st_wait_policy:
        uint32_t pauses
        uint64_t sleep_ns
        uint64_t poll_ns
        int (*poll)(void *) noexcept
        void *arg
        st_spread *spread


cdef extern from "st_kernels_api.h" nogil:
    ctypedef int st_reduce_fn(int dtype, int op, void **dst, int ndst, const void **src, int nsrc,
                              uint64_t count, int nt) noexcept
    ctypedef int st_reduce_partial_fn(int dtype, int op, void **dst, int ndst, const uint64_t *dst_partial,
                                      const void **src, int nsrc, const uint64_t *src_partial, int total,
                                      uint64_t count) noexcept
    ctypedef int st_accumulate_fn(int dtype, int op, void *dst, const void *src, uint64_t count) noexcept


cdef extern from "st_ctx.h" nogil:
    struct st_crew:
        pass

    struct st_counters:
        uint64_t operations
        uint64_t mailbox_operations
        uint64_t plan_hits
        uint64_t plan_misses
        uint64_t staged_bytes
        uint64_t log_records
        uint64_t pages_mapped
        uint64_t pages_unmapped
        uint64_t shadow_maps
        uint64_t shadow_map_calls
        uint64_t shadow_unmaps
        uint64_t rescans
        uint64_t registrar_wakes
        uint64_t registrar_errors
        uint64_t lag_max
        uint64_t late_maps
        uint64_t late_map_ns
        uint64_t reclaimed
        uint64_t reclaimed_unread
        uint64_t waits
        uint64_t sends
        uint64_t casts
        uint64_t recvs

    struct st_position:
        uint64_t cursor

    struct st_follow:
        st_position at[2]
        uint64_t passed

    uint32_t ST_LATENCIES

    struct st_ctx:
        int fd
        uint32_t rank
        uint32_t ndies
        uint32_t pid
        uint64_t base
        uint64_t seg_bytes
        uint64_t seg_pages
        uint64_t hbm_pages
        uint64_t frames_left
        uint32_t huge
        uint64_t quarantined_frames
        uint64_t former_pages
        uint64_t quarantine_ns
        uint32_t lazy
        uint32_t closing
        uint32_t vmm
        st_follow *follow
        uint32_t *latencies
        uint64_t control_bytes
        st_header job
        st_reduce_fn *reduce
        st_reduce_partial_fn *reduce_partial
        st_accumulate_fn *accumulate
        void *engine  # struct st_engine: strata._core.engine
        st_crew *crew
        uint32_t workers
        st_wait_policy wait
        st_counters count
        st_spread spread

    int st_is_die(const st_ctx *ctx)
    int64_t st_owner(const st_ctx *ctx, uint64_t va)
    uint64_t st_segment(const st_ctx *ctx, uint32_t die)


cdef extern from "st_page.h" nogil:
    int st_pages_map(st_ctx *ctx, uint64_t npages, uint64_t *va)
    int st_pages_map_at(st_ctx *ctx, uint64_t va, uint64_t npages)
    int st_pages_unmap(st_ctx *ctx, uint64_t va, uint64_t npages)


cdef extern from "st_ready.h" nogil:
    int st_ensure_mapped(st_ctx *ctx, uint64_t va, uint64_t bytes, int writes)
    int st_is_ready(st_ctx *ctx, uint64_t va, uint64_t bytes)
    uint64_t st_log_head(const st_ctx *ctx, uint32_t die)
    uint64_t st_log_reached(const st_ctx *ctx, uint32_t owner, uint32_t reader)
    int st_shadow_follow(st_ctx *ctx, uint32_t die, uint64_t head, int maps)
    uint64_t st_latency_of(uint32_t k)


cdef extern from "st_group_layout.h" nogil:
    int st_mailbox_fits(uint64_t nbytes, uint64_t extra, uint32_t n, uint64_t mailbox_bytes)
