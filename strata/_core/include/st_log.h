/* The metadata log: what a die's peers have to follow.
 *
 * The owner appends a record after its page table has changed, and rings its
 * peers' registrars.  It never waits for a reader: one that is lapped goes
 * through the page table instead, which is the authority.
 */
#ifndef ST_LOG_H
#define ST_LOG_H

#include "st_ctx.h"
#include "st_live.h"

/* The caller holds the lock. */
static inline void st_log_append(struct st_ctx *ctx, uint32_t kind, uint64_t va, uint64_t npages)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    uint64_t head = st_load_relaxed_64(&me->log_head);
    struct st_log_record *r = &st_log(ctx, ctx->rank)[head % ST_LOG_RECORDS];
    uint32_t i;

    ST_FAULT(LOG_BEFORE);
    st_store_relaxed_64(&r->seq, 0); /* a reader that is being lapped sees a hole, not a mixture */
    st_fence_seqcst();
    st_store_relaxed_32(&r->kind, kind);
    st_store_relaxed_32(&r->npages, (uint32_t)npages);
    st_store_relaxed_64(&r->va, va);
    ST_FAULT(LOG_HALF);
    st_store_relaxed_64(&r->time_ns, st_now_ns());
    st_store_release_64(&r->seq, head + 1);      /* pairs with st_log_read */
    ST_FAULT(LOG_SEQ);
    st_store_seqcst_64(&me->log_head, head + 1); /* pairs with st_log_head, st_registrar_sleep */
    ST_FAULT(LOG_HEAD);
    st_count(&ctx->count.log_records, 1);
    if (ctx->lazy && kind == ST_LOG_MAP)
        return;
    for (i = 0; i < ctx->ndies; i++) {
        if (i == ctx->rank)
            continue;
        st_wake(&ctx->dies[i].bell, &ctx->dies[i].bell_sleepers);
        ST_FAULT(LOG_RUNG);
    }
}

static inline uint64_t st_log_head(const struct st_ctx *ctx, uint32_t die)
{
    return st_load_acquire_64(&ctx->dies[die].log_head); /* pairs with st_log_append */
}

/* Records of a log that a reader has passed, as it has said itself. */
static inline uint64_t st_log_reached(const struct st_ctx *ctx, uint32_t owner, uint32_t reader)
{
    return st_load_acquire_64(st_cursor(ctx, owner, reader)); /* pairs with st_log_passed */
}

/* Copies record `index`.  0: it has been overwritten. */
static inline int st_log_read(const struct st_ctx *ctx, uint32_t die, uint64_t index, struct st_log_record *r)
{
    const struct st_log_record *p = &st_log(ctx, die)[index % ST_LOG_RECORDS];

    if (st_load_acquire_64(&p->seq) != index + 1) /* pairs with st_log_append */
        return 0;
    r->kind = st_load_relaxed_32(&p->kind);
    r->npages = st_load_relaxed_32(&p->npages);
    r->va = st_load_relaxed_64(&p->va);
    r->time_ns = st_load_relaxed_64(&p->time_ns);
    st_fence_seqcst();
    return st_load_relaxed_64(&p->seq) == index + 1;
}

/* A reader has passed `cursor` records of a peer's log: says so, and rings the
 * owner if it was the last that frames in quarantine waited for. */
static inline void st_log_passed(struct st_ctx *ctx, uint32_t owner, uint64_t cursor)
{
    struct st_die *d = &ctx->dies[owner];
    uint64_t due;
    uint32_t i;

    ST_FAULT(CURSOR_BEFORE);
    st_store_seqcst_64(st_cursor(ctx, owner, ctx->rank), cursor); /* pairs with st_quarantine_over */
    ST_FAULT(CURSOR_AFTER);
    due = st_load_seqcst_64(&d->reclaim_due);
    if (due == 0 || due > cursor)
        return;
    for (i = 0; i < ctx->ndies; i++)
        if (i != owner && st_load_relaxed_64(st_cursor(ctx, owner, i)) < due)
            return; /* that one rings, or the owner finds it dead */
    st_wake(&d->bell, &d->bell_sleepers);
}

#endif
