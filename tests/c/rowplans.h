/* Random plans of units of rows, and what must come of them. */
#ifndef ROWPLANS_H
#define ROWPLANS_H

#include "handles.h"
#if (defined(ST_TSAN) || defined(__SANITIZE_ADDRESS__)) && !defined(ST_KERNELS_PORTABLE)
#define ST_KERNELS_PORTABLE
#endif
#include "st_crew.h"
#include "st_kernels_rows.h"

enum { MOST = 4000, UNITS = 48, ROWS = 90, ENTRIES = 16, CORES = 5, COLUMNS = 3, OUT_BYTES = ROWS * 512 + 64 };

static const int floats[] = {ST_F16, ST_BF16, ST_F32, ST_F64};

static inline double element(int dtype, const void *p, uint64_t i)
{
    switch (dtype) {
    case ST_F16: return (double)st_f16_to_f32(((const uint16_t *)p)[i]);
    case ST_BF16: return (double)st_bf16_to_f32(((const uint16_t *)p)[i]);
    case ST_F32: return (double)((const float *)p)[i];
    default: return ((const double *)p)[i];
    }
}

/* Any bits, but mostly numbers of ordinary size. */
static inline void scatter(int dtype, void *p, uint64_t n, uint64_t *seed)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t z = next(seed);
        float f = (float)((double)(int64_t)next(seed) * 0x1p-62);

        if (z % 64 == 0) { /* NaNs, infinities, subnormals, zeros */
            const uint64_t odd[] = {0, 1ull << 63, 0x7ffull << 52, 0xfffull << 52, 0x7ff8ull << 48, 1, next(seed)};
            uint64_t bits = odd[(z >> 8) % 7];

            if (dtype == ST_F64)
                ((uint64_t *)p)[i] = bits;
            else if (dtype == ST_F32)
                ((uint32_t *)p)[i] = (uint32_t)(bits >> 32) | (uint32_t)(bits & 1);
            else
                ((uint16_t *)p)[i] = (uint16_t)(bits >> 48) | (uint16_t)(bits & 1);
        } else if (dtype == ST_F64) {
            ((double *)p)[i] = (double)(int64_t)next(seed) * 0x1p-61;
        } else if (dtype == ST_F32) {
            ((float *)p)[i] = f;
        } else {
            ((uint16_t *)p)[i] = dtype == ST_F16 ? st_f32_to_f16(f) : st_f32_to_bf16(f);
        }
    }
}

/* Element i of the sum, as it must be; in bits. */
static inline uint64_t sum_of(int dtype, const void *const *src, const float *w, int n, const void *const bias[2],
                              uint64_t i)
{
    if (dtype == ST_F64) {
        volatile double acc = bias[0] ? element(dtype, bias[0], i) : bias[1] ? element(dtype, bias[1], i) : 0, term;

        if (bias[0] && bias[1])
            acc = acc + element(dtype, bias[1], i);
        for (int k = 0; k < n; k++) {
            term = (double)(w ? w[k] : 1.0f) * element(dtype, src[k], i);
            acc = acc + term;
        }
        return st_f64_bits(acc != acc ? st_f64_from_bits(ST_F64_NAN) : acc);
    } else {
        const void *first = bias[0] ? bias[0] : bias[1];
        volatile float acc = first ? (float)element(dtype, first, i) : 0, term;
        float last;

        if (bias[0] && bias[1])
            acc = acc + (float)element(dtype, bias[1], i);
        for (int k = 0; k < n; k++) {
            term = (w ? w[k] : 1.0f) * (float)element(dtype, src[k], i);
            acc = acc + term;
        }
        last = acc != acc ? st_f32_from_bits(ST_F32_NAN) : acc;
        return dtype == ST_F32 ? st_f32_bits(last) : dtype == ST_F16 ? st_f32_to_f16(last) : st_f32_to_bf16(last);
    }
}

static inline uint64_t bits_of(int dtype, const void *p, uint64_t i)
{
    return dtype == ST_F64 ? ((const uint64_t *)p)[i] : dtype == ST_F32 ? ((const uint32_t *)p)[i]
                                                                        : ((const uint16_t *)p)[i];
}

/* ---- plans ----------------------------------------------------------------------- */

