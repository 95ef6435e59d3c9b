/* A die that was started again: how its peers part with what they have of its predecessor.
 *
 * The successor has taken the predecessor's pages away in its table, under other addresses than it will use itself as
 * long as a peer that lives may have them mapped.  A peer *accepts* it: when no operation of a group with the
 * predecessor runs here any more, all that is mapped of it becomes blank (private, zero) pages.  So a thread that comes
 * by an old pointer finds nothing of anybody, and does not fault; whatever it was at ends with PeerDead, since it looks
 * at the incarnation after what it has read.  Pinned pages stay as they are.
 */
#ifndef ST_ACCEPT_H
#define ST_ACCEPT_H

#include "st_pin.h"
#include "st_shadow.h"

#define ST_UNSETTLED UINT64_MAX /* a successor is at it */

/* Pages of a die's segment that are still mapped here though its table has them no more; of its own: scratch. */
static inline uint64_t *st_kept(const struct st_ctx *ctx, uint32_t die)
{
    return ctx->kept + (uint64_t)die * ctx->ready_words;
}

/* Has this die no operation in progress in a group that means an earlier process of `die`? */
static inline int st_users_idle(struct st_ctx *ctx, uint32_t die, uint64_t life)
{
    struct st_user *u;
    uint32_t j, k;
    int idle = 1;

    pthread_mutex_lock(&ctx->users_lock);
    for (u = ctx->users; u && idle; u = u->next)
        for (j = 0; j < u->n && idle; j++) {
            if (u->ranks[j] != die || st_load_relaxed_32(&u->lives[j]) == (uint32_t)life)
                continue;
            for (k = 0; k < 2 && idle; k++) {
                idle = pthread_mutex_trylock(u->locks[k]) == 0;
                if (idle)
                    pthread_mutex_unlock(u->locks[k]);
            }
        }
    pthread_mutex_unlock(&ctx->users_lock);
    return idle;
}

/* Puts blank memory over pages. */
static inline int st_blank_range(struct st_ctx *ctx, uint64_t va, uint64_t n)
{
    void *at = (void *)(uintptr_t)va;

    if (ctx->shared_window)
        return ST_OK;
    if (mmap(at, n << ST_PAGE_SHIFT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0) == MAP_FAILED)
        return st_unmap_range(ctx, va, n);
    (void)madvise(at, n << ST_PAGE_SHIFT, MADV_NOHUGEPAGE); /* a stray touch need not cost 2 MiB */
    return ST_OK;
}

/* Page i of a peer, whose word is not what is mapped here: blank from now on.  The caller holds the map_lock. */
static inline int st_shadow_blank(struct st_ctx *ctx, uint32_t die, uint64_t i)
{
    uint32_t still = st_still_begin(ctx, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), 1);
    int rc = st_blank_range(ctx, st_segment(ctx, die) + (i << ST_PAGE_SHIFT), 1);

    st_still_end(ctx, still);
    if (rc == ST_OK)
        st_count(&ctx->count.shadow_unmaps, 1);
    return rc;
}

/* Parts with all pages of a peer that its table has not (or not so) any more. */
static inline int st_accept_pages(struct st_ctx *ctx, uint32_t die)
{
    uint64_t *table = st_table(ctx, die), *shadow = st_shadow(ctx, die), top = st_table_top(ctx, die), i, w, had;
    uint64_t *pinned = st_kept(ctx, ctx->rank);
    struct st_follow *f = &ctx->follow[die];
    int all, rc = ST_OK;

    memset(pinned, 0, ctx->ready_words * 8); /* scratch, which the users_lock guards */
    all = st_pins_mark(ctx, ctx->rank, die, 0, pinned);
    for (i = 0; i < top && rc == ST_OK; i++) {
        had = st_load_relaxed_64(&shadow[i]);
        w = st_load_acquire_64(&table[i]); /* pairs with st_takeover_settle */
        if (had == w || !st_page_maps(had))
            continue;
        st_ready_set(ctx, die, i, 0);
        if (all || st_bit(pinned, i)) {
            f->kept += !st_bit(st_kept(ctx, die), i);
            st_bits_set(st_kept(ctx, die), i, 1, 1);
        } else {
            rc = st_shadow_blank(ctx, die, i);
        }
        if (rc == ST_OK) /* a word that is never there again: what is there is not mapped */
            st_store_relaxed_64(&shadow[i], ST_PTE(0, ST_PTE_GEN(w) - 1, ST_PAGE_FREE));
    }
    return rc;
}

