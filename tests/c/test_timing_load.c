/* Plans to tasks of the timing plane: random plans of all kinds of units, by cores and by rings, into arrays of just
 * the room that is promised; under the sanitizers, that nothing is read or written beyond. */
#include <stdio.h>
#include <stdlib.h>

#include "st_timing_write.h"

enum { N = 5, CORES = 4, UNITS = 24, OPERANDS = 6 * UNITS, FLAGS = 8, DIES = 16, ENTRIES = UNITS * 64 };

#define CHECK(x)                                                                                        \
    do {                                                                                                \
        if (!(x)) {                                                                                     \
            fprintf(stderr, "%s:%d: seed %llu: %s\n", __FILE__, __LINE__, (unsigned long long)seed, #x); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)

static uint64_t state;

static uint32_t any(uint32_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((state >> 33) % below);
}

struct case_ {
    struct st_unit units[UNITS];
    struct st_operand operands[OPERANDS];
    uint32_t begin[CORES + 1];
    uint64_t rows[ENTRIES];
};

/* A unit of rows, or of sums of rows, some of none. */
static void rows(struct case_ *c, struct st_unit *u, uint64_t *entry)
{
    uint32_t k, n = 1 + any(8);

    u->row = 2 * (1 + any(1 << 14));
    u->bytes = (uint64_t)n * u->row;
    u->index = *entry;
    if (u->kind == ST_UNIT_COMBINE) {
        u->total = (uint16_t)(1 + any(8));
        n *= u->total;
    }
    for (k = 0; k < n; k++) {
        c->rows[*entry] = any(3) ? *entry + any(2) : any(50);
        if (u->kind == ST_UNIT_COMBINE)
            c->rows[*entry] = u->nsrc && any(3) ? (uint64_t)any(u->nsrc) << ST_ROW_BITS | any(50) : ST_ROW_NONE;
        ++*entry;
    }
}

static void unit(struct case_ *c, uint32_t i, uint32_t *at, uint64_t *entry)
{
    struct st_unit *u = &c->units[i];
    uint32_t k;

    *u = (struct st_unit){.kind = (uint8_t)(1 + any(6)), .dtype = ST_BF16, .wait_peer = -1, .wait_flag = -1,
                          .post_flag = any(2) ? (int32_t)any(FLAGS) : -1};
    if (any(3) == 0) {
        u->wait_peer = (int32_t)any(N);
        u->wait_flag = (int32_t)any(FLAGS);
    }
    if (u->kind == ST_UNIT_SYNC)
        return;
    u->op = u->kind == ST_UNIT_COPY || st_load_of_rows(u) ? 0 : ST_SUM;
    u->bytes = 2 * (1 + any(1 << 21));
    u->nsrc = (uint16_t)(u->kind == ST_UNIT_REDUCE ? 1 + any(4) : u->kind == ST_UNIT_COMBINE ? any(5) : 1);
    u->ndst = (uint16_t)(st_load_of_rows(u) ? 1 : 1 + any(2));
    u->src_first = *at;
    u->dst_first = *at + u->nsrc;
    for (k = 0; k < (uint32_t)u->nsrc + u->ndst; k++, ++*at)
        c->operands[*at] = (struct st_operand){.member = (int32_t)any(N),
                                               .flags = u->kind == ST_UNIT_REDUCE && any(2)};
    if (st_load_of_rows(u))
        rows(c, u, entry);
}

static void *zeroed(size_t number, size_t size) { return calloc(number ? number : 1, size); }

/* Every task is whole: its flags and uses are there. */
static void written(uint64_t seed, const struct st_load_out *out, int32_t flags)
{
    uint64_t t, uses = 0;

    for (t = 0; t < out->ntasks; t++) {
        const struct st_timing_task *x = &out->tasks[t];

        uses += x->nuse;
        CHECK(x->wait[0] < flags && x->wait[1] < flags && x->post < flags);
        CHECK(x->hold_ps >= 0 && x->latency_ps >= 0 && x->bound > 0);
        CHECK((uint64_t)x->use_first + x->nuse <= out->nuses);
        CHECK(x->backlog >= 0 && x->backlog <= ST_TIMING_BACKLOG_ONE);
    }
    CHECK(uses >= out->nuses); /* tasks share what they use alike */
}

/* Room for what is counted. */
static void counts(struct st_load *l)
{
    l->bytes = zeroed(N * N, sizeof(*l->bytes));
    l->demand = zeroed(2 * N * N, sizeof(*l->demand));
    l->memory = zeroed(N, sizeof(*l->memory));
    l->nflags = zeroed(N, sizeof(*l->nflags));
    l->stamp = zeroed(2 * N, sizeof(*l->stamp));
    l->entries = zeroed(1 << 16, sizeof(*l->entries));
    l->mix = zeroed(N * N, sizeof(*l->mix));
    l->mix_ps = zeroed(N, sizeof(*l->mix_ps));
    l->mix_out = zeroed(N, sizeof(*l->mix_out));
}

static void one(uint64_t seed, int sdma)
{
    struct case_ *cases = zeroed(N, sizeof(*cases));
    struct st_load_plan plans[N];
    struct st_load_die dies[N];
    struct st_load l = {.dies = dies, .n = N, .sdma = sdma, .reduces = 1, .rate = {1, 1, 1, 1}, .write = {1, 1, 1, 1},
                        .engine = {1, 1, 1, 1}, .accumulate = 2, .loss = .1, .backlog = 1e6, .jitter = .5,
                        .stream = {1, 1, 1, 1}, .block = 1 << 13, .descriptor_ps = 7, .issue_ps = 5, .row_ps = 900,
                        .handover_ps = 3, .ahead = 1};
    struct st_load_out out = {0};
    uint64_t room, lanes, flags = 0, nunits = 0;
    int64_t base[N];
    int32_t m, k, place[CORES * 6];
    uint32_t bad, c, i;

    state = seed;
    for (m = 0; m < N; m++) {
        uint32_t at = 0, n = any(UNITS + 1);
        uint64_t entry = 0;

        dies[m] = (struct st_load_die){.die = m * 3, .package = m / 2, .node = m / 4, .slow = 1.0};
        for (k = 0; k < ST_LOAD_NPORTS; k++)
            dies[m].port[k] = m * ST_LOAD_NPORTS + k;
        for (i = 0; i < n; i++)
            unit(&cases[m], i, &at, &entry);
        for (c = 1; c < CORES; c++)
            cases[m].begin[c] = cases[m].begin[c - 1] + any(n - cases[m].begin[c - 1] + 1);
        cases[m].begin[CORES] = n;
        plans[m] = (struct st_load_plan){cases[m].units, cases[m].operands, cases[m].begin, n, at, CORES, m,
                                         cases[m].rows, entry};
        nunits += n;
    }
    counts(&l);
    for (m = 0; m < N; m++)
        CHECK(st_load_measure(&l, &plans[m], &bad) == ST_LOAD_OK);
    for (m = 0; m < N; m++) {
        base[m] = (int64_t)flags;
        flags += (uint64_t)l.nflags[m];
    }
    CHECK(l.ntasks == nunits);
    l.flag_base = base;
    l.poster = malloc((flags + 1) * sizeof(*l.poster));
    memset(l.poster, 0xff, (flags + 1) * sizeof(*l.poster));
    l.pair = zeroed(N * N, sizeof(*l.pair));
    /* Beyond the plans' flags: start, drained, two of places, then those of submission. */
    out.flags = zeroed(flags + 4 + nunits, sizeof(*out.flags));
    room = (uint64_t)(1 + sdma) * (nunits + 3 * l.nlanes) + N;
    lanes = (uint64_t)(1 + sdma) * l.nlanes + N;
    out.tasks = zeroed(room, sizeof(*out.tasks));
    out.uses = zeroed(l.nuses, sizeof(*out.uses));
    out.lanes = zeroed(lanes, sizeof(*out.lanes));
    for (k = 0; k < CORES * 6; k++)
        place[k] = k % 3 ? (int32_t)(flags + 1 + (uint64_t)(k % 3)) : k / 6;
    for (m = 0; m < N; m++)
        st_load_posts(&l, &plans[m], out.flags);
    for (m = 0, nunits = 0; m < N; nunits += plans[m++].nunits) {
        struct st_load_lanes found[CORES];

        st_load_write(&l, &out, &plans[m], (int32_t)flags, (int32_t)flags + 1, (struct st_load_place *)place, found,
                      (int64_t)(flags + 4 + nunits), CORES);
        for (c = 0; c < CORES; c++)
            CHECK((found[c].core >= 0) == (plans[m].core_begin[c] != plans[m].core_begin[c + 1]));
    }
    CHECK(out.ntasks <= room && out.nuses <= l.nuses && out.nlanes <= lanes);
    written(seed, &out, (int32_t)(flags + 4 + nunits));
    free(cases), free(l.bytes), free(l.demand), free(l.memory), free(l.nflags), free(l.stamp), free(l.poster);
    free(l.entries), free(l.mix), free(l.mix_ps), free(l.mix_out);
    free((void *)(uintptr_t)l.pair), free(out.flags), free(out.tasks), free(out.uses), free(out.lanes);
}

/* What a plan is refused for, before anything of it is used. */
static void refused(void)
{
    uint64_t seed = 0;
    struct st_operand operand[2] = {{.member = 0}, {.member = N}};
    struct st_unit good = {.kind = ST_UNIT_COPY, .bytes = 8, .nsrc = 1, .ndst = 1, .wait_peer = -1, .wait_flag = -1,
                           .post_flag = -1};
    struct st_load l = {.n = N};
    struct st_load_plan p = {.units = &good, .operands = operand, .noperands = 2};

    CHECK(st_load_check(&l, &p, &good) == ST_LOAD_OK);
#define BAD(field, value, status)                             \
    do {                                                      \
        struct st_unit x = good;                              \
        x.field = value;                                      \
        CHECK(st_load_check(&l, &p, &x) == status);           \
    } while (0)
    BAD(kind, 7, ST_LOAD_EKIND);
    BAD(kind, 0, ST_LOAD_EKIND);
    BAD(dst_first, 1, ST_LOAD_EOPERAND);
    BAD(dst_first, UINT32_MAX, ST_LOAD_EOPERAND);
    BAD(nsrc, 3, ST_LOAD_EOPERAND);
    BAD(nsrc, UINT16_MAX, ST_LOAD_EOPERAND);
    BAD(bytes, 0, ST_LOAD_EBYTES);
    BAD(bytes, 1ull << 60, ST_LOAD_EBYTES);
    BAD(wait_peer, 1, ST_LOAD_EFLAG);
    BAD(post_flag, 1 << 20, ST_LOAD_EFLAG);
    BAD(post_flag, -2, ST_LOAD_EFLAG);
    operand[1].member = 0;
    good.kind = ST_UNIT_ROWS;
    good.dst_first = 1;
    good.row = 4;
    p.nrows = 2;
    CHECK(st_load_check(&l, &p, &good) == ST_LOAD_OK);
    BAD(row, 0, ST_LOAD_EROWS);
    BAD(row, 3, ST_LOAD_EROWS);
    BAD(row, 2, ST_LOAD_EROWS);
    BAD(index, 1, ST_LOAD_EROWS);
    BAD(index, UINT64_MAX, ST_LOAD_EROWS);
    BAD(nsrc, 2, ST_LOAD_EROWS);
    BAD(ndst, 2, ST_LOAD_EOPERAND);
    good.kind = ST_UNIT_COMBINE;
    BAD(total, 0, ST_LOAD_EROWS);
    BAD(total, ST_ROW_MOST + 1, ST_LOAD_EROWS);
    BAD(total, 2, ST_LOAD_EROWS);
    good.total = 1;
    CHECK(st_load_check(&l, &p, &good) == ST_LOAD_OK);
    BAD(nsrc, 0, ST_LOAD_OK);
}

int main(void)
{
    uint64_t seed;

    refused();
    for (seed = 1; seed <= 300; seed++) {
        one(seed, 0);
        one(seed, 1);
    }
    return 0;
}
