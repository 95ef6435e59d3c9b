/* A plan's units as descriptors: what cores would do, said to a DMA thread.
 *
 * Each core's units become descriptors of one ring, in their order: a gate where the unit
 * waits, its data in blocks, and what raises its flag.  Pieces are numbered, so that a
 * ring that is full is gone on with where it was left. */
#ifndef ST_LOWER_H
#define ST_LOWER_H

#include "st_exec_plan.h"
#include "st_sdma.h"

struct st_lowering {
    const struct st_ctx *ctx;
    const struct st_plan *p; /* checked; not of a mailbox */
    const struct st_base *bases; /* [n] */
    const uint64_t *flag_at; /* [n]: where each member's flags begin; with ST_SDMA_WORLD, in the world group's memory */
    uint64_t wake_at;  /* as flag_at: the futex word, its sleepers behind it, that who waits for own flags sleeps on; 0: none */
    uint64_t number;   /* that flags are raised to, and waited for */
    uint64_t counters; /* own fabric memory: p->nflags words, zero when the first descriptor is executed */
    uint64_t lists;    /* own fabric memory: room for the operands of reductions, */
    uint64_t room;     /* so many; st_lower_operands says how many there are */
    uint64_t listed;   /* operands written so far */
    uint64_t block;    /* bytes of one descriptor at most, a multiple of 64 up to ST_SDMA_MOST */
    uint32_t me;
    uint32_t event;
    uint8_t flag_bits; /* of descriptors that touch flags: ST_SDMA_WORLD, _RELATIVE, _SILENT */
};

static inline uint64_t st_lower_blocks(const struct st_unit *u, uint64_t block)
{
    return u->bytes / block + (u->bytes % block != 0);
}

/* Descriptors that carry a unit's bytes. */
static inline uint64_t st_lower_data(const struct st_unit *u, uint64_t block)
{
    return st_lower_blocks(u, block) * (u->kind == ST_UNIT_REDUCE ? u->ndst != 0 : u->ndst);
}

/* Descriptors of a unit. */
static inline uint64_t st_lower_pieces(const struct st_unit *u, uint64_t block)
{
    return (u->wait_flag >= 0) + st_lower_data(u, block) + (u->post_flag >= 0);
}

/* Operands in the lists of a plan's reductions, and all its descriptors. */
static inline uint64_t st_lower_operands(const struct st_plan *p, uint64_t block, uint64_t *descriptors)
{
    uint64_t i, operands = 0, pieces = 0;

    for (i = 0; i < p->nunits; i++) {
        const struct st_unit *u = &p->units[i];

        pieces += st_lower_pieces(u, block);
        if (u->kind == ST_UNIT_REDUCE)
            operands += st_lower_data(u, block) * ((uint64_t)u->nsrc + u->ndst);
    }
    *descriptors = pieces;
    return operands;
}

/* Address of a unit's operand, `skip` of the unit's bytes into it. */
static inline uint64_t st_lower_at(const struct st_lowering *l, const struct st_unit *u, const struct st_operand *o,
                                   uint64_t skip)
{
    if (o->flags & ST_OPERAND_PARTIAL)
        skip = st_partial_extent(u->dtype, u->op, skip);
    return l->bases[o->member].va[o->buf] + o->offset + skip;
}

/* Writes the list of a reduction's piece; ST_EFULL: there is no room. */
static inline int st_lower_list(struct st_lowering *l, const struct st_unit *u, uint64_t skip, struct st_descriptor *d)
{
    const struct st_operand *o[2] = {l->p->operands + u->src_first, l->p->operands + u->dst_first};
    uint32_t count[2] = {u->nsrc, u->ndst}, side, k;
    struct st_sdma_operand *to = (struct st_sdma_operand *)(uintptr_t)l->lists + l->listed;
    struct st_unit piece = {.dtype = u->dtype, .op = u->op, .bytes = d->bytes};

    if ((uint64_t)u->nsrc + u->ndst > l->room - l->listed)
        return ST_EFULL;
    d->src = (uint64_t)(uintptr_t)to;
    d->flags |= ST_SDMA_LIST;
    d->value = ST_SDMA_OPERANDS(u->nsrc, u->ndst, u->total);
    l->listed += (uint64_t)u->nsrc + u->ndst;
    for (side = 0; side < 2; side++)
        for (k = 0; k < count[side]; k++, to++) {
            to->va = st_lower_at(l, u, &o[side][k], skip);
            to->generation = st_sdma_generation(l->ctx, to->va, st_operand_bytes(&piece, &o[side][k]));
            to->flags = o[side][k].flags;
        }
    return ST_OK;
}

/* Data piece k of a unit.  A block goes to all destinations before the next one. */
static inline int st_lower_move(struct st_lowering *l, const struct st_unit *u, uint64_t k, struct st_descriptor *d)
{
    uint64_t skip = (u->kind == ST_UNIT_REDUCE ? k : k / u->ndst) * l->block;

    d->bytes = u->bytes - skip < l->block ? u->bytes - skip : l->block;
    d->flags = l->p->nt ? ST_SDMA_NT : 0;
    d->op = u->op;
    d->dtype = u->dtype;
    if (u->kind == ST_UNIT_REDUCE) {
        d->type = ST_SDMA_REDUCE;
        return st_lower_list(l, u, skip, d);
    }
    d->type = u->kind == ST_UNIT_COPY ? ST_SDMA_COPY : ST_SDMA_ACCUMULATE;
    d->src = st_lower_at(l, u, &l->p->operands[u->src_first], skip);
    d->dst = st_lower_at(l, u, &l->p->operands[u->dst_first + k % u->ndst], skip);
    return ST_OK;
}

/* Piece k of a unit, of st_lower_pieces; each is asked for once. */
static inline int st_lower(struct st_lowering *l, const struct st_unit *u, uint64_t k, struct st_descriptor *d)
{
    uint64_t data = st_lower_data(u, l->block), before = u->wait_flag >= 0;
    int rc = ST_OK;

    memset(d, 0, sizeof *d);
    d->event = l->event;
    if (k < before) {
        d->type = ST_SDMA_GATE;
        d->flags = l->flag_bits & (ST_SDMA_WORLD | ST_SDMA_RELATIVE);
        d->src = l->flag_at[u->wait_peer] + 8 * (uint64_t)u->wait_flag;
        d->value = l->number;
        d->bytes = UINT64_MAX; /* whoever waits for the event has the deadline */
    } else if (k < before + data) {
        rc = st_lower_move(l, u, k - before, d);
    } else { /* its only poster, or one of several */
        d->type = l->p->posts[u->post_flag] > 1 ? ST_SDMA_COUNT : ST_SDMA_WRITE;
        d->flags = l->flag_bits;
        d->dst = l->flag_at[l->me] + 8 * (uint64_t)u->post_flag;
        d->value = l->number;
        d->wake = l->wake_at ? (uint32_t)((d->dst - l->wake_at) / 4) : 0;
        if (d->type == ST_SDMA_COUNT) {
            d->src = l->counters + 8 * (uint64_t)u->post_flag;
            d->bytes = l->p->posts[u->post_flag];
        }
    }
    if (rc == ST_OK)
        st_sdma_seal(l->ctx, d);
    return rc;
}

#endif
