/* Physical memory that other dies may map under addresses of their own.
 *
 * An export is a slot in the exporter's table, and a range of its segment in
 * which the frames stand without access; the mapping keeps them alive.  A die
 * that imports sets its bit, maps the frames in its own segment, and clears the
 * bit when it is done and its peers have followed it.  The exporter closes the
 * slot; its registrar takes the range away when the importers that live have let
 * go, and first clears what dead ones had mapped, so that nobody reads through it
 * later.
 */
#ifndef ST_EXPORT_H
#define ST_EXPORT_H

#include "st_vmm.h"

#define ST_EXPORT_STATE(s) ((uint32_t)((s) & 3u))

static inline struct st_export *st_export_at(const struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    return ctx->exports + (uint64_t)die * ST_EXPORT_SLOTS + slot;
}

static inline struct st_imported *st_imported_at(const struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    return ctx->imported + (uint64_t)die * ST_EXPORT_SLOTS + slot;
}

/* Has this die's registrar something to look at again and again? */
static inline int st_export_pending(const struct st_ctx *ctx)
{
    return st_load_relaxed_32(&ctx->closing) || st_load_relaxed_32(&ctx->leaving_first);
}

/* ---- the exporter ----------------------------------------------------------------- */

/* Offers frames.  *slot and *use name the offer.  ST_AGAIN: all slots are taken. */
static inline int st_export_open(struct st_ctx *ctx, const uint64_t *words, uint64_t npages, uint32_t *slot,
                                 uint64_t *use)
{
    struct st_export *e = NULL;
    uint64_t va = 0, state = 0;
    uint32_t i;
    int rc = st_va_reserve(ctx, npages, 1, &va);

    if (rc != ST_OK)
        return rc;
    rc = st_vmm_map(ctx, va, words, npages);
    ST_FAULT(EXPORT_MAPPED);
    pthread_mutex_lock(&ctx->lock);
    for (i = 0; rc == ST_OK && i < ST_EXPORT_SLOTS; i++) {
        state = st_load_acquire_64(&st_export_at(ctx, ctx->rank, i)->state); /* pairs with st_export_sweep */
        if (ST_EXPORT_STATE(state) == ST_EXPORT_FREE)
            break;
    }
    if (rc == ST_OK && i < ST_EXPORT_SLOTS) {
        e = st_export_at(ctx, ctx->rank, i);
        st_store_relaxed_64(&e->va, va);
        st_store_relaxed_64(&e->npages, npages);
        *slot = i;
        *use = (state >> 2) + 1;
        ST_FAULT(EXPORT_HALF);
        st_store_seqcst_64(&e->state, *use << 2 | ST_EXPORT_OPEN); /* pairs with st_import */
        ST_FAULT(EXPORT_OPENED);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (e)
        return ST_OK;
    if (rc == ST_OK)
        (void)st_vmm_unmap(ctx, va, npages);
    (void)st_va_free(ctx, va, npages);
    return rc == ST_OK ? ST_AGAIN : rc;
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
        ST_FAULT(EXPORT_SCRUBBED);
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
    uint64_t dead[ST_MAX_DIES / 64] = {0};
    const uint64_t *frames;
    uint32_t die;

    if (!st_vmm_held(ctx, va, n))
        return 1; /* somebody has written over the slot: which pages it was is not known any more, and they stay */
    frames = st_shadow(ctx, ctx->rank) + ((va - st_segment(ctx, ctx->rank)) >> ST_PAGE_SHIFT);
    for (die = 0; die < ctx->ndies; die++) {
        bits = st_load_seqcst_64(&e->importers[die / 64]); /* pairs with st_import, st_import_clear */
        if (!(bits >> (die % 64) & 1))
            continue;
        if (st_die_runs(ctx, die))
            return 0;
        dead[die / 64] |= 1ull << (die % 64);
    }
    for (die = 0; die < ctx->ndies; die++)
        if (dead[die / 64] >> (die % 64) & 1 && die != ctx->rank)
            st_export_scrub(ctx, die, frames, n);
    if (st_vmm_unmap(ctx, va, n) != ST_OK)
        return 0;
    ST_FAULT(EXPORT_UNMAPPED);
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
        ST_FAULT(EXPORT_ENDING);
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
    struct st_die *me = &ctx->dies[ctx->rank];

    if (!st_is_die(ctx))
        return;
    pthread_mutex_lock(&ctx->lock);
    if (st_load_relaxed_64(&e->state) == (use << 2 | ST_EXPORT_OPEN)) {
        st_store_relaxed_32(&ctx->closing, ctx->closing + 1);
        st_store_seqcst_64(&e->state, use << 2 | ST_EXPORT_CLOSING); /* pairs with st_import */
        ST_FAULT(EXPORT_CLOSING);
    }
    pthread_mutex_unlock(&ctx->lock);
    st_export_sweep(ctx);
    if (st_load_relaxed_32(&ctx->closing))
        st_wake(&me->bell, &me->bell_sleepers); /* importers that die ring nobody: look again and again */
}

/* ---- the importer ------------------------------------------------------------------ */

/* This die has nothing of any use of the slot. */
static inline void st_import_clear(struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    struct st_export *e = st_export_at(ctx, die, slot);

    ST_FAULT(IMPORT_LEAVING);
    st_and_seqcst_64(&e->importers[ctx->rank / 64], ~(1ull << (ctx->rank % 64))); /* pairs with st_export_end */
    ST_FAULT(IMPORT_CLEARED);
    st_wake(&ctx->dies[die].bell, &ctx->dies[die].bell_sleepers);
}

/* The frames' words, of an offer of this die's bit; see st_import. */
static inline int st_import_words(struct st_ctx *ctx, uint32_t die, const struct st_export *e, uint64_t npages,
                                  uint64_t *words)
{
    uint64_t va = st_load_relaxed_64(&e->va), n = st_load_relaxed_64(&e->npages), at, i, frame;

    if (st_owner(ctx, va) != (int64_t)die || va % ST_PAGE_BYTES)
        return ST_ECORRUPT;
    at = (va - st_segment(ctx, die)) >> ST_PAGE_SHIFT;
    if (n != npages || n == 0 || n > ctx->seg_pages || at + n > st_table_top(ctx, die))
        return ST_ECORRUPT;
    for (i = 0; i < n; i++) {
        words[i] = st_load_acquire_64(&st_table(ctx, die)[at + i]); /* pairs with st_pages_publish */
        frame = ST_PTE_FRAME(words[i]);
        if (ST_PTE_STATE(words[i]) != ST_PAGE_HELD || frame < die * ctx->hbm_pages ||
            frame >= (die + 1) * ctx->hbm_pages)
            return ST_ECORRUPT;
    }
    return ST_OK;
}

/* Takes part in an offer of npages pages of another die: their words, and this die
 * counts as an importer until st_import_end, once for each call that succeeded.
 * ST_EREG: the offer is over.  ST_ECORRUPT: it never was of that many pages. */
static inline int st_import(struct st_ctx *ctx, uint32_t die, uint32_t slot, uint64_t use, uint64_t npages,
                            uint64_t *words)
{
    uint64_t bit = 1ull << (ctx->rank % 64), wanted = use << 2 | ST_EXPORT_OPEN;
    struct st_imported *own;
    struct st_export *e;
    int rc = ST_EREG;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (die >= ctx->ndies || die == ctx->rank || slot >= ST_EXPORT_SLOTS)
        return ST_EINVAL;
    e = st_export_at(ctx, die, slot);
    own = st_imported_at(ctx, die, slot);
    pthread_mutex_lock(&ctx->lock);
    if (st_load_seqcst_64(&e->state) == wanted) { /* pairs with st_export_open, st_export_close */
        st_or_acq_rel_64(&e->importers[ctx->rank / 64], bit); /* pairs with st_export_end */
        ST_FAULT(IMPORT_BIT);
        st_fence_seqcst(); /* the exporter closes, then looks at the bits: one of the two sees the other */
        if (st_load_seqcst_64(&e->state) == wanted)
            rc = st_import_words(ctx, die, e, npages, words);
        own->count += rc == ST_OK;
        if (own->count == 0 && !own->listed)
            st_import_clear(ctx, die, slot);
    }
    ST_FAULT(IMPORTED);
    if (rc == ST_OK)
        st_store_relaxed_32(&ctx->vmm, 1);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Imports that have ended here and that no peer can have mapped any more end for their
 * exporters.  `all`: the others, too. */
static inline void st_import_sweep(struct st_ctx *ctx, int all)
{
    struct st_imported *own;
    uint32_t index;
    int unread;

    pthread_mutex_lock(&ctx->lock);
    while ((index = ctx->leaving_first) != 0) {
        own = &ctx->imported[index - 1];
        if (!all && own->count == 0 && !st_quarantine_over(ctx, own->due, own->since_ns, &unread))
            break;
        st_store_relaxed_32(&ctx->leaving_first, own->next);
        if (own->next == 0)
            ctx->leaving_last = 0;
        own->listed = 0;
        if (own->count == 0)
            st_import_clear(ctx, (index - 1) / ST_EXPORT_SLOTS, (index - 1) % ST_EXPORT_SLOTS);
    }
    pthread_mutex_unlock(&ctx->lock);
}

/* Undoes one st_import.  After the last, this die has nothing of the offer mapped; its
 * peers may still have, so the exporter hears of it when they have followed. */
static inline void st_import_end(struct st_ctx *ctx, uint32_t die, uint32_t slot)
{
    struct st_imported *own = st_imported_at(ctx, die, slot);
    struct st_die *me = &ctx->dies[ctx->rank];
    uint32_t index = die * ST_EXPORT_SLOTS + slot + 1;

    if (!st_is_die(ctx))
        return;
    pthread_mutex_lock(&ctx->lock);
    if (--own->count == 0) {
        own->due = st_log_head(ctx, ctx->rank);
        own->since_ns = st_now_ns();
        if (!own->listed) {
            own->listed = 1;
            own->next = 0;
            if (ctx->leaving_last)
                ctx->imported[ctx->leaving_last - 1].next = index;
            else
                st_store_seqcst_32(&ctx->leaving_first, index); /* pairs with st_registrar_sleep */
            ctx->leaving_last = index;
        }
    }
    pthread_mutex_unlock(&ctx->lock);
    st_import_sweep(ctx, !ctx->registrar_runs);
    if (st_load_relaxed_32(&ctx->leaving_first))
        st_wake(&me->bell, &me->bell_sleepers);
}

#endif
