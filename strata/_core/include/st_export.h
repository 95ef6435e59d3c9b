/* Physical memory that other dies may map under addresses of their own.
 *
 * An export is a slot in the exporter's table, and a range of its segment in
 * which the frames stand without access; the mapping keeps them alive.  A die
 * that imports sets its bit, maps the frames in its own segment, and clears the
 * bit when it is done.  The exporter closes the slot; its registrar takes the
 * range away when the importers that live have let go, and first clears what
 * dead ones had mapped, so that nobody reads through it later.
 */
#ifndef ST_EXPORT_H
#define ST_EXPORT_H

#include "st_vmm.h"

#define ST_EXPORT_STATE(s) ((uint32_t)((s) & 3u))

static inline struct st_export *st_export_at(const struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    return ctx->exports + (uint64_t)die * ST_EXPORT_SLOTS + slot;
}

/* Offers frames.  *slot and *use name the offer.  ST_EINVAL: all slots are taken. */
static inline int st_export_open(struct st_ctx *ctx, const uint64_t *words, uint64_t npages, uint32_t *slot,
                                 uint64_t *use)
{
    struct st_export *e = NULL;
    uint64_t va = 0, state = 0;
    uint32_t i;
    int rc = st_va_reserve(ctx, npages, 1, &va);

    if (rc != ST_OK)
        return rc;
    rc = st_vmm_map(ctx, va, words, npages, ST_PAGE_HELD);
    pthread_mutex_lock(&ctx->lock);
    for (i = 0; rc == ST_OK && i < ST_EXPORT_SLOTS; i++) {
        state = st_load_relaxed_64(&st_export_at(ctx, ctx->rank, i)->state);
        if (ST_EXPORT_STATE(state) == ST_EXPORT_FREE)
            break;
    }
    if (rc == ST_OK && i < ST_EXPORT_SLOTS) {
        e = st_export_at(ctx, ctx->rank, i);
        st_store_relaxed_64(&e->va, va);
        st_store_relaxed_64(&e->npages, npages);
        *slot = i;
        *use = (state >> 2) + 1;
        st_store_seqcst_64(&e->state, *use << 2 | ST_EXPORT_OPEN); /* pairs with st_import */
    }
    pthread_mutex_unlock(&ctx->lock);
    if (e)
        return ST_OK;
    if (rc == ST_OK)
        (void)st_vmm_unmap(ctx, va, npages);
    (void)st_va_free(ctx, va, npages);
    return rc == ST_OK ? ST_EINVAL : rc;
}

/* Pages of a dead die's segment over these frames are free again. */
static inline void st_export_scrub(struct st_ctx *ctx, uint32_t die, const uint64_t *frames, uint64_t n)
{
    uint64_t *table = st_table(ctx, die), top = st_table_top(ctx, die), i, k, w;

    for (i = 0; i < top; i++) {
        w = st_load_acquire_64(&table[i]); /* pairs with st_pages_publish */
        if (ST_PTE_STATE(w) == ST_PAGE_FREE)
            continue;
        for (k = 0; k < n && ST_PTE_FRAME(frames[k]) != ST_PTE_FRAME(w); k++) {
        }
        if (k == n || !st_cas_acq_rel_64(&table[i], w, /* pairs with st_shadow_sync */
                                         ST_PTE(0, ST_PTE_GEN(w) + 1, ST_PAGE_FREE)))
            continue;
        pthread_mutex_lock(&ctx->follow[die].map_lock);
        (void)st_shadow_sync(ctx, die, i, 1, 0);
        pthread_mutex_unlock(&ctx->follow[die].map_lock);
        pthread_mutex_lock(&ctx->lock);
        st_log_append(ctx, ST_LOG_UNMAP, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), 1);
        pthread_mutex_unlock(&ctx->lock);
    }
}

