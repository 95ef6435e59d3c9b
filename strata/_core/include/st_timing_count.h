/* Plans of one operation to tasks of the timing plane, second part: what is counted before anything is written. */
#ifndef ST_TIMING_COUNT_H
#define ST_TIMING_COUNT_H

#include <math.h>

#include "st_timing_rows.h"

/* What passes from member `from` to member `to` by unit u of core `core`; `wrote`: written, not read. */
static inline void st_load_count(struct st_load *l, const struct st_unit *u, const struct st_operand *o, uint32_t core,
                                 int32_t from, int32_t to, int wrote)
{
    size_t at = (size_t)from * (size_t)l->n + (size_t)to;
    int32_t *stamp = &l->stamp[wrote ? l->n + to : from];
    int tier;

    if (from == to)
        return;
    l->bytes[at] += o->flags & ST_OPERAND_PARTIAL ? st_partial_extent(u->dtype, u->op, u->bytes) : u->bytes;
    if (*stamp == (int32_t)core + 1)
        return;
    *stamp = (int32_t)core + 1;
    tier = st_load_tier(l, from, to);
    if (wrote)
        l->demand[(size_t)l->n * (size_t)l->n + at] += l->rate[tier] * l->write[tier];
    else
        l->demand[at] += l->rate[tier];
}

/* What core `core`'s unit may ask of memory: own, and that of the operands' members. */
static inline void st_load_touch(struct st_load *l, const struct st_load_plan *p, const struct st_unit *u,
                                 struct st_load_memory *core)
{
    struct st_load_memory *own = &l->memory[p->member], *other;
    struct st_load_sum s = st_load_come(l, p, u);
    double rate = l->sdma ? INFINITY : s.own / (s.legs * l->dies[p->member].slow);
    double written = u->kind == ST_UNIT_ACCUMULATE ? l->accumulate : 1.0;
    uint32_t k;

    if (s.remote && s.own > 0.0 && rate > core->remote)
        core->remote = rate;
    if (!s.remote && rate > core->local)
        core->local = rate;
    if (s.remote && s.own > own->ratio * s.through)
        own->ratio = s.own / s.through;
    for (k = u->src_first; k < u->src_first + u->nsrc && u->kind != ST_UNIT_COMBINE; k++)
        if (p->operands[k].member != p->member)
            l->memory[p->operands[k].member].read = 1.0;
    for (k = u->dst_first; k < u->dst_first + u->ndst; k++) {
        other = &l->memory[p->operands[k].member];
        if (other != own && other->written < written)
            other->written = written;
    }
}

static inline void st_load_flag(struct st_load *l, int32_t member, int32_t flag)
{
    if (l->nflags[member] <= flag)
        l->nflags[member] = flag + 1;
}

/* What core `core` may ask of others by its sums of rows. */
static inline void st_load_count_mixed(struct st_load *l, int32_t me, uint32_t core)
{
    int32_t m;

    for (m = 0; m < l->n; m++) {
        if (m == me || st_load_mixed(l, me, m) <= 0.0)
            continue;
        l->memory[m].read = 1.0;
        if (l->stamp[m] == (int32_t)core + 1)
            continue;
        l->stamp[m] = (int32_t)core + 1;
        l->demand[(size_t)m * (size_t)l->n + (size_t)me] += l->rate[st_load_tier(l, me, m)];
    }
}

/* Counts a unit in. */
static inline void st_load_unit(struct st_load *l, const struct st_load_plan *p, const struct st_unit *u, uint32_t core,
                                struct st_load_memory *asked)
{
    const struct st_operand *o = p->operands;
    int sums = u->kind == ST_UNIT_COMBINE;
    uint32_t k;

    if (sums)
        st_load_count_mixed(l, p->member, core);
    for (k = u->src_first; k < u->src_first + u->nsrc && !sums; k++)
        st_load_count(l, u, &o[k], core, o[k].member, p->member, 0);
    for (k = u->dst_first; k < u->dst_first + u->ndst; k++)
        st_load_count(l, u, &o[k], core, p->member, o[k].member, 1);
    if (u->kind != ST_UNIT_SYNC)
        st_load_touch(l, p, u, asked);
    if (u->wait_flag >= 0)
        st_load_flag(l, u->wait_peer, u->wait_flag);
    if (u->post_flag >= 0)
        st_load_flag(l, p->member, u->post_flag);
    if (!sums)
        l->nuses += ((uint64_t)u->nsrc + u->ndst) * ST_LOAD_USES + ST_LOAD_SPARE;
}

/* Checks a plan and counts it in; else a status, and the unit. */
static inline int st_load_measure(struct st_load *l, const struct st_load_plan *p, uint32_t *at)
{
    uint32_t c, i;
    int rc, sums = 0;

    *at = 0;
    if (p->core_begin[0] || p->core_begin[p->cores] != p->nunits)
        return ST_LOAD_ECORES;
    for (c = 0; c < p->cores; c++)
        if (p->core_begin[c] > p->core_begin[c + 1])
            return ST_LOAD_ECORES;
    for (i = 0; i < p->nunits; i++) {
        *at = i;
        rc = st_load_check(l, p, &p->units[i]);
        if (!rc && p->units[i].kind == ST_UNIT_COMBINE) {
            rc = st_load_mix(l, p, &p->units[i]);
            sums = 1;
        }
        if (rc)
            return rc;
    }
    memset(l->stamp, 0, 2 * (size_t)l->n * sizeof(*l->stamp));
    for (c = 0; c < p->cores; c++) {
        struct st_load_memory core = {0};

        l->nlanes += p->core_begin[c] != p->core_begin[c + 1];
        for (i = p->core_begin[c]; i < p->core_begin[c + 1]; i++)
            st_load_unit(l, p, &p->units[i], c, &core);
        l->memory[p->member].remote += core.remote;
        l->memory[p->member].local += core.local;
    }
    l->nuses += sums ? (uint64_t)l->n * ST_LOAD_USES + ST_LOAD_SPARE : 0; /* the same of all */
    l->ntasks += p->nunits;
    return ST_LOAD_OK;
}

/* Counts the posts of a member's flags, and notes the core. */
static inline void st_load_posts(struct st_load *l, const struct st_load_plan *p, struct st_timing_flag *flags)
{
    uint32_t c, i;

    for (c = 0; c < p->cores; c++)
        for (i = p->core_begin[c]; i < p->core_begin[c + 1]; i++) {
            int64_t at = l->flag_base[p->member] + p->units[i].post_flag;
            int32_t *poster = &l->poster[at - l->flag_zero];

            if (p->units[i].post_flag < 0)
                continue;
            flags[at].need++;
            *poster = *poster == -1 || *poster == (int32_t)c ? (int32_t)c : -2;
        }
}

#endif
