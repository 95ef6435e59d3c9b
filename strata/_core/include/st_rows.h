/* Units that move rows: ST_UNIT_ROWS gathers, ST_UNIT_COMBINE sums.
 *
 * A plan sees a row as one piece of unit.row bytes.  In memory it may be spread over several arrays, the columns: a token,
 * its scales, its choices of experts.  Row i of a column is at i * column.row in each member's array.  Where the arrays are
 * comes with the call, from posts that may be anything, so each row is held against the array's length once more.
 *
 * Weights lie by output rows: that of entry k of row i is weights[i * total + k].
 */
#ifndef ST_ROWS_H
#define ST_ROWS_H

#include "st_copy.h"
#include "st_exec_plan.h"

#define ST_ROWS_COLUMNS 8u

/* One array of each member, and what becomes of its rows here. */
struct st_column {
    uint32_t row;          /* bytes */
    uint32_t dtype;        /* enum st_dtype, of ST_UNIT_COMBINE: f16, bf16, f32, f64 */
    const uint64_t *src;   /* [n] addresses */
    const uint64_t *limit; /* [n] bytes of each */
    uint8_t *out;
    uint64_t out_bytes;
    const void *bias[2];   /* added first, where not NULL: like out */
    const float *weights;  /* NULL: each is 1; else for as many rows as out has */
};

struct st_rows {
    const struct st_column *columns;
    uint32_t ncolumns;
    uint32_t nt;        /* non-temporal stores */
    st_weigh_fn *weigh; /* the kernels are compiled once, elsewhere */
};

/* Do columns and a plan of n members go together?  ST_EUNSUPPORTED: a sum of what is not a float. */
static inline int st_rows_check(const struct st_plan *p, const struct st_rows *r)
{
    uint64_t i, row = 0;
    uint32_t c;

    if (!r->ncolumns || r->ncolumns > ST_ROWS_COLUMNS || p->nflags)
        return ST_EINVAL;
    for (c = 0; c < r->ncolumns; c++) {
        if (!r->columns[c].row)
            return ST_EINVAL;
        row += r->columns[c].row;
    }
    for (i = 0; i < p->nunits; i++) {
        const struct st_unit *u = &p->units[i];

        if (!st_unit_has_rows(u) || u->row != row || u->wait_flag >= 0)
            return ST_EINVAL;
        if (u->kind == ST_UNIT_ROWS)
            continue;
        for (c = 0; c < r->ncolumns; c++) {
            uint32_t dtype = r->columns[c].dtype;

            if (dtype != ST_F16 && dtype != ST_BF16 && dtype != ST_F32 && dtype != ST_F64)
                return ST_EUNSUPPORTED;
            if (r->columns[c].row % (uint32_t)st_dtype_size((int)dtype))
                return ST_EINVAL;
        }
    }
    return ST_OK;
}

/* Where member m's rows begin, from row `first` on, and how many there are; they are mapped. */
static inline int st_rows_source(struct st_group *g, const struct st_column *c, uint32_t m, uint64_t first,
                                 const uint8_t **at, uint64_t *rows)
{
    uint64_t have = c->limit[m] / c->row;

    *rows = have > first ? have - first : 0;
    *at = (const uint8_t *)(uintptr_t)(c->src[m] + first * c->row);
    return m == g->me || !*rows ? ST_OK : st_ensure_mapped(g->ctx, c->src[m] + first * c->row, *rows * c->row, 0);
}

static inline int st_rows_target(const struct st_column *c, uint64_t first, uint64_t count, uint8_t **at)
{
    if (first > c->out_bytes / c->row || count > c->out_bytes / c->row - first)
        return ST_EREG;
    *at = c->out + first * c->row;
    return ST_OK;
}

/* Copies rows; those that are neighbours in both places as one. */
static inline int st_rows_gather(uint8_t *to, const uint8_t *from, uint64_t rows, const uint64_t *entry, uint64_t count,
                                 uint64_t row, int nt)
{
    uint64_t i = 0, run;

    for (; i < count; i += run) {
        for (run = 1; i + run < count && entry[i + run] == entry[i] + run; run++)
            ;
        if (entry[i] >= rows || run > rows - entry[i])
            return ST_EREG;
        if (nt && row >= 4 * ST_LINE)
            st_stream(to + i * row, from + entry[i] * row, run * row);
        else
            memcpy(to + i * row, from + entry[i] * row, run * row);
    }
    return ST_OK;
}

