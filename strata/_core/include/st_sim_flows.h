/* What flows in a simulation: flows begin and end, ports lose by fan-out, rates change, and times with them. */
#ifndef ST_SIM_FLOWS_H
#define ST_SIM_FLOWS_H

#include "st_sim_types.h"

static inline void st_sim_fan_changed(struct st_sim *s, uint32_t fanout)
{
    if (!s->fanout[fanout].changed) {
        s->fanout[fanout].changed = 1;
        s->fan_touched[s->nfan_touched++] = fanout;
    }
}

/* Ports with a loss hear of a flow's peers, and once of its backlog; sign -1: it ends. */
static inline void st_sim_fan(struct st_sim *s, const struct st_sim_route *r, int32_t backlog, int sign)
{
    for (uint32_t h = 0; h < r->nhops; h++) {
        const struct st_sim_hop *hop = &r->hop[h];
        struct st_fanout *f;

        if (hop->fanout == ST_SIM_NONE)
            continue;
        f = &s->fanout[hop->fanout];
        if (sign > 0)
            st_fanout_join(f, hop->peer < 0 ? ~hop->peer : hop->peer);
        else
            st_fanout_leave(f, hop->peer < 0 ? ~hop->peer : hop->peer);
        st_sim_fan_changed(s, hop->fanout);
        if (hop->peer >= 0) {
            f->flows += (uint32_t)sign;
            f->backlog += sign * (int64_t)backlog;
        }
    }
}

static inline void st_sim_set_finish(struct st_sim *s, uint32_t f, int64_t time)
{
    struct st_sim_block *b = &s->block[f / ST_SIM_BLOCK];

    if (time <= b->soonest)
        b->soonest = time;
    else
        b->stale |= s->finish[f] == b->soonest;
    s->finish[f] = time;
}

static inline uint32_t st_sim_new_slot(struct st_sim *s)
{
    uint32_t f = s->nfree ? s->free_slot[--s->nfree] : s->nslots++;

    if (f % ST_SIM_BLOCK == 0 && f + 1 == s->nslots)
        s->block[f / ST_SIM_BLOCK] = (struct st_sim_block){ST_SIM_NEVER, 0};
    return f;
}

/* The slot flows along its route, with those that do so already; says which slot is next in that list, + 1. */
static inline uint32_t st_sim_along(struct st_sim *s, struct st_sim_route *r, uint32_t slot)
{
    struct st_mm_flow *x;
    uint32_t next = 0;

    if (r->flow) {
        x = st_mm_flow(&s->mm, r->flow - 1);
        next = x->given;
        s->slot[next - 1].before = slot + 1;
        st_mm_more(&s->mm, r->flow - 1, 1);
    } else {
        r->flow = (s->nfree_flows ? s->free_flow[--s->nfree_flows] : s->nflows++) + 1;
        x = st_mm_flow(&s->mm, r->flow - 1);
        st_mm_begin(&s->mm, r->flow - 1, s->mm.nlinks + r->class);
        for (uint32_t h = 0; h < r->nhops; h++)
            st_mm_use(&s->mm, r->flow - 1, r->hop[h].link, r->hop[h].weight);
    }
    x->given = slot + 1;
    return next;
}

static inline void st_sim_join(struct st_sim *s, uint32_t i, uint32_t task)
{
    const struct st_timing_task *t = &s->tasks[task];
    struct st_sim_route *r = st_sim_route(s, s->route[task]);
    uint32_t f = st_sim_new_slot(s), next = st_sim_along(s, r, f);

    s->slot[f] = (struct st_sim_slot){.left = t->work, .since = s->now, .lane = i, .task = task, .post = t->post,
                                      .backlog = t->backlog, .route = s->route[task], .next = next};
    if (s->nfanouts)
        st_sim_fan(s, r, t->backlog, 1);
    s->finish[f] = ST_SIM_NEVER;
    s->fresh[s->nfresh++] = f;
    s->lane[i].flow = f;
    s->dirty = 1;
}

static inline void st_sim_leave(struct st_sim *s, uint32_t i)
{
    uint32_t f = s->lane[i].flow;
    struct st_sim_slot *x = &s->slot[f];
    struct st_sim_route *r = st_sim_route(s, x->route);

    if (x->next)
        s->slot[x->next - 1].before = x->before;
    if (x->before)
        s->slot[x->before - 1].next = x->next;
    else
        st_mm_flow(&s->mm, r->flow - 1)->given = x->next;
    if (x->next || x->before) {
        st_mm_more(&s->mm, r->flow - 1, -1);
    } else {
        st_mm_end(&s->mm, r->flow - 1);
        s->free_flow[s->nfree_flows++] = r->flow - 1;
        r->flow = 0;
    }
    if (s->nfanouts)
        st_sim_fan(s, r, x->backlog, -1);
    s->free_slot[s->nfree++] = f;
    st_sim_set_finish(s, f, ST_SIM_NEVER);
    x->lane = ST_SIM_NONE;
    if (s->mm.nlive == 0)
        s->nfree = s->nslots = s->nfree_flows = s->nflows = 0;
    s->lane[i].flow = ST_SIM_NONE;
    s->dirty = 1;
}

