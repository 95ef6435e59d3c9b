/* Frames between two lives.
 *
 * A frame that nothing of this die refers to any more may still be mapped on
 * peers.  It stays in quarantine until all that live have passed the log record
 * that let it go; then its memory is punched out and it is free.  The dead are
 * not waited for, nor, beyond quarantine_ns, those that do not read (a die that
 * is stopped): when such a one comes back it finds another generation in the
 * page table, and no operation reads through its old mapping.
 */
#ifndef ST_QUARANTINE_H
#define ST_QUARANTINE_H

#include "st_bits.h"
#include "st_frames.h"
#include "st_log.h"

#define ST_RECLAIM_FRAMES 64u /* punched in one call */

/* Frames [frame, frame + n) of this die's HBM; the caller holds the lock. */
static inline void st_quarantine_add(struct st_ctx *ctx, uint64_t frame, uint64_t n, uint64_t due)
{
    struct st_held *h = &ctx->held[frame];
    struct st_die *me = &ctx->dies[ctx->rank];
    int first = ctx->held_first == 0;

    *h = (struct st_held){due, st_now_ns(), 0, (uint32_t)n};
    if (ctx->held_last)
        ctx->held[ctx->held_last - 1].next = (uint32_t)frame + 1;
    else
        ctx->held_first = (uint32_t)frame + 1;
    ctx->held_last = (uint32_t)frame + 1;
    ST_FAULT(QUARANTINED);
    st_store_relaxed_64(&ctx->quarantined_frames, ctx->quarantined_frames + n);
    st_store_seqcst_64(&me->reclaim_due, ctx->held[ctx->held_first - 1].due); /* pairs with st_log_passed */
    if (first) /* the registrar looks again from time to time: the last reader may be dead, and ring no more */
        st_wake(&me->bell, &me->bell_sleepers);
}

/* Have all readers that live passed `due` records of this die's log?  If not, but they
 * have had time enough since `since_ns`, that will do: *unread is 1 then. */
static inline int st_quarantine_over(struct st_ctx *ctx, uint64_t due, uint64_t since_ns, int *unread)
{
    uint32_t i;

    *unread = 0;
    for (i = 0; i < ctx->ndies && !*unread; i++)
        *unread = i != ctx->rank && st_load_seqcst_64(st_cursor(ctx, ctx->rank, i)) < due && /* pairs with st_log_passed */
                  st_die_alive(ctx, i);
    return !*unread || (ctx->quarantine_ns && st_now_ns() - since_ns >= ctx->quarantine_ns);
}

/* The oldest run that may be freed, at most ST_RECLAIM_FRAMES of it; 0: none. */
static inline uint64_t st_quarantine_take(struct st_ctx *ctx, uint64_t *frame)
{
    struct st_held *h, *rest;
    uint64_t n, due;
    int unread;

    if (!ctx->held_first)
        return 0;
    h = &ctx->held[ctx->held_first - 1];
    if (!st_quarantine_over(ctx, h->due, h->since_ns, &unread))
        return 0;
    *frame = ctx->held_first - 1;
    n = h->run < ST_RECLAIM_FRAMES ? h->run : ST_RECLAIM_FRAMES;
    if (unread)
        st_count(&ctx->count.reclaimed_unread, n);
    if (n < h->run) {
        rest = h + n;
        *rest = (struct st_held){h->due, h->since_ns, h->next, h->run - (uint32_t)n};
        if (ctx->held_last == ctx->held_first)
            ctx->held_last += (uint32_t)n;
        ctx->held_first += (uint32_t)n;
    } else {
        ctx->held_first = h->next;
        if (!h->next)
            ctx->held_last = 0;
    }
    due = ctx->held_first ? ctx->held[ctx->held_first - 1].due : 0;
    st_store_seqcst_64(&ctx->dies[ctx->rank].reclaim_due, due); /* pairs with st_log_passed */
    return n;
}

static inline void st_frames_freed(struct st_ctx *ctx, uint64_t frame, uint64_t n)
{
    st_bits_set(ctx->frame_used, frame, n, 0);
    st_store_relaxed_64(&ctx->frames_left, ctx->frames_left + n);
    st_store_relaxed_64(&ctx->dies[ctx->rank].pages_reserved, ctx->hbm_pages - ctx->frames_left);
}

static inline uint64_t st_former_release(struct st_ctx *ctx); /* st_former.h */

/* Frees what can be freed; the lock is not held over system calls.  Returns how
 * many frames came free. */
