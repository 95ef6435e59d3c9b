/* Page table, frames, shadow mappings and the metadata log.
 *
 * The owner's table (shared) is the authority: one word per 2 MiB page.  Each
 * die keeps a shadow table of the words whose pages it has mapped; equal words
 * mean that the mapping here is the right one.
 */
#ifndef ST_PAGE_H
#define ST_PAGE_H

#include <stdlib.h>
#include <sys/mman.h>

#include "st_bits.h"
#include "st_frames.h"
#include "st_live.h"

/* ---- metadata log ------------------------------------------------------------ */

static inline void st_log_append(struct st_ctx *ctx, uint32_t kind, uint64_t va, uint64_t npages)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    uint64_t head = st_load_relaxed_64(&me->log_head);
    struct st_log_record *r = &st_log(ctx, ctx->rank)[head % ST_LOG_RECORDS];

    st_store_relaxed_64(&r->seq, 0); /* a reader that is being lapped sees a hole, not a mixture */
    st_fence_seqcst();
    st_store_relaxed_32(&r->kind, kind);
    st_store_relaxed_32(&r->npages, (uint32_t)npages);
    st_store_relaxed_64(&r->va, va);
    st_store_relaxed_64(&r->time_ns, st_now_ns());
    st_store_release_64(&r->seq, head + 1);       /* pairs with st_shadow_follow */
    st_store_release_64(&me->log_head, head + 1); /* pairs with st_log_head */
    st_count(&ctx->count.log_records, 1);
}

static inline uint64_t st_log_head(const struct st_ctx *ctx, uint32_t die)
{
    return st_load_acquire_64(&ctx->dies[die].log_head); /* pairs with st_log_append */
}

/* ---- the owner's side -------------------------------------------------------- */

