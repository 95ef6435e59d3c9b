/* Physical memory without an address.
 *
 * A handle is a list of page table words, which its holder keeps; frames live
 * while a handle or a mapping refers to them (frame_refs).
 */
#ifndef ST_HANDLE_H
#define ST_HANDLE_H

#include "st_shadow.h"

/* Gives frames back that nobody has seen. */
static inline void st_handle_undo(struct st_ctx *ctx, const uint64_t *words, uint64_t npages)
{
    uint64_t i, k, run, frame;
    int err = errno;

    for (i = 0; i < npages; i += run) {
        run = st_pages_run(words, i, npages);
        frame = ST_PTE_FRAME(words[i]) - ctx->rank * ctx->hbm_pages;
        for (k = 0; k < run; k++)
            st_store_relaxed_32(&ctx->frame_refs[frame + k], 0);
        st_frames_punch(ctx, frame, run);
        st_frames_freed(ctx, frame, run);
    }
    errno = err;
}

/* At most `want` contiguous free frames, zero and reserved; how many in *got.  They are
 * mapped only where they can be made huge pages, and only for that. */
static inline int st_handle_take(struct st_ctx *ctx, uint64_t want, uint64_t *words, uint64_t *got)
{
    uint64_t frame, i, at, room = 0;
    int rc;

    frame = st_frames_find(ctx, want, got);
    if (!*got)
        return ST_ENOMEM;
    at = st_pages_room(ctx, *got, &room);
    room = ctx->huge ? room : 0;
    if (room)
        st_frames_huge(ctx, st_page_va(ctx, at), frame, *got);
    rc = st_frames_reserve(ctx, frame, *got);
    if (rc == ST_OK && room)
        rc = st_unmap_range(ctx, st_page_va(ctx, at), *got);
    else if (room)
        (void)st_unmap_range(ctx, st_page_va(ctx, at), *got);
    st_bits_set(ctx->frame_used, frame, *got, 1);
    st_store_relaxed_64(&ctx->frames_left, ctx->frames_left - *got);
    for (i = 0; i < *got; i++) {
        words[i] = ST_PTE(ctx->rank * ctx->hbm_pages + frame + i, 0, ST_PAGE_HELD);
        st_store_relaxed_32(&ctx->frame_refs[frame + i], 1);
    }
    ST_FAULT(HANDLE_TAKEN);
    return rc;
}

static inline int st_handle_try(struct st_ctx *ctx, uint64_t npages, uint64_t *words)
{
    uint64_t done = 0, got = 0;
    int rc;

    pthread_mutex_lock(&ctx->lock);
    rc = npages > ctx->frames_left ? ST_ENOMEM : ST_OK;
    for (; rc == ST_OK && done < npages; done += got)
        rc = st_handle_take(ctx, npages - done, words + done, &got);
    if (rc != ST_OK)
        st_handle_undo(ctx, words, done);
    else
        st_store_relaxed_32(&ctx->vmm, 1);
    st_store_relaxed_64(&ctx->dies[ctx->rank].pages_reserved, ctx->hbm_pages - ctx->frames_left);
    pthread_mutex_unlock(&ctx->lock);
    return rc;
}

/* Physical memory without an address: npages zeroed frames, one word each.
 * ST_ENOMEM: HBM share or file system is full; nothing has changed then. */
static inline int st_handle_create(struct st_ctx *ctx, uint64_t npages, uint64_t *words)
{
    struct st_patience p;
    int rc;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    if (npages == 0)
        return ST_EINVAL;
    if (npages > ctx->hbm_pages)
        return ST_ENOMEM;
    st_patience_begin(ctx, &p);
    do {
        rc = st_handle_try(ctx, npages, words);
    } while (st_patience_again(ctx, &p, rc));
    return rc;
}

/* The handle lets go of its frames; mappings of them stay. */
static inline int st_handle_release(struct st_ctx *ctx, const uint64_t *words, uint64_t npages)
{
    uint64_t i, run;

    if (!st_is_die(ctx))
        return ST_ENOJOB;
    pthread_mutex_lock(&ctx->lock);
    for (i = 0; i < npages; i += run) {
        run = st_pages_run(words, i, npages);
        if (st_frame_own(ctx, ST_PTE_FRAME(words[i])))
            st_frames_refer(ctx, ST_PTE_FRAME(words[i]) - ctx->rank * ctx->hbm_pages, run, -1,
                            st_log_head(ctx, ctx->rank));
    }
    pthread_mutex_unlock(&ctx->lock);
    if (ctx->ndies == 1)
        st_quarantine_reclaim(ctx);
    return ST_OK;
}

#endif
