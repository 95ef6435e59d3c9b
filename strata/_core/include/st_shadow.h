/* A peer's pages, mapped here at the owner's addresses. */
#ifndef ST_SHADOW_H
#define ST_SHADOW_H

#include "st_page.h"

/* Brings pages [at, at + n) of a peer's segment in line with its table: maps
 * what is new, unmaps what is gone.  The caller holds the lock. */
static inline int st_shadow_sync(struct st_ctx *ctx, uint32_t die, uint64_t at, uint64_t n)
{
    uint64_t *table = st_table(ctx, die), *shadow = st_shadow(ctx, die), i, k, run, w, first;
    uint64_t limit = (uint64_t)ctx->ndies * ctx->hbm_pages, top = st_table_top(ctx, die), had;
    uint64_t seg = st_segment(ctx, die);
    int rc;

    n = at + n <= top ? n : at < top ? top - at : 0;
    for (i = at; i < at + n; i += run) {
        first = st_load_acquire_64(&table[i]); /* pairs with st_pages_back, st_pages_release */
        had = st_load_relaxed_64(&shadow[i]);
        run = 1;
        if (first == had)
            continue;
        if (ST_PTE_STATE(first) != ST_PAGE_MAPPED) {
            st_store_release_64(&shadow[i], first); /* pairs with st_ensure_mapped */
            if (ST_PTE_STATE(had) == ST_PAGE_MAPPED && !ctx->shared_window) {
                rc = st_unmap_range(ctx, seg + (i << ST_PAGE_SHIFT), 1);
                if (rc != ST_OK) {
                    st_store_release_64(&shadow[i], had); /* pairs with st_ensure_mapped */
                    return rc;
                }
                st_count(&ctx->count.shadow_unmaps, 1);
            }
            continue;
        }
        for (; i + run < at + n; run++) {
            w = st_load_acquire_64(&table[i + run]); /* pairs with st_pages_back */
            if (w == st_load_relaxed_64(&shadow[i + run]) || ST_PTE_STATE(w) != ST_PAGE_MAPPED ||
                ST_PTE_FRAME(w) != ST_PTE_FRAME(first) + run)
                break;
        }
        if (ST_PTE_FRAME(first) + run > limit)
            return ST_ECORRUPT;
        rc = st_map_frames(ctx, seg + (i << ST_PAGE_SHIFT), ST_PTE_FRAME(first), run, 0);
        if (rc != ST_OK)
            return rc;
        for (k = i; k < i + run; k++) {
            w = st_load_acquire_64(&table[k]); /* pairs with st_pages_back */
            /* Changed while it was mapped: the next check will see the difference,
             * and that something is mapped here. */
            if (ST_PTE_STATE(w) != ST_PAGE_MAPPED || ST_PTE_FRAME(w) != ST_PTE_FRAME(first) + (k - i))
                w = ST_PTE(ST_PTE_FRAME(first) + (k - i), ST_PTE_GEN(w) - 1, ST_PAGE_MAPPED);
            st_store_release_64(&shadow[k], w); /* pairs with st_ensure_mapped */
        }
        st_count(&ctx->count.shadow_maps, run);
        st_count(&ctx->count.shadow_map_calls, 1);
    }
    return ST_OK;
}

static inline int st_ensure_slow(struct st_ctx *ctx, uint32_t die, uint64_t first, uint64_t last)
{
    uint64_t *table = st_table(ctx, die), i;
    int rc = ST_OK;

    pthread_mutex_lock(&ctx->lock);
    for (i = first; i <= last && rc == ST_OK; i++)
        if (ST_PTE_STATE(st_load_acquire_64(&table[i])) != ST_PAGE_MAPPED) /* pairs with st_pages_back */
            rc = ST_EREG;
    if (rc == ST_OK)
        rc = st_shadow_sync(ctx, die, first, last - first + 1);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Makes [va, va + bytes), an address that came from a peer, safe to touch
 * here.  ST_EREG: not (or no longer) allocated, or out of bounds. */
static inline int st_ensure_mapped(struct st_ctx *ctx, uint64_t va, uint64_t bytes)
{
    int64_t die = st_owner(ctx, va);
    uint64_t offset, first, last, i, *table, *shadow, w;

    if (bytes == 0)
        return ST_OK;
    if (die < 0)
        return ST_EREG;
    offset = va - st_segment(ctx, (uint32_t)die);
    if (bytes > ctx->seg_bytes - offset)
        return ST_EREG;
    first = offset >> ST_PAGE_SHIFT;
    last = (offset + bytes - 1) >> ST_PAGE_SHIFT;
    if (last >= st_table_top(ctx, (uint32_t)die))
        return ST_EREG;
    table = st_table(ctx, (uint32_t)die);
    shadow = st_shadow(ctx, (uint32_t)die);
    for (i = first; i <= last; i++) {
        w = st_load_acquire_64(&table[i]); /* pairs with st_pages_back, st_pages_release */
        if (ST_PTE_STATE(w) != ST_PAGE_MAPPED)
            return ST_EREG;
        if ((uint32_t)die != ctx->rank && w != st_load_acquire_64(&shadow[i])) /* pairs with st_shadow_sync */
            return st_ensure_slow(ctx, (uint32_t)die, i, last);
    }
    return ST_OK;
}

/* Follows a peer's metadata log up to head: afterwards all that the peer had
 * allocated then is mapped here. */
static inline int st_shadow_follow(struct st_ctx *ctx, uint32_t die, uint64_t head)
{
    struct st_log_record *log = st_log(ctx, die), r;
    uint64_t cursor, at, seg = st_segment(ctx, die);
    int rc = ST_OK;

    if (die == ctx->rank || st_load_relaxed_64(&ctx->log_cursor[die]) >= head)
        return ST_OK;
    pthread_mutex_lock(&ctx->lock);
    cursor = st_load_relaxed_64(&ctx->log_cursor[die]);
    if (cursor >= head) /* another thread was faster */
        head = cursor;
    if (head - cursor > ST_LOG_RECORDS)
        goto rescan;
    for (; cursor < head && rc == ST_OK; cursor++) {
        struct st_log_record *p = &log[cursor % ST_LOG_RECORDS];

        if (st_load_acquire_64(&p->seq) != cursor + 1) /* pairs with st_log_append */
            goto rescan;
        r.npages = st_load_relaxed_32(&p->npages);
        r.va = st_load_relaxed_64(&p->va);
        st_fence_seqcst();
        if (st_load_relaxed_64(&p->seq) != cursor + 1)
            goto rescan;
        at = (r.va - seg) >> ST_PAGE_SHIFT;
        if (r.va < seg || at >= ctx->seg_pages || r.npages > ctx->seg_pages - at)
            rc = ST_ECORRUPT;
        else
            rc = st_shadow_sync(ctx, die, at, r.npages);
    }
    goto out;
rescan: /* lapped by the writer: the table has it all */
    rc = st_shadow_sync(ctx, die, 0, ctx->seg_pages);
    st_count(&ctx->count.rescans, 1);
out:
    if (rc == ST_OK)
        st_store_relaxed_64(&ctx->log_cursor[die], head);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

#endif