static inline int st_rows_copy(struct st_group *g, const struct st_plan *p, const struct st_unit *u,
                               const struct st_rows *r)
{
    const struct st_operand *src = p->operands + u->src_first, *dst = p->operands + u->dst_first;
    uint64_t count = u->bytes / u->row, rows;
    const uint8_t *from;
    uint8_t *to;
    uint32_t c;
    int rc = ST_OK;

    for (c = 0; c < r->ncolumns && rc == ST_OK; c++) {
        const struct st_column *col = &r->columns[c];

        rc = st_rows_source(g, col, (uint32_t)src->member, src->offset / u->row, &from, &rows);
        if (rc == ST_OK)
            rc = st_rows_target(col, dst->offset / u->row, count, &to);
        if (rc == ST_OK)
            rc = st_rows_gather(to, from, rows, p->rows + u->index, count, col->row, (int)r->nt);
    }
    if (r->nt)
        st_stream_fence();
    return rc;
}

/* Output row `row` of a column, from n rows that lie at s. */
static inline int st_rows_weigh(const struct st_column *c, const struct st_rows *r, const void *const *s, const float *w,
                                int n, uint64_t row, uint8_t *to)
{
    const void *bias[2] = {NULL, NULL};
    uint32_t k;

    for (k = 0; k < 2; k++)
        bias[k] = c->bias[k] ? (const uint8_t *)c->bias[k] + row * c->row : NULL;
    return r->weigh((int)c->dtype, to, s, c->weights ? w : NULL, n, bias,
                    c->row / (uint32_t)st_dtype_size((int)c->dtype));
}

/* The same, from the entries. */
static inline int st_rows_sum(const struct st_column *c, const struct st_rows *r, const struct st_unit *u,
                              const uint64_t *entry, uint64_t row, const uint8_t *const *from, const uint64_t *rows,
                              uint8_t *to)
{
    const void *s[ST_ROW_MOST];
    float w[ST_ROW_MOST];
    uint32_t k, n = 0;

    for (k = 0; k < u->total; k++) {
        uint64_t op = entry[k] >> ST_ROW_BITS, at = entry[k] & ((1ull << ST_ROW_BITS) - 1);

        if (entry[k] == ST_ROW_NONE)
            continue;
        if (op >= u->nsrc || at >= rows[op])
            return ST_EREG;
        w[n] = c->weights ? c->weights[row * u->total + k] : 1.0f;
        s[n++] = from[op] + at * c->row;
    }
    return st_rows_weigh(c, r, s, w, (int)n, row, to);
}

static inline int st_rows_combine(struct st_group *g, const struct st_plan *p, const struct st_unit *u,
                                  const struct st_rows *r)
{
    const struct st_operand *src = p->operands + u->src_first, *dst = p->operands + u->dst_first;
    uint64_t first = dst->offset / u->row, count = u->bytes / u->row, rows[ST_MAX_DIES], i;
    const uint8_t *from[ST_MAX_DIES];
    uint8_t *to;
    uint32_t c, k;
    int rc = ST_OK;

    for (c = 0; c < r->ncolumns && rc == ST_OK; c++) {
        const struct st_column *col = &r->columns[c];

        for (k = 0; k < u->nsrc && rc == ST_OK; k++)
            rc = st_rows_source(g, col, (uint32_t)src[k].member, src[k].offset / u->row, &from[k], &rows[k]);
        if (rc == ST_OK)
            rc = st_rows_target(col, first, count, &to);
        for (i = 0; i < count && rc == ST_OK; i++)
            rc = st_rows_sum(col, r, u, p->rows + u->index + i * u->total, first + i, from, rows, to + i * col->row);
    }
    return rc;
}

/* ST_EREG: a row is not there, or cannot be read here. */
static inline int st_rows_unit(struct st_group *g, const struct st_plan *p, const struct st_unit *u,
                               const struct st_rows *r)
{
    return u->kind == ST_UNIT_ROWS ? st_rows_copy(g, p, u, r) : st_rows_combine(g, p, u, r);
}

#endif
