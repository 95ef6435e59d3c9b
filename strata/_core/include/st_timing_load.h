/* Plans of one operation to tasks of the timing plane, first part: the machine and the plans, what these are checked
 * for, and what a unit comes to.
 *
 * All members' plans are measured first (st_load_measure of st_timing_count.h, one after the other), since what a task
 * takes depends on all: bytes between two dies, how many cores are on a pair of dies, who posts a flag.  Then all are
 * written (st_timing_write.h).  Memory is the caller's. */
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
    ST_LOAD_EUSES = 7,    /* more operands than a task can have uses */
    ST_LOAD_EROWS = 8     /* rows, or entries, that are not there */
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
    const uint64_t *rows; /* entries of units that move rows; NULL: there are none */
    uint64_t nrows;
};

/* What may be asked of a die's memory at once, bytes per picosecond. */
struct st_load_memory {
    double remote, local; /* by its own cores, that move bytes from or to others, or their own alone */
    double ratio;         /* of bytes that go through its ports by its own cores, how many touch its memory */
    double read, written; /* by others: of bytes through its ports, how many touch its memory */
};

struct st_load {
    /* given: members and machine; times in picoseconds, rates in bytes per picosecond */
    const struct st_load_die *dies; /* [n] */
    const double *slow;             /* [n * n]: what member i gives member j takes so many times as long; NULL: 1 */
    int32_t n, flat, sdma, reduces; /* reduces: the engine does; if sdma */
    int64_t alpha_ps[ST_NTIERS], seen_ps[ST_NTIERS], poll_ps, issue_ps, row_ps, descriptor_ps, handover_ps;
    double rate[ST_NTIERS];  /* one core on one peer */
    double stream[ST_NTIERS]; /* one ring on one peer, if sdma */
    double write[ST_NTIERS]; /* what a byte written takes of a pair, by what a byte read does */
    double engine[ST_NTIERS]; /* what a byte takes of the engine */
    double accumulate, loss, backlog, jitter;
    uint64_t block, seed;
    int32_t operation;
    uint32_t ahead;

    /* counted by st_load_measure; zero before the first */
    uint64_t *bytes;   /* [n * n]: that i gives j */
    double *demand;    /* [2 * n * n]: the most that readers, and writers, ask of what i gives j, as if all was read */
    struct st_load_memory *memory; /* [n] */
    int32_t *nflags;   /* [n]: flags of each member that are posted or waited for */
    int32_t *stamp;    /* [2 * n]: scratch */
    uint32_t *entries; /* [65536]: scratch */
    double *mix;       /* [n * n]: bytes that member i's sums of rows (ST_UNIT_COMBINE) read of member j's, */
    double *mix_ps;    /* [n]: how long one core of a die that is not slow would take for them, */
    double *mix_out;   /* [n]: and bytes that they write */
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

static inline int st_load_of_rows(const struct st_unit *u)
{
    return u->kind == ST_UNIT_ROWS || u->kind == ST_UNIT_COMBINE;
}

/* Whether a unit that moves rows has whole ones, and its entries are there. */
static inline int st_load_rows(const struct st_load_plan *p, const struct st_unit *u)
{
    uint64_t each = u->kind == ST_UNIT_COMBINE ? u->total : 1;

    if (!u->row || u->bytes % u->row || u->ndst != 1 || !each || each > ST_ROW_MOST
        || (u->kind == ST_UNIT_ROWS && u->nsrc != 1))
        return 0;
    return u->index <= p->nrows && u->bytes / u->row <= (p->nrows - u->index) / each;
}

static inline int st_load_check(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    uint64_t k, last = (uint64_t)u->dst_first + u->ndst;
    int reduces = u->kind == ST_UNIT_REDUCE || u->kind == ST_UNIT_ACCUMULATE, sums = u->kind == ST_UNIT_COMBINE;

    if (u->kind < ST_UNIT_COPY || u->kind > ST_UNIT_COMBINE || u->op >= ST_NOPS || u->dtype >= ST_NDTYPES
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
    if ((!u->nsrc && !sums) || !u->ndst || (uint64_t)u->src_first + u->nsrc > p->noperands || last > p->noperands)
        return ST_LOAD_EOPERAND;
    if ((sums ? (uint32_t)l->n : (uint32_t)u->nsrc + u->ndst) * ST_LOAD_USES + ST_LOAD_SPARE > UINT16_MAX)
        return ST_LOAD_EUSES;
    if (st_load_of_rows(u) && !st_load_rows(p, u))
        return ST_LOAD_EROWS;
    for (k = u->src_first; k < (uint64_t)u->src_first + u->nsrc; k++)
        if (!st_load_operand(l, u, &p->operands[k]))
            return ST_LOAD_EOPERAND;
    for (k = u->dst_first; k < last; k++)
        if (!st_load_operand(l, u, &p->operands[k]))
            return ST_LOAD_EOPERAND;
    return ST_LOAD_OK;
}

/* What a unit comes to, operand by operand. */
struct st_load_sum {
    double own;     /* bytes of own memory that it touches, by the unit's */
    double through; /* bytes from and to others, by the unit's */
    double engine;  /* of the engine's capacity, by the unit's bytes */
    double legs;    /* picoseconds a byte of the unit's takes at a core's own rate, on a die that is not slow */
    double apart;   /* bytes of the operation between the dies, summed over remote operands */
    int remote, tier;
};

static inline void st_load_add(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u, int wrote,
                               struct st_load_sum *s)
{
    uint32_t k = wrote ? u->dst_first : u->src_first, last = k + (wrote ? u->ndst : u->nsrc);
    int32_t me = p->member;

    for (; k < last; k++) {
        const struct st_operand *o = &p->operands[k];
        int32_t from = wrote ? me : o->member, to = wrote ? o->member : me;
        int tier = st_load_tier(l, me, o->member);
        double weight = st_load_weight(u, o);

        if (tier > s->tier)
            s->tier = tier;
        if (o->member != me) {
            s->through += weight;
            s->engine += weight * l->engine[tier];
            s->legs += weight * st_load_slow(l, from, to) / l->rate[tier];
            s->apart += (double)l->bytes[(size_t)from * (size_t)l->n + (size_t)to];
            s->remote++;
            continue;
        }
        s->own += wrote && u->kind == ST_UNIT_ACCUMULATE ? weight * l->accumulate : weight;
        if (u->kind == ST_UNIT_REDUCE && !wrote)
            s->legs += weight / l->rate[ST_TIER_LOCAL];
    }
}

static inline struct st_load_sum st_load_sum(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    struct st_load_sum s = {0};

    st_load_add(l, p, u, 0, &s);
    st_load_add(l, p, u, 1, &s);
    if (!s.remote) {
        s.engine = s.own / 2 * l->engine[ST_TIER_LOCAL]; /* read and written */
        if (u->kind != ST_UNIT_REDUCE)
            s.legs = 1.0 / l->rate[ST_TIER_LOCAL];
    }
    return s;
}

#endif
