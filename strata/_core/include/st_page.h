/* A die's own pages: addresses of its segment, frames under them, its page table.
 *
 * The owner's table (shared) is the authority: one word per 2 MiB page.  Peers
 * keep a shadow table of the words whose pages they have mapped; equal words
 * mean that the mapping there is the right one.
 *
 * Addresses and frames have lives of their own: a range of addresses may be
 * reserved with nothing under it, frames may lie under several ranges, or (held
 * by a handle) under none.  st_pages_map and st_pages_unmap do both at once.
 */
#ifndef ST_PAGE_H
#define ST_PAGE_H

#include <stdlib.h>
#include <sys/mman.h>

#include "st_hold.h"
#include "st_quarantine.h"
#include "st_trace.h"

static inline uint64_t st_page_va(const struct st_ctx *ctx, uint64_t at)
{
    return st_segment(ctx, ctx->rank) + (at << ST_PAGE_SHIFT);
}

/* Writes the words that stand in the shadow table's own row into the table. */
static inline void st_pages_publish(struct st_ctx *ctx, uint64_t at, uint64_t n)
{
    uint64_t *table = st_table(ctx, ctx->rank), *own = st_shadow(ctx, ctx->rank), i;

    for (i = at; i < at + n; i++) { /* pairs with st_shadow_sync, st_ensure_mapped */
        st_store_release_64(&table[i], own[i]);
        ST_FAULT(WORD_AFTER);
        st_ready_mark(ctx->readable, i, ST_PTE_STATE(own[i]) == ST_PAGE_MAPPED || ST_PTE_STATE(own[i]) == ST_PAGE_READ);
        st_ready_set(ctx, ctx->rank, i, ST_PTE_STATE(own[i]) == ST_PAGE_MAPPED);
    }
}

/* Length of the run of pages from `at` that have the first one's state, over
 * contiguous frames. */
static inline uint64_t st_pages_run(const uint64_t *words, uint64_t at, uint64_t end)
{
    uint64_t w = st_load_relaxed_64(&words[at]), v, run;

    for (run = 1; at + run < end; run++) {
        v = st_load_relaxed_64(&words[at + run]);
        if (ST_PTE_STATE(v) != ST_PTE_STATE(w) ||
            (ST_PTE_STATE(w) != ST_PAGE_FREE && ST_PTE_FRAME(v) != ST_PTE_FRAME(w) + run))
            break;
    }
    return run;
}

/* Takes what lies under pages [at, at + n) away; pages with nothing are left.
 * The caller holds the lock, and appends the record that is `due`. */
static inline int st_pages_clear(struct st_ctx *ctx, uint64_t at, uint64_t n, uint64_t due)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), i, k, run, w;
    uint32_t still;
    int rc;

    for (i = at; i < at + n; i += run) {
        w = own[i];
        run = st_pages_run(own, i, at + n);
        if (ST_PTE_STATE(w) == ST_PAGE_FREE)
            continue;
        still = st_still_begin(ctx, st_page_va(ctx, i), run);
        rc = st_unmap_range(ctx, st_page_va(ctx, i), run);
        ST_FAULT(UNMAPPED);
        for (k = i; k < i + run && rc == ST_OK; k++)
            own[k] = ST_PTE(0, ST_PTE_GEN(own[k]) + 1, ST_PAGE_FREE);
        if (rc == ST_OK)
            st_pages_publish(ctx, i, run);
        st_still_end(ctx, still);
        if (rc != ST_OK)
            return rc;
        if (st_frame_own(ctx, ST_PTE_FRAME(w)))
            st_frames_refer(ctx, ST_PTE_FRAME(w) - ctx->rank * ctx->hbm_pages, run, -1, due);
        st_count(&ctx->count.pages_unmapped, run);
    }
    return ST_OK;
}

/* Takes at most `want` contiguous free frames, mapped and populated at own page
 * `at`; how many in *got.  Nobody refers to them yet, and nothing is published. */
static inline int st_frames_take(struct st_ctx *ctx, uint64_t at, uint64_t want, uint64_t *got)
{
    uint64_t frame, va = st_page_va(ctx, at), i, *own = st_shadow(ctx, ctx->rank);
    int rc, err;

    frame = st_frames_find(ctx, want, got);
    if (!*got)
        return ST_ENOMEM;
    st_frames_huge(ctx, va, frame, *got);
    rc = st_frames_reserve(ctx, frame, *got);
    if (rc == ST_OK)
        rc = st_map_frames(ctx, va, ctx->rank * ctx->hbm_pages + frame, *got, PROT_READ | PROT_WRITE, 1);
    if (rc != ST_OK) {
        err = errno;
        st_unmap_range(ctx, va, *got);
        st_frames_punch(ctx, frame, *got);
        errno = err;
        return rc;
    }
    ST_FAULT(FRAMES_TAKEN);
    st_bits_set(ctx->frame_used, frame, *got, 1);
    st_store_relaxed_64(&ctx->frames_left, ctx->frames_left - *got);
    for (i = 0; i < *got; i++)
        own[at + i] = ST_PTE(ctx->rank * ctx->hbm_pages + frame + i, ST_PTE_GEN(own[at + i]) + 1, ST_PAGE_MAPPED);
    return ST_OK;
}

/* Gives frames back that st_frames_take put at pages [at, at + n) and nobody saw. */
static inline void st_frames_untake(struct st_ctx *ctx, uint64_t at, uint64_t n)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), i, run, frame;

    st_unmap_range(ctx, st_page_va(ctx, at), n);
    for (i = at; i < at + n; i += run) {
        run = st_pages_run(own, i, at + n);
        frame = ST_PTE_FRAME(own[i]) - ctx->rank * ctx->hbm_pages;
        st_frames_punch(ctx, frame, run);
        st_frames_freed(ctx, frame, run);
    }
    for (i = at; i < at + n; i++)
        own[i] = ST_PTE(0, ST_PTE_GEN(own[i]), ST_PAGE_FREE); /* what stands in the table is older, and free */
}

