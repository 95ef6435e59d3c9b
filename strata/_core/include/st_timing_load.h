/* Plans of one operation to tasks of the timing plane, first part: what the plans are checked for, and what is
 * counted before anything is written.
 *
 * All members' plans are measured first (st_load_measure, one after the other), since what a task takes depends on
 * all: bytes between two dies, how many cores are on a pair of dies, who posts a flag.  Memory is the caller's. */
#ifndef ST_TIMING_LOAD_H
#define ST_TIMING_LOAD_H

#include <string.h>

#include "st_kernels_plan.h"
#include "st_plan.h"
#include "st_timing.h"

/* Links of a die: which index in the array of links, ST_TIMING_NONE where there is no limit. */
enum st_load_port {
    ST_LOAD_UB_OUT = 0,
    ST_LOAD_UB_IN = 1,
    ST_LOAD_SIO_OUT = 2,
    ST_LOAD_SIO_IN = 3,
    ST_LOAD_HBM = 4,
    ST_LOAD_NODE_UP = 5,
    ST_LOAD_NODE_DOWN = 6,
    ST_LOAD_ENGINE = 7,
    ST_LOAD_POOL = 8,
    ST_LOAD_NPORTS = 9
};

enum st_load_status {
    ST_LOAD_OK = 0,
    ST_LOAD_ECORES = 1,   /* core_begin does not span the units */
    ST_LOAD_EKIND = 2,    /* unknown kind, operator or dtype */
    ST_LOAD_EOPERAND = 3, /* operands beyond the table, or of no member */
    ST_LOAD_EFLAG = 4,    /* flag or wait_peer out of range */
    ST_LOAD_EBYTES = 5,   /* none, or too many */
    ST_LOAD_EREDUCE = 6,  /* the engine does not reduce */
    ST_LOAD_EUSES = 7     /* more operands than a task can have uses */
};

enum {
    ST_LOAD_MAX_FLAGS = 1 << 20,
    ST_LOAD_USES = 6, /* of an operand at most: two ports, a pair, memory, a node's two links */
    ST_LOAD_SPARE = 2 /* of a unit beyond those of its operands: own memory, engine */
};

/* A member's die. */
struct st_load_die {
    int32_t die, package, node;
    int32_t port[ST_LOAD_NPORTS];
    double slow; /* its cores take so many times as long */
};

struct st_load_plan {
    const struct st_unit *units;
    const struct st_operand *operands;
    const uint32_t *core_begin;
    uint32_t nunits, noperands, cores;
    int32_t member;
};

struct st_load {
    /* given: members and machine; times in picoseconds, rates in bytes per picosecond */
    const struct st_load_die *dies; /* [n] */
    const double *slow;             /* [n * n]: what member i gives member j takes so many times as long; NULL: 1 */
    int32_t n, flat, sdma, reduces; /* reduces: the engine does; if sdma */
    int64_t alpha_ps[ST_NTIERS], seen_ps[ST_NTIERS], poll_ps, issue_ps, descriptor_ps, handover_ps;
    double rate[ST_NTIERS];  /* one core on one peer */
    double write[ST_NTIERS]; /* what a byte written takes of a pair, by what a byte read does */
    double engine[ST_NTIERS]; /* what a byte takes of the engine */
    double accumulate, loss, backlog, jitter;
    uint64_t block, seed;
    int32_t operation;
    uint32_t ahead;

    /* counted by st_load_measure; zero before the first */
    uint64_t *bytes;   /* [n * n]: that i gives j */
    double *demand;    /* [2 * n * n]: the most that readers, and writers, ask of what i gives j, as if all was read */
    int32_t *nflags;   /* [n]: flags of each member that are posted or waited for */
    int32_t *stamp;    /* [2 * n]: scratch */
    uint64_t nuses;    /* at most */
    uint64_t ntasks;   /* of units */
    uint64_t nlanes;   /* cores that have something to do */

