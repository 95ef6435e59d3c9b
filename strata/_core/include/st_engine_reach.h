/* What a descriptor touches: checked, and held while it is touched.
 *
 * Nothing in a descriptor is believed: other dies write to rings. */
#ifndef ST_ENGINE_REACH_H
#define ST_ENGINE_REACH_H

#include "st_engine.h"
#include "st_group_layout.h"

/* Adds a range, mapped, if it may be touched. */
static inline int st_engine_reach(struct st_engine *e, uint64_t va, uint64_t bytes, uint32_t generation, int writes)
{
    int rc = st_ensure_mapped(e->ctx, va, bytes, writes);

    if (rc == ST_OK && bytes)
        e->ranges[e->nranges++] = (struct st_range){va, bytes, generation, (uint32_t)writes};
    return rc;
}

/* Is a range that is held what it should be?  Maps nothing. */
static inline int st_engine_sound(struct st_ctx *ctx, const struct st_range *r)
{
    uint32_t die = (uint32_t)st_owner(ctx, r->va), own = die == ctx->rank;
    uint64_t offset = r->va - st_segment(ctx, die), i, w;
    uint64_t first = offset >> ST_PAGE_SHIFT, last = (offset + r->bytes - 1) >> ST_PAGE_SHIFT;

    if (own)
        return st_ready_own(ctx, first, last, (int)r->writes);
    if (st_load_acquire_64(&ctx->follow[die].passed) == st_log_head(ctx, die) && /* pairs with st_shadow_follow */
        st_ready_all(ctx, die, first, last))
        return 1;
    for (i = first; i <= last; i++) {
        w = st_load_acquire_64(&st_table(ctx, die)[i]); /* pairs with st_pages_publish */
        if (!st_page_allows(w, (int)r->writes) || w != st_load_relaxed_64(&st_shadow(ctx, die)[i]))
            return 0;
    }
    return 1;
}

/* A range that is held and sound may still run into pages of a file (st_foreign.h) that it does not fill.  0: it does. */
static inline int st_engine_filled(const struct st_ctx *ctx, const struct st_range *r)
{
    uint32_t die = (uint32_t)st_owner(ctx, r->va);
    uint64_t offset = r->va - st_segment(ctx, die), end = offset + r->bytes, i, w, index, upto;

    for (i = offset >> ST_PAGE_SHIFT; i << ST_PAGE_SHIFT < end; i++) {
        w = st_load_acquire_64(&st_table(ctx, die)[i]); /* pairs with st_pages_publish */
        if (!ST_PTE_FOREIGN(w))
            continue;
        index = ST_PTE_FRAME(w) - ST_FOREIGN_FRAME;
        upto = end < (i + 1) << ST_PAGE_SHIFT ? end - (i << ST_PAGE_SHIFT) : ST_PAGE_BYTES;
        if ((index % ST_FOREIGN_PAGES << ST_PAGE_SHIFT) + upto >
            st_load_relaxed_64(&st_foreign_at(ctx, die, (uint32_t)(index / ST_FOREIGN_PAGES))->bytes))
            return 0;
    }
    return 1;
}

/* Holds the ranges.  ST_AGAIN: one of them has changed since it was reached.  ST_EREG: one is not the
 * memory that the submitter meant, or ends before its page.  Nothing is held then. */
static inline int st_engine_take(struct st_engine *e)
{
    uint64_t i;
    int rc = st_hold_all(&e->hold, e->ranges, e->nranges) ? ST_OK : ST_AGAIN;

    for (i = 0; i < e->nranges && rc == ST_OK; i++) {
        const struct st_range *r = &e->ranges[i];

        if (!st_engine_sound(e->ctx, r))
            rc = ST_AGAIN;
        else if (!st_engine_filled(e->ctx, r))
            rc = ST_EREG;
        else if (r->generation && r->generation != st_sdma_generation(e->ctx, r->va, r->bytes))
            rc = ST_EREG;
    }
    if (rc != ST_OK)
        st_hold_none(&e->hold);
    if (rc == ST_AGAIN)
        sched_yield(); /* whoever changes it is at it */
    return rc;
}

