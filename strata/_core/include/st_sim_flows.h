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

/* Ports with a loss hear of a flow's peers, and once of its backlog. */
static inline void st_sim_fan_in(struct st_sim *s, uint32_t slot, const struct st_timing_task *t)
{
    struct st_sim_fan *fan = s->fans + ((size_t)slot << s->mm.shift);

    s->stamp++;
    for (uint32_t u = t->use_first; u < t->use_first + t->nuse; u++) {
        struct st_sim_link *l;
        struct st_fanout *f;

        if (s->solved[s->uses[u].link] == ST_SIM_NONE || !(s->uses[u].weight > 0.0))
            continue;
        l = &s->link[s->uses[u].link];
        if (l->fanout == ST_SIM_NONE)
            continue;
        f = &s->fanout[l->fanout];
        fan->fanout = l->fanout;
        fan->peer = l->task == s->stamp ? ~s->uses[u].peer : s->uses[u].peer;
        fan++;
        st_fanout_join(f, s->uses[u].peer);
        st_sim_fan_changed(s, l->fanout);
        if (l->task != s->stamp) {
            l->task = s->stamp;
            f->flows++;
            f->backlog += t->backlog;
        }
    }
    s->slot[slot].nfans = (uint32_t)(fan - (s->fans + ((size_t)slot << s->mm.shift)));
}

static inline void st_sim_fan_out(struct st_sim *s, uint32_t slot)
{
    const struct st_sim_fan *fan = s->fans + ((size_t)slot << s->mm.shift), *end = fan + s->slot[slot].nfans;

    for (; fan < end; fan++) {
        struct st_fanout *f = &s->fanout[fan->fanout];

        st_fanout_leave(f, fan->peer < 0 ? ~fan->peer : fan->peer);
        st_sim_fan_changed(s, fan->fanout);
        if (fan->peer >= 0) {
            f->flows--;
            f->backlog -= s->slot[slot].backlog;
        }
    }
}

static inline void st_sim_join(struct st_sim *s, uint32_t i, uint32_t task)
{
    const struct st_timing_task *t = &s->tasks[task];
    uint32_t f = s->nfree ? s->free_slot[--s->nfree] : s->nslots++;

    st_mm_begin(&s->mm, f, s->mm.nlinks + s->bound[task]);
    for (uint32_t u = t->use_first; u < t->use_first + t->nuse; u++) {
        uint32_t link = s->solved[s->uses[u].link];

        if (link != ST_SIM_NONE && s->uses[u].weight > 0.0)
            st_mm_use(&s->mm, f, link, s->uses[u].weight);
    }
    s->slot[f] = (struct st_sim_slot){t->work, 0.0, s->now, i, task, t->post, t->backlog, 0, 0};
    if (s->nfanouts)
        st_sim_fan_in(s, f, t);
    s->finish[f] = ST_SIM_NEVER;
    s->lane[i].flow = f;
    s->dirty = 1;
}

static inline void st_sim_leave(struct st_sim *s, uint32_t i)
{
    uint32_t f = s->lane[i].flow;

    st_mm_end(&s->mm, f);
    st_sim_fan_out(s, f);
    s->free_slot[s->nfree++] = f;
    s->finish[f] = ST_SIM_NEVER;
    s->slot[f].lane = ST_SIM_NONE;
    if (s->mm.nlive == 0)
        s->nfree = s->nslots = 0;
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

/* Flows whose rate has changed go on at the new one. */
static inline void st_sim_rates(struct st_sim *s)
{
    int64_t soonest = ST_SIM_NEVER;

    for (uint32_t k = 0; k < s->mm.nmoved; k++) {
        uint32_t f = s->mm.moved[k];
        struct st_sim_slot *x = &s->slot[f];

        x->left -= x->rate * (double)(s->now - x->since);
        x->since = s->now;
        x->rate = st_mm_flow(&s->mm, f)->rate;
        s->finish[f] = st_sim_finish(s->now, x->left, x->rate);
    }
    for (uint32_t f = 0; f < s->nslots; f++)
        soonest = s->finish[f] < soonest ? s->finish[f] : soonest;
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
