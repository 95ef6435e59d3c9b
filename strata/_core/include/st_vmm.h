/* Virtual memory management: addresses, frames and access apart.
 *
 * The calls of the CUDA driver's and CANN's VMM interfaces on this die's pages.
 * The caller keeps its ranges and handles apart from others': what is checked
 * here is what would break the die's own tables.
 */
#ifndef ST_VMM_H
#define ST_VMM_H

#include "st_handle.h"

/* ---- addresses ---------------------------------------------------------------- */

/* A free range of npages pages at a multiple of align_pages, at or after page `at`, as an index; 0 in *found: none. */
static inline uint64_t st_va_find(struct st_ctx *ctx, uint64_t at, uint64_t npages, uint64_t align_pages, uint64_t *found)
{
    uint64_t next, base = st_segment(ctx, ctx->rank) >> ST_PAGE_SHIFT;

    *found = 0;
    while (npages <= ctx->seg_pages && align_pages <= base + ctx->seg_pages) {
        at = st_bits_find(ctx->page_used, ctx->seg_pages, at, npages, 1, found);
        next = (base + at + align_pages - 1) / align_pages * align_pages - base;
        if (!*found || next == at)
            break;
        at = next; /* is there room from here on? */
        *found = 0;
    }
    return at;
}

/* Reserves addresses with nothing under them: npages pages at a multiple of
 * align_pages.  ST_ENOMEM: the segment has no such range (errno 0), or the file
 * system has no room for the page table. */