/* The flag of a descriptor, and the futex before it. */
static inline int st_engine_reach_flag(struct st_engine *e, const struct st_descriptor *d, uint64_t **flag)
{
    int gate = d->type == ST_SDMA_GATE, rc;
    uint64_t at = gate ? d->src : d->dst, back = 4 * (uint64_t)d->wake;
    uint64_t world = st_group_bytes(e->ctx->ndies, e->ctx->job.mailbox_bytes);

    if (at % 8 || back > at || d->wake == 1) /* the word and its sleepers are 8 bytes */
        return ST_EINVAL;
    if (d->flags & ST_SDMA_WORLD) {
        if (at > world - 8)
            return ST_EREG;
        *flag = (uint64_t *)(void *)(e->ctx->control + e->ctx->job.world_off + at);
        return ST_OK;
    }
    *flag = (uint64_t *)(uintptr_t)at;
    rc = st_engine_reach(e, at, 8, gate ? d->src_gen : d->dst_gen, !gate);
    return rc == ST_OK && back ? st_engine_reach(e, at - back, 8, 0, 1) : rc;
}

/* All ranges of a descriptor but the operands of a list. */
static inline int st_engine_reach_all(struct st_engine *e, const struct st_descriptor *d, uint64_t **flag)
{
    uint64_t src, dst;
    int rc;

    e->nranges = 0;
    *flag = NULL;
    if (d->type >= ST_SDMA_WRITE && d->type <= ST_SDMA_GATE) {
        rc = st_engine_reach_flag(e, d, flag);
        if (rc != ST_OK || d->type != ST_SDMA_COUNT)
            return rc;
        return d->src % 8 ? ST_EINVAL : st_engine_reach(e, d->src, 8, d->src_gen, 1);
    }
    st_sdma_extent(d, &src, &dst);
    rc = st_engine_reach(e, d->src, src, d->src_gen, 0);
    return rc == ST_OK ? st_engine_reach(e, d->dst, dst, d->dst_gen, 1) : rc;
}

/* The same, held: until st_hold_none nobody takes the pages away. */
static inline int st_engine_hold(struct st_engine *e, const struct st_descriptor *d, uint64_t **flag)
{
    int rc;

    do {
        rc = st_engine_reach_all(e, d, flag);
        rc = rc == ST_OK ? st_engine_take(e) : rc;
    } while (rc == ST_AGAIN);
    return rc;
}

/* One range, held. */
static inline int st_engine_hold_range(struct st_engine *e, uint64_t va, uint64_t bytes, uint32_t generation, int writes)
{
    int rc;

    do {
        e->nranges = 0;
        rc = st_engine_reach(e, va, bytes, generation, writes);
        rc = rc == ST_OK ? st_engine_take(e) : rc;
    } while (rc == ST_AGAIN);
    return rc;
}

/* A die's rings, held.  ST_ENOJOB: it takes no descriptors. */
static inline int st_engine_hold_sdma(struct st_engine *e, uint32_t die, struct st_sdma **s)
{
    uint64_t va = st_load_acquire_64(&e->ctx->dies[die].sdma); /* pairs with st_engine_open */
    int rc;

    *s = (struct st_sdma *)(uintptr_t)va;
    if (!va || va % ST_LINE || st_owner(e->ctx, va) != (int64_t)die)
        return ST_ENOJOB;
    rc = st_engine_hold_range(e, va, sizeof **s, 0, 1);
    if (rc == ST_OK && (*s)->magic != ST_SDMA_MAGIC) {
        st_hold_none(&e->hold);
        rc = ST_ENOJOB;
    }
    return rc;
}

/* Copies what a peer may change at any time: `bytes` at va. */
static inline int st_engine_fetch(struct st_engine *e, void *to, uint64_t va, uint64_t bytes, uint32_t generation)
{
    int rc = va % 8 ? ST_EINVAL : st_engine_hold_range(e, va, bytes, generation, 0);

    if (rc == ST_OK)
        memcpy(to, (const void *)(uintptr_t)va, bytes);
    st_hold_none(&e->hold);
    return rc;
}

#endif
