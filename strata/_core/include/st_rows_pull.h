/* Weighted sums of rows that the DMA thread brings: into one of two pieces of scratch, while the caller sums those in the
 * other.  Rows of this member's own are summed where they lie. */
#ifndef ST_ROWS_PULL_H
#define ST_ROWS_PULL_H

#include "st_rows_lanes.h"

/* Output rows [first, first + count) of a unit, whose rows are pulled into a piece of scratch: entry k of row i of a
 * column is at [base of the column + ((i - first) * total + k) * column.row]. */
struct st_rows_chunk {
    const struct st_unit *u;
    uint64_t first, count;
    uint8_t *at;
    uint64_t batch; /* that pulls it; 0: nothing is to be pulled */
};

static inline uint8_t *st_rows_place(const struct st_rows *r, const struct st_rows_chunk *c, uint32_t column)
{
    uint8_t *at = c->at;

    while (column--)
        at += c->count * c->u->total * r->columns[column].row;
    return at;
}

/* Where an entry's row lies here, or will: in this member's array, or in scratch; *from: where it is pulled from, or NULL. */
static inline int st_rows_entry(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                                const struct st_rows_chunk *c, uint32_t column, uint64_t i, uint32_t k,
                                const uint8_t **at, const uint8_t **from)
{
    const struct st_column *col = &r->columns[column];
    const struct st_operand *src = p->operands + c->u->src_first;
    uint64_t e = p->rows[c->u->index + i * c->u->total + k], op = e >> ST_ROW_BITS, rows;
    int rc;

    e &= (1ull << ST_ROW_BITS) - 1;
    if (op >= c->u->nsrc)
        return ST_EREG;
    rc = st_rows_source(g, col, (uint32_t)src[op].member, src[op].offset / c->u->row, from, &rows);
    if (rc != ST_OK)
        return rc;
    if (e >= rows)
        return ST_EREG;
    *from += e * col->row;
    *at = *from;
    if ((uint32_t)src[op].member == g->me)
        *from = NULL;
    else
        *at = st_rows_place(r, c, column) + ((i - c->first) * c->u->total + k) * col->row;
    return ST_OK;
}

static inline int st_rows_pull(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                               struct st_rows_engine *s, struct st_rows_chunk *c)
{
    const uint8_t *at, *from;
    uint32_t column, k, n = 0;
    uint64_t i;
    int rc;

    for (column = 0; column < r->ncolumns; column++)
        for (i = c->first; i < c->first + c->count; i++)
            for (k = 0; k < c->u->total; k++) {
                if (p->rows[c->u->index + i * c->u->total + k] == ST_ROW_NONE)
                    continue;
                if ((rc = st_rows_entry(g, p, r, c, column, i, k, &at, &from)) != ST_OK)
                    return rc;
                if (from)
                    s->batch[n++] = st_rows_copy_of(r, (void *)(uintptr_t)at, from, r->columns[column].row);
            }
    rc = n ? st_rows_submit(g, s, 0, n) : ST_OK;
    c->batch = n ? s->told[0] : 0;
    return rc;
}

/* The rows have come. */
static inline int st_rows_reduce(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                                 const struct st_rows_chunk *c)
{
    uint64_t out = p->operands[c->u->dst_first].offset / c->u->row, i;
    const void *rows[ST_ROW_MOST];
    float w[ST_ROW_MOST];
    uint32_t column, k;
    int rc = ST_OK, n;

    for (column = 0; column < r->ncolumns; column++) {
        const struct st_column *col = &r->columns[column];

        for (i = c->first; i < c->first + c->count && rc == ST_OK; i++) {
            uint8_t *to;

            for (k = 0, n = 0; k < c->u->total && rc == ST_OK; k++) {
                const uint8_t *at = NULL, *from;

                if (p->rows[c->u->index + i * c->u->total + k] == ST_ROW_NONE)
                    continue;
                rc = st_rows_entry(g, p, r, c, column, i, k, &at, &from);
                w[n] = col->weights ? col->weights[(out + i) * c->u->total + k] : 1.0f;
                rows[n++] = at;
            }
            if (rc == ST_OK)
                rc = st_rows_target(col, out + i, 1, &to);
            if (rc == ST_OK)
                rc = st_rows_weigh(col, r, rows, w, n, out + i, to);
        }
    }
    return rc;
}

/* The next rows of the plan's units that one piece of scratch and one batch have room for; count 0: there are none. */
static inline int st_rows_chunk_next(const struct st_plan *p, const struct st_rows *r, const struct st_rows_engine *s,
                                     struct st_rows_cursor *at, struct st_rows_chunk *c)
{
    uint64_t most, left, bytes;

    c->count = c->batch = 0;
    if (at->unit == p->nunits)
        return ST_OK;
    c->u = &p->units[at->unit];
    c->first = at->entry;
    bytes = (uint64_t)c->u->row * c->u->total;
    most = s->scratch_bytes / 2 / bytes;
    left = (ST_ROWS_BATCH - 1) / ((uint64_t)c->u->total * r->ncolumns);
    most = most < left ? most : left;
    left = c->u->bytes / c->u->row - c->first;
    c->count = most < left ? most : left;
    at->entry += c->count;
    if (c->count == left) {
        at->entry = 0;
        at->unit++;
    }
    return c->count ? ST_OK : ST_EFULL; /* scratch that is too small for one row */
}

static inline int st_rows_sums(struct st_group *g, const struct st_plan *p, const struct st_rows *r,
                               struct st_rows_engine *s)
{
    struct st_rows_chunk chunk[2] = {{0}};
    struct st_rows_cursor at = {0};
    uint32_t turn;
    int rc = ST_OK;

    for (turn = 0; rc == ST_OK; turn ^= 1) {
        struct st_rows_chunk *now = &chunk[turn], *before = &chunk[turn ^ 1];

        now->at = s->scratch + (turn ? s->scratch_bytes / 2 : 0);
        rc = st_rows_chunk_next(p, r, s, &at, now);
        if (rc == ST_OK && now->count)
            rc = st_rows_pull(g, p, r, s, now);
        if (rc == ST_OK && before->count && before->batch)
            rc = st_rows_wait(s, 0, before->batch);
        if (rc == ST_OK && before->count)
            rc = st_rows_reduce(g, p, r, before);
        before->count = 0;
        if (!now->count)
            break;
    }
    return rc;
}

#endif
