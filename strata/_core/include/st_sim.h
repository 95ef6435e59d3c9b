/* The timing plane's event loop: everything that is due at one instant, then new rates if anything that flows has
 * changed, then the next instant.
 *
 * Use: fill in what is given of a zeroed struct st_sim, st_sim_check (st_sim_check.h), st_sim_count, memory of
 * st_sim_arena(s, NULL) bytes, all zero, st_sim_arena(s, memory), st_sim_load, then st_sim_run until it is not
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
    if (m->nlive_flows == 0)
        return 0;
    for (uint32_t i = 0; s->nfanouts && i < m->nlive_links; i++) {
        struct st_mm_link *l = &m->link[m->live_link[i]];

        if (l->changed && m->live_link[i] < m->nlinks && s->link[l->given].fanout != ST_SIM_NONE)
            l->capacity = st_sim_capacity(s, l->given);
    }
    st_mm_solve(m);
    st_sim_rates(s);
    s->solves++;
    if (s->check) {
        double residual = st_sim_certify(s);

        s->residual = residual > s->residual ? residual : s->residual;
        if (!(residual <= ST_SIM_TOLERATED))
            s->error = ST_SIM_ERESIDUAL;
    }
    return m->nlive_flows + m->nlive_links;
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
        for (uint32_t k = 0; k < s->mm.nlive_flows; k++) {
            uint32_t f = s->mm.live_flow[k];

            if (s->finish[f] <= last)
                s->batch[s->nbatch++] =
                    (struct st_sim_due){s->finish[f], (uint64_t)ST_SIM_DONE << 32 | s->slot[f].lane};
        }
    while (s->ndue && s->due[0].time <= last)
        s->batch[s->nbatch++] = st_sim_pop(s);
    st_sim_sort(s->batch, s->nbatch);
    s->now = s->batch[s->nbatch - 1].time;
    return 1;
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

        for (uint64_t k = 0; k < s->nbatch; k++)
            st_sim_handle(s, s->batch[k].what);
        s->nbatch = 0;
        while (s->ndue && s->due[0].time <= s->now)
            st_sim_handle(s, st_sim_pop(s).what);
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
    for (uint32_t k = 0; k < s->mm.nlive_flows; k++)
        if (s->mm.flow[s->mm.live_flow[k]].rate > 0.0)
            return ST_SIM_ETIME;
    return ST_SIM_EDEADLOCK;
}

#endif