/* Ends a closing export if nobody who lives has it; 1: it is over. */
static inline int st_export_end(struct st_ctx *ctx, struct st_export *e)
{
    uint64_t va = st_load_relaxed_64(&e->va), n = st_load_relaxed_64(&e->npages), bits;
    uint32_t die;

    for (die = 0; die < ctx->ndies; die++) {
        bits = st_load_seqcst_64(&e->importers[die / 64]); /* pairs with st_import, st_import_end */
        if (bits >> (die % 64) & 1 && die != ctx->rank && st_die_runs(ctx, die))
            return 0;
    }
    for (die = 0; die < ctx->ndies; die++)
        if (st_load_relaxed_64(&e->importers[die / 64]) >> (die % 64) & 1 && die != ctx->rank)
            st_export_scrub(ctx, die, st_shadow(ctx, ctx->rank) + ((va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT), n);
    if (st_vmm_unmap(ctx, va, n) != ST_OK)
        return 0;
    (void)st_va_free(ctx, va, n);
    for (die = 0; die < ST_MAX_DIES / 64; die++)
        st_store_relaxed_64(&e->importers[die], 0);
    return 1;
}

/* The registrar's look at exports that are closing. */
static inline void st_export_sweep(struct st_ctx *ctx)
{
    uint32_t slot;
    int over;

    for (slot = 0; st_load_relaxed_32(&ctx->closing) && slot < ST_EXPORT_SLOTS; slot++) {
        struct st_export *e = st_export_at(ctx, ctx->rank, slot);
        uint64_t state = st_load_relaxed_64(&e->state);

        if (ST_EXPORT_STATE(state) != ST_EXPORT_CLOSING ||
            !st_cas_acq_rel_64(&e->state, state, state | ST_EXPORT_ENDING)) /* pairs with itself: one thread at a time */
            continue;
        over = st_export_end(ctx, e);
        pthread_mutex_lock(&ctx->lock);
        st_store_relaxed_32(&ctx->closing, ctx->closing - (uint32_t)over);
        st_store_release_64(&e->state, over ? state & ~3ull : state); /* pairs with st_export_open */
        pthread_mutex_unlock(&ctx->lock);
    }
}

/* No further imports; the frames go when those that there are have ended. */
static inline void st_export_close(struct st_ctx *ctx, uint32_t slot, uint64_t use)
{
    struct st_export *e = st_export_at(ctx, ctx->rank, slot);

    pthread_mutex_lock(&ctx->lock);
    if (st_load_relaxed_64(&e->state) == (use << 2 | ST_EXPORT_OPEN)) {
        st_store_relaxed_32(&ctx->closing, ctx->closing + 1);
        st_store_seqcst_64(&e->state, use << 2 | ST_EXPORT_CLOSING); /* pairs with st_import */
    }
    pthread_mutex_unlock(&ctx->lock);
    st_export_sweep(ctx);
}

/* Takes part in an offer.  words NULL: only how many pages it has; else, *npages
 * words, and this die counts as an importer, also if it failed: who has no other
 * import of the offer then calls st_import_end.  ST_EREG: the offer is over. */
static inline int st_import(struct st_ctx *ctx, uint32_t die, uint32_t slot, uint64_t use, uint64_t *npages,
                            uint64_t *words)
{
    struct st_export *e;
    uint64_t bit = 1ull << (ctx->rank % 64), at, i, n, va, most = (uint64_t)ctx->ndies * ctx->hbm_pages;
    int rc = ST_OK;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (die >= ctx->ndies || slot >= ST_EXPORT_SLOTS)
        return ST_EINVAL;
    e = st_export_at(ctx, die, slot);
    if (words) /* before the look at the state: the exporter looks the other way round */
        st_or_acq_rel_64(&e->importers[ctx->rank / 64], bit); /* pairs with st_export_end */
    st_fence_seqcst();
    if (st_load_seqcst_64(&e->state) != (use << 2 | ST_EXPORT_OPEN)) /* pairs with st_export_open, st_export_close */
        rc = ST_EREG;
    n = st_load_relaxed_64(&e->npages);
    va = st_load_relaxed_64(&e->va);
    at = (va - st_segment(ctx, die)) >> ST_PAGE_SHIFT;
    if (rc == ST_OK && (st_owner(ctx, va) != (int64_t)die || va % ST_PAGE_BYTES || n == 0 || n > ctx->seg_pages ||
                        at + n > st_table_top(ctx, die) || (words && n != *npages)))
        rc = ST_ECORRUPT;
    for (i = 0; rc == ST_OK && words && i < n; i++) {
        words[i] = st_load_acquire_64(&st_table(ctx, die)[at + i]); /* pairs with st_pages_publish */
        if (ST_PTE_STATE(words[i]) == ST_PAGE_FREE || ST_PTE_FRAME(words[i]) >= most)
            rc = ST_ECORRUPT;
    }
    if (rc == ST_OK)
        *npages = n;
    return rc;
}

/* This die has nothing of the offer any more. */
static inline void st_import_end(struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    struct st_export *e = st_export_at(ctx, die, slot);

    st_and_seqcst_64(&e->importers[ctx->rank / 64], ~(1ull << (ctx->rank % 64))); /* pairs with st_export_end */
    st_wake(&ctx->dies[die].bell, &ctx->dies[die].bell_sleepers);
}

#endif
