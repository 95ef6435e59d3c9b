/* Joining a UB space: publish this die, agree on a window, leave. */
#ifndef ST_JOIN_H
#define ST_JOIN_H

#include "st_flight.h"
#include "st_takeover.h"
#include "st_trace_open.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

static inline void *st_window_reserve(uint64_t base, uint64_t bytes)
{
    void *want = (void *)(uintptr_t)base;
    void *p = mmap(want, bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    if (p != want) { /* a kernel that does not know the flag took the address as a hint */
        munmap(p, bytes);
        return NULL;
    }
    return p;
}

/* Reserves every candidate that is free here, until all dies agree on one. */
static inline uint64_t st_window_probe(struct st_ctx *ctx)
{
    uint64_t bytes = ctx->seg_bytes * ctx->ndies, mask = 0;
    uint32_t i, j;

    for (i = 0; i < ST_NCANDIDATES; i++) {
        for (j = 0; j < i && ctx->job.candidates[j] != ctx->job.candidates[i]; j++) {
        }
        /* Overlapping candidates fail each other; each is tried by itself and let go. */
        if (j == i && st_window_reserve(ctx->job.candidates[i], bytes)) {
            munmap((void *)(uintptr_t)ctx->job.candidates[i], bytes);
            mask |= 1ull << i;
        }
    }
    return mask;
}

/* Undoes st_space_map and st_space_private, for one that never joined. */
static inline int st_space_unmap(struct st_ctx *ctx)
{
    if (ctx->shadow)
        munmap(ctx->shadow, ctx->private_bytes);
    if (ctx->mark)
        munmap((void *)(uintptr_t)ctx->mark, 4096);
    if (ctx->control)
        munmap(ctx->control, ctx->control_bytes);
    if (ctx->fd >= 0)
        close(ctx->fd);
    memset(ctx, 0, sizeof *ctx);
    ctx->fd = -1;
    return ST_OK;
}

/* Claims this die's liveness lock, and all that a process that was this die before has left (`again`: there may have
 * been one).  ST_EINVAL: another process has this rank; ST_EBROKEN: had it, and `again` is 0. */
static inline int st_space_claim(struct st_ctx *ctx, uint32_t rank, int again)
{
    struct st_die *d = &ctx->dies[rank];
    int rc;

    ctx->rank = rank;
    ctx->pid = (uint32_t)getpid();
    ST_FAULT(JOIN_BEFORE);
    rc = st_live_claim(ctx);
    if (rc != ST_OK)
        return rc;
    if (st_load_relaxed_32(&d->state) == ST_DIE_ABSENT)
        return again || !st_die_marked(ctx, rank) ? ST_OK : ST_EBROKEN;
    if (!again)
        return ST_EBROKEN; /* this rank has lived already: its memory is not ours */
    if (st_die_pid_there(d)) { /* it has lost its lock, and lives */
        st_live_release(ctx);
        return ST_EINVAL;
    }
    ST_FAULT(TAKEOVER_BEFORE);
    return st_space_take_over(ctx);
}

/* Publishes this die.  `again`: see st_space_claim. */
static inline int st_space_join_as(struct st_ctx *ctx, uint32_t rank, int again)
{
    struct st_die *d;
    int rc, first;

    if (rank >= ctx->ndies)
        return ST_EINVAL;
    d = &ctx->dies[rank];
    rc = st_space_claim(ctx, rank, again);
    if (rc != ST_OK)
        return rc;
    ST_FAULT(JOIN_CLAIMED);
    first = st_load_relaxed_32(&d->state) == ST_DIE_ABSENT;
    st_store_relaxed_64(&d->start_time, st_start_time(ctx->pid));
    d->pid_ns = st_pid_namespace();
    if (first)
        st_store_relaxed_64(&d->dead, 0);
    st_store_release_32(&d->pid, ctx->pid); /* pairs with st_space_lost; inspectors look before it has joined */
    if (first)
        d->window_mask = st_window_probe(ctx); /* a successor's must not be another: peers go by this one */
    ST_FAULT(JOIN_HALF);
    st_flight_open(ctx, rank);
    st_trace_join(ctx, rank);
    st_store_release_32(&d->state, ST_DIE_JOINED); /* pairs with st_space_agree, st_die_alive */
    ST_FAULT(JOIN_AFTER);
    st_fence_seqcst();
    st_wake(&ctx->header->wake_word, &ctx->header->sleepers);
    return ST_OK;
}

static inline int st_space_join(struct st_ctx *ctx, uint32_t rank) { return st_space_join_as(ctx, rank, 0); }

/* A die that leaves stays mapped; its peers stop waiting for it. */
static inline int st_space_leave(struct st_ctx *ctx)
{
    ST_FAULT(LEFT_BEFORE);
    st_store_seqcst_32(&ctx->dies[ctx->rank].state, ST_DIE_LEFT); /* pairs with st_die_alive */
    ST_FAULT(LEFT_AFTER);
    st_wake(&ctx->header->wake_word, &ctx->header->sleepers);
    return ST_OK;
}

static inline int st_space_return(struct st_ctx *ctx)
{
    ST_FAULT(RETURN_HALF);
    st_store_seqcst_32(&ctx->dies[ctx->rank].state, ST_DIE_JOINED); /* pairs with st_die_alive */
    return ST_OK;
}

static inline void st_space_mark_dead(struct st_ctx *ctx, uint32_t die)
{
    st_store_seqcst_64(&ctx->dies[die].dead, st_die_life(ctx, die) + 1); /* pairs with st_space_agree, st_die_alive */
    st_wake(&ctx->header->wake_word, &ctx->header->sleepers);
}

/* For inspectors: state, pid, start time, pages reserved, log head. */
static inline void st_space_die(const struct st_ctx *ctx, uint32_t die, uint64_t *v)
{
    const struct st_die *d = &ctx->dies[die];

    v[0] = st_load_acquire_32(&d->state); /* pairs with st_space_join */
    v[1] = st_load_relaxed_32(&d->pid);
    v[2] = st_load_relaxed_64(&d->start_time);
    v[3] = st_load_relaxed_64(&d->pages_reserved);
    v[4] = st_load_acquire_64(&d->log_head); /* pairs with st_log_append */
}

/* Will a die that has not joined never do so?  Its launcher says that it is dead; or it is, and had begun to join. */
static inline int st_space_lost(struct st_ctx *ctx, uint32_t die)
{
    const struct st_die *d = &ctx->dies[die];

    return st_die_marked(ctx, die) ||
           (st_load_acquire_32(&d->pid) && !st_die_runs(ctx, die)); /* pairs with st_space_join */
}

/* Waits until all dies have joined and takes the first window that is free in
 * all of them.  *missing: a die that did not join, or (ST_EREG) one that has no room for any
 * window, the number of dies if each has room for some. */
static inline int st_space_agree(struct st_ctx *ctx, uint64_t timeout_ns, uint32_t *missing)
{
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    uint64_t mask = (1ull << ST_NCANDIDATES) - 1;
    uint32_t i, state;
    int rc = ST_OK;

    st_wait_begin(&w, &ctx->wait, &ctx->header->wake_word, &ctx->header->sleepers, timeout_ns);
    for (i = 0; i < ctx->ndies && rc == ST_OK; i++) {
        for (;;) {
            state = st_load_acquire_32(&ctx->dies[i].state); /* pairs with st_space_join */
            if (state != ST_DIE_ABSENT)
                break;
            rc = st_wait_step(&w);
            if (rc == ST_AGAIN) {
                st_flight_waits(ctx, &record, ST_FLIGHT_JOIN, i, 0, 0, 0);
                st_flight_peer(record, i);
                rc = st_space_lost(ctx, i) ? ST_EDEAD : ST_OK;
            }
            if (rc != ST_OK) {
                *missing = i;
                break;
            }
        }
        mask &= ctx->dies[i].window_mask;
    }
    st_wait_end(&w);
    st_flight_waited(ctx, record, rc);
    if (rc != ST_OK)
        return rc;
    ST_FAULT(ALL_JOINED);
    if (!mask) {
        for (*missing = 0; *missing < ctx->ndies && ctx->dies[*missing].window_mask; ++*missing) {
        }
        return ST_EREG;
    }
    ctx->base = ctx->job.candidates[__builtin_ctzll(mask)];
    if (!ctx->shared_window && !st_window_reserve(ctx->base, ctx->seg_bytes * ctx->ndies)) {
        ctx->base = 0;
        *missing = ctx->rank;
        return ST_EREG;
    }
    if (!ctx->shared_window)
        ST_SHARED((void *)(uintptr_t)ctx->base, ctx->seg_bytes * ctx->ndies);
    return ST_OK;
}

#endif