/* Pages of the dead that a peer has cleared since its frames lay under them: what a
 * reader of its log may have missed when it was lapped. */
static inline int st_follow_dead(struct st_ctx *ctx)
{
    uint32_t die;
    int rc = ST_OK;

    for (die = 0; die < ctx->ndies && rc == ST_OK; die++) {
        if (die == ctx->rank || !st_load_relaxed_64(&ctx->dies[die].dead) ||
            st_load_acquire_64(&ctx->dies[die].settled) != ctx->follow[die].life) /* pairs with st_takeover_settle */
            continue; /* nobody has died there, or st_accept sees to it */
        pthread_mutex_lock(&ctx->follow[die].map_lock);
        rc = st_shadow_sync(ctx, die, 0, ctx->seg_pages, 0);
        pthread_mutex_unlock(&ctx->follow[die].map_lock);
    }
    return rc;
}

/* Accepts a die that was started again, if it was.  ST_AGAIN: not yet, since an operation with its predecessor is
 * still in progress here, or it has not taken over all. */
static inline int st_accept(struct st_ctx *ctx, uint32_t die)
{
    struct st_follow *f = &ctx->follow[die];
    struct st_die *d = &ctx->dies[die];
    uint64_t life = st_load_acquire_64(&d->settled), taken; /* pairs with st_takeover_settle */
    int rc = ST_OK;

    if (__builtin_expect(st_load_acquire_64(&f->life) == life, 1)) /* pairs with the store below */
        return ST_OK;
    if (life == ST_UNSETTLED || !st_users_idle(ctx, die, life))
        return ST_AGAIN;
    pthread_mutex_lock(&f->log_lock);
    taken = st_load_acquire_64(&d->taken);       /* pairs with st_takeover_settle */
    if (st_load_acquire_64(&d->settled) != life) /* pairs with st_takeover_settle: `taken` may be another's */
        rc = ST_AGAIN;
    if (rc == ST_OK && f->life != life) {
        rc = st_follow_dead(ctx);
        pthread_mutex_lock(&f->map_lock);
        pthread_mutex_lock(&ctx->users_lock);
        rc = rc == ST_OK ? st_accept_pages(ctx, die) : rc;
        pthread_mutex_unlock(&ctx->users_lock);
        pthread_mutex_unlock(&f->map_lock);
        if (rc == ST_OK) {
            f->at[0] = f->at[1] = (struct st_position){taken, 0, 0};
            st_store_release_64(&f->passed, taken); /* pairs with st_ensure_mapped */
            st_store_release_64(&f->life, life);    /* pairs with the load above */
            st_log_passed(ctx, die, taken);
        }
    }
    pthread_mutex_unlock(&f->log_lock);
    return rc;
}

/* Undoes st_pin of this range, of `die`'s segment. */
static inline void st_let_go(struct st_ctx *ctx, uint32_t pin, uint32_t die, uint64_t va, uint64_t bytes)
{
    uint64_t first = (va - st_segment(ctx, die)) >> ST_PAGE_SHIFT, last, i;
    uint64_t *pinned = st_kept(ctx, ctx->rank), *kept = st_kept(ctx, die);
    struct st_follow *f = &ctx->follow[die];

    pthread_mutex_lock(&f->map_lock); /* so that of two pins of a page the last one finds that it is the last */
    if (f->kept) {
        pthread_mutex_lock(&ctx->users_lock);
        memset(pinned, 0, ctx->ready_words * 8);
        last = pin == ST_PIN_UNLISTED ? ctx->seg_pages - 1 : (va + bytes - 1 - st_segment(ctx, die)) >> ST_PAGE_SHIFT;
        first = pin == ST_PIN_UNLISTED ? 0 : first;
        if (!st_pins_mark(ctx, ctx->rank, die, pin, pinned))
            for (i = first; i <= last; i++)
                if (st_bit(kept, i) && !st_bit(pinned, i)) {
                    st_bits_set(kept, i, 1, 0);
                    f->kept--;
                    if (!st_page_maps(st_load_relaxed_64(&st_shadow(ctx, die)[i])))
                        (void)st_shadow_blank(ctx, die, i);
                }
        pthread_mutex_unlock(&ctx->users_lock);
    }
    if (pin == ST_PIN_UNLISTED)
        st_add_seqcst_32(&ctx->dies[ctx->rank].pins_more, (uint32_t)-1); /* pairs with st_pins_mark */
    else
        st_store_seqcst_64(&st_pins(ctx, ctx->rank)[pin - 1], 0); /* pairs with st_pins_mark */
    pthread_mutex_unlock(&f->map_lock);
}

#endif