/* Frames under the unused own pages [at, at + n), all or none; not published. */
static inline int st_pages_fill(struct st_ctx *ctx, uint64_t at, uint64_t n)
{
    uint64_t done = 0, got;
    int rc = n > ctx->frames_left ? ST_ENOMEM : st_table_reserve(ctx, at + n), err;

    if (rc != ST_OK)
        return rc;
    for (; done < n; done += got) {
        rc = st_frames_take(ctx, at + done, n - done, &got);
        if (rc != ST_OK) {
            err = errno;
            st_frames_untake(ctx, at, done);
            errno = err;
            return rc;
        }
    }
    return ST_OK;
}

/* One try of st_pages_map; *va 0: anywhere. */
static inline int st_pages_try(struct st_ctx *ctx, uint64_t npages, uint64_t *va)
{
    uint64_t at, found, k, *own = st_shadow(ctx, ctx->rank);
    int rc;

    pthread_mutex_lock(&ctx->lock);
    if (*va) {
        at = (*va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT;
        found = npages;
        for (k = at; k < at + npages && found; k++)
            found = st_bit(ctx->page_used, k) ? 0 : found;
        rc = found ? ST_OK : ST_EINVAL;
    } else {
        at = st_pages_room(ctx, npages, &found);
        rc = found ? ST_OK : ST_ENOMEM;
    }
    if (rc == ST_OK)
        rc = st_pages_fill(ctx, at, npages);
    if (rc == ST_OK) {
        st_bits_set(ctx->page_used, at, npages, 1);
        for (k = at; k < at + npages; k++)
            ctx->frame_refs[ST_PTE_FRAME(own[k]) - ctx->rank * ctx->hbm_pages] = 1;
        st_pages_publish(ctx, at, npages);
        st_count(&ctx->count.pages_mapped, npages);
        *va = st_page_va(ctx, at);
        st_store_relaxed_64(&ctx->dies[ctx->rank].pages_reserved, ctx->hbm_pages - ctx->frames_left);
        st_log_append(ctx, ST_LOG_MAP, *va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* st_pages_try, again while frames come out of quarantine: back-pressure on who
 * allocates faster than its peers unmap. */
static inline int st_pages_wait(struct st_ctx *ctx, uint64_t npages, uint64_t *va)
{
    struct st_tracer *t = st_trace_on(ctx);
    struct st_patience p;
    int rc;

    st_trace_begins(t);
    st_patience_begin(ctx, &p);
    do {
        rc = st_pages_try(ctx, npages, va);
    } while (st_patience_again(ctx, &p, rc));
    if (rc == ST_OK)
        ST_TRACE(t, ST_TRACE_MAP, 0, ctx->rank, npages, npages << ST_PAGE_SHIFT);
    return rc;
}

/* Own pages [va, va + npages) as an index; ST_EINVAL unless the table has them
 * all.  The caller holds the lock. */
static inline int st_pages_within(struct st_ctx *ctx, uint64_t va, uint64_t npages, uint64_t *at)
{
    *at = (va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT;
    return va % ST_PAGE_BYTES || st_owner(ctx, va) != (int64_t)ctx->rank || npages == 0 ||
                   npages > ctx->seg_pages || *at + npages > ctx->seg_pages
               ? ST_EINVAL
               : ST_OK;
}

/* Pages of this die's segment, none of which may be used: with frames under
 * them, zero, mapped here and published.  ST_EINVAL: they are in use, or outside.
 * ST_ENOMEM: HBM share, file system or cgroup is full; nothing has changed then. */
static inline int st_pages_map_at(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (st_pages_within(ctx, va, npages, &at) != ST_OK)
        return ST_EINVAL;
    return st_pages_wait(ctx, npages, &va);
}

/* The same where there is room. */
static inline int st_pages_map(struct st_ctx *ctx, uint64_t npages, uint64_t *va)
{
    uint64_t at = 0;
    int rc;

    if (npages == 0)
        return ST_EINVAL;
    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (npages > ctx->hbm_pages)
        return ST_ENOMEM;
    rc = st_pages_wait(ctx, npages, &at);
    if (rc == ST_OK)
        *va = at;
    return rc;
}

/* Gives back pages [va, va + npages), any part of earlier runs.  Their addresses
 * are free at once, the frames when no peer can have them mapped. */
static inline int st_pages_unmap(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at, i;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_pages_within(ctx, va, npages, &at);
    if (rc == ST_OK && at + npages > st_table_top(ctx, ctx->rank))
        rc = ST_EINVAL;
    for (i = at; rc == ST_OK && i < at + npages; i++)
        if (ST_PTE_STATE(st_shadow(ctx, ctx->rank)[i]) != ST_PAGE_MAPPED)
            rc = ST_EINVAL;
    if (rc == ST_OK) {
        rc = st_pages_clear(ctx, at, npages, st_log_head(ctx, ctx->rank) + 1);
        for (i = at; i < at + npages; i++)
            if (ST_PTE_STATE(st_shadow(ctx, ctx->rank)[i]) == ST_PAGE_FREE)
                st_bits_set(ctx->page_used, i, 1, 0);
        /* After the table has changed: who follows the log up to here finds it changed. */
        st_log_append(ctx, ST_LOG_UNMAP, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->ndies == 1)
        st_quarantine_reclaim(ctx);
    return rc;
}

#endif
