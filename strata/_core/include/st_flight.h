/* The flight recorder: a die writes down what it does, for whoever wants to know why it does not go on.
 *
 * Always on, so everything here is a few nanoseconds.  Threads of one die share the ring; a record in progress is
 * never written over, so what hangs stays there, however much else goes on.
 */
#ifndef ST_FLIGHT_H
#define ST_FLIGHT_H

#include <string.h>

#include "st_ctx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define ST_FLIGHT_TRIES 32u

/* ---- clock ---------------------------------------------------------------------- */

/* The CPU's own counter, if it is the same on all CPUs and never stops. */
static inline uint32_t st_flight_clock(void)
{
#if defined(__x86_64__)
    uint32_t a, b, c, d;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && d & 1u << 8 ? ST_CLOCK_TICKS : ST_CLOCK_MONOTONIC;
#elif defined(__aarch64__)
    return ST_CLOCK_TICKS;
#else
    return ST_CLOCK_MONOTONIC;
#endif
}

static inline uint64_t st_flight_ticks(uint32_t clock)
{
#if defined(__x86_64__)
    if (__builtin_expect(clock == ST_CLOCK_TICKS, 1))
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    if (__builtin_expect(clock == ST_CLOCK_TICKS, 1)) {
        uint64_t ticks;

        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    return st_now_ns();
}

/* One moment by both clocks, to within what a look at one of them takes: of some tries the shortest. */
static inline void st_flight_moment(uint32_t clock, uint64_t *ticks, uint64_t *ns)
{
    uint64_t best = UINT64_MAX, before, at, after;
    uint32_t k;

    *ticks = *ns = 0;
    for (k = 0; k < 5; k++) {
        before = st_flight_ticks(clock);
        at = st_now_ns();
        after = st_flight_ticks(clock);
        if (after - before >= best)
            continue;
        best = after - before;
        *ticks = before + best / 2;
        *ns = at;
    }
}

/* ---- records -------------------------------------------------------------------- */

/* A slot for a new record; NULL: all that were looked at are in progress.  Where to look is a hint, which threads may
 * lose each other's steps of; whose a slot is settles its own word. */
static inline struct st_flight_record *st_flight_slot(struct st_flight *f, uint64_t *index)
{
    struct st_flight_record *r;
    uint64_t at, s;
    uint32_t k;

    for (k = 0; k < ST_FLIGHT_TRIES; k++) {
        at = (st_load_relaxed_64)(&f->head);
        (st_store_relaxed_64)(&f->head, at + 1);
        at &= ST_FLIGHT_RECORDS - 1;
        r = &f->records[at];
        s = (st_load_acquire_64)(&r->state); /* pairs with st_flight_end */
        *index = s ? (s >> 40) + ST_FLIGHT_RECORDS : at;
        if (__builtin_expect(ST_FLIGHT_STATUS(s) != ST_FLIGHT_OPEN, 1) && /* pairs with st_flight_end */
            __builtin_expect((st_cas_acq_rel_64)(&r->state, s, ST_FLIGHT_STATE(*index, 0, 0, 0, ST_FLIGHT_OPEN)), 1))
            return r;
    }
    st_count(&f->lost, 1);
    return NULL;
}

/* A record in progress, without a time yet: st_flight_time gives it one.  NULL, which all that follows takes: none. */
static inline struct st_flight_record *st_flight_begin(const struct st_ctx *ctx, uint32_t kind, uint32_t peer,
                                                       uint64_t group, uint64_t number, uint64_t desc,
                                                       uint64_t count, uint64_t bytes)
{
    struct st_flight_record *r;
    uint64_t index;

    if (__builtin_expect(!ctx->flight, 0))
        return NULL;
    r = st_flight_slot(ctx->flight, &index);
    if (__builtin_expect(!r, 0))
        return NULL;
    r->group = group;
    r->number = number;
    r->desc = desc;
    r->count = count;
    r->bytes = bytes;
    r->begin = 0;
    r->end = 0;
    /* pairs with st_inspect_flight */
    (st_store_release_64)(&r->state, ST_FLIGHT_STATE(index, peer, kind, 0, ST_FLIGHT_OPEN));
    return r;
}

static inline void st_flight_time(const struct st_ctx *ctx, struct st_flight_record *r)
{
    if (__builtin_expect(r != NULL, 1))
        r->begin = st_flight_ticks(ctx->flight->clock);
}

static inline void st_flight_phase(struct st_flight_record *r, uint32_t phase)
{
    if (__builtin_expect(r != NULL, 1))
        (st_store_relaxed_64)(&r->state, ((st_load_relaxed_64)(&r->state) & ~0xff00ull) | (uint64_t)phase << 8);
}

static inline void st_flight_count(struct st_flight_record *r, uint64_t count)
{
    if (r)
        (st_store_relaxed_64)(&r->count, count);
}

/* Another peer is waited for now. */
static inline void st_flight_peer(struct st_flight_record *r, uint32_t peer)
{
    if (r)
        (st_store_relaxed_64)(&r->state,
                              ((st_load_relaxed_64)(&r->state) & ~0xffff000000ull) | (uint64_t)(peer & 0xffffu) << 24);
}

static inline void st_flight_end(const struct st_ctx *ctx, struct st_flight_record *r, int status, int timed)
{
    if (__builtin_expect(!r, 0))
        return;
    if (timed)
        r->end = st_flight_ticks(ctx->flight->clock);
    /* pairs with st_flight_slot */
    (st_store_release_64)(&r->state, ((st_load_relaxed_64)(&r->state) & ~0xffull) | (uint64_t)status);
}

/* Of a wait that is only worth a record if it lasts: made at the first slow look. */
static inline void st_flight_waits(const struct st_ctx *ctx, struct st_flight_record **r, uint32_t kind, uint32_t peer,
                                   uint64_t group, uint64_t number, uint64_t count)
{
    if (*r)
        return;
    *r = st_flight_begin(ctx, kind, peer, group, number, 0, count, 0);
    st_flight_time(ctx, *r);
}

static inline void st_flight_waited(const struct st_ctx *ctx, struct st_flight_record *r, int status)
{
    if (r)
        st_flight_end(ctx, r, status, 1);
}

/* The die's counters of late maps, for inspectors. */
static inline void st_flight_late(const struct st_ctx *ctx)
{
    if (!ctx->flight)
        return;
    st_store_relaxed_64(&ctx->flight->late_maps, st_load_relaxed_64(&ctx->count.late_maps));
    st_store_relaxed_64(&ctx->flight->late_map_ns, st_load_relaxed_64(&ctx->count.late_map_ns));
}

/* ---- joining -------------------------------------------------------------------- */

/* The recorder of this die, from its first moment on; what an earlier process of this rank had in progress is lost. */
static inline void st_flight_open(struct st_ctx *ctx, uint32_t rank)
{
    struct st_flight *f = (struct st_flight *)(void *)(ctx->control + ctx->job.flight_off) + rank;
    uint64_t s;
    uint32_t k;

    for (k = 0; k < ST_FLIGHT_RECORDS; k++) {
        s = (st_load_relaxed_64)(&f->records[k].state);
        if (s && ST_FLIGHT_STATUS(s) == ST_FLIGHT_OPEN)
            (st_store_relaxed_64)(&f->records[k].state, s - ST_FLIGHT_OPEN + ST_FLIGHT_LOST);
    }
    for (k = 0; k < ST_FLIGHT_GROUPS; k++)
        (st_store_relaxed_64)(&f->groups[k].id, 0);
    f->clock = st_flight_clock();
    st_flight_moment(f->clock, &f->ticks, &f->time_ns);
    ctx->flight = f;
}

/* ---- groups --------------------------------------------------------------------- */

static inline void st_flight_group_open(struct st_ctx *ctx, uint64_t id, uint64_t va, uint32_t n, uint32_t me,
                                        const char *name)
{
    struct st_flight *f = ctx->flight;
    struct st_flight_group *g;
    uint32_t k;

    if (!f || !id)
        return;
    pthread_mutex_lock(&ctx->lock); /* other threads of this die form groups too */
    for (k = 0; k < ST_FLIGHT_GROUPS && st_load_relaxed_64(&f->groups[k].id); k++) {
    }
    if (k < ST_FLIGHT_GROUPS) {
        g = &f->groups[k];
        g->va = va;
        g->n = n;
        g->me = me;
        memset(g->name, 0, sizeof g->name);
        strncpy(g->name, name, sizeof g->name - 1);
        (st_store_release_64)(&g->id, id); /* pairs with st_inspect_flight */
    } else {
        f->groups_lost++;
    }
    pthread_mutex_unlock(&ctx->lock);
}

/* Its memory is about to be somebody else's. */
static inline void st_flight_group_close(struct st_ctx *ctx, uint64_t id, uint64_t va)
{
    struct st_flight *f = ctx->flight;
    uint32_t k;

    for (k = 0; f && k < ST_FLIGHT_GROUPS; k++)
        if (st_load_relaxed_64(&f->groups[k].id) == id && f->groups[k].va == va)
            (st_store_relaxed_64)(&f->groups[k].id, 0);
}

#endif