static inline int st_va_reserve(struct st_ctx *ctx, uint64_t npages, uint64_t align_pages, uint64_t *va)
{
    uint64_t at, found;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (npages == 0 || align_pages == 0)
        return ST_EINVAL;
    pthread_mutex_lock(&ctx->lock);
    at = st_va_find(ctx, ctx->fresh, npages, align_pages, &found);
    if (!found && ctx->fresh) /* then where earlier processes had something */
        at = st_va_find(ctx, 0, npages, align_pages, &found);
    errno = 0;
    rc = found ? st_table_reserve(ctx, at + npages) : ST_ENOMEM;
    if (rc == ST_OK) {
        st_bits_set(ctx->page_used, at, npages, 1);
        *va = st_page_va(ctx, at);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Reserved own pages [va, va + npages) as an index; ST_EINVAL: not all of them are
 * reserved.  `full`: and all (1) or none (0) have a frame under them, as this die
 * has it, not as the table says, where others could have written.  The caller holds
 * the lock. */
static inline int st_vmm_within(struct st_ctx *ctx, uint64_t va, uint64_t npages, int full, uint64_t *at)
{
    int rc = st_pages_within(ctx, va, npages, at);
    uint64_t i;

    if (rc == ST_OK && *at + npages > st_table_top(ctx, ctx->rank))
        rc = ST_EINVAL; /* never reserved: the table there may have no memory */
    for (i = *at; rc == ST_OK && i < *at + npages; i++)
        if (!st_bit(ctx->page_used, i) ||
            (ST_PTE_STATE(st_shadow(ctx, ctx->rank)[i]) != ST_PAGE_FREE) != full)
            rc = ST_EINVAL;
    return rc;
}

/* Are these own pages, all of them without access? */
static inline int st_vmm_held(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at, i;
    int held;

    pthread_mutex_lock(&ctx->lock);
    held = st_pages_within(ctx, va, npages, &at) == ST_OK;
    for (i = at; held && i < at + npages; i++)
        held = ST_PTE_STATE(st_shadow(ctx, ctx->rank)[i]) == ST_PAGE_HELD;
    pthread_mutex_unlock(&ctx->lock);
    return held;
}

/* Gives reserved addresses back.  ST_EINVAL: something is mapped there. */
static inline int st_va_free(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t at;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_vmm_within(ctx, va, npages, 0, &at);
    if (rc == ST_OK)
        st_bits_set(ctx->page_used, at, npages, 0);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* ---- mappings -------------------------------------------------------------------- */

/* Puts frames under reserved pages, without access: a matter of the tables alone, which
 * peers need not hear of.  ST_EINVAL: not reserved, or not empty. */
static inline int st_vmm_map(struct st_ctx *ctx, uint64_t va, const uint64_t *words, uint64_t npages)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), at, i, frame, first = ctx->rank * ctx->hbm_pages;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_vmm_within(ctx, va, npages, 0, &at);
    for (i = 0; rc == ST_OK && i < npages; i++) {
        frame = ST_PTE_FRAME(words[i]);
        if (st_frame_own(ctx, frame))
            st_store_relaxed_32(&ctx->frame_refs[frame - first], ctx->frame_refs[frame - first] + 1);
        own[at + i] = ST_PTE(frame, ST_PTE_GEN(own[at + i]) + 1, ST_PAGE_HELD);
    }
    if (rc == ST_OK) {
        st_pages_publish(ctx, at, npages);
        ST_FAULT(VMM_MAPPED);
        st_count(&ctx->count.pages_mapped, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Takes what lies under pages away; the addresses stay reserved.  All or nothing. */
static inline int st_vmm_unmap(struct st_ctx *ctx, uint64_t va, uint64_t npages)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), at, i, k, run, due, frame;
    uint32_t still;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    rc = st_vmm_within(ctx, va, npages, 1, &at);
    still = rc == ST_OK ? st_still_begin(ctx, va, npages) : ST_STILL_MOST;
    if (rc == ST_OK)
        rc = st_unmap_range(ctx, va, npages); /* in one call, which has effect or has none */
    ST_FAULT(VMM_UNMAPPED);
    due = st_log_head(ctx, ctx->rank) + 1;
    for (i = at; rc == ST_OK && i < at + npages; i += run) {
        run = st_pages_run(own, i, at + npages);
        frame = ST_PTE_FRAME(own[i]);
        for (k = i; k < i + run; k++)
            own[k] = ST_PTE(0, ST_PTE_GEN(own[k]) + 1, ST_PAGE_FREE);
        st_pages_publish(ctx, i, run);
        if (st_frame_own(ctx, frame))
            st_frames_refer(ctx, frame - ctx->rank * ctx->hbm_pages, run, -1, due);
    }
    st_still_end(ctx, still);
    if (rc == ST_OK) {
        st_count(&ctx->count.pages_unmapped, npages);
        st_log_append(ctx, ST_LOG_UNMAP, va, npages);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->ndies == 1)
        st_quarantine_reclaim(ctx);
    return rc;
}

/* The kernel's part of a change of access, of pages of one state over contiguous frames. */
static inline int st_vmm_protect(struct st_ctx *ctx, uint64_t va, uint64_t word, uint64_t n, uint32_t state)
{
    int prot = state == ST_PAGE_MAPPED ? PROT_READ | PROT_WRITE : PROT_READ, rc;

    if (ST_PTE_STATE(word) == state)
        return ST_OK;
    if (state == ST_PAGE_HELD)
        return st_unmap_range(ctx, va, n);
    if (ST_PTE_STATE(word) == ST_PAGE_HELD) {
        rc = st_map_frames(ctx, va, ST_PTE_FRAME(word), n, prot, 1);
        return rc == ST_ENOMEM ? ST_EMAPS : rc; /* the frames are there */
    }
    rc = mprotect((void *)(uintptr_t)va, n << ST_PAGE_SHIFT, prot);
    return rc == 0 ? ST_OK : errno == ENOMEM ? ST_EMAPS : ST_ESYS;
}

/* Changes the access of mapped pages, on all dies.  After a failure the table tells the
 * truth: *done pages have the new access, the others the old. */
static inline int st_vmm_access(struct st_ctx *ctx, uint64_t va, uint64_t npages, uint32_t state, uint64_t *done)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), at, i, k, run;
    int rc, changed = 0, lost = 0, had;
    uint32_t still;

    *done = 0;
    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (state != ST_PAGE_MAPPED && state != ST_PAGE_READ && state != ST_PAGE_HELD)
        return ST_EINVAL;
    pthread_mutex_lock(&ctx->lock);
    rc = st_vmm_within(ctx, va, npages, 1, &at);
    still = rc == ST_OK ? st_still_begin(ctx, va, npages) : ST_STILL_MOST;
    for (i = at; rc == ST_OK && i < at + npages; i += run) {
        run = st_pages_run(own, i, at + npages);
        rc = st_vmm_protect(ctx, st_page_va(ctx, i), own[i], run, state);
        if (rc != ST_OK)
            break;
        ST_FAULT(ACCESS_CHANGED);
        *done += run;
        had = (int)ST_PTE_STATE(own[i]);
        if (had == (int)state)
            continue; /* the words stay, so that peers have nothing to do */
        changed = 1;
        lost |= had == ST_PAGE_MAPPED || state == ST_PAGE_HELD;
        for (k = i; k < i + run; k++)
            own[k] = ST_PTE(ST_PTE_FRAME(own[k]), ST_PTE_GEN(own[k]) + 1, state);
    }
    if (changed) {
        st_pages_publish(ctx, at, *done);
        st_log_append(ctx, lost ? ST_LOG_UNMAP : ST_LOG_MAP, va, *done);
    }
    st_still_end(ctx, still);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

#endif
