/* A simulation before it runs: which links can limit anything, which bounds there are, how large sets get.
 *
 * A link is left out where that changes no rate: all flows that could be on it at a time would not fill it at their
 * bounds; or one lane alone flows through it, so that it is a bound of that lane's flows (what one die gives another,
 * mostly).  Ports with a loss and pools always count. */
#ifndef ST_SIM_LOAD_H
#define ST_SIM_LOAD_H

#include <string.h>

#include "st_sim_types.h"

/* The lane that was counted last is over. */
static inline void st_sim_close_lane(struct st_sim_link *l)
{
    l->all_uses += l->lane_uses;
    l->all_most += l->lane_uses * l->lane_most;
    l->lane_uses = 0;
    l->lane_most = 0.0;
}

static inline void st_sim_count_use(struct st_sim_link *l, uint32_t lane, uint32_t task, double weight, double bound)
{
    double most = weight * bound;

    if (l->lane != lane + 1) {
        st_sim_close_lane(l);
        l->lane = lane + 1;
        l->lanes++;
        l->task = ST_SIM_NONE;
    }
    if (l->task != task) {
        l->task = task;
        l->uses = 0;
    }
    l->uneven |= !(weight < 0x1p20 && (double)(int64_t)(weight / ST_MM_EVEN) * ST_MM_EVEN == weight);
    l->uses++;
    l->lane_uses = l->uses > l->lane_uses ? l->uses : l->lane_uses;
    l->lane_most = most > l->lane_most ? most : l->lane_most;
}

static inline void st_sim_number_links(struct st_sim *s)
{
    struct st_mm *m = &s->mm;
    uint32_t set = 0, fanouts = 0;

    m->nlinks = 0;
    for (uint64_t i = 0; i < s->nlinks; i++) {
        const struct st_timing_link *given = &s->links[i];
        struct st_sim_link *l = &s->link[i];
        int always = given->kind == ST_LINK_POOL || given->loss > 0.0;

        st_sim_close_lane(l);
        s->solved[i] = l->fanout = ST_SIM_NONE;
        l->task = 0;
        l->alone = l->lanes == 1 && l->all_uses == 1 && !always;
        if (given->loss > 0.0) {
            l->fanout = fanouts;
            s->fanout[fanouts].link = (uint32_t)i;
            s->fanout[fanouts].count = s->counts + fanouts * s->npeers;
            fanouts++;
        }
        if (l->lanes == 0 || l->alone || (!always && l->all_most <= given->capacity * (1.0 - 1e-12)))
            continue;
        s->solved[i] = m->nlinks;
        m->link[m->nlinks] = (struct st_mm_link){.capacity = given->capacity, .first = set, .given = (uint32_t)i,
                                                 .uneven = l->uneven};
        m->level[m->nlinks++] = (struct st_mm_level){0};
        set += l->all_uses;
    }
}

