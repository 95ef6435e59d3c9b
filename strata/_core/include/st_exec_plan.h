/* A plan as the executor needs it, and what must hold of it before it is ever run. */
#ifndef ST_EXEC_PLAN_H
#define ST_EXEC_PLAN_H

#include "st_accumulate.h"
#include "st_group.h"

#define ST_EXEC_OPERANDS 64u /* resolved on the stack; more are resolved in the caller's space */

/* A die's part of a plan. */
struct st_plan {
    const struct st_unit *units;
    const struct st_operand *operands;
    uint64_t nunits;
    uint64_t noperands;
    const uint64_t *buffer_bytes; /* [n][ST_NBUFS]: how far it reaches into them */
    const uint64_t *rows;         /* [nrows]: entries of units that move rows */
    uint64_t nrows;
    const uint32_t *core_begin;   /* [cores + 1]; NULL: one core runs everything */
    uint64_t mail_bytes; /* mailbox: what a contributor puts there */
    uint64_t staged_bytes; /* that it copies between own arrays and own scratch */
    uint32_t cores;
    uint32_t nflags; /* one more than the highest that it posts */
    uint32_t max_operands; /* sources or destinations of one unit */
    uint32_t needs_done;   /* peers touch user buffers: a closing synchronisation is due */
    uint32_t nt;           /* large enough for non-temporal stores */
    uint32_t mailbox;      /* SRC is the mailbox */
    uint32_t by_rows;      /* some unit moves rows: st_rows.h runs those; found by st_plan_check */
    uint32_t partial;      /* some operand is partial, or some mean has a total; found by st_plan_check */
    /* room for the executor; a plan is run by one operation at a time */
    uint32_t *posts; /* [nflags]: units that post each; counted by st_plan_check */
    uint32_t *left;  /* [nflags]: of them not done yet */
    uint64_t *next;  /* [cores]: unit that each core is at; NULL with one core */
};

static inline uint32_t st_plan_cores(const struct st_plan *p) { return p->core_begin ? p->cores : 1; }

static inline uint64_t st_operand_bytes(const struct st_unit *u, const struct st_operand *o)
{
    return o->flags & ST_OPERAND_PARTIAL ? st_partial_extent(u->dtype, u->op, u->bytes) : u->bytes;
}

static inline int st_unit_has_rows(const struct st_unit *u)
{
    return u->kind == ST_UNIT_ROWS || u->kind == ST_UNIT_COMBINE;
}

/* Rows that a plan may read of an operand. */
static inline uint64_t st_plan_reach(const struct st_plan *p, const struct st_unit *u, const struct st_operand *o)
{
    return (p->buffer_bytes[(uint64_t)o->member * ST_NBUFS + o->buf] - o->offset) / u->row;
}

/* Every entry of a unit of rows; its operands have been checked. */
static inline int st_plan_check_rows(const struct st_plan *p, const struct st_unit *u)
{
    const struct st_operand *src = p->operands + u->src_first, *dst = p->operands + u->dst_first;
    uint64_t count = u->bytes / u->row * (u->kind == ST_UNIT_COMBINE ? u->total : 1), k, e, from;
    const uint64_t *entry;

    if (u->index > p->nrows || count > p->nrows - u->index || dst->offset % u->row)
        return ST_EINVAL;
    for (k = 0; k < u->nsrc; k++)
        if (src[k].offset % u->row)
            return ST_EINVAL;
    entry = p->rows + u->index;
    for (k = 0; k < count; k++) {
        e = entry[k];
        from = 0;
        if (u->kind == ST_UNIT_COMBINE) {
            if (e == ST_ROW_NONE)
                continue;
            from = e >> ST_ROW_BITS;
            e &= (1ull << ST_ROW_BITS) - 1;
        }
        if (from >= u->nsrc || e >= st_plan_reach(p, u, &src[from]))
            return ST_EINVAL;
    }
    return ST_OK;
}

