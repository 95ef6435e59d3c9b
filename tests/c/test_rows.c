/* Units of rows: gathers over several columns, and weighted sums, against plain loops; the bits of a sum are the same
 * at every level, on every partition, with a crew and without.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -ffp-contract=off -pthread -Istrata/_core/include tests/c/test_rows.c
 *     ./a.out [seed]
 */
#include "rowplans.h"

enum { TRIALS = 240 / DIES_SLOW };

/* ---- sums ------------------------------------------------------------------------ */

static void test_sums(uint64_t *seed)
{
    enum { MOST_ELEMENTS = 2300, MOST_SOURCES = 20 };
    static double room[MOST_SOURCES + 3][MOST_ELEMENTS];

    for (uint64_t t = 0; t < TRIALS; t++) {
        int dtype = floats[t % 4], n = (int)(next(seed) % (MOST_SOURCES + 1));
        uint64_t count = 1 + next(seed) % (t % 3 ? 70 : MOST_ELEMENTS);
        const void *src[MOST_SOURCES], *bias[2];
        float w[MOST_SOURCES];

        for (int k = 0; k < MOST_SOURCES + 2; k++)
            scatter(dtype, room[k], count, seed);
        scatter(ST_F32, w, MOST_SOURCES, seed);
        for (int k = 0; k < n; k++)
            src[k] = room[k];
        for (int k = 0; k < 2; k++)
            bias[k] = next(seed) % 2 ? room[MOST_SOURCES + k] : NULL;
        for (int level = 0; level <= st_kernels_level(); level++) {
            const float *weights = t % 5 ? w : NULL;

            CHECK_IS(st_weigh_at(level, dtype, room[MOST_SOURCES + 2], src, weights, n, bias, count), ST_OK);
            for (uint64_t i = 0; i < count; i++)
                CHECK_IS(bits_of(dtype, room[MOST_SOURCES + 2], i), sum_of(dtype, src, weights, n, bias, i));
        }
    }
    CHECK_IS(st_weigh(ST_I32, room[0], NULL, NULL, 0, (const void *const[2]){NULL, NULL}, 1), ST_EUNSUPPORTED);
    CHECK_IS(st_weigh_at(9, ST_F32, room[0], NULL, NULL, 0, (const void *const[2]){NULL, NULL}, 1), ST_EINVAL);
}

/* ---- plans ----------------------------------------------------------------------- */

static struct dies *scene_open(struct scene *s, uint32_t n)
{
    static uint8_t out[COLUMNS][OUT_BYTES]; /* any memory will do */
    struct dies *d = dies_open(n, 8, 100000);
    uint8_t *memory = dies_group(d, NULL);

    memset(s, 0, sizeof *s);
    s->n = n;
    for (uint32_t i = 0; i < n; i++) {
        handle_bind(&s->handle[i], &d->ctx[i], memory);
        s->memory[i] = dies_pages(&d->ctx[i], 1);
    }
    for (uint32_t c = 0; c < COLUMNS; c++)
        s->out[c] = out[c];
    CHECK_IS(st_crew_init(&s->crew), ST_OK);
    d->ctx[0].crew = &s->crew;
    return d;
}

static void scene_close(struct scene *s, struct dies *d)
{
    st_crew_end(&s->crew);
    dies_close(d);
}

static void test_plans(uint64_t *seed)
{
    static struct scene s;

    for (uint32_t n = 1; n <= 4; n++) {
        struct dies *d = scene_open(&s, n);

        for (int t = 0; t < TRIALS / 4; t++) {
            draw_columns(&s, seed);
            draw_plan(&s, seed);
            CHECK_IS(st_plan_check(&s.plan, n), ST_OK);
            d->ctx[0].workers = 1 + (uint32_t)(next(seed) % CORES);
            CHECK_IS(st_exec_rows(&s.handle[0].g, &s.plan, &s.rows), ST_OK);
            check_output(&s);
        }
        scene_close(&s, d);
    }
}

/* ---- refusals -------------------------------------------------------------------- */

