/* The timing plane's event loop: everything that is due at one instant, then new rates if anything that flows has
 * changed, then the next instant.
 *
 * Use: fill in what is given of a zeroed struct st_sim, st_sim_check (st_sim_check.h), st_sim_count, memory of
 * st_sim_arena(s, NULL) bytes, any, st_sim_arena(s, memory), st_sim_load, then st_sim_run until it is not
 * ST_SIM_MORE. */
#ifndef ST_SIM_H
#define ST_SIM_H

#include "st_sim_arena.h"
#include "st_sim_check.h"
#include "st_sim_lanes.h"
#include "st_sim_load.h"

#define ST_SIM_TOLERATED 1e-9 /* relative, of the certificate */

/* New rates.  Returns how much work that was. */
static inline uint64_t st_sim_solve(struct st_sim *s)
{
    struct st_mm *m = &s->mm;

    s->dirty = 0;
    s->soonest = ST_SIM_NEVER;
    while (s->nfan_touched) {
        struct st_fanout *f = &s->fanout[s->fan_touched[--s->nfan_touched]];

        f->changed = 0;
        st_sim_capacity_of(s, f->link, st_sim_capacity(s, f->link));
    }
    if (m->nlive == 0)
        return 0;
    st_mm_solve(m);
    st_sim_rates(s);
    s->solves++;
    if (s->check) {
        double residual = st_sim_certify(s);

        s->residual = residual > s->residual ? residual : s->residual;
        if (!(residual <= ST_SIM_TOLERATED))
            s->error = ST_SIM_ERESIDUAL;
    }
    return m->nlive + m->nnarrow;
}

/* Flows that are done until then. */
static inline void st_sim_finished(struct st_sim *s, int64_t last)
{
    for (uint32_t b = 0; b < s->nslots; b += ST_SIM_BLOCK) {
        uint32_t end = b + ST_SIM_BLOCK < s->nslots ? b + ST_SIM_BLOCK : s->nslots;

        if (s->block[b / ST_SIM_BLOCK].soonest > last)
            continue;
        for (uint32_t f = b; f < end; f++)
            if (s->finish[f] <= last)
                s->batch[s->nbatch++] =
                    (struct st_sim_due){s->finish[f], (uint64_t)ST_SIM_DONE << 32 | s->slot[f].lane};
    }
}

/* What is due next: all of one instant, or of a window, in order.  Time goes on to the last of it. */
static inline int st_sim_next(struct st_sim *s)
{
    int64_t first = s->soonest, last;

    if (s->ndue && s->due[0].time < first)
        first = s->due[0].time;
    s->nbatch = 0;
    if (first == ST_SIM_NEVER)
        return 0;
    last = first < ST_SIM_LAST - s->window ? first + s->window : ST_SIM_LAST;
    if (s->soonest <= last)
        st_sim_finished(s, last);
    while (s->ndue && s->due[0].time <= last)
        st_sim_pop(s);
    st_sim_sort(s->batch, s->nbatch);
    s->now = s->batch[s->nbatch - 1].time;
    return 1;
}

/* The memory of what comes a little later is asked for ahead. */
static inline void st_sim_ahead(const struct st_sim *s, uint64_t k)
{
    if (k + 16 < s->nbatch && s->batch[k + 16].what >> 32 != ST_SIM_START)
        __builtin_prefetch(&s->lane[(uint32_t)s->batch[k + 16].what]);
    if (k + 8 < s->nbatch && s->batch[k + 8].what >> 32 != ST_SIM_START) {
        const struct st_sim_lane *lane = &s->lane[(uint32_t)s->batch[k + 8].what];

        __builtin_prefetch(&s->tasks[lane->at]);
        __builtin_prefetch(&s->tasks[lane->at].use_first);
        __builtin_prefetch(&s->times[lane->at], 1);
        __builtin_prefetch(&s->route[lane->at]);
        if (lane->flow != ST_SIM_NONE)
            __builtin_prefetch(&s->slot[lane->flow]);
    }
    if (k + 5 < s->nbatch && s->batch[k + 5].what >> 32 != ST_SIM_START) {
        const struct st_sim_lane *lane = &s->lane[(uint32_t)s->batch[k + 5].what];

        if (lane->flow != ST_SIM_NONE)
            __builtin_prefetch(st_sim_route(s, s->slot[lane->flow].route));
        if (lane->at < lane->end)
            __builtin_prefetch(st_sim_route(s, s->route[lane->at]), 1);
    }
    if (k + 2 < s->nbatch && s->batch[k + 2].what >> 32 != ST_SIM_START) {
        const struct st_sim_lane *lane = &s->lane[(uint32_t)s->batch[k + 2].what];

        if (lane->flow != ST_SIM_NONE)
            __builtin_prefetch(st_mm_flow(&s->mm, st_sim_route(s, s->slot[lane->flow].route)->flow - 1));
    }
}

static inline void st_sim_handle_all(struct st_sim *s)
{
    for (uint64_t k = 0; k < s->nbatch; k++) {
        st_sim_ahead(s, k);
        st_sim_handle(s, s->batch[k].what);
    }
}

static inline void st_sim_first(struct st_sim *s)
{
    s->begun = 1;
    for (uint64_t f = 0; f < s->nflags; f++)
        if (s->need[f] == 0)
            st_sim_raise(s, (int32_t)f);
    for (uint32_t i = 0; i < s->nlanes; i++)
        st_sim_come(s, i);
}

/* Goes on for about `budget` events and flows. */
static inline enum st_sim_status st_sim_run(struct st_sim *s, uint64_t budget)
{
    uint64_t spent = 0;

    if (!s->begun)
        st_sim_first(s);
    for (;;) {
        uint64_t before = s->events;

        st_sim_handle_all(s);
        while (s->ndue && s->due[0].time <= s->now) { /* what that has made due at once */
            s->nbatch = 0;
            while (s->ndue && s->due[0].time <= s->now)
                st_sim_pop(s);
            st_sim_sort(s->batch, s->nbatch);
            st_sim_handle_all(s);
        }
        s->nbatch = 0;
        spent += s->events - before;
        if (s->dirty)
            spent += st_sim_solve(s);
        if (s->error)
            return (enum st_sim_status)s->error;
        if (!st_sim_next(s))
            break;
        s->batches++;
        if (spent >= budget)
            return ST_SIM_MORE;
    }
    if (s->undone == 0)
        return ST_SIM_OK;
    for (uint32_t f = 0; f < s->nslots; f++)
        if (s->slot[f].lane != ST_SIM_NONE && s->slot[f].rate > 0.0)
            return ST_SIM_ETIME;
    return ST_SIM_EDEADLOCK;
}

#endif
