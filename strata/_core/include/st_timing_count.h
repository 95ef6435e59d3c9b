/* Plans of one operation to tasks of the timing plane, second part: what is counted before anything is written. */
#ifndef ST_TIMING_COUNT_H
#define ST_TIMING_COUNT_H

#include <math.h>

#include "st_timing_load.h"

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
    struct st_load_sum s = st_load_sum(l, p, u);
    double rate = l->sdma ? INFINITY : s.own / (s.legs * l->dies[p->member].slow);
    double written = u->kind == ST_UNIT_ACCUMULATE ? l->accumulate : 1.0;
    uint32_t k;

    if (s.remote && s.own > 0.0 && rate > core->remote)
        core->remote = rate;
    if (!s.remote && rate > core->local)
        core->local = rate;
    if (s.remote && s.own > own->ratio * s.through)
        own->ratio = s.own / s.through;
    for (k = u->src_first; k < u->src_first + u->nsrc; k++)
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

/* Checks a plan and counts it in; else a status, and the unit. */
static inline int st_load_measure(struct st_load *l, const struct st_load_plan *p, uint32_t *at)
{
    uint32_t c, i, k;
    int rc;

    *at = 0;
    if (p->core_begin[0] || p->core_begin[p->cores] != p->nunits)
        return ST_LOAD_ECORES;
    for (c = 0; c < p->cores; c++)
        if (p->core_begin[c] > p->core_begin[c + 1])
            return ST_LOAD_ECORES;
    memset(l->stamp, 0, 2 * (size_t)l->n * sizeof(*l->stamp));
    for (c = 0; c < p->cores; c++) {
        struct st_load_memory core = {0};

        l->nlanes += p->core_begin[c] != p->core_begin[c + 1];
        for (i = p->core_begin[c]; i < p->core_begin[c + 1]; i++) {
            const struct st_unit *u = &p->units[i];
            const struct st_operand *o = p->operands;

            *at = i;
            rc = st_load_check(l, p, u);
            if (rc)
                return rc;
            for (k = u->src_first; k < u->src_first + u->nsrc; k++)
                st_load_count(l, u, &o[k], c, o[k].member, p->member, 0);
            for (k = u->dst_first; k < u->dst_first + u->ndst; k++)
                st_load_count(l, u, &o[k], c, p->member, o[k].member, 1);
            if (u->nsrc)
                st_load_touch(l, p, u, &core);
            if (u->wait_flag >= 0)
                st_load_flag(l, u->wait_peer, u->wait_flag);
            if (u->post_flag >= 0)
                st_load_flag(l, p->member, u->post_flag);
            l->nuses += ((uint64_t)u->nsrc + u->ndst) * ST_LOAD_USES + ST_LOAD_SPARE;
        }
        l->memory[p->member].remote += core.remote;
        l->memory[p->member].local += core.local;
    }
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
