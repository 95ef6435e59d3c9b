/* Plans, which come from files: what st_plan_check lets through, run; also rows, whose arrays posts tell of. */
#include "arena.h"
#include "kernels.h"
#include "st_collective.h"

enum { UNITS = 6, OPERANDS = 16, ROWS = 32, CORES = 3, FLAGS = 4, CHUNK = 2048, ROW = 64, COLUMNS = 2 };

/* A plan as the case has it; the sizes of arrays are what a file says of them. */
struct raw {
    uint64_t nunits, noperands, nrows, cores, nflags, needs_done, mailbox;
    uint32_t begin[CORES + 1];
    struct st_unit units[UNITS];
    struct st_operand operands[OPERANDS];
    uint64_t rows[ROWS];
    uint64_t src[COLUMNS][DIES], limit[COLUMNS][DIES]; /* of columns */
};

static struct raw *raw;
static struct st_group group;
static uint8_t *array[DIES];
static int ran, gathered; /* what came of the case */

static int weigh(int dtype, void *dst, const void *const *src, const float *weights, int nsrc, const void *const bias[2],
                 uint64_t count)
{
    uint64_t bytes = count * (uint64_t)st_dtype_size(dtype);

    (void)weights, (void)bias;
    memset(dst, 0, bytes);
    for (int k = 0; k < nsrc; k++)
        memcpy(dst, src[k], bytes);
    return ST_OK;
}

static void make_raw(void)
{
    uint32_t i;

    *raw = (struct raw){.nunits = 4, .noperands = OPERANDS, .nrows = ROWS, .cores = 2, .nflags = 2, .needs_done = 1,
                        .begin = {0, 2, 4, 4}};
    for (i = 0; i < OPERANDS; i++)
        raw->operands[i] = (struct st_operand){.member = (int32_t)(i % DIES), .buf = ST_BUF_SRC, .offset = 64 * i};
    for (i = 12; i < OPERANDS; i++)
        raw->operands[i] = (struct st_operand){.member = 0, .buf = ST_BUF_OUT, .offset = 256 * (i - 12)};
    for (i = 0; i < UNITS; i++)
        raw->units[i] = (struct st_unit){.kind = ST_UNIT_COPY, .nsrc = 1, .ndst = 1, .src_first = i, .dst_first = 12 + i % 4,
                                         .bytes = 256, .wait_peer = -1, .wait_flag = -1, .post_flag = -1};
    raw->units[1].kind = ST_UNIT_REDUCE;
    raw->units[1].nsrc = 3;
    raw->units[1].op = ST_SUM;
    raw->units[1].dtype = ST_F32;
    raw->units[1].post_flag = 0;
    raw->units[2].kind = ST_UNIT_ACCUMULATE;
    raw->units[2].op = ST_MAX;
    raw->units[2].dtype = ST_I16;
    raw->units[3].wait_peer = 0;
    raw->units[3].wait_flag = 0;
    raw->units[4] = (struct st_unit){.kind = ST_UNIT_ROWS, .nsrc = 1, .ndst = 1, .src_first = 0, .dst_first = 12,
                                     .bytes = 8 * ROW, .row = ROW, .wait_peer = -1, .wait_flag = -1, .post_flag = -1};
    raw->units[5] = raw->units[4];
    raw->units[5].kind = ST_UNIT_COMBINE;
    raw->units[5].nsrc = 3;
    raw->units[5].total = 2;
    raw->units[5].index = 8;
    for (i = 0; i < ROWS; i++)
        raw->rows[i] = i < 8 ? i : (uint64_t)(i % DIES) << ST_ROW_BITS | i;
    for (i = 0; i < 2 * DIES; i++) {
        raw->src[i / DIES][i % DIES] = fuzz_va(i % DIES, array[i % DIES]);
        raw->limit[i / DIES][i % DIES] = CHUNK;
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    uint32_t i;

    (void)argc, (void)argv;
    fuzz_open_job();
    fuzz.ctx.reduce = st_reduce;
    fuzz.ctx.reduce_partial = st_reduce_partial;
    fuzz.ctx.accumulate = st_accumulate;
    (void)fuzz_group(&group);
    raw = fuzz_take(0, sizeof *raw);
    for (i = 0; i < DIES; i++)
        array[i] = fuzz_take(i, CHUNK);
    make_raw();
    fuzz_region(raw, sizeof *raw, 0);
    fuzz_region(raw->units, sizeof raw->units, 0);
    fuzz_region(raw->units, sizeof raw->units, 0); /* twice as often as the rest */
    fuzz_region(raw->operands, sizeof raw->operands, 0);
    fuzz_region(raw->rows, sizeof raw->rows, 0);
    fuzz_region(raw->src, sizeof raw->src + sizeof raw->limit, 0);
    fuzz_ready();
    LLVMFuzzerTestOneInput(NULL, 0);
    FUZZ_CHECK(ran == ST_OK && gathered == ST_OK); /* without a poke all goes well */
    return 0;
}

static void *copy(const void *from, uint64_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);

    memcpy(p, from, bytes);
    return p;
}

