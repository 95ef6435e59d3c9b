/* A peer's pages, mapped here at the owner's addresses.
 *
 * Three ways lead here: the registrar follows the peers' logs in the background;
 * a barrier follows them up to what its members had logged (a registration
 * fence); and phase 2 checks, before an operation touches a peer's pages, that
 * they are mapped, and maps those that are not itself, without waiting for the
 * registrar to come to them.
 */
#ifndef ST_SHADOW_H
#define ST_SHADOW_H

#include "st_foreign.h"
#include "st_page.h"

#define ST_FOLLOW_PAGES 16u /* mapped under one hold of the locks: what a thread that helps may wait for */

static inline int st_page_maps(uint64_t word)
{
    return ST_PTE_STATE(word) == ST_PAGE_MAPPED || ST_PTE_STATE(word) == ST_PAGE_READ;
}

/* Lets go of a page of a peer, whose word is not (or no longer) what is mapped here. */
static inline int st_shadow_drop(struct st_ctx *ctx, uint32_t die, uint64_t i, uint64_t word)
{
    uint64_t *shadow = st_shadow(ctx, die), had = st_load_relaxed_64(&shadow[i]);
    uint32_t still = ST_STILL_MOST;
    int rc;

    st_ready_set(ctx, die, i, 0);
    if (st_page_maps(had)) {
        still = st_still_begin(ctx, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), 1);
        rc = ctx->shared_window ? ST_OK : st_unmap_range(ctx, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), 1);
        if (rc != ST_OK) {
            st_still_end(ctx, still);
            return rc;
        }
        ST_FAULT(SHADOW_UNMAPPED);
        st_count(&ctx->count.shadow_unmaps, 1);
    }
    if (st_page_maps(word)) /* it is not mapped: another generation, which no word ever has again */
        word = ST_PTE(0, ST_PTE_GEN(word) - 1, ST_PAGE_FREE);
    st_store_relaxed_64(&shadow[i], word);
    st_still_end(ctx, still);
    return ST_OK;
}

/* Maps pages [i, i + run) of a peer, which were of one state over contiguous frames
 * when the first one's word was read.  The word is not read again here: what is
 * mapped must be what was looked at. */
static inline int st_shadow_map(struct st_ctx *ctx, uint32_t die, uint64_t i, uint64_t run, uint64_t first)
{
    uint64_t *table = st_table(ctx, die), *shadow = st_shadow(ctx, die), k, w;
    uint32_t state = ST_PTE_STATE(first), still;
    int rc;

    if (!ST_PTE_FOREIGN(first) && ST_PTE_FRAME(first) + run > (uint64_t)ctx->ndies * ctx->hbm_pages)
        return ST_ECORRUPT;
    /* The DMA thread must not be half way through what another mapping takes the place of. */
    still = st_still_begin(ctx, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), run);
    if (ST_PTE_FOREIGN(first))
        rc = st_foreign_map(ctx, die, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), first);
    else
        rc = st_map_frames(ctx, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), ST_PTE_FRAME(first), run,
                           state == ST_PAGE_READ ? PROT_READ : PROT_READ | PROT_WRITE, 0);
    ST_FAULT(SHADOW_MAPPED);
    for (k = i; k < i + run && rc == ST_OK; k++) {
        w = st_load_acquire_64(&table[k]); /* pairs with st_pages_publish */
        /* Changed while it was mapped: the next check will see the difference,
         * and that something is mapped here. */
        if (ST_PTE_STATE(w) != state || ST_PTE_FRAME(w) != ST_PTE_FRAME(first) + (k - i) ||
            (ST_PTE_FOREIGN(first) && w != first)) /* its slot may be another file's now */
            w = ST_PTE(ST_PTE_FRAME(first) + (k - i), ST_PTE_GEN(w) - 1, state);
        st_store_relaxed_64(&shadow[k], w);
        st_ready_set(ctx, die, k, state == ST_PAGE_MAPPED);
    }
    for (k = i; k < i + run && rc != ST_OK; k++)
        st_ready_set(ctx, die, k, 0); /* what was mapped before may be gone */
    st_still_end(ctx, still);
    if (rc != ST_OK)
        return rc;
    st_count(&ctx->count.shadow_maps, run);
    st_count(&ctx->count.shadow_map_calls, 1);
    return ST_OK;
}

/* Brings pages [at, at + n) of a peer's segment in line with its table: unmaps
 * what is gone and, if `maps`, maps what is new.  The caller holds the map_lock. */
static inline int st_shadow_sync(struct st_ctx *ctx, uint32_t die, uint64_t at, uint64_t n, int maps)
{
    uint64_t *table = st_table(ctx, die), *shadow = st_shadow(ctx, die), i, run, w, v;
    uint64_t top = st_table_top(ctx, die);
    int rc = ST_OK;

    n = at + n <= top ? n : at < top ? top - at : 0;
    for (i = at; i < at + n && rc == ST_OK; i += run) {
        w = st_load_acquire_64(&table[i]); /* pairs with st_pages_publish */
        run = 1;
        if (w == st_load_relaxed_64(&shadow[i]))
            continue;
        if (!maps || !st_page_maps(w)) {
            rc = st_shadow_drop(ctx, die, i, w);
            continue;
        }
        for (; i + run < at + n && !ST_PTE_FOREIGN(w); run++) {
            v = st_load_acquire_64(&table[i + run]); /* pairs with st_pages_publish */
            if (v == st_load_relaxed_64(&shadow[i + run]) || ST_PTE_STATE(v) != ST_PTE_STATE(w) ||
                ST_PTE_FRAME(v) != ST_PTE_FRAME(w) + run)
                break;
        }
        rc = st_shadow_map(ctx, die, i, run, w);
    }
    return rc;
}

