/* What keeps pages mapped while the DMA thread is at them.
 *
 * The DMA thread says which ranges it *holds*, then looks whether one of them is about to
 * go; whoever takes pages away says so first (*stills* them), then waits until they are not
 * held.  One of the two sees the other (both stores and both loads are sequentially
 * consistent), so that a descriptor finds its pages, or finds that they are gone, and
 * never faults.  Only the DMA thread holds, and it maps nothing while it does. */
#ifndef ST_HOLD_H
#define ST_HOLD_H

#include "st_ctx.h"

#define ST_HOLD_MOST (2u * ST_MAX_DIES + 8u)
#define ST_STILL_MOST 16u

struct st_range {
    uint64_t va;
    uint64_t bytes;
    uint32_t generation; /* that the submitter meant; 0: any */
    uint32_t writes;
};

struct st_hold {
    uint64_t nheld;
    struct st_range held[ST_HOLD_MOST];
    uint64_t nstill;
    uint32_t claims[ST_STILL_MOST];
    struct st_range still[ST_STILL_MOST]; /* bytes 0: not used */
};

static inline int st_range_meets(const struct st_range *r, uint64_t va, uint64_t bytes)
{
    uint64_t at = st_load_acquire_64(&r->va), n = st_load_acquire_64(&r->bytes); /* pairs with st_still_begin, st_hold_all */

    return n && at < va + bytes && va < at + n;
}

/* ---- the DMA thread ------------------------------------------------------------ */

static inline void st_hold_none(struct st_hold *h)
{
    st_store_release_64(&h->nheld, 0); /* pairs with st_still_begin */
}

/* Holds n ranges; nothing is held before.  0: one of them is about to go, and none is held.  Whoever reads a new range
 * with an old count sees by it, since each word is released, that the old ones are let go. */
static inline int st_hold_all(struct st_hold *h, const struct st_range *ranges, uint64_t n)
{
    uint64_t i, k;

    for (i = 0; i < n; i++) {
        st_store_release_64(&h->held[i].va, ranges[i].va); /* pairs with st_range_meets */
        st_store_release_64(&h->held[i].bytes, ranges[i].bytes); /* pairs with st_range_meets */
    }
    st_store_seqcst_64(&h->nheld, n); /* pairs with st_still_begin */
    if (__builtin_expect(st_load_seqcst_64(&h->nstill) == 0, 1)) /* pairs with st_still_begin */
        return 1;
    for (k = 0; k < ST_STILL_MOST; k++)
        for (i = 0; i < n; i++)
            if (st_range_meets(&h->still[k], ranges[i].va, ranges[i].bytes)) {
                st_hold_none(h);
                return 0;
            }
    return 1;
}

/* ---- whoever takes pages away ----------------------------------------------------- */

/* Returns when the DMA thread is not at these pages, and will not be before st_still_end(slot).  The caller holds the
 * lock of the pages: the die's own, or the map_lock of a peer's. */
static inline uint32_t st_still_begin(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    struct st_hold *h = ctx->hold;
    uint64_t bytes = npages << ST_PAGE_SHIFT, i, n;
    uint32_t k = 0;
    int met;

    if (!h || !st_is_die(ctx))
        return ST_STILL_MOST;
    while (!st_cas_acq_rel_32(&h->claims[k], 0, 1)) { /* pairs with st_still_end */
        k = (k + 1) % ST_STILL_MOST;
        if (k == 0)
            sched_yield();
    }
    st_store_release_64(&h->still[k].va, va); /* pairs with st_range_meets */
    st_store_release_64(&h->still[k].bytes, bytes); /* pairs with st_range_meets */
    st_add_seqcst_64(&h->nstill, 1); /* pairs with st_hold_all */
    st_fence_seqcst();
    for (;;) {
        n = st_load_acquire_64(&h->nheld); /* pairs with st_hold_none, st_hold_all */
        for (i = 0, met = 0; i < n && !met; i++)
            met = st_range_meets(&h->held[i], va, bytes);
        if (!met)
            return k;
        sched_yield();
    }
}

static inline void st_still_end(struct st_ctx *ctx, uint32_t slot)
{
    struct st_hold *h = ctx->hold;

    if (slot >= ST_STILL_MOST)
        return;
    st_store_release_64(&h->still[slot].bytes, 0); /* pairs with st_range_meets */
    st_add_seqcst_64(&h->nstill, (uint64_t)-1); /* pairs with st_hold_all */
    st_store_release_32(&h->claims[slot], 0); /* pairs with st_still_begin */
}

#endif
