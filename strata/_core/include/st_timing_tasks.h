/* Plans of one operation to tasks of the timing plane, third part: a unit's task and what that uses. */
#ifndef ST_TIMING_TASKS_H
#define ST_TIMING_TASKS_H

#include <math.h>

#include "st_timing_rows.h"

#define ST_LOAD_KNOWN 4096 /* a power of two */

struct st_load_out {
    struct st_timing_task *tasks;
    struct st_timing_use *uses;
    struct st_timing_lane *lanes;
    struct st_timing_flag *flags;
    uint64_t ntasks, nuses, nlanes;
    int32_t pending[2]; /* flags that the lane's next task waits for, besides its own */
    int npending;
    struct { uint32_t first, count; int32_t member; } mixed; /* what the sums of rows of a member (less 1) use */
    struct { uint32_t first, count; } known[ST_LOAD_KNOWN]; /* uses that may be a later task's, too, by their hash */
};

/* A number of 0 up to 1 that is the same wherever it is asked for. */
static inline double st_load_chance(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = seed, k, part[3] = {a, b, c};

    for (k = 0; k < 3; k++) { /* splitmix64 */
        x += 0x9e3779b97f4a7c15ull * (part[k] + 1);
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ x >> 27) * 0x94d049bb133111ebull;
        x ^= x >> 31;
    }
    return (double)(x >> 11) * 0x1p-53;
}

static inline int64_t st_load_scaled(int64_t ps, double by) { return (int64_t)((double)ps * by + 0.5); }

/* A time that jitters: `what` tells the times of a unit apart. */
static inline int64_t st_load_jitter(const struct st_load *l, int64_t ps, int32_t member, uint32_t unit, int what)
{
    uint64_t who = (uint64_t)(uint32_t)member << 32 | unit;

    if (l->jitter == 0.0)
        return ps;
    return st_load_scaled(ps, 1.0 + l->jitter * st_load_chance(l->seed, (uint64_t)l->operation, who, (uint64_t)what));
}

static inline struct st_timing_task *st_load_task(const struct st_load *l, struct st_load_out *out, int kind, int32_t unit)
{
    struct st_timing_task *t = &out->tasks[out->ntasks++];

    *t = (struct st_timing_task){.bound = INFINITY, .wait = {ST_TIMING_NONE, ST_TIMING_NONE}, .post = ST_TIMING_NONE,
                                 .use_first = (uint32_t)out->nuses, .kind = (uint8_t)kind,
                                 .operation = l->operation, .unit = unit};
    out->lanes[out->nlanes - 1].count++;
    return t;
}

static inline void st_load_lane(struct st_load_out *out, int32_t die, int32_t core, int32_t pool, uint32_t ahead)
{
    out->lanes[out->nlanes++] = (struct st_timing_lane){.first = (uint32_t)out->ntasks, .die = die, .core = core,
                                                        .pool = pool, .ahead = ahead};
    out->npending = 0;
}

static inline void st_load_pend(struct st_load_out *out, int32_t flag)
{
    if (flag != ST_TIMING_NONE)
        out->pending[out->npending++] = flag;
}

/* A lane's next task, which waits for what is pending and for `flag`, if any. */
static inline struct st_timing_task *st_load_next(const struct st_load *l, struct st_load_out *out, int kind, int32_t unit,
                                                  int own)
{
    struct st_timing_task *t;
    int i, head = out->npending + own > ST_TIMING_WAITS;

    t = st_load_task(l, out, head ? ST_TASK_NOTHING : kind, head ? ST_TIMING_NONE : unit);
    for (i = 0; i < out->npending; i++)
        t->wait[i] = out->pending[i];
    out->npending = 0;
    return head ? st_load_task(l, out, kind, unit) : t;
}

static inline void st_load_wait(struct st_timing_task *t, int32_t flag, int64_t seen_ps)
{
    int at = t->wait[0] != ST_TIMING_NONE;

    t->wait[at] = flag;
    t->wait_ps[at] = seen_ps;
}

/* The lane's last task posts `flag` too, or one after it does. */
static inline void st_load_post(const struct st_load *l, struct st_load_out *out, int32_t flag)
{
    struct st_timing_task *t = &out->tasks[out->ntasks - 1];

    if (flag == ST_TIMING_NONE)
        return;
    if (t->post != ST_TIMING_NONE)
        t = st_load_task(l, out, ST_TASK_NOTHING, ST_TIMING_NONE);
    t->post = flag;
    out->flags[flag].need++;
}

static inline void st_load_use(struct st_load_out *out, int32_t link, int32_t peer, double weight)
{
    if (link != ST_TIMING_NONE)
        out->uses[out->nuses++] = (struct st_timing_use){.link = (uint32_t)link, .peer = peer, .weight = weight};
}

/* Between two dies: `weight` times the unit's bytes from one to the other. */
static inline void st_load_far(const struct st_load *l, struct st_load_out *out, int32_t from, int32_t to, double weight,
                               int wrote)
{
    const struct st_load_die *a = &l->dies[from], *b = &l->dies[to];
    int tier = st_load_tier(l, from, to), near = tier == ST_TIER_SIO;

    if (tier != ST_TIER_LOCAL) {
        st_load_use(out, a->port[near ? ST_LOAD_SIO_OUT : ST_LOAD_UB_OUT], near ? ST_TIMING_NONE : b->die, weight);
        st_load_use(out, b->port[near ? ST_LOAD_SIO_IN : ST_LOAD_UB_IN], near ? ST_TIMING_NONE : a->die, weight);
    }
    if (tier == ST_TIER_L2) {
        st_load_use(out, a->port[ST_LOAD_NODE_UP], ST_TIMING_NONE, weight);
        st_load_use(out, b->port[ST_LOAD_NODE_DOWN], ST_TIMING_NONE, weight);
    }
    st_load_use(out, l->pair[(size_t)from * (size_t)l->n + (size_t)to], ST_TIMING_NONE,
                weight * (wrote ? l->write[tier] : 1.0));
}

