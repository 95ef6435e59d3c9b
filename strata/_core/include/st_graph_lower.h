/* Captured operations as one list of descriptors, to be called again and again.
 *
 * An operation begins when all members have come to it, and is over when all have done their
 * part.  Values are relative: a replay adds its number times ST_GRAPH_SPAN, so nothing is ever
 * reset.  Members of a list's operation that follows another one of the same group come to it
 * by ending that one, so two synchronisations become one. */
#ifndef ST_GRAPH_LOWER_H
#define ST_GRAPH_LOWER_H

#include "st_abi_graph.h"
#include "st_lower.h"

struct st_graph_op {
    struct st_lowering l;    /* its plan on one core; counters are not used.  p NULL: it moves nothing */
    const uint64_t *line_at; /* [n]: where each member's lines begin */
    uint32_t n;
    uint32_t follows;  /* the operation before it in the list is the same group's */
    uint32_t followed; /* so is the one behind it */
    uint64_t ordinal;  /* among the group's operations */
};

/* Descriptors of an operation, at most. */
static inline uint64_t st_graph_room(const struct st_graph_op *o, uint64_t *operands)
{
    uint64_t pieces = 0;

    *operands = o->l.p ? st_lower_operands(o->l.p, o->l.block, &pieces) : 0;
    return pieces + 4 * (uint64_t)(o->n - 1);
}

/* Says to all peers that this member has come to `value`. */
static inline uint64_t st_graph_tell(const struct st_graph_op *o, uint64_t value, struct st_descriptor *d)
{
    uint32_t k, j;

    for (k = 1; k < o->n; k++, d++) { /* each begins with another one */
        j = (o->l.me + k) % o->n;
        *d = (struct st_descriptor){.type = ST_SDMA_WRITE, .flags = ST_SDMA_RELATIVE, .value = value,
                                    .dst = o->line_at[j] + o->l.me * sizeof(struct st_graph_line)};
        st_sdma_seal(o->l.ctx, d);
    }
    return o->n - 1;
}

/* Waits until all peers have come to `value`.  The waiter has the deadline. */
static inline uint64_t st_graph_await(const struct st_graph_op *o, uint64_t value, struct st_descriptor *d)
{
    uint32_t k, j;

    for (k = 1; k < o->n; k++, d++) {
        j = (o->l.me + k) % o->n;
        *d = (struct st_descriptor){.type = ST_SDMA_GATE, .flags = ST_SDMA_RELATIVE, .value = value, .bytes = UINT64_MAX,
                                    .src = o->line_at[o->l.me] + j * sizeof(struct st_graph_line)};
        st_sdma_seal(o->l.ctx, d);
    }
    return o->n - 1;
}

/* The units of the plan.  They run one after another, so the last of those that post a flag may raise it. */
static inline int st_graph_units(struct st_graph_op *o, struct st_descriptor *d, uint64_t *done)
{
    const struct st_plan *p = o->l.p;
    struct st_lowering *l = &o->l;
    uint64_t i, k, pieces;
    int rc;

    for (i = 0; i < p->nflags; i++)
        p->left[i] = p->posts[i];
    for (i = 0, *done = 0; i < p->nunits; i++) {
        const struct st_unit *u = &p->units[i];

        pieces = st_lower_pieces(u, l->block) - (u->post_flag >= 0);
        for (k = 0; k < pieces; k++, ++*done)
            if ((rc = st_lower(l, u, k, d + *done)) != ST_OK)
                return rc;
        if (u->post_flag < 0 || --p->left[u->post_flag])
            continue;
        d[*done] = (struct st_descriptor){.type = ST_SDMA_WRITE, .flags = ST_SDMA_RELATIVE, .value = l->number,
                                          .dst = l->flag_at[l->me] + 8 * (uint64_t)u->post_flag};
        st_sdma_seal(l->ctx, &d[(*done)++]);
    }
    return ST_OK;
}

/* Writes an operation's descriptors, of st_graph_room; *done: how many. */
static inline int st_graph_lower(struct st_graph_op *o, struct st_descriptor *d, uint64_t *done)
{
    uint64_t begin = 2 * o->ordinal + 1, moved = 0;
    int rc = ST_OK;

    *done = 0;
    o->l.number = o->ordinal + 1;
    o->l.flag_bits = ST_SDMA_RELATIVE;
    if (!o->follows)
        *done += st_graph_tell(o, begin, d);
    *done += st_graph_await(o, begin, d + *done);
    if (o->l.p)
        rc = st_graph_units(o, d + *done, &moved);
    *done += moved;
    if (rc != ST_OK)
        return rc;
    *done += st_graph_tell(o, begin + 1 + (o->followed != 0), d + *done);
    if (!o->followed)
        *done += st_graph_await(o, begin + 1, d + *done);
    return ST_OK;
}

/* Says to all peers that no replay comes after those whose number the call adds. */
static inline uint64_t st_graph_farewell(const struct st_ctx *ctx, const uint64_t *line_at, uint32_t n, uint32_t me,
                                         struct st_descriptor *d)
{
    uint32_t j;

    for (j = 0; j < n; j++) {
        if (j == me)
            continue;
        *d = (struct st_descriptor){.type = ST_SDMA_WRITE, .flags = ST_SDMA_RELATIVE, .value = 1,
                                    .dst = line_at[j] + me * sizeof(struct st_graph_line) +
                                           offsetof(struct st_graph_line, closed)};
        st_sdma_seal(ctx, d++);
    }
    return n - 1;
}

/* A copy that concerns this die alone, in blocks; how many descriptors that takes. */
static inline uint64_t st_graph_copy(const struct st_ctx *ctx, uint64_t dst, uint64_t src, uint64_t bytes,
                                     uint64_t block, struct st_descriptor *d)
{
    uint64_t at, count = 0;

    for (at = 0; at < bytes; at += block, count++) {
        d[count] = (struct st_descriptor){.type = ST_SDMA_COPY, .flags = bytes >= 1u << 20 ? ST_SDMA_NT : 0,
                                          .src = src + at, .dst = dst + at,
                                          .bytes = bytes - at < block ? bytes - at : block};
        st_sdma_seal(ctx, &d[count]);
    }
    return count;
}

#endif
