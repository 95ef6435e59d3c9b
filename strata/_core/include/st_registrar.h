/* The registrar: a thread of each die that follows its peers' metadata logs.
 *
 * Phase 1 of registration on allocation.  A peer appends a record and rings;
 * the registrar maps the pages at the peer's own addresses and populates them,
 * long before an operation asks.  It also unmaps what peers have given back,
 * and frees this die's frames when they come out of quarantine.  It sleeps in
 * the kernel, without a timeout, when there is nothing to do.  In mode
 * just_in_time it maps nothing, but unmaps, since peers wait for that.
 */
#ifndef ST_REGISTRAR_H
#define ST_REGISTRAR_H

#include "st_export.h"
#include "st_follow.h"
#include "st_thread.h"

#define ST_REGISTRAR_STACK (256u << 10)
#define ST_RECHECK_NS 20000000ull /* between looks at readers that are late, or dead */

/* Follows every peer's log to where it ends now.  1: there was something; *failed
 * counts peers whose log could not be followed. */
static inline int st_registrar_round(struct st_ctx *ctx, uint32_t *failed)
{
    int maps = !ctx->lazy, some = 0;
    uint64_t head, cursor;
    uint32_t die;

    (void)st_trace_as(ctx, ST_TRACE_REGISTRAR, 0);
    for (die = 0; die < ctx->ndies; die++) {
        if (die == ctx->rank)
            continue;
        if (st_accept(ctx, die) != ST_OK) { /* started again, and an operation with the one before goes on here */
            ++*failed;
            continue;
        }
        head = st_log_head(ctx, die);
        cursor = st_load_relaxed_64(&ctx->follow[die].passed);
        if (cursor >= head)
            continue;
        if (head - cursor > ctx->count.lag_max)
            st_store_relaxed_64(&ctx->count.lag_max, head - cursor);
        /* What cannot be mapped now (no room for another mapping) is reported by
         * phase 2, if anybody asks for it; what is gone must still be let go. */
        if (st_shadow_follow(ctx, die, head, maps) == ST_OK) {
            some = 1;
            continue;
        }
        st_count(&ctx->count.registrar_errors, 1);
        if (maps && st_shadow_follow(ctx, die, head, 0) == ST_OK)
            some = 1;
        else
            ++*failed;
    }
    return some;
}

/* Sleeps until the bell; not at all if something has come up meanwhile. */
static inline void st_registrar_sleep(struct st_ctx *ctx, uint32_t seen, uint32_t failed)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    struct timespec ts = {.tv_nsec = (long)ST_RECHECK_NS}, *limit = NULL;
    uint32_t die, behind = 0;

    st_add_seqcst_32(&me->bell_sleepers, 1); /* pairs with st_wake in st_log_append */
    st_fence_seqcst();
    for (die = 0; die < ctx->ndies; die++)
        if (die != ctx->rank && st_load_relaxed_64(&ctx->follow[die].passed) < st_log_head(ctx, die))
            behind++;
    if (failed || st_load_relaxed_64(&ctx->quarantined_frames) || st_load_relaxed_64(&ctx->former_pages) || st_export_pending(ctx))
        limit = &ts;
    if (behind <= failed && !st_load_acquire_32(&ctx->registrar_stop)) /* pairs with st_registrar_end */
        st_futex(&me->bell, FUTEX_WAIT, seen, limit);
    st_add_seqcst_32(&me->bell_sleepers, (uint32_t)-1);
}

static void *st_registrar_main(void *arg)
{
    struct st_ctx *ctx = arg;
    struct st_die *me = &ctx->dies[ctx->rank];
    uint32_t seen, failed;
    int some;

    for (;;) {
        failed = 0;
        seen = st_load_acquire_32(&me->bell); /* pairs with st_wake in st_log_append */
        if (st_load_acquire_32(&ctx->registrar_stop)) /* pairs with st_registrar_end */
            return NULL;
        some = st_registrar_round(ctx, &failed);
        some |= st_quarantine_reclaim(ctx) != 0;
        st_import_sweep(ctx, 0);
        st_export_sweep(ctx);
        if (some)
            continue;
        st_registrar_sleep(ctx, seen, failed);
        st_count(&ctx->count.registrar_wakes, 1);
    }
}

/* Starts the thread of a die that has joined.  ST_ESYS: errno says why. */
static inline int st_registrar_begin(struct st_ctx *ctx)
{
    sigset_t before;
    pthread_attr_t attr;
    int rc;

    if (ctx->registrar_runs)
        return ST_OK;
    st_store_release_32(&ctx->registrar_stop, 0); /* pairs with st_registrar_main */
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, ST_REGISTRAR_STACK);
    st_thread_signals(&before);
    rc = pthread_create(&ctx->registrar, &attr, st_registrar_main, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        errno = rc;
        return ST_ESYS;
    }
    ctx->registrar_runs = 1;
    return ST_OK;
}

/* Ends it; what it was at is finished. */
static inline void st_registrar_end(struct st_ctx *ctx)
{
    struct st_die *me = &ctx->dies[ctx->rank];

    if (!ctx->registrar_runs)
        return;
    st_store_seqcst_32(&ctx->registrar_stop, 1); /* pairs with st_registrar_main, st_registrar_sleep */
    st_wake(&me->bell, &me->bell_sleepers);
    pthread_join(ctx->registrar, NULL);
    ctx->registrar_runs = 0;
    st_import_sweep(ctx, 1); /* nobody does it later */
}

#endif