/* A histogram with four buckets to a power of two. */
static inline void st_latency_count(struct st_ctx *ctx, uint64_t ns)
{
    uint32_t top = 63 - (uint32_t)__builtin_clzll(ns | 1), k;

    k = top < 2 ? (uint32_t)ns : top * 4 + (uint32_t)(ns >> (top - 2) & 3) - 4;
    k = k < ST_LATENCIES ? k : ST_LATENCIES - 1;
    st_store_relaxed_32(&ctx->latencies[k], st_load_relaxed_32(&ctx->latencies[k]) + 1);
}

/* The smallest value of a bucket, in nanoseconds. */
static inline uint64_t st_latency_of(uint32_t k)
{
    return k < 4 ? k : (uint64_t)(4 + k % 4) << (k / 4 - 1);
}

/* One step along a record or a rescan: at most ST_FOLLOW_PAGES pages of `total`. */
static inline int st_follow_pages(struct st_ctx *ctx, struct st_position *p, uint32_t die, uint64_t at,
                                  uint64_t total, int maps, int *over)
{
    uint64_t n = total - p->part;
    int rc;

    n = n < ST_FOLLOW_PAGES || !maps ? n : ST_FOLLOW_PAGES;
    pthread_mutex_lock(&ctx->follow[die].map_lock);
    rc = st_shadow_sync(ctx, die, at + p->part, n, maps);
    pthread_mutex_unlock(&ctx->follow[die].map_lock);
    if (rc != ST_OK)
        return rc;
    p->part += n;
    *over = p->part >= total;
    if (*over)
        p->part = 0;
    return ST_OK;
}

/* Pages of the dead that a peer has cleared since its frames lay under them: what a
 * reader of its log may have missed when it was lapped. */
static inline int st_follow_dead(struct st_ctx *ctx)
{
    uint32_t die;
    int rc = ST_OK;

    for (die = 0; die < ctx->ndies && rc == ST_OK; die++) {
        if (die == ctx->rank || !st_load_relaxed_32(&ctx->dies[die].dead))
            continue;
        pthread_mutex_lock(&ctx->follow[die].map_lock);
        rc = st_shadow_sync(ctx, die, 0, ctx->seg_pages, 0);
        pthread_mutex_unlock(&ctx->follow[die].map_lock);
    }
    return rc;
}

/* One step towards record `head` of a peer's log; the caller holds the log_lock. */
static inline int st_follow_step(struct st_ctx *ctx, uint32_t die, struct st_position *p, uint64_t head, int maps)
{
    struct st_log_record r = {0};
    uint64_t at, total;
    int64_t owner;
    int rc, over = 0;

    if (!p->rescan_to && (head - p->cursor > ST_LOG_RECORDS || !st_log_read(ctx, die, p->cursor, &r))) {
        p->rescan_to = st_log_head(ctx, die); /* lapped by the writer: the table has it all */
        p->part = 0;
        if (p->rescan_to < head) { /* no log goes back: without this the way to `head` has no end */
            p->rescan_to = 0;
            return ST_ECORRUPT;
        }
        st_count(&ctx->count.rescans, 1);
    }
    if (p->rescan_to) {
        total = st_table_top(ctx, die);
        rc = st_follow_pages(ctx, p, die, 0, total > p->part ? total : p->part, maps, &over);
        if (rc == ST_OK && over)
            rc = st_follow_dead(ctx);
        if (rc == ST_OK && over) {
            p->cursor = p->rescan_to;
            p->rescan_to = 0;
        }
        return rc;
    }
    owner = st_owner(ctx, r.va); /* the log's writer, but for pages of a dead die that it has cleared */
    if (owner < 0 || (uint32_t)owner == ctx->rank)
        return ST_ECORRUPT;
    at = (r.va - st_segment(ctx, (uint32_t)owner)) >> ST_PAGE_SHIFT;
    if (r.npages > ctx->seg_pages - at)
        return ST_ECORRUPT;
    rc = st_follow_pages(ctx, p, (uint32_t)owner, at, r.npages, maps, &over);
    if (rc == ST_OK && over) {
        p->cursor++;
        if (maps && r.kind == ST_LOG_MAP)
            st_latency_count(ctx, st_now_ns() - r.time_ns);
    }
    return rc;
}

/* Follows a peer's metadata log up to head.  Afterwards what the peer had given
 * back by then is unmapped here and, if `maps`, all that it had allocated is mapped. */
static inline int st_shadow_follow(struct st_ctx *ctx, uint32_t die, uint64_t head, int maps)
{
    struct st_follow *f = &ctx->follow[die];
    struct st_position *p = &f->at[maps];
    int rc = ST_OK, more;

    if (die == ctx->rank || st_load_acquire_64(&p->cursor) >= head) /* pairs with the store below */
        return ST_OK;
    do {
        uint64_t cursor;

        pthread_mutex_lock(&f->log_lock);
        cursor = p->cursor;
        if (cursor < head) {
            struct st_position step = *p;

            rc = st_follow_step(ctx, die, &step, head, maps);
            p->part = step.part;
            p->rescan_to = step.rescan_to;
            st_store_release_64(&p->cursor, step.cursor); /* pairs with the load above */
            if (step.cursor > cursor && step.cursor > f->passed) {
                st_store_release_64(&f->passed, step.cursor); /* pairs with st_ensure_mapped */
                st_log_passed(ctx, die, step.cursor);
            }
        }
        more = p->cursor < head;
        pthread_mutex_unlock(&f->log_lock);
    } while (rc == ST_OK && more);
    return rc;
}

#endif
