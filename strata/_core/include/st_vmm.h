/* Virtual memory management: addresses, frames and access apart.
 *
 * The calls of the CUDA driver's and CANN's VMM interfaces on this die's pages.
 * A handle is a list of page table words (st_handle_create), which its holder
 * keeps; frames live while a handle or a mapping refers to them.
 */
#ifndef ST_VMM_H
#define ST_VMM_H

#include "st_shadow.h"

/* Reserves addresses with nothing under them: npages pages at a multiple of
 * align_pages.  ST_ENOMEM: the segment has no such range. */
static inline int st_va_reserve(struct st_ctx *ctx, uint64_t npages, uint64_t align_pages, uint64_t *va)
{
    uint64_t at = 0, found = 0, next;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (npages == 0 || npages > ctx->seg_pages || align_pages == 0 || align_pages > ctx->seg_pages)
        return ST_EINVAL;
    pthread_mutex_lock(&ctx->lock);
    for (;;) {
        at = st_bits_find(ctx->page_used, ctx->seg_pages, at, npages, 1, &found);
        next = (at + align_pages - 1) / align_pages * align_pages;
        if (!found || next == at)
            break;
        at = next; /* is there room from here on? */
    }
    rc = found ? st_table_reserve(ctx, at + npages) : ST_ENOMEM;
    if (rc == ST_OK) {
        st_bits_set(ctx->page_used, at, npages, 1);
        *va = st_page_va(ctx, at);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* 1 if all own pages [at, at + n) have something under them, 0 if none, -1 mixed.
 * The caller holds the lock. */
static inline int st_pages_full(const struct st_ctx *ctx, uint64_t at, uint64_t n)
{
    uint64_t i, full = 0;

    for (i = at; i < at + n; i++)
        full += ST_PTE_STATE(st_load_relaxed_64(&st_table(ctx, ctx->rank)[i])) != ST_PAGE_FREE;
    return full == n ? 1 : full ? -1 : 0;
}

/* Gives reserved addresses back.  ST_EINVAL: something is mapped there. */
static inline int st_va_free(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_pages_within(ctx, va, npages, &at);
    if (rc == ST_OK && st_pages_full(ctx, at, npages) != 0)
        rc = ST_EINVAL;
    if (rc == ST_OK)
        st_bits_set(ctx->page_used, at, npages, 0);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

static inline int st_handle_try(struct st_ctx *ctx, uint64_t npages, uint64_t *words)
{
    uint64_t at, found, i, *own = st_shadow(ctx, ctx->rank);
    int rc;

    pthread_mutex_lock(&ctx->lock);
    at = st_bits_find(ctx->page_used, ctx->seg_pages, 0, npages, 1, &found);
    rc = found ? st_pages_fill(ctx, at, npages) : ST_ENOMEM; /* mapped for a moment, to be made and cleared */
    if (rc == ST_OK) {
        for (i = 0; i < npages; i++) {
            words[i] = own[at + i];
            own[at + i] = st_load_relaxed_64(&st_table(ctx, ctx->rank)[at + i]);
            ctx->frame_refs[ST_PTE_FRAME(words[i]) - ctx->rank * ctx->hbm_pages] = 1;
        }
        rc = st_unmap_range(ctx, st_page_va(ctx, at), npages);
        st_store_relaxed_64(&ctx->dies[ctx->rank].pages_reserved, ctx->hbm_pages - ctx->frames_left);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Physical memory without an address: npages zeroed frames, one word each. */
static inline int st_handle_create(struct st_ctx *ctx, uint64_t npages, uint64_t *words)
{
    struct st_wait_policy policy;
    struct st_waiter w;
    uint64_t reclaimed;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (npages == 0)
        return ST_EINVAL;
    if (npages > ctx->hbm_pages)
        return ST_ENOMEM;
    st_quarantine_begin(ctx, &policy, &w);
    do {
        reclaimed = st_load_relaxed_64(&ctx->count.reclaimed);
        rc = st_handle_try(ctx, npages, words);
    } while (rc == ST_ENOMEM && st_quarantine_wait(ctx, &w, reclaimed));
    st_wait_end(&w);
    return rc;
}

/* The handle lets go of its frames; mappings of them stay. */
static inline int st_handle_release(struct st_ctx *ctx, const uint64_t *words, uint64_t npages)
{
    uint64_t i, run, first = ctx->rank * ctx->hbm_pages;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    for (i = 0; i < npages; i += run) {
        run = st_pages_run(words, i, npages);
        if (ST_PTE_FRAME(words[i]) >= first && ST_PTE_FRAME(words[i]) < first + ctx->hbm_pages)
            st_frames_refer(ctx, ST_PTE_FRAME(words[i]) - first, run, -1, st_log_head(ctx, ctx->rank));
    }
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->ndies == 1)
        st_quarantine_reclaim(ctx);
    return ST_OK;
}

static inline int st_state_prot(uint32_t state)
{
    return state == ST_PAGE_MAPPED ? PROT_READ | PROT_WRITE : state == ST_PAGE_READ ? PROT_READ : PROT_NONE;
}

/* Puts frames under reserved pages.  ST_EINVAL: not reserved, or not empty. */
static inline int st_vmm_map(struct st_ctx *ctx, uint64_t va, const uint64_t *words, uint64_t npages,
                             uint32_t state)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), at, i, run, frame, first = ctx->rank * ctx->hbm_pages;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_pages_within(ctx, va, npages, &at);
    for (i = at; rc == ST_OK && i < at + npages; i++)
        rc = st_bit(ctx->page_used, i) ? ST_OK : ST_EINVAL;
    if (rc == ST_OK && st_pages_full(ctx, at, npages) != 0)
        rc = ST_EINVAL;
    for (i = 0; rc == ST_OK && i < npages; i += run) {
        run = st_pages_run(words, i, npages);
        rc = st_map_frames(ctx, va + (i << ST_PAGE_SHIFT), ST_PTE_FRAME(words[i]), run, st_state_prot(state), 1);
    }
    if (rc == ST_OK) {
        for (i = 0; i < npages; i++) {
            frame = ST_PTE_FRAME(words[i]);
            if (frame >= first && frame < first + ctx->hbm_pages)
                ctx->frame_refs[frame - first]++;
            own[at + i] = ST_PTE(frame, ST_PTE_GEN(own[at + i]) + 1, state);
        }
        st_pages_publish(ctx, at, npages);
        st_count(&ctx->count.pages_mapped, npages);
        st_log_append(ctx, ST_LOG_MAP, va, npages);
    } else if (rc != ST_EINVAL) {
        st_unmap_range(ctx, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Takes what lies under pages away; the addresses stay reserved. */
static inline int st_vmm_unmap(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_pages_within(ctx, va, npages, &at);
    if (rc == ST_OK && st_pages_full(ctx, at, npages) != 1)
        rc = ST_EINVAL;
    if (rc == ST_OK) {
        rc = st_pages_clear(ctx, at, npages, st_log_head(ctx, ctx->rank) + 1);
        st_log_append(ctx, ST_LOG_UNMAP, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->ndies == 1)
        st_quarantine_reclaim(ctx);
    return rc;
}

/* Changes the access of mapped pages, on all dies. */
static inline int st_vmm_access(struct st_ctx *ctx, uint64_t va, uint64_t npages, uint32_t state)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), at, i;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_pages_within(ctx, va, npages, &at);
    if (rc == ST_OK && st_pages_full(ctx, at, npages) != 1)
        rc = ST_EINVAL;
    if (rc == ST_OK && mprotect((void *)(uintptr_t)va, npages << ST_PAGE_SHIFT, st_state_prot(state)) != 0)
        rc = errno == ENOMEM ? ST_EMAPS : ST_ESYS;
    if (rc == ST_OK) {
        for (i = at; i < at + npages; i++)
            own[i] = ST_PTE(ST_PTE_FRAME(own[i]), ST_PTE_GEN(own[i]) + 1, state);
        st_pages_publish(ctx, at, npages);
        st_log_append(ctx, ST_LOG_MAP, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

#endif
