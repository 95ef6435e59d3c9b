/* What a die has taken over of its predecessor, until nobody can look at it any more.
 *
 * The predecessor's pages stand in the table without access, each with its frame, so that a further successor finds
 * them again.  They and their addresses come free when all peers that live have accepted this die (st_accept.h), but for
 * those that somebody has pinned.
 */
#ifndef ST_FORMER_H
#define ST_FORMER_H

#include "st_pin.h"
#include "st_quarantine.h"

/* Have all peers that live accepted this die? */
static inline int st_former_seen(struct st_ctx *ctx)
{
    uint64_t taken = st_load_relaxed_64(&ctx->dies[ctx->rank].taken);
    uint32_t i;

    for (i = 0; i < ctx->ndies; i++)
        if (i != ctx->rank && st_load_seqcst_64(st_cursor(ctx, ctx->rank, i)) < taken && /* pairs with st_log_passed */
            st_die_alive(ctx, i))
            return 0;
    return 1;
}

/* The page is nobody's from now on; the caller holds the lock. */
static inline void st_former_drop(struct st_ctx *ctx, uint64_t i)
{
    uint64_t *own = st_shadow(ctx, ctx->rank), w = own[i];

    own[i] = ST_PTE(0, ST_PTE_GEN(w) + 1, ST_PAGE_FREE);
    st_store_release_64(&st_table(ctx, ctx->rank)[i], own[i]); /* pairs with st_space_take_over */
    st_bits_set(ctx->former, i, 1, 0);
    st_bits_set(ctx->page_used, i, 1, 0);
    st_store_relaxed_64(&ctx->former_pages, ctx->former_pages - 1);
    if (st_frame_own(ctx, ST_PTE_FRAME(w)))
        st_frames_refer(ctx, ST_PTE_FRAME(w) - ctx->rank * ctx->hbm_pages, 1, -1, ctx->dies[ctx->rank].taken);
}

/* Gives free what may be; how many pages. */
static inline uint64_t st_former_release(struct st_ctx *ctx)
{
    uint64_t *pinned = ctx->kept + (uint64_t)ctx->rank * ctx->ready_words, i, k, had;
    uint32_t die;
    int all = 0;

    if (!st_load_relaxed_64(&ctx->former_pages) || !st_former_seen(ctx))
        return 0;
    pthread_mutex_lock(&ctx->lock);
    pthread_mutex_lock(&ctx->users_lock); /* guards the scratch */
    memset(pinned, 0, ctx->ready_words * 8);
    for (die = 0; die < ctx->ndies && !all; die++)
        if (die != ctx->rank && st_load_relaxed_32(&ctx->dies[die].state) != ST_DIE_ABSENT && st_die_runs(ctx, die))
            all = st_pins_mark(ctx, die, ctx->rank, 0, pinned);
    had = ctx->former_pages;
    for (k = 0; k < ctx->ready_words && !all; k++)
        for (i = k * 64; ctx->former[k] & ~pinned[k] && i < k * 64 + 64; i++)
            if (ctx->former[k] & ~pinned[k] & 1ull << (i & 63))
                st_former_drop(ctx, i);
    had -= ctx->former_pages;
    pthread_mutex_unlock(&ctx->users_lock);
    pthread_mutex_unlock(&ctx->lock);
    return had;
}

#endif