struct scene {
    struct handle handle[DIES_MOST];
    struct st_crew crew;
    uint8_t *memory[DIES_MOST]; /* what members show */
    uint64_t at[COLUMNS][DIES_MOST], limit[COLUMNS][DIES_MOST];
    struct st_column columns[COLUMNS];
    struct st_rows rows;
    struct st_plan plan;
    struct st_unit units[UNITS];
    struct st_operand operands[UNITS * (DIES_MOST + 1)];
    uint64_t entries[MOST], bytes[DIES_MOST * ST_NBUFS], next[CORES];
    uint32_t begin[CORES + 1];
    uint8_t *out[COLUMNS]; /* room for OUT_BYTES each */
    double bias[2][ROWS * 64];
    float weights[ROWS * ENTRIES];
    uint32_t total; /* entries of a row; 0: copies */
    uint32_t have;  /* rows of each member */
    uint32_t made;  /* rows of the output */
    uint32_t n;
};

/* Columns of random widths, in every member's memory. */
static inline void draw_columns(struct scene *s, uint64_t *seed)
{
    uint64_t at = 0;

    s->have = 1 + (uint32_t)(next(seed) % 200);
    s->made = 1 + (uint32_t)(next(seed) % ROWS);
    s->total = next(seed) % 3 ? 1 + (uint32_t)(next(seed) % ENTRIES) : 0;
    s->rows = (struct st_rows){.columns = s->columns, .ncolumns = 1 + (uint32_t)(next(seed) % COLUMNS),
                               .nt = next(seed) % 2, .weigh = st_weigh};
    for (uint32_t c = 0; c < s->rows.ncolumns; c++) {
        struct st_column *col = &s->columns[c];
        int dtype = floats[next(seed) % 4];
        uint32_t size = s->total ? (uint32_t)st_dtype_size(dtype) : 1;

        *col = (struct st_column){.row = size * (1 + (uint32_t)(next(seed) % (next(seed) % 2 ? 8 : 512 / 8))),
                                  .dtype = s->total ? (uint32_t)dtype : ST_RAW, .src = s->at[c], .limit = s->limit[c],
                                  .out = s->out[c]};
        col->out_bytes = (uint64_t)s->made * col->row;
        for (uint32_t j = 0; j < s->n; j++) {
            s->at[c][j] = (uint64_t)(uintptr_t)s->memory[j] + at;
            s->limit[c][j] = (uint64_t)s->have * col->row;
            if (s->total)
                scatter(dtype, s->memory[j] + at, s->limit[c][j] / size, seed);
            else
                for (uint64_t k = 0; k < s->limit[c][j]; k++)
                    s->memory[j][at + k] = (uint8_t)next(seed);
        }
        at = (at + (uint64_t)s->have * col->row + 63) / 64 * 64;
        memset(s->out[c], 0xa5, OUT_BYTES);
    }
    scatter(ST_F32, s->weights, ROWS * ENTRIES, seed);
    for (uint32_t k = 0; k < 2; k++) {
        scatter((int)s->columns[0].dtype, s->bias[k], 64, seed);
        for (uint32_t c = 0; c < s->rows.ncolumns && s->total; c++) {
            if (c == 0 && s->columns[c].row <= 64 && next(seed) % 2) {
                int dtype = (int)s->columns[c].dtype;

                scatter(dtype, s->bias[k], s->made * s->columns[c].row / (uint32_t)st_dtype_size(dtype), seed);
                s->columns[c].bias[k] = s->bias[k];
            }
            s->columns[c].weights = next(seed) % 3 ? s->weights : NULL;
        }
    }
}

static inline uint32_t whole_row(const struct scene *s)
{
    uint32_t row = 0;

    for (uint32_t c = 0; c < s->rows.ncolumns; c++)
        row += s->columns[c].row;
    return row;
}

/* One unit for output rows [from, from + count); members begin at row `skip` of theirs. */
static inline void add_unit(struct scene *s, uint32_t from, uint32_t count, uint64_t *seed)
{
    struct st_unit *u = &s->units[s->plan.nunits++];
    struct st_operand *o = &s->operands[s->plan.noperands];
    uint32_t row = whole_row(s), skip = (uint32_t)(next(seed) % s->have), k;

    *u = (struct st_unit){.kind = s->total ? ST_UNIT_COMBINE : ST_UNIT_ROWS, .dtype = (uint8_t)s->columns[0].dtype,
                          .ndst = 1, .src_first = (uint32_t)s->plan.noperands, .bytes = (uint64_t)row * count,
                          .wait_peer = -1, .wait_flag = -1, .post_flag = -1, .total = (uint16_t)s->total, .row = row,
                          .index = s->plan.nrows};
    u->nsrc = s->total ? (uint16_t)(next(seed) % (s->n + 1)) : 1;
    for (k = 0; k < u->nsrc; k++)
        o[k] = (struct st_operand){.member = (int32_t)((s->total ? k : next(seed)) % s->n), .buf = ST_BUF_SRC,
                                   .offset = (uint64_t)skip * row};
    u->dst_first = u->src_first + u->nsrc;
    o[k] = (struct st_operand){.member = 0, .buf = ST_BUF_OUT, .offset = (uint64_t)from * row};
    s->plan.noperands += u->nsrc + 1u;
    for (k = 0; k < count * (s->total ? s->total : 1); k++) {
        uint64_t *e = &s->entries[s->plan.nrows++], at = next(seed) % (s->have - skip);

        if (!s->total && k && next(seed) % 2 && e[-1] + 1 < s->have - skip)
            at = e[-1] + 1; /* neighbours */
        *e = s->total ? (u->nsrc && next(seed) % 4 ? next(seed) % u->nsrc << ST_ROW_BITS | at : ST_ROW_NONE) : at;
    }
}