static int run_rows(struct st_plan *p, int partly)
{
    uint8_t *out = malloc(CHUNK);
    struct st_column columns[COLUMNS];
    struct st_rows rows = {.columns = columns, .ncolumns = partly ? 2 : 1, .weigh = weigh};
    uint32_t c;
    int rc;

    for (c = 0; c < COLUMNS; c++)
        columns[c] = (struct st_column){.row = partly ? ROW / 2 : ROW, .dtype = ST_F32, .src = raw->src[c],
                                        .limit = raw->limit[c], .out = out, .out_bytes = CHUNK};
    raw->src[0][0] = raw->src[1][0] = (uint64_t)(uintptr_t)array[0]; /* its own it knows */
    raw->limit[0][0] = raw->limit[1][0] = CHUNK;
    rc = st_exec_rows(&group, p, &rows);
    free(out);
    return rc;
}

/* Checks and runs units [first, first + n) of the raw plan, from arrays that end where they end. */
static int run(uint64_t first, uint64_t n, int rows)
{
    uint64_t buffers[DIES * ST_NBUFS], next[CORES], i, cores = raw->cores % (CORES + 1);
    struct st_plan p = {.nunits = n, .noperands = raw->noperands % (OPERANDS + 1), .nrows = raw->nrows % (ROWS + 1),
                        .cores = (uint32_t)cores, .nflags = (uint32_t)(raw->nflags % (FLAGS + 1)), .buffer_bytes = buffers,
                        .needs_done = raw->needs_done & 1, .next = next};
    struct st_base bases[DIES];
    uint32_t posts[FLAGS], left[FLAGS];
    void *units = copy(raw->units + first, n * sizeof(struct st_unit)), *begin = copy(raw->begin, (cores + 1) * 4),
         *operands = copy(raw->operands, p.noperands * sizeof(struct st_operand)), *entries = copy(raw->rows, p.nrows * 8),
         *at[2 * ST_MAX_DIES], *own[ST_NBUFS];
    int rc;

    p.units = units;
    p.operands = operands;
    p.rows = entries;
    p.core_begin = cores && !rows ? begin : NULL;
    p.posts = posts;
    p.left = left;
    if (rows)
        p.nflags = p.needs_done = 0;
    for (i = 0; i < DIES * ST_NBUFS; i++) {
        buffers[i] = CHUNK;
        bases[i / ST_NBUFS].va[i % ST_NBUFS] = fuzz_va((uint32_t)(i / ST_NBUFS), array[i / ST_NBUFS]);
    }
    for (i = 0; i < ST_NBUFS; i++) { /* its own are of just that size; peers' are checked as they are reached */
        own[i] = calloc(1, CHUNK);
        bases[0].va[i] = (uint64_t)(uintptr_t)own[i];
    }
    group.bases = bases;
    rc = st_plan_check(&p, DIES);
    if (rc == ST_OK) {
        FUZZ_CHECK(p.max_operands <= ST_MAX_DIES);
        st_wait_begin(&group.waiter, &group.policy, NULL, NULL, 3000000);
        rc = rows ? run_rows(&p, rows > 1) : st_exec(&group, &p, 1, at, 3000000);
        st_wait_end(&group.waiter);
    }
    for (i = 0; i < ST_NBUFS; i++)
        free(own[i]);
    free(units);
    free(begin);
    free(operands);
    free(entries);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_begin(data, size);
    ran = run(0, raw->nunits % 5, 0);
    gathered = run(4, 2, 1 + (int)(size & 1));
    fuzz_end();
    return 0;
}
