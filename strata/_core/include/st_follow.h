/* Following a peer's metadata log: what it says is mapped and unmapped here. */
#ifndef ST_FOLLOW_H
#define ST_FOLLOW_H

#include "st_accept.h"
#include "st_trace.h"

#define ST_FOLLOW_PAGES 16u /* mapped under one hold of the locks: what a thread that helps may wait for */

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

/* One step towards record `head` of a peer's log; the caller holds the log_lock. */
static inline int st_follow_step(struct st_ctx *ctx, uint32_t die, struct st_position *p, uint64_t head, int maps)
{
    struct st_tracer *t = maps ? st_trace_on(ctx) : NULL;
    struct st_log_record r = {0};
    uint64_t at, total, ns;
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
    st_trace_begins(t);
    rc = st_follow_pages(ctx, p, (uint32_t)owner, at, r.npages, maps, &over);
    if (rc == ST_OK && over) {
        p->cursor++;
        if (maps && r.kind == ST_LOG_MAP) {
            ns = st_now_ns() - r.time_ns;
            st_latency_count(ctx, ns);
            ST_TRACE(t, ST_TRACE_MAP, 0, owner, r.npages,
                     t->role == ST_TRACE_REGISTRAR ? ns : (uint64_t)r.npages << ST_PAGE_SHIFT);
        }
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

    if (die == ctx->rank)
        return ST_OK;
    rc = st_accept(ctx, die);
    if (rc != ST_OK)
        return rc == ST_AGAIN ? ST_EDEAD : rc; /* the head was that of a process that is dead */
    if (st_load_acquire_64(&p->cursor) >= head) /* pairs with the store below */
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