/* What a unit's remote operands use. */
static inline void st_load_uses(const struct st_load *l, struct st_load_out *out, const struct st_load_plan *p,
                                const struct st_unit *u, int wrote)
{
    uint32_t k = wrote ? u->dst_first : u->src_first, last = k + (wrote ? u->ndst : u->nsrc);
    double times = wrote && u->kind == ST_UNIT_ACCUMULATE ? l->accumulate : 1.0;
    int32_t me = p->member;

    for (; k < last; k++) {
        const struct st_operand *o = &p->operands[k];
        double weight = st_load_weight(u, o);

        if (o->member == me)
            continue;
        st_load_use(out, l->dies[o->member].port[ST_LOAD_HBM], ST_TIMING_NONE, weight * times);
        st_load_far(l, out, wrote ? me : o->member, wrote ? o->member : me, weight, wrote);
    }
}

/* The uses from `first` on are the task's: those of an earlier task, where that has the same. */
static inline void st_load_share(struct st_load_out *out, uint64_t first, struct st_timing_task *t)
{
    uint32_t count = (uint32_t)(out->nuses - first);
    uint64_t hash = count, word[2];

    for (uint64_t u = first; u < out->nuses; u++) {
        memcpy(word, &out->uses[u], sizeof word);
        hash = (hash ^ word[0]) * UINT64_C(0x9e3779b97f4a7c15);
        hash = (hash ^ hash >> 32 ^ word[1]) * UINT64_C(0xbf58476d1ce4e5b9);
    }
    hash = hash >> 40 & (ST_LOAD_KNOWN - 1);
    t->nuse = (uint16_t)count;
    if (out->known[hash].count == count
        && !memcmp(&out->uses[out->known[hash].first], &out->uses[first], count * sizeof *out->uses)) {
        t->use_first = out->known[hash].first;
        out->nuses = first;
        return;
    }
    t->use_first = out->known[hash].first = (uint32_t)first;
    out->known[hash].count = count;
}

/* What a member's sums of rows use, written once. */
static inline void st_load_uses_mixed(const struct st_load *l, struct st_load_out *out, int32_t me,
                                      const struct st_load_sum *s, struct st_timing_task *t)
{
    int32_t m;

    if (out->mixed.member != me + 1) {
        out->mixed.member = me + 1;
        out->mixed.first = (uint32_t)out->nuses;
        for (m = 0; m < l->n; m++) {
            double weight = st_load_mixed(l, me, m);

            if (m == me || weight <= 0.0)
                continue;
            st_load_use(out, l->dies[m].port[ST_LOAD_HBM], ST_TIMING_NONE, weight);
            st_load_far(l, out, m, me, weight, 0);
        }
        st_load_use(out, l->dies[me].port[ST_LOAD_HBM], ST_TIMING_NONE, s->own);
        if (l->sdma)
            st_load_use(out, l->dies[me].port[ST_LOAD_ENGINE], ST_TIMING_NONE, s->engine);
        out->mixed.count = (uint32_t)(out->nuses - out->mixed.first);
    }
    t->use_first = out->mixed.first;
    t->nuse = (uint16_t)out->mixed.count;
}

/* Work, uses, bound, latency and backlog of a unit that moves bytes. */
static inline void st_load_move(const struct st_load *l, struct st_load_out *out, const struct st_load_plan *p,
                                const struct st_unit *u, uint32_t unit, struct st_timing_task *t)
{
    const struct st_load_die *die = &l->dies[p->member];
    struct st_load_sum s = st_load_come(l, p, u);
    uint64_t first = out->nuses;
    double apart;

    t->work = (double)u->bytes;
    if (u->kind == ST_UNIT_COMBINE) {
        st_load_uses_mixed(l, out, p->member, &s, t);
        st_load_tally(l, p, u);
        t->work = st_load_sums_ps(l, p, u) / s.legs;
    } else {
        st_load_uses(l, out, p, u, 0);
        st_load_uses(l, out, p, u, 1);
        if (s.own > 0.0)
            st_load_use(out, die->port[ST_LOAD_HBM], ST_TIMING_NONE, s.own);
        if (l->sdma)
            st_load_use(out, die->port[ST_LOAD_ENGINE], ST_TIMING_NONE, s.engine);
        st_load_share(out, first, t);
    }
    t->tier = (uint8_t)s.tier;
    if (!l->sdma || st_load_of_rows(u))
        t->bound = 1.0 / (s.legs * die->slow);
    apart = s.remote ? s.apart / s.remote : 0.0;
    if (l->loss > 0.0 && apart > 0.0)
        t->backlog = (int32_t)((double)ST_TIMING_BACKLOG_ONE * (apart / (apart + l->backlog)));
    t->latency_ps = st_load_jitter(l, l->alpha_ps[s.tier], p->member, unit, 0);
}

#endif