static inline int st_unmap_range(struct st_ctx *ctx, uint64_t va, uint64_t n)
{
    (void)ctx;
    return mmap((void *)(uintptr_t)va, n << ST_PAGE_SHIFT, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED
               ? ST_ESYS
               : ST_OK;
}

/* Frees own pages [at, at + n) of the segment; those not mapped are left. */
static inline int st_pages_release(struct st_ctx *ctx, uint64_t at, uint64_t n)
{
    uint64_t *table = st_table(ctx, ctx->rank), i, run, frame;
    int rc = ST_OK, one;

    for (i = at; i < at + n; i += run) {
        uint64_t w = st_load_relaxed_64(&table[i]);

        run = 1;
        if (ST_PTE_STATE(w) != ST_PAGE_MAPPED)
            continue;
        frame = ST_PTE_FRAME(w) - ctx->rank * ctx->hbm_pages;
        while (i + run < at + n && ST_PTE_STATE(st_load_relaxed_64(&table[i + run])) == ST_PAGE_MAPPED &&
               ST_PTE_FRAME(st_load_relaxed_64(&table[i + run])) == ST_PTE_FRAME(w) + run)
            run++;
        for (uint64_t k = i; k < i + run; k++) /* pairs with st_ensure_mapped */
            st_store_release_64(&table[k],
                                ST_PTE(0, ST_PTE_GEN(st_load_relaxed_64(&table[k])) + 1, ST_PAGE_FREE));
        one = st_unmap_range(ctx, st_segment(ctx, ctx->rank) + (i << ST_PAGE_SHIFT), run);
        rc = rc == ST_OK ? one : rc;
        one = st_frames_punch(ctx, frame, run);
        rc = rc == ST_OK ? one : rc;
        st_bits_set(ctx->frame_used, frame, run, 0);
        ctx->frames_left += run;
        st_count(&ctx->count.pages_unmapped, run);
    }
    st_bits_set(ctx->page_used, at, n, 0);
    st_store_relaxed_64(&ctx->dies[ctx->rank].pages_reserved, ctx->hbm_pages - ctx->frames_left);
    return rc;
}

/* One contiguous run of frames under pages [at, at + *n). */
static inline int st_pages_back(struct st_ctx *ctx, uint64_t at, uint64_t want, uint64_t *got)
{
    uint64_t *table = st_table(ctx, ctx->rank), frame, va, i;
    int rc;

    frame = st_bits_find(ctx->frame_used, ctx->hbm_pages, 0, want, 1, got);
    if (!*got)
        frame = st_bits_find(ctx->frame_used, ctx->hbm_pages, 0, want, 0, got);
    if (!*got)
        return ST_ENOMEM;
    va = st_segment(ctx, ctx->rank) + (at << ST_PAGE_SHIFT);
    st_frames_punch(ctx, frame, *got); /* what a late writer may have left in free frames must not show */
    st_frames_huge(ctx, va, frame, *got);
    rc = st_frames_reserve(ctx, frame, *got);
    if (rc == ST_OK)
        rc = st_map_frames(ctx, va, ctx->rank * ctx->hbm_pages + frame, *got, 1);
    if (rc != ST_OK) {
        int err = errno;

        st_unmap_range(ctx, va, *got);
        st_frames_punch(ctx, frame, *got);
        errno = err;
        return rc;
    }
    st_bits_set(ctx->frame_used, frame, *got, 1);
    ctx->frames_left -= *got;
    st_count(&ctx->count.pages_mapped, *got);
    for (i = 0; i < *got; i++) /* pairs with st_ensure_mapped */
        st_store_release_64(&table[at + i],
                            ST_PTE(ctx->rank * ctx->hbm_pages + frame + i,
                                   ST_PTE_GEN(st_load_relaxed_64(&table[at + i])) + 1,
                                   ST_PAGE_MAPPED));
    return ST_OK;
}

/* Reserves a run of npages pages of this die's segment with frames under it,
 * mapped here and published.  ST_ENOMEM: HBM share, file system or cgroup is
 * full; nothing has changed then. */
static inline int st_pages_map(struct st_ctx *ctx, uint64_t npages, uint64_t *va)
{
    uint64_t at, found, done = 0, got;
    int rc = ST_OK;

    if (npages == 0)
        return ST_EINVAL;
    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    if (npages > ctx->frames_left) {
        rc = ST_ENOMEM;
        goto out;
    }
    at = st_bits_find(ctx->page_used, ctx->seg_pages, 0, npages, 1, &found);
    if (!found) {
        rc = ST_ENOMEM;
        goto out;
    }
    rc = st_table_reserve(ctx, at + npages);
    if (rc != ST_OK)
        goto out;
    st_bits_set(ctx->page_used, at, npages, 1);
    while (done < npages && rc == ST_OK) {
        rc = st_pages_back(ctx, at + done, npages - done, &got);
        done += rc == ST_OK ? got : 0;
    }
    if (rc != ST_OK) {
        int err = errno;

        st_pages_release(ctx, at, npages);
        errno = err;
        goto out;
    }
    *va = st_segment(ctx, ctx->rank) + (at << ST_PAGE_SHIFT);
    st_log_append(ctx, ST_LOG_MAP, *va, npages);
    st_store_relaxed_64(&ctx->dies[ctx->rank].pages_reserved, ctx->hbm_pages - ctx->frames_left);
out:
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Gives back pages [va, va + npages), any part of earlier runs. */
static inline int st_pages_unmap(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at = (va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT, i;
    int rc = ST_OK;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (va % ST_PAGE_BYTES || st_owner(ctx, va) != (int64_t)ctx->rank || npages == 0 ||
        npages > ctx->seg_pages || at + npages > ctx->seg_pages)
        return ST_EINVAL;
    pthread_mutex_lock(&ctx->lock);
    if (at + npages > st_table_top(ctx, ctx->rank))
        rc = ST_EINVAL;
    for (i = at; i < at + npages && rc == ST_OK; i++)
        if (ST_PTE_STATE(st_load_relaxed_64(&st_table(ctx, ctx->rank)[i])) != ST_PAGE_MAPPED)
            rc = ST_EINVAL;
    if (rc == ST_OK) {
        rc = st_pages_release(ctx, at, npages);
        /* After the table has changed: who follows the log up to here finds it changed. */
        st_log_append(ctx, ST_LOG_UNMAP, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

#endif
