/* Plans of one operation to tasks of the timing plane: units that move rows of tables.
 *
 * A core asks for rows one by one, as for units: its own time and the distance of a row pass while the one before flows
 * (`ahead`), so from row to row it takes the longer of the two.  A unit of ROWS is one task, whose bound says that.
 * An engine takes a descriptor for each run of neighbouring rows, with its hand-over and distance.
 *
 * A unit of sums (COMBINE) reads rows of many members, and no two units the same number of each.  Here all of a die's
 * take their rows in the proportion of all together, so that they are one route of the solver; each has the share of
 * the bytes that it has of the time.  So what moves in all between two dies is exact, and so is what a core would take
 * if nothing was in its way. */
#ifndef ST_TIMING_ROWS_H
#define ST_TIMING_ROWS_H

#include <math.h>

#include "st_timing_load.h"

/* One core, or one ring, on one peer. */
static inline double st_load_speed(const struct st_load *l, int tier) { return l->sdma ? l->stream[tier] : l->rate[tier]; }

/* Picoseconds from the row of `member` before to the next, of so many bytes, if the die is not slow and nothing is in
 * the way. */
static inline double st_load_period(const struct st_load *l, int32_t me, int32_t member, double row)
{
    int tier = st_load_tier(l, me, member);
    double flow = row * st_load_slow(l, member, me) / st_load_speed(l, tier);
    double wait = (double)l->alpha_ps[tier] / l->dies[me].slow;

    if (l->sdma)
        return flow + wait + (double)l->handover_ps;
    wait += (double)(l->issue_ps + l->row_ps);
    return !l->ahead ? flow + wait : flow > wait ? flow : wait;
}

/* Descriptors of a unit of ROWS: neighbours at the source, which are neighbours where they go to, are one run. */
static inline int64_t st_load_runs(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    const uint64_t *row = p->rows + u->index;
    uint64_t i, n = u->bytes / u->row, begin = 0, run;
    int64_t found = 0;

    for (i = 1; i <= n; i++)
        if (i == n || row[i] != row[i - 1] + 1) {
            run = (i - begin) * u->row;
            found += (int64_t)(run / l->block + (run % l->block != 0));
            begin = i;
        }
    return found;
}

/* Counts a unit of sums' entries by operand, in l->entries; how many in all, or -1: one is of no operand. */
static inline int64_t st_load_tally(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    const uint64_t *entry = p->rows + u->index;
    uint64_t i, k, n = u->bytes / u->row * u->total;
    int64_t found = 0;

    memset(l->entries, 0, u->nsrc * sizeof(*l->entries));
    for (i = 0; i < n; i++) {
        if (entry[i] == ST_ROW_NONE)
            continue;
        k = entry[i] >> ST_ROW_BITS;
        if (k >= u->nsrc)
            return -1;
        l->entries[k]++;
        found++;
    }
    return found;
}

/* Picoseconds that a core takes for a unit of sums, tallied; one without entries writes zeros. */
static inline double st_load_sums_ps(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    double ps = 0.0;
    uint32_t k;

    for (k = 0; k < u->nsrc; k++)
        if (l->entries[k])
            ps += l->entries[k] * st_load_period(l, p->member, p->operands[u->src_first + k].member, u->row);
    return ps > 0.0 ? ps : (double)u->bytes / st_load_speed(l, ST_TIER_LOCAL);
}

/* Adds a unit of sums to what its die's come to together. */
static inline int st_load_mix(struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    size_t me = (size_t)p->member, n = (size_t)l->n;
    uint32_t k;

    if (st_load_tally(l, p, u) < 0)
        return ST_LOAD_EROWS;
    for (k = 0; k < u->nsrc; k++) {
        size_t from = (size_t)p->operands[u->src_first + k].member;
        uint64_t bytes = (uint64_t)l->entries[k] * u->row;

        l->mix[me * n + from] += (double)bytes;
        if (from != me)
            l->bytes[from * n + me] += bytes;
    }
    l->mix_ps[me] += st_load_sums_ps(l, p, u);
    l->mix_out[me] += (double)u->bytes;
    return ST_LOAD_OK;
}

/* Of each byte that a die's sums write, bytes read of a member's rows. */
static inline double st_load_mixed(const struct st_load *l, int32_t me, int32_t from)
{
    return l->mix[(size_t)me * (size_t)l->n + (size_t)from] / l->mix_out[me];
}

static inline struct st_load_sum st_load_sum_mixed(const struct st_load *l, int32_t me)
{
    struct st_load_sum s = {.own = 1.0 + st_load_mixed(l, me, me), .legs = l->mix_ps[me] / l->mix_out[me]};
    int32_t m;
    int tier;

    for (m = 0; m < l->n; m++) {
        double weight = st_load_mixed(l, me, m);

        if (m == me || weight <= 0.0)
            continue;
        tier = st_load_tier(l, me, m);
        s.tier = tier > s.tier ? tier : s.tier;
        s.through += weight;
        s.engine += weight * l->engine[tier];
        s.apart += (double)l->bytes[(size_t)m * (size_t)l->n + (size_t)me];
        s.remote++;
    }
    if (l->sdma)
        s.own = 2.0 * st_load_mixed(l, me, me) + s.through; /* rows are copied here; cores add them up later */
    if (!s.remote)
        s.engine = s.own / 2 * l->engine[ST_TIER_LOCAL];
    return s;
}

/* What any unit comes to. */
static inline struct st_load_sum st_load_come(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    struct st_load_sum s;
    int32_t from;

    if (u->kind == ST_UNIT_COMBINE)
        return st_load_sum_mixed(l, p->member);
    s = st_load_sum(l, p, u);
    if (u->kind != ST_UNIT_ROWS)
        return s;
    from = p->operands[u->src_first].member;
    if (l->sdma)
        s.legs = st_load_slow(l, from, p->member) / l->stream[s.tier]
                 + (double)(l->alpha_ps[s.tier] + l->handover_ps) * (double)st_load_runs(l, p, u) / (double)u->bytes;
    else
        s.legs = st_load_period(l, p->member, from, u->row) / u->row;
    return s;
}

/* Holding and latency of a core's task: from row to row at its bound, it is as long before the first row flows as the
 * last is shorter.  By an engine all is in the bound. */
static inline void st_load_lead(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u,
                                struct st_timing_task *t)
{
    double slow = l->dies[p->member].slow, flow = 0.0;

    if (l->ahead && !l->sdma)
        flow = u->row * slow / l->rate[t->tier] + 0.5;
    t->hold_ps = l->sdma ? 0 : (int64_t)((double)(l->issue_ps + l->row_ps) * slow + 0.5);
    t->hold_ps = (double)t->hold_ps < flow ? t->hold_ps : (int64_t)flow;
    t->latency_ps = (double)(t->hold_ps + t->latency_ps) < flow ? t->latency_ps : (int64_t)flow - t->hold_ps;
}

#endif