/* The class of a bound, made at its first use. */
static inline uint32_t st_sim_class(struct st_sim *s, double bound)
{
    struct st_mm_link *classes = s->mm.link + s->mm.nlinks;
    uint64_t bits;
    uint32_t at;

    memcpy(&bits, &bound, sizeof bits);
    bits = (bits ^ bits >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    for (at = (uint32_t)(bits >> 32) & (s->table - 1); s->bounds[at]; at = (at + 1) & (s->table - 1))
        if (classes[s->bounds[at] - 1].capacity == bound)
            return s->bounds[at] - 1;
    s->bounds[at] = ++s->nclasses;
    classes[s->nclasses - 1] = (struct st_mm_link){.capacity = bound};
    s->mm.level[s->mm.nlinks + s->nclasses - 1] = (struct st_mm_level){0};
    return s->nclasses - 1;
}

/* The route's own bound, and that of links that are one lane's alone. */
static inline double st_sim_bound(const struct st_sim *s, const struct st_sim_asked *r)
{
    double bound = r->bound;

    for (uint32_t u = r->use_first; u < r->use_first + r->nuse; u++)
        if (s->link[s->uses[u].link].alone && s->uses[u].weight > 0.0) {
            double most = s->links[s->uses[u].link].capacity / s->uses[u].weight;

            bound = most < bound ? most : bound;
        }
    return bound;
}

/* A task's route, made at its first use. */
static inline uint32_t st_sim_route_of(struct st_sim *s, const struct st_timing_task *t)
{
    uint32_t *first = &s->route_at[t->nuse ? t->use_first : s->nuses];

    for (uint32_t r = *first; r; r = s->asked[r - 1].next)
        if (s->asked[r - 1].bound == t->bound && s->asked[r - 1].nuse == t->nuse)
            return r - 1;
    s->asked[s->nroutes] = (struct st_sim_asked){t->bound, t->use_first, t->nuse, *first, 0};
    *first = s->nroutes + 1;
    return s->nroutes++;
}

/* What of a route's uses a flow has to look at. */
static inline void st_sim_hops(struct st_sim *s, uint32_t number)
{
    const struct st_sim_asked *a = &s->asked[number];
    struct st_sim_route *r = st_sim_route(s, number);

    r->class = st_sim_class(s, st_sim_bound(s, a));
    r->flow = r->nhops = 0;
    for (uint32_t u = a->use_first; u < a->use_first + a->nuse; u++) {
        struct st_sim_link *l = &s->link[s->uses[u].link];
        struct st_sim_hop *hop = &r->hop[r->nhops];

        if (s->solved[s->uses[u].link] == ST_SIM_NONE || !(s->uses[u].weight > 0.0))
            continue;
        *hop = (struct st_sim_hop){s->uses[u].weight, s->solved[s->uses[u].link], l->fanout, s->uses[u].peer, 0};
        if (l->fanout != ST_SIM_NONE && l->task == number + 1)
            hop->peer = ~hop->peer;
        l->task = number + 1;
        r->nhops++;
    }
}

/* What is read before it is written. */
static inline void st_sim_clear(struct st_sim *s)
{
    memset(s->mm.flows, 0, s->nlanes * s->mm.stride);
    memset(s->link, 0, s->nlinks * sizeof *s->link);
    memset(s->fanout, 0, s->nfanouts * sizeof *s->fanout);
    memset(s->counts, 0, s->nfanouts * s->npeers * sizeof *s->counts);
    memset(s->lane, 0, s->nlanes * sizeof *s->lane);
    memset(s->route_at, 0, (s->nuses + 1) * sizeof *s->route_at);
    memset(s->waiters, 0, s->nflags * sizeof *s->waiters);
    memset(s->times, 0xff, s->ntasks * sizeof *s->times); /* ST_TIMING_NONE */
}

static inline void st_sim_load(struct st_sim *s)
{
    st_sim_clear(s);
    for (uint32_t i = 0; i < s->nlanes; i++)
        for (uint32_t t = s->lanes[i].first; t < s->lanes[i].first + s->lanes[i].count; t++) {
            const struct st_timing_task *task = &s->tasks[t];
            struct st_sim_asked *r;

            s->route[t] = 0;
            if (!(task->work > 0.0))
                continue;
            r = &s->asked[s->route[t] = st_sim_route_of(s, task)];
            if (r->lane == i + 1)
                continue; /* no more at a time than before */
            r->lane = i + 1;
            for (uint32_t u = task->use_first; u < task->use_first + task->nuse; u++)
                if (s->uses[u].weight > 0.0)
                    st_sim_count_use(&s->link[s->uses[u].link], i, t, s->uses[u].weight, task->bound);
        }
    st_sim_number_links(s);
    while (s->table > 16 && s->table / 2 > 2 * s->nroutes)
        s->table /= 2;
    memset(s->bounds, 0, s->table * sizeof *s->bounds);
    for (uint32_t r = 0; r < s->nroutes; r++)
        st_sim_hops(s, r);
    for (uint32_t n = 0; n <= s->npeers; n++)
        s->log2_of[n] = n ? st_fanout_log2(n) : 0.0;
    for (uint64_t f = 0; f < s->nflags; f++) {
        s->raised[f] = ST_TIMING_NONE;
        s->need[f] = s->flags[f].need;
    }
    for (uint64_t r = 0; r < s->nrendezvous; r++)
        s->meeting[r] = s->rendezvous[r].count;
    for (uint32_t i = 0; i < s->nlanes; i++) {
        s->lane[i].at = s->lanes[i].first;
        s->lane[i].end = s->lanes[i].first + s->lanes[i].count;
        s->lane[i].flow = ST_SIM_NONE;
        s->undone += s->lanes[i].count;
    }
    s->digest = UINT64_C(0x9ae16a3b2f90404f);
    s->soonest = ST_SIM_NEVER;
}

#endif
