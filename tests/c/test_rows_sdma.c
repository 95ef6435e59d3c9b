/* Units of rows by DMA threads: the same results, many batches in one ring, rows that are not there, engines that are
 * held up until the deadline or end.  After each return the output is looked at and overwritten: a DMA thread that was
 * still at it would race.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -ffp-contract=off -pthread -Istrata/_core/include tests/c/test_rows_sdma.c
 *     ./a.out [seed]
 *
 * tsan must report: st_rows_wait
 */
#include "rigs.h"
#include "rowplans.h"
#include "st_rows_sdma.h"

enum { TRIALS = 120 / DIES_SLOW, DEEP = 2600, SCRATCH_BYTES = 1 << 16 };

/* A die's own part: its plans, and what its runs need of its engine. */
struct part {
    struct scene s;
    struct st_rows_engine engine;
    struct st_descriptor batch[ST_ROWS_BATCH];
};

static void part_open(struct part *t, struct rig *r, uint32_t me, uint8_t *group)
{
    struct st_ctx *ctx = &r->d->ctx[me];
    uint8_t *page = dies_pages(ctx, 2);

    memset(t, 0, sizeof *t);
    t->s.n = r->d->n;
    for (uint32_t i = 0; i < r->d->n; i++)
        handle_bind(&t->s.handle[i], &r->d->ctx[i], group);
    t->engine = (struct st_rows_engine){.e = r->e[me], .batch = t->batch, .timeout_ns = RIG_TIMEOUT,
                                        .shared = rig_take(r, me, 64), .scratch = page + ST_PAGE_BYTES,
                                        .scratch_bytes = SCRATCH_BYTES};
    for (uint32_t c = 0; c < COLUMNS; c++)
        t->s.out[c] = page + c * (OUT_BYTES + 63) / 64 * 64;
    for (uint32_t lane = 0; lane < ST_ROWS_LANES; lane++)
        t->engine.lanes[lane] = rig_ring(r, me, ST_ROWS_DEPTH, 1000 * lane);
}

/* Dies with engines; only die 0 reads, the others show their memory. */
static struct rig *open_rig(struct part *t, uint32_t n)
{
    struct rig *r = rig_open(n, 16, 1);
    uint8_t *group = dies_group(r->d, NULL);

    part_open(t, r, 0, group);
    for (uint32_t i = 0; i < n; i++)
        t->s.memory[i] = dies_pages(&r->d->ctx[i], 1);
    return r;
}

static int run(struct part *t) { return st_exec_rows_sdma(&t->s.handle[0].g, &t->s.plan, &t->s.rows, &t->engine); }

static void scribble(struct part *t)
{
    for (uint32_t c = 0; c < COLUMNS; c++)
        memset(t->s.out[c], 0xdd, OUT_BYTES);
    memset(t->engine.scratch, 0xdd, SCRATCH_BYTES);
}

static void test_plans(struct part *t, uint64_t *seed)
{
    for (uint32_t n = 1; n <= 4; n += n) {
        struct rig *r = open_rig(t, n);

        for (int k = 0; k < TRIALS; k++) {
            draw_columns(&t->s, seed);
            draw_plan(&t->s, seed);
            CHECK_IS(st_plan_check(&t->s.plan, n), ST_OK);
            CHECK_IS(run(t), ST_OK);
            check_output(&t->s);
            scribble(t);
        }
        rig_close(r);
    }
}

/* Draws until the first unit reads a row of die 1. */
static void draw_remote(struct part *t, uint64_t *seed, int sums)
{
    do {
        draw_columns(&t->s, seed);
        draw_plan(&t->s, seed);
        CHECK_IS(st_plan_check(&t->s.plan, t->s.n), ST_OK);
    } while (!t->s.units[0].nsrc || (t->s.total != 0) != sums);
    t->s.entries[t->s.units[0].index] = 0;
    t->s.operands[t->s.units[0].src_first].member = 1;
}

static void test_wrong_arrays(struct part *t, uint64_t *seed)
{
    struct rig *r = open_rig(t, 2);

    for (int k = 0; k < 24; k++) {
        uint64_t at, limit;

        draw_remote(t, seed, k % 2);
        at = t->s.at[0][1], limit = t->s.limit[0][1];
        t->s.limit[0][1] = t->s.operands[t->s.units[0].src_first].offset / t->s.units[0].row * t->s.columns[0].row;
        CHECK_IS(run(t), ST_EREG);
        t->s.limit[0][1] = limit;
        t->s.at[0][1] = st_segment(&r->d->ctx[0], 1) + r->d->ctx[0].seg_bytes - 8;
        CHECK_IS(run(t), ST_EREG);
        t->s.at[0][1] = at;
        CHECK_IS(run(t), ST_OK);
        check_output(&t->s);
        scribble(t);
        if (!t->s.total && k % 4 == 0) { /* what the engine itself refuses: the output is no fabric memory */
            static uint8_t elsewhere[OUT_BYTES];

            t->s.columns[0].out = elsewhere;
            CHECK_IS(run(t), ST_EREG);
            t->s.columns[0].out = t->s.out[0];
            CHECK_IS(run(t), ST_OK);
        }
        if (t->s.total) { /* scratch that is too small for a row */
            t->engine.scratch_bytes = 2 * (uint64_t)t->s.units[0].row * t->s.total - 1;
            CHECK_IS(run(t), ST_EFULL);
            t->engine.scratch_bytes = SCRATCH_BYTES;
        }
    }
    rig_close(r);
}