/* Plans that st_plan_check must refuse, one change each. */
static void test_wrong_plans(uint64_t *seed)
{
    static struct scene s;
    struct dies *d = scene_open(&s, 2);

    for (uint32_t total = 0; total < 2; total++)
        for (int change = 0; change < 15; change++) {
            struct st_unit *u = s.units;
            int bad = 1;

            do
                draw_columns(&s, seed);
            while ((s.total != 0) != total || whole_row(&s) < 2);
            do
                draw_plan(&s, seed);
            while (!u->nsrc);
            s.entries[u->index] = 0;
            CHECK_IS(st_plan_check(&s.plan, 2), ST_OK);
            switch (change) {
            case 0: s.entries[u->index] = s.have - s.operands[u->src_first].offset / u->row; break;
            case 1: s.entries[u->index] = (uint64_t)u->nsrc << ST_ROW_BITS; break;
            case 2: s.entries[u->index] = ST_ROW_NONE; bad = !total; break;
            case 3: s.plan.nrows--; break;
            case 4: u->index = ~0ull - 2; break;
            case 5: u->row = 0; break;
            case 6: u->bytes++; break;
            case 7: u->bytes = 0; break;
            case 8: s.operands[u->src_first].offset++; break;
            case 9: s.operands[u->dst_first].offset++; break;
            case 10: s.operands[u->dst_first].offset += (uint64_t)s.made * u->row; break;
            case 11: s.operands[u->src_first].flags = ST_OPERAND_PARTIAL; break;
            case 12: u->ndst = 0; break;
            case 13: u->total = total ? 0 : 1; break;
            default: u->total = ST_ROW_MOST + 1;
            }
            CHECK((st_plan_check(&s.plan, 2) != ST_OK) == bad);
        }
    scene_close(&s, d);
}

/* What only the run can find out: arrays that are shorter than the plan thinks, or gone. */
static void test_wrong_arrays(uint64_t *seed)
{
    static struct scene s;
    struct dies *d = scene_open(&s, 2);
    struct st_group *g = &s.handle[0].g;

    for (int t = 0; t < 40; t++) {
        uint64_t at, limit;

        do {
            draw_columns(&s, seed);
            draw_plan(&s, seed);
            CHECK_IS(st_plan_check(&s.plan, 2), ST_OK);
        } while (!s.units[0].nsrc);
        s.entries[s.units[0].index] = 0;
        s.operands[s.units[0].src_first].member = 1;
        at = s.at[0][1], limit = s.limit[0][1];
        s.limit[0][1] = s.operands[s.units[0].src_first].offset / s.units[0].row * s.columns[0].row;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EREG);
        s.limit[0][1] = limit;
        s.at[0][1] = st_segment(&d->ctx[0], 1) + d->ctx[0].seg_bytes - 8;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EREG);
        s.at[0][1] = 64;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EREG);
        s.at[0][1] = at;
        s.columns[0].out_bytes--;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EREG);
        s.columns[0].out_bytes++;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_OK);
        s.columns[0].row += 8;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EINVAL);
        s.columns[0].row -= 8;
        s.rows.ncolumns = ST_ROWS_COLUMNS + 1;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EINVAL);
        s.rows.ncolumns = 0;
        CHECK_IS(st_exec_rows(g, &s.plan, &s.rows), ST_EINVAL);
        s.rows.ncolumns = 1;
        s.columns[0].row = s.units[0].row;
        s.columns[0].dtype = ST_I32;
        CHECK(st_exec_rows(g, &s.plan, &s.rows) == (s.total ? ST_EUNSUPPORTED : ST_EREG) || !s.total);
    }
    scene_close(&s, d);
}

/* A plan of rows runs nowhere else. */
static void test_other_executors(uint64_t *seed)
{
    static struct scene s;
    struct dies *d = scene_open(&s, 2);
    struct st_group *g = &s.handle[0].g;
    void *at[2 * DIES_MOST];

    draw_columns(&s, seed);
    draw_plan(&s, seed);
    CHECK_IS(st_plan_check(&s.plan, 2), ST_OK);
    CHECK(s.plan.by_rows && !s.plan.partial);
    st_wait_begin(&g->waiter, &g->policy, NULL, NULL, 0);
    CHECK_IS(st_exec(g, &s.plan, 1, at, 0), ST_EINVAL);
    scene_close(&s, d);
}

int main(int argc, char **argv)
{
    uint64_t seed = dies_setup("test_rows", argc, argv);

    test_sums(&seed);
    test_plans(&seed);
    test_wrong_plans(&seed);
    test_wrong_arrays(&seed);
    test_other_executors(&seed);
    return 0;
}