/* When work that is left is done, at a rate: the next whole picosecond. */
static inline int64_t st_sim_finish(int64_t now, double left, double rate)
{
    double q = left / rate;
    int64_t whole;

    if (!(rate > 0.0) || q > (double)(ST_SIM_LAST - now))
        return ST_SIM_NEVER;
    if (!(q > 0.0))
        return now;
    whole = (int64_t)q;
    return now + whole + ((double)whole < q);
}

static inline void st_sim_rate(struct st_sim *s, uint32_t f, double rate)
{
    struct st_sim_slot *x = &s->slot[f];

    if (x->rate == rate)
        return;
    x->left -= x->rate * (double)(s->now - x->since);
    x->since = s->now;
    x->rate = rate;
    st_sim_set_finish(s, f, st_sim_finish(s->now, x->left, rate));
}

static inline int64_t st_sim_soonest(struct st_sim *s)
{
    int64_t soonest = ST_SIM_NEVER;

    for (uint32_t f = 0; f < s->nslots; f += ST_SIM_BLOCK) {
        struct st_sim_block *b = &s->block[f / ST_SIM_BLOCK];

        if (b->stale) {
            uint32_t end = f + ST_SIM_BLOCK < s->nslots ? f + ST_SIM_BLOCK : s->nslots;

            b->stale = 0;
            b->soonest = ST_SIM_NEVER;
            for (uint32_t k = f; k < end; k++)
                b->soonest = s->finish[k] < b->soonest ? s->finish[k] : b->soonest;
        }
        soonest = b->soonest < soonest ? b->soonest : soonest;
    }
    return soonest;
}

/* Flows whose rate has changed go on at the new one. */
static inline void st_sim_rates(struct st_sim *s)
{
    for (uint32_t k = 0; k < s->mm.nmoved; k++) {
        const struct st_mm_flow *x = st_mm_flow(&s->mm, s->mm.moved[k]);

        if (k + 8 < s->mm.nmoved)
            __builtin_prefetch(&s->slot[st_mm_flow(&s->mm, s->mm.moved[k + 8])->given - 1], 1);
        for (uint32_t f = x->given; f; f = s->slot[f - 1].next)
            st_sim_rate(s, f - 1, x->rate);
    }
    while (s->nfresh) { /* along a route whose rate has not */
        uint32_t f = s->fresh[--s->nfresh];

        st_sim_rate(s, f, st_mm_flow(&s->mm, st_sim_route(s, s->slot[f].route)->flow - 1)->rate);
    }
    s->soonest = st_sim_soonest(s);
}

static inline double st_sim_capacity(const struct st_sim *s, uint32_t link)
{
    const struct st_sim_link *l = &s->link[link];

    if (l->fanout != ST_SIM_NONE)
        return st_fanout_capacity(&s->fanout[l->fanout], &s->links[link], s->log2_of);
    if (s->links[link].kind == ST_LINK_POOL)
        return s->links[link].capacity > l->held ? s->links[link].capacity - l->held : 0.0;
    return s->links[link].capacity;
}

static inline void st_sim_capacity_of(struct st_sim *s, uint32_t link, double capacity)
{
    uint32_t id = s->solved[link];

    if (id != ST_SIM_NONE) {
        s->mm.link[id].capacity = capacity;
        st_mm_settle(&s->mm, id);
    }
}

/* How much a is above b, relative to the larger. */
static inline double st_sim_over(double a, double b)
{
    return a > b ? (a - b) / a : 0.0;
}

/* The certificate, over all that was given, whatever the solver left out: no link above its capacity, no flow above
 * its bound, and each at its bound or on a full link on which none is faster.  That holds of one set of rates alone.
 * Returns the worst relative violation. */
static inline double st_sim_certify(struct st_sim *s)
{
    double worst = 0.0;

    for (int pass = 0; pass < 3; pass++)
        for (uint32_t f = 0; f < s->nslots; f++) {
            const struct st_timing_task *t = &s->tasks[s->slot[f].task];
            double x = s->slot[f].rate, held = st_sim_over(t->bound, x), wrong = st_sim_over(x, t->bound);

            if (s->slot[f].lane == ST_SIM_NONE)
                continue;
            held = held < 1.0 ? held : 1.0; /* false of a NaN: no bound */
            for (uint32_t u = t->use_first; u < t->use_first + t->nuse; u++) {
                struct st_sim_load *l = &s->load[s->uses[u].link];
                double capacity, lack, slower;

                if (!(s->uses[u].weight > 0.0))
                    continue;
                if (pass == 0)
                    l->taken = l->fastest = 0.0;
                if (pass == 1) {
                    l->taken += s->uses[u].weight * x;
                    l->fastest = x > l->fastest ? x : l->fastest;
                }
                if (pass < 2)
                    continue;
                capacity = st_sim_capacity(s, s->uses[u].link);
                wrong = st_sim_over(l->taken, capacity) > wrong ? st_sim_over(l->taken, capacity) : wrong;
                lack = st_sim_over(capacity, l->taken);
                slower = st_sim_over(l->fastest, x);
                slower = slower > lack ? slower : lack;
                held = slower < held ? slower : held;
            }
            wrong = held > wrong ? held : wrong;
            if (pass == 2 && wrong > worst)
                worst = wrong;
        }
    return worst;
}

#endif