static inline int st_plan_check_operands(struct st_plan *p, const struct st_unit *u, uint64_t first, uint64_t count,
                                         uint32_t n, int reads)
{
    uint64_t k;

    if (count > ST_MAX_DIES || first + count > p->noperands)
        return ST_EINVAL;
    p->max_operands = count > p->max_operands ? (uint32_t)count : p->max_operands;
    for (k = first; k < first + count; k++) {
        const struct st_operand *o = &p->operands[k];
        uint64_t limit, bytes;

        if (o->member < 0 || (uint32_t)o->member >= n || o->buf >= ST_NBUFS || (o->flags & ~ST_OPERAND_PARTIAL) ||
            ((o->flags & ST_OPERAND_PARTIAL) && u->kind != ST_UNIT_REDUCE))
            return ST_EINVAL;
        p->partial |= o->flags;
        bytes = reads && st_unit_has_rows(u) ? 0 : st_operand_bytes(u, o); /* entries tell what is read */
        limit = p->buffer_bytes[(uint64_t)o->member * ST_NBUFS + o->buf];
        if (o->offset > limit || bytes > limit - o->offset)
            return ST_EINVAL;
    }
    return ST_OK;
}

static inline int st_plan_check_kind(const struct st_unit *u)
{
    switch (u->kind) {
    case ST_UNIT_SYNC:
        return u->nsrc || u->ndst || u->bytes ? ST_EINVAL : ST_OK;
    case ST_UNIT_COPY:
        return u->nsrc == 1 ? ST_OK : ST_EINVAL;
    case ST_UNIT_ACCUMULATE:
        if (u->nsrc != 1)
            return ST_EINVAL;
        if (!st_accumulate_width(u->dtype, u->op))
            return ST_EUNSUPPORTED;
        break;
    case ST_UNIT_ROWS:
    case ST_UNIT_COMBINE:
        if (u->kind == ST_UNIT_ROWS ? u->nsrc != 1 || u->total : !u->total || u->total > ST_ROW_MOST)
            return ST_EINVAL;
        return u->ndst != 1 || !u->row || !u->bytes || u->bytes >> 58 || u->bytes % u->row ? ST_EINVAL : ST_OK;
    case ST_UNIT_REDUCE:
        if (u->nsrc == 0)
            return ST_EINVAL;
        if (!st_reduce_supported(u->dtype, u->op))
            return ST_EUNSUPPORTED;
        break;
    default:
        return ST_EINVAL;
    }
    return u->bytes >> 58 || u->bytes % (uint64_t)st_dtype_size(u->dtype) ? ST_EINVAL : ST_OK;
}

static inline int st_plan_check_flags(struct st_plan *p, const struct st_unit *u, uint32_t n)
{
    if (u->wait_flag >= (int32_t)ST_GROUP_FLAGS || u->post_flag >= (int32_t)p->nflags ||
        (u->wait_flag >= 0 && (u->wait_peer < 0 || (uint32_t)u->wait_peer >= n)))
        return ST_EINVAL;
    if (u->wait_flag >= 0 && !p->needs_done) /* a member that waits for others can only be */
        return ST_EINVAL;                    /* told from a missing one if all say `done` */
    if (u->post_flag >= 0)
        p->posts[u->post_flag]++;
    return ST_OK;
}

/* Every index and offset of a plan, once. */
static inline int st_plan_check(struct st_plan *p, uint32_t n)
{
    uint64_t i;
    uint32_t c;
    int rc;

    p->max_operands = p->partial = p->by_rows = 0;
    if (p->core_begin) {
        for (c = 0; c < p->cores; c++)
            if (p->core_begin[c] > p->core_begin[c + 1])
                return ST_EINVAL;
        if (!p->cores || p->core_begin[0] || p->core_begin[p->cores] != p->nunits || (p->cores > 1 && !p->next))
            return ST_EINVAL;
    }
    if (p->nflags > ST_GROUP_FLAGS || (p->nflags && (!p->posts || !p->left)))
        return ST_EINVAL;
    for (c = 0; c < p->nflags; c++)
        p->posts[c] = 0;
    for (i = 0; i < p->nunits; i++) {
        const struct st_unit *u = &p->units[i];

        if ((rc = st_plan_check_kind(u)) != ST_OK || (rc = st_plan_check_flags(p, u, n)) != ST_OK ||
            (rc = st_plan_check_operands(p, u, u->src_first, u->nsrc, n, 1)) != ST_OK ||
            (rc = st_plan_check_operands(p, u, u->dst_first, u->ndst, n, 0)) != ST_OK)
            return rc;
        if (st_unit_has_rows(u)) {
            if ((rc = st_plan_check_rows(p, u)) != ST_OK)
                return rc;
            p->by_rows = 1;
        } else {
            p->partial |= u->total;
        }
    }
    return ST_OK;
}

#endif