static inline uint64_t st_quarantine_reclaim(struct st_ctx *ctx)
{
    uint64_t frame = 0, n, total = 0;

    st_former_release(ctx);
    for (;;) {
        pthread_mutex_lock(&ctx->lock);
        n = st_quarantine_take(ctx, &frame);
        pthread_mutex_unlock(&ctx->lock);
        if (!n)
            return total;
        ST_FAULT(RECLAIM_BEFORE);
        (void)st_frames_punch(ctx, frame, n); /* it is tried again before they are used */
        ST_FAULT(RECLAIM_PUNCHED);
        pthread_mutex_lock(&ctx->lock);
        st_frames_freed(ctx, frame, n);
        st_count(&ctx->count.reclaimed, n);
        st_store_release_64(&ctx->quarantined_frames, ctx->quarantined_frames - n); /* pairs with st_quarantine_wait */
        pthread_mutex_unlock(&ctx->lock);
        total += n;
    }
}

/* Does a peer have frames in quarantine, which fill the file system? */
static inline int st_quarantine_elsewhere(struct st_ctx *ctx)
{
    uint32_t i;

    for (i = 0; i < ctx->ndies; i++)
        if (i != ctx->rank && st_load_relaxed_64(&ctx->dies[i].reclaim_due) && st_die_alive(ctx, i))
            return 1;
    return 0;
}

/* After a call lacked frames or (errno says so) file system.  1: call again, some
 * have come free since `reclaimed` was read, or may have on a peer.  0: nothing will. */
static inline int st_quarantine_wait(struct st_ctx *ctx, struct st_waiter *w, uint64_t reclaimed)
{
    int err = errno, again, elsewhere, rc = ST_OK;
    uint64_t left;

    for (;;) {
        left = st_load_relaxed_64(&ctx->former_pages) + st_load_acquire_64(&ctx->quarantined_frames); /* pairs with st_quarantine_reclaim */
        again = st_load_relaxed_64(&ctx->count.reclaimed) != reclaimed || st_quarantine_reclaim(ctx);
        if (again)
            break;
        elsewhere = err && st_quarantine_elsewhere(ctx);
        again = elsewhere && rc == ST_AGAIN; /* nobody rings when a peer's come free: now and then a try */
        if (again || rc == ST_ETIMEOUT || !(left || elsewhere))
            break;
        rc = st_wait_step(w);
    }
    errno = err;
    return again;
}

/* An allocation's wait for frames that are in quarantine: no longer than any has to
 * stay there. */
struct st_patience {
    struct st_wait_policy policy;
    struct st_waiter waiter;
    uint64_t reclaimed;
};

/* Before a try: errno afterwards is the try's own. */
static inline void st_patience_try(struct st_ctx *ctx, struct st_patience *p)
{
    p->reclaimed = st_load_relaxed_64(&ctx->count.reclaimed);
    errno = 0;
}

static inline void st_patience_begin(struct st_ctx *ctx, struct st_patience *p)
{
    p->policy = ctx->wait;
    p->policy.poll = NULL; /* an allocation may not run signal handlers */
    st_wait_begin(&p->waiter, &p->policy, NULL, NULL,
                  (ctx->quarantine_ns ? ctx->quarantine_ns : 10000000000ull) + 1000000000ull);
    st_patience_try(ctx, p);
}

/* After a try.  1: try again.  0: its outcome is final. */
static inline int st_patience_again(struct st_ctx *ctx, struct st_patience *p, int rc)
{
    if (rc == ST_ENOMEM && st_quarantine_wait(ctx, &p->waiter, p->reclaimed)) {
        st_patience_try(ctx, p);
        return 1;
    }
    st_wait_end(&p->waiter);
    return 0;
}

/* Refers to, or (by -1) lets go of, frames of this die; the caller holds the
 * lock.  Those that nothing refers to go into quarantine. */
static inline void st_frames_refer(struct st_ctx *ctx, uint64_t frame, uint64_t n, int by, uint64_t due)
{
    uint64_t i, run;

    for (i = 0; i < n; i++)
        st_store_relaxed_32(&ctx->frame_refs[frame + i], ctx->frame_refs[frame + i] + (uint32_t)by);
    for (i = 0; by < 0 && i < n; i += run) {
        for (run = 0; i + run < n && ctx->frame_refs[frame + i + run] == 0; run++) {
        }
        if (run)
            st_quarantine_add(ctx, frame + i, run, due);
        else
            run = 1;
    }
}

#include "st_former.h"

#endif