/* Both kinds in one plan. */
static void test_mixed(struct part *t, uint64_t *seed)
{
    struct rig *r = open_rig(t, 2);

    do
        draw_remote(t, seed, 1);
    while (t->s.plan.nunits < 2);
    t->s.units[1].kind = ST_UNIT_ROWS;
    t->s.units[1].total = 0;
    CHECK_IS(run(t), ST_EINVAL);
    rig_close(r);
}

/* A run whose batches are several for each lane. */
static void test_deep(struct part *t)
{
    static uint64_t entries[ST_ROWS_LANES * DEEP];
    static struct st_unit units[ST_ROWS_LANES];
    static struct st_operand operands[2 * ST_ROWS_LANES];
    static const uint32_t begin[ST_ROWS_LANES + 1] = {0, 1, 2, 3, 4};
    static uint64_t next_unit[ST_ROWS_LANES];
    struct rig *r = open_rig(t, 2);
    uint64_t *from = (uint64_t *)(void *)t->s.memory[1], *to = (uint64_t *)(void *)t->s.out[0];
    uint64_t bytes[2 * ST_NBUFS] = {0};
    uint64_t at[2] = {0, (uint64_t)(uintptr_t)from}, limit[2] = {0, 8 * DEEP};
    struct st_column column = {.row = 8, .src = at, .limit = limit, .out = (uint8_t *)to,
                               .out_bytes = 8 * ST_ROWS_LANES * DEEP};

    for (uint64_t i = 0; i < DEEP; i++)
        from[i] = i * 0x9e3779b97f4a7c15ull;
    for (uint64_t i = 0; i < ST_ROWS_LANES * DEEP; i++)
        entries[i] = (i * 7 + i / DEEP) % DEEP;
    for (uint32_t k = 0; k < ST_ROWS_LANES; k++) {
        units[k] = (struct st_unit){.kind = ST_UNIT_ROWS, .nsrc = 1, .ndst = 1, .src_first = 2 * k,
                                    .dst_first = 2 * k + 1, .bytes = 8 * DEEP, .wait_peer = -1, .wait_flag = -1,
                                    .post_flag = -1, .row = 8, .index = (uint64_t)k * DEEP};
        operands[2 * k] = (struct st_operand){.member = 1};
        operands[2 * k + 1] = (struct st_operand){.buf = ST_BUF_OUT, .offset = 8ull * DEEP * k};
    }
    bytes[ST_NBUFS + ST_BUF_SRC] = 8 * DEEP;
    bytes[ST_BUF_OUT] = 8 * ST_ROWS_LANES * DEEP;
    t->s.plan = (struct st_plan){.units = units, .nunits = ST_ROWS_LANES, .operands = operands,
                                 .noperands = 2 * ST_ROWS_LANES, .rows = entries, .nrows = ST_ROWS_LANES * DEEP,
                                 .buffer_bytes = bytes, .core_begin = begin, .cores = ST_ROWS_LANES, .next = next_unit};
    t->s.rows = (struct st_rows){.columns = &column, .ncolumns = 1, .weigh = st_weigh};
    CHECK_IS(st_plan_check(&t->s.plan, 2), ST_OK);
    for (int k = 0; k < 3; k++) {
        CHECK_IS(run(t), ST_OK);
        for (uint64_t i = 0; i < ST_ROWS_LANES * DEEP; i++)
            CHECK(to[i] == from[entries[i]]);
        memset(to, 0xdd, 8 * ST_ROWS_LANES * DEEP);
    }
    for (uint32_t k = 0; k < ST_ROWS_LANES; k++)
        CHECK(t->engine.told[k] == 3 * ((DEEP + ST_ROWS_BATCH - 2) / (ST_ROWS_BATCH - 1)));
    rig_close(r);
}

/* A gate before the run's descriptors holds them up until the deadline; then none of them is carried out. */
static void test_timeout(struct part *t, uint64_t *seed)
{
    struct rig *r = open_rig(t, 2);
    uint64_t *flag = rig_take(r, 0, 8);

    for (int sums = 0; sums < 2; sums++) {
        struct st_descriptor gate[ST_ROWS_LANES];

        draw_remote(t, seed, sums);
        for (uint32_t lane = 0; lane < ST_ROWS_LANES; lane++) {
            gate[lane] = make_gate(flag, 1 + (uint64_t)sums);
            gate[lane].bytes = 50000000; /* ns; then the ring goes on, as another's would */
            rig_put(r, 0, &t->engine.lanes[lane], &gate[lane], 1);
        }
        t->engine.timeout_ns = 2000000;
        scribble(t);
        CHECK_IS(run(t), ST_ETIMEOUT);
        for (uint64_t k = 0; k < OUT_BYTES && !sums; k++)
            CHECK(t->s.out[0][k] == 0xdd);
        t->engine.timeout_ns = RIG_TIMEOUT;
        for (uint32_t c = 0; c < COLUMNS; c++)
            memset(t->s.out[c], 0xa5, OUT_BYTES);
        CHECK_IS(run(t), ST_OK);
        check_output(&t->s);
    }
    rig_close(r);
}

static void test_end(struct part *t, uint64_t *seed)
{
    struct rig *r = open_rig(t, 2);

    draw_remote(t, seed, 0);
    st_engine_end(r->e[0]);
    CHECK_IS(run(t), ST_ENOJOB);
    rig_close(r);
}

int main(int argc, char **argv)
{
    static struct part t;
    uint64_t seed = dies_setup("test_rows_sdma", argc, argv);

    test_plans(&t, &seed);
    test_wrong_arrays(&t, &seed);
    test_mixed(&t, &seed);
    test_deep(&t);
    test_timeout(&t, &seed);
    test_end(&t, &seed);
    return 0;
}
