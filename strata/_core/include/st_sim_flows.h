/* What flows in a simulation: flows begin and end, ports lose by fan-out, rates change, and times with them. */
#ifndef ST_SIM_FLOWS_H
#define ST_SIM_FLOWS_H

#include "st_sim_types.h"

/* Ports with a loss hear of a flow's peers, and once of its backlog. */
static inline void st_sim_fan(struct st_sim *s, const struct st_timing_task *t, int sign)
{
    s->stamp++;
    for (uint32_t u = t->use_first; u < t->use_first + t->nuse; u++) {
        struct st_sim_link *l = &s->link[s->uses[u].link];
        struct st_fanout *f;

        if (l->fanout == ST_SIM_NONE || !(s->uses[u].weight > 0.0))
            continue;
        f = &s->fanout[l->fanout];
        if (sign > 0)
            st_fanout_join(f, s->uses[u].peer);
        else
            st_fanout_leave(f, s->uses[u].peer);
        if (l->task != s->stamp) {
            l->task = s->stamp;
            f->flows += (uint32_t)sign;
            f->backlog += sign * (int64_t)t->backlog;
        }
    }
}

static inline void st_sim_join(struct st_sim *s, uint32_t i, uint32_t task)
{
    const struct st_timing_task *t = &s->tasks[task];
    uint32_t f = s->nfree ? s->free_slot[--s->nfree] : s->nslots++;
    struct st_mm_use *use = s->mm.use + (f << s->mm.shift);
    uint16_t n = 1;

    use->link = s->mm.nlinks + s->bound[task];
    use->weight = 1.0;
    for (uint32_t u = t->use_first; u < t->use_first + t->nuse; u++) {
        uint32_t link = s->link[s->uses[u].link].solved;

        if (link != ST_SIM_NONE && s->uses[u].weight > 0.0) {
            use[n].link = link;
            use[n++].weight = s->uses[u].weight;
        }
    }
    st_mm_begin(&s->mm, f, n);
    if (s->nfanouts)
        st_sim_fan(s, t, 1);
    s->slot[f] = (struct st_sim_slot){t->work, 0.0, s->now, i, task};
    s->finish[f] = ST_SIM_NEVER;
    s->lane[i].flow = f;
    s->dirty = 1;
}

/* The lane's flow is over; returns its task. */
static inline uint32_t st_sim_leave(struct st_sim *s, uint32_t i)
{
    uint32_t f = s->lane[i].flow, task = s->slot[f].task;

    st_mm_end(&s->mm, f);
    if (s->nfanouts)
        st_sim_fan(s, &s->tasks[task], -1);
    s->free_slot[s->nfree++] = f;
    s->lane[i].flow = ST_SIM_NONE;
    s->dirty = 1;
    return task;
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

static inline void st_sim_rates(struct st_sim *s)
{
    int64_t soonest = ST_SIM_NEVER;

    for (uint32_t k = 0; k < s->mm.nlive_flows; k++) {
        uint32_t f = s->mm.live_flow[k];
        double rate = s->mm.flow[f].rate;
        struct st_sim_slot *x = &s->slot[f];

        if (rate != x->rate) {
            x->left -= x->rate * (double)(s->now - x->since);
            x->since = s->now;
            x->rate = rate;
            s->finish[f] = st_sim_finish(s->now, x->left, rate);
        }
        soonest = s->finish[f] < soonest ? s->finish[f] : soonest;
    }
    s->soonest = soonest;
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
        for (uint32_t k = 0; k < s->mm.nlive_flows; k++) {
            uint32_t f = s->mm.live_flow[k];
            const struct st_timing_task *t = &s->tasks[s->slot[f].task];
            double x = s->mm.flow[f].rate, held = st_sim_over(t->bound, x), wrong = st_sim_over(x, t->bound);

            held = held < 1.0 ? held : 1.0; /* false of a NaN: no bound */
            for (uint32_t u = t->use_first; u < t->use_first + t->nuse; u++) {
                struct st_sim_link *l = &s->link[s->uses[u].link];
                double capacity, lack, slower;

                if (!(s->uses[u].weight > 0.0))
                    continue;
                if (pass == 0)
                    l->load = l->fastest = 0.0;
                if (pass == 1) {
                    l->load += s->uses[u].weight * x;
                    l->fastest = x > l->fastest ? x : l->fastest;
                }
                if (pass < 2)
                    continue;
                capacity = st_sim_capacity(s, s->uses[u].link);
                wrong = st_sim_over(l->load, capacity) > wrong ? st_sim_over(l->load, capacity) : wrong;
                lack = st_sim_over(capacity, l->load);
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
