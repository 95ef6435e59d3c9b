/* Phase 2 of registration: before an operation touches a peer's pages, are they
 * mapped here?  A purely local check when the registrar has done its work; else
 * whoever asks maps what it needs itself, and waits for nobody.
 */
#ifndef ST_READY_H
#define ST_READY_H

#include "st_flight.h"
#include "st_follow.h"
#include "st_trace.h"

/* May pages in this state be touched? */
static inline int st_page_allows(uint64_t word, int writes)
{
    return ST_PTE_STATE(word) == ST_PAGE_MAPPED || (!writes && ST_PTE_STATE(word) == ST_PAGE_READ);
}

/* The pages that are not ready: maps them, if they are there. */
static inline int st_ensure_slow(struct st_ctx *ctx, uint32_t die, uint64_t first, uint64_t last, int writes)
{
    uint64_t *table = st_table(ctx, die), *shadow = st_shadow(ctx, die), i, w, begin, late = 0;
    struct st_flight_record *record = NULL;
    struct st_tracer *t;
    int rc = ST_OK;

    if (die == ctx->rank)
        return st_ready_own(ctx, first, last, writes) ? ST_OK : ST_EREG;
    for (i = first; i <= last; i++)
        if (!st_page_allows(st_load_acquire_64(&table[i]), writes)) /* pairs with st_pages_publish */
            return ST_EREG;
    begin = st_now_ns();
    t = st_trace_on(ctx);
    st_trace_begins(t);
    pthread_mutex_lock(&ctx->follow[die].map_lock);
    for (i = first; i <= last && rc == ST_OK; i++) {
        w = st_load_acquire_64(&table[i]); /* pairs with st_pages_publish */
        if (!st_page_allows(w, writes))
            rc = ST_EREG;
        late += w != st_load_relaxed_64(&shadow[i]);
    }
    if (rc == ST_OK && late) {
        st_flight_waits(ctx, &record, ST_FLIGHT_LATE, die, 0, 0, late);
        rc = st_shadow_sync(ctx, die, first, last - first + 1, 1);
        st_flight_waited(ctx, record, rc);
    }
    pthread_mutex_unlock(&ctx->follow[die].map_lock);
    if (late) {
        st_count(&ctx->count.late_maps, 1);
        st_count(&ctx->count.late_map_ns, st_now_ns() - begin);
        st_flight_late(ctx);
        ST_TRACE(t, ST_TRACE_MAP, 0, die, late, late << ST_PAGE_SHIFT);
    }
    return rc;
}

/* Makes [va, va + bytes), an address that came from a peer, safe to read here,
 * or to write.  ST_EREG: not (or no longer) allocated, without that access, or
 * out of bounds.  When the peer's log has been followed to its end, this is a
 * look at one word of the peer's and one bit a page of this die's. */
static inline int st_ensure_mapped(struct st_ctx *ctx, uint64_t va, uint64_t bytes, int writes)
{
    int64_t die = st_owner(ctx, va);
    uint64_t offset, first, last;

    if (bytes == 0)
        return ST_OK;
    if (die < 0)
        return ST_EREG;
    offset = va - st_segment(ctx, (uint32_t)die);
    if (bytes > ctx->seg_bytes - offset)
        return ST_EREG;
    first = offset >> ST_PAGE_SHIFT;
    last = (offset + bytes - 1) >> ST_PAGE_SHIFT;
    if (((uint32_t)die == ctx->rank ||
         st_load_acquire_64(&ctx->follow[die].passed) == st_log_head(ctx, (uint32_t)die)) && /* pairs with st_shadow_follow */
        st_ready_all(ctx, (uint32_t)die, first, last))
        return ST_OK;
    if (last >= st_table_top(ctx, (uint32_t)die))
        return ST_EREG;
    return st_ensure_slow(ctx, (uint32_t)die, first, last, writes);
}

/* The same for a caller's own array, which may be any memory: its access may have been
 * taken away since it was made, or it may be a peer's. */
static inline int st_ensure_own(struct st_ctx *ctx, const void *p, uint64_t bytes, int writes)
{
    return bytes && st_owner(ctx, (uint64_t)(uintptr_t)p) >= 0
               ? st_ensure_mapped(ctx, (uint64_t)(uintptr_t)p, bytes, writes)
               : ST_OK;
}

/* Is the range mapped here now?  Maps nothing: for tests, benchmarks and inspectors. */
static inline int st_is_ready(struct st_ctx *ctx, uint64_t va, uint64_t bytes)
{
    int64_t die = st_owner(ctx, va);
    uint64_t offset, i;

    if (die < 0 || !bytes)
        return die >= 0;
    offset = va - st_segment(ctx, (uint32_t)die);
    if (bytes > ctx->seg_bytes - offset || (offset + bytes - 1) >> ST_PAGE_SHIFT >= st_table_top(ctx, (uint32_t)die))
        return 0;
    if ((uint32_t)die == ctx->rank)
        return st_ready_own(ctx, offset >> ST_PAGE_SHIFT, (offset + bytes - 1) >> ST_PAGE_SHIFT, 0);
    for (i = offset >> ST_PAGE_SHIFT; i <= (offset + bytes - 1) >> ST_PAGE_SHIFT; i++) {
        uint64_t w = st_load_acquire_64(&st_table(ctx, (uint32_t)die)[i]); /* pairs with st_pages_publish */

        if (!st_page_allows(w, 0) || w != st_load_relaxed_64(&st_shadow(ctx, (uint32_t)die)[i]))
            return 0;
    }
    return 1;
}

#endif
