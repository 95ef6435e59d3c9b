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
        if ((rc == ST_EFILE || rc == ST_ECORRUPT) && ST_PTE_FOREIGN(w)) {
            st_fence_seqcst(); /* the word goes before what it leads to */
            if (st_load_acquire_64(&table[i]) != w) { /* pairs with st_pages_publish */
                rc = ST_OK; /* deregistered meanwhile: what is there now counts */
                run = 0;
            }
        }
    }
    return rc;
}

#endif