/* A plan on some cores.  With `again`, for the same sums as before, cut in another way. */
static inline void draw_plan(struct scene *s, uint64_t *seed)
{
    uint32_t from = 0, core, cores = 1 + (uint32_t)(next(seed) % CORES), row = whole_row(s);

    s->plan = (struct st_plan){.units = s->units, .operands = s->operands, .rows = s->entries, .buffer_bytes = s->bytes,
                               .core_begin = s->begin, .cores = cores, .next = s->next};
    for (core = 0; core < cores; core++) {
        uint32_t until = core + 1 == cores ? s->made : from + (uint32_t)(next(seed) % (s->made - from + 1));

        while (from < until && s->plan.nunits + cores < UNITS) {
            uint32_t count = 1 + (uint32_t)(next(seed) % (until - from));

            if (s->plan.nunits + 2 * cores >= UNITS)
                count = until - from;
            add_unit(s, from, count, seed);
            from += count;
        }
        s->begin[core + 1] = (uint32_t)s->plan.nunits;
    }
    for (uint32_t j = 0; j < s->n; j++) {
        s->bytes[j * ST_NBUFS + ST_BUF_SRC] = (uint64_t)s->have * row;
        s->bytes[j * ST_NBUFS + ST_BUF_OUT] = (uint64_t)s->made * row;
    }
}

/* What row i of unit u must be in a column. */
static inline void check_row(const struct scene *s, const struct st_unit *u, uint32_t i, const struct st_column *c)
{
    const struct st_operand *o = s->operands + u->src_first;
    uint64_t at = s->operands[u->dst_first].offset / u->row + i, size = (uint64_t)st_dtype_size((int)c->dtype);
    const uint64_t *e = s->entries + u->index + i * (s->total ? s->total : 1u);
    const void *src[ENTRIES], *bias[2];
    const uint8_t *out = c->out + at * c->row;
    float w[ENTRIES];
    int n = 0;

    for (uint32_t k = 0; k < (s->total ? s->total : 1); k++) {
        uint64_t from = s->total ? e[k] >> ST_ROW_BITS : 0;

        if (s->total && e[k] == ST_ROW_NONE)
            continue;
        w[n] = s->weights[at * s->total + k];
        src[n++] = (const uint8_t *)(uintptr_t)c->src[o[from].member] +
                   (o[from].offset / u->row + (e[k] & 0xffffffffu)) * c->row;
    }
    if (!s->total) {
        CHECK(memcmp(out, src[0], c->row) == 0);
        return;
    }
    for (int k = 0; k < 2; k++)
        bias[k] = c->bias[k] ? (const uint8_t *)c->bias[k] + at * c->row : NULL;
    for (uint64_t k = 0; k < c->row / size; k++)
        CHECK_IS(bits_of((int)c->dtype, out, k), sum_of((int)c->dtype, src, c->weights ? w : NULL, n, bias, k));
}

/* Is the output what the plan says, and nothing beyond it touched? */
static inline void check_output(const struct scene *s)
{
    for (uint64_t i = 0; i < s->plan.nunits; i++)
        for (uint32_t k = 0; k < s->units[i].bytes / s->units[i].row; k++)
            for (uint32_t c = 0; c < s->rows.ncolumns; c++)
                check_row(s, &s->units[i], k, &s->columns[c]);
    for (uint32_t c = 0; c < s->rows.ncolumns; c++)
        for (uint32_t k = 0; k < 64; k++)
            CHECK(s->columns[c].out[s->columns[c].out_bytes + k] == 0xa5);
}

#endif