    /* given for writing (st_timing_write.h) */
    const int32_t *pair;      /* [n * n]: link of what i gives j; ST_TIMING_NONE: cannot be what limits */
    const int64_t *flag_base; /* [n]: where each member's flags begin */
    int32_t *poster;          /* [all flags of the operation]: core that posts, -1 none, -2 several */
    int64_t flag_zero;        /* the first of them */
};

static inline int st_load_tier(const struct st_load *l, int32_t a, int32_t b)
{
    const struct st_load_die *x = &l->dies[a], *y = &l->dies[b];

    if (l->flat || a == b)
        return ST_TIER_LOCAL;
    if (x->package == y->package)
        return ST_TIER_SIO;
    return x->node == y->node ? ST_TIER_L1 : ST_TIER_L2;
}

static inline double st_load_slow(const struct st_load *l, int32_t from, int32_t to)
{
    return l->slow ? l->slow[(size_t)from * (size_t)l->n + (size_t)to] : 1.0;
}

/* An operand's bytes by those of its unit. */
static inline double st_load_weight(const struct st_unit *u, const struct st_operand *o)
{
    if (!(o->flags & ST_OPERAND_PARTIAL))
        return 1.0;
    return (double)st_partial_extent(u->dtype, u->op, u->bytes) / (double)u->bytes;
}

/* Whether it is a member's, and partial only where that means anything. */
static inline int st_load_operand(const struct st_load *l, const struct st_unit *u, const struct st_operand *o)
{
    return o->member >= 0 && o->member < l->n && (!(o->flags & ST_OPERAND_PARTIAL) || u->kind == ST_UNIT_REDUCE);
}

static inline int st_load_check(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    uint64_t k, last = (uint64_t)u->dst_first + u->ndst;
    int reduces = u->kind == ST_UNIT_REDUCE || u->kind == ST_UNIT_ACCUMULATE;

    if (u->kind < ST_UNIT_COPY || u->kind > ST_UNIT_ACCUMULATE || u->op >= ST_NOPS || u->dtype >= ST_NDTYPES
        || (reduces && u->dtype == 0))
        return ST_LOAD_EKIND;
    if ((u->wait_flag < 0) != (u->wait_peer < 0) || u->wait_peer >= l->n || u->wait_peer < -1 || u->wait_flag < -1
        || u->post_flag < -1 || u->wait_flag >= ST_LOAD_MAX_FLAGS || u->post_flag >= ST_LOAD_MAX_FLAGS)
        return ST_LOAD_EFLAG;
    if (u->kind == ST_UNIT_SYNC)
        return u->nsrc || u->ndst || u->bytes ? ST_LOAD_EBYTES : ST_LOAD_OK;
    if (!u->bytes || u->bytes >= 1ull << 60)
        return ST_LOAD_EBYTES;
    if (l->sdma && reduces && !l->reduces)
        return ST_LOAD_EREDUCE;
    if (!u->nsrc || !u->ndst || (uint64_t)u->src_first + u->nsrc > p->noperands || last > p->noperands)
        return ST_LOAD_EOPERAND;
    if (((uint32_t)u->nsrc + u->ndst) * ST_LOAD_USES + ST_LOAD_SPARE > UINT16_MAX)
        return ST_LOAD_EUSES;
    for (k = u->src_first; k < (uint64_t)u->src_first + u->nsrc; k++)
        if (!st_load_operand(l, u, &p->operands[k]))
            return ST_LOAD_EOPERAND;
    for (k = u->dst_first; k < last; k++)
        if (!st_load_operand(l, u, &p->operands[k]))
            return ST_LOAD_EOPERAND;
    return ST_LOAD_OK;
}

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
            if (u->wait_flag >= 0)
                st_load_flag(l, u->wait_peer, u->wait_flag);
            if (u->post_flag >= 0)
                st_load_flag(l, p->member, u->post_flag);
            l->nuses += ((uint64_t)u->nsrc + u->ndst) * ST_LOAD_USES + ST_LOAD_SPARE;
        }
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
