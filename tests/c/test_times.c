/* Records of virtual time from each die to each other: in order, whole, none lost, none twice.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_times.c && ./a.out [seed]
 *
 * tsan must report: st_times_put
 */
#include "dies.h"
#include "st_times.h"

enum { ROUNDS = 4000 / DIES_SLOW, DEPTH = 4 };

struct scene {
    struct st_board board[DIES_MOST];
    uint64_t counters[DIES_MOST][4][DIES_MOST];
};

static void board_make(struct scene *s, struct st_ctx *ctx)
{
    struct st_board *b = &s->board[ctx->rank];

    b->ctx = ctx;
    b->written = s->counters[ctx->rank][0];
    b->taken = s->counters[ctx->rank][1];
    b->lane = s->counters[ctx->rank][2];
    b->depth = s->counters[ctx->rank][3];
}

static void board_open(struct scene *s, struct st_ctx *ctx)
{
    CHECK(st_times_bytes(ctx->ndies, DEPTH) <= ST_PAGE_BYTES);
    st_times_open(&s->board[ctx->rank], (uint64_t)(uintptr_t)dies_pages(ctx, 1), DEPTH);
}

/* Writes to all others and reads from all others, whatever is possible. */
static void talk(struct die *die)
{
    struct scene *s = die->arg;
    struct st_board *b = &s->board[die->rank];
    uint32_t n = die->dies->n, left = 2 * (n - 1);
    struct st_times_record r;

    board_open(s, die->ctx);
    while (left) {
        uint32_t moved = 0;

        for (uint32_t j = 0; j < n; j++) {
            uint64_t at = b->written[j];

            if (j == die->rank)
                continue;
            memset(&r, 0, sizeof r);
            r.channel = die->rank * 100 + j;
            r.number = at;
            r.begin_ps = -(int64_t)at;
            r.way = at * 3;
            if (at < ROUNDS && st_times_put(b, j, &r) == ST_OK) {
                moved++;
                left -= at + 1 == ROUNDS;
            }
            at = b->taken[j];
            if (at < ROUNDS && st_times_take(b, j, &r) == ST_OK) {
                CHECK(r.channel == j * 100 + die->rank && r.number == at && r.begin_ps == -(int64_t)at && r.way == at * 3);
                moved++;
                left -= at + 1 == ROUNDS;
            }
        }
        if (!moved)
            sched_yield();
    }
}

static void test_all_to_all(uint32_t n)
{
    struct scene s = {0};
    struct dies *d = dies_open(n, 8, 100000);

    for (uint32_t i = 0; i < n; i++)
        board_make(&s, &d->ctx[i]);
    dies_run(d, talk, &s);
    dies_close(d);
}

static void test_full_and_empty(void)
{
    struct scene s = {0};
    struct dies *d = dies_open(2, 8, 100000);
    struct st_board *a = &s.board[0], *b = &s.board[1];
    struct st_times_record r = {.channel = 5};

    board_make(&s, &d->ctx[0]);
    board_make(&s, &d->ctx[1]);
    board_open(&s, &d->ctx[0]);
    CHECK_IS(st_times_take(a, 1, &r), ST_AGAIN); /* it has none */
    for (uint64_t i = 0; i < DEPTH; i++) {
        r.number = i;
        CHECK_IS(st_times_put(a, 1, &r), ST_OK);
    }
    CHECK_IS(st_times_put(a, 1, &r), ST_EFULL);
    CHECK_IS(st_times_take(b, 0, &r), ST_OK);
    CHECK(r.number == 0 && r.channel == 5);
    r.number = DEPTH;
    CHECK_IS(st_times_put(a, 1, &r), ST_OK);
    for (uint64_t i = 1; i <= DEPTH; i++) {
        CHECK_IS(st_times_take(b, 0, &r), ST_OK);
        CHECK(r.number == i);
    }
    CHECK_IS(st_times_take(b, 0, &r), ST_AGAIN);
    dies_close(d);
}

/* What a die that has gone wrong may show. */
static void test_wrong_boards(void)
{
    struct scene s = {0};
    struct dies *d = dies_open(2, 8, 100000);
    struct st_board *b = &s.board[1];
    struct st_times_record r;
    struct st_times *t;
    uint64_t good, end = st_segment(&d->ctx[0], 1);

    board_make(&s, &d->ctx[0]);
    board_make(&s, &d->ctx[1]);
    board_open(&s, &d->ctx[0]);
    good = d->ctx[0].dies[0].times;
    t = (struct st_times *)(uintptr_t)good;
    const uint64_t wrong[] = {1, good + 8, end, end + 64, end - 64, ~0ull - 63};
    for (uint64_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        d->ctx[0].dies[0].times = wrong[i];
        CHECK(st_times_take(b, 0, &r) != ST_OK && st_times_take(b, 0, &r) != ST_AGAIN);
    }
    d->ctx[0].dies[0].times = good;
    const uint32_t depths[] = {0, 3, 512, 1u << 31};
    for (uint64_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        t->depth = depths[i];
        CHECK_IS(st_times_take(b, 0, &r), ST_ECORRUPT);
    }
    t->depth = DEPTH;
    t->ndies = 3;
    CHECK_IS(st_times_take(b, 0, &r), ST_ECORRUPT);
    t->ndies = 2;
    t->magic++;
    CHECK_IS(st_times_take(b, 0, &r), ST_ECORRUPT);
    t->magic--;
    CHECK_IS(st_times_take(b, 0, &r), ST_AGAIN);
    dies_close(d);
}

int main(int argc, char **argv)
{
    dies_setup("test_times", argc, argv);
    test_full_and_empty();
    test_wrong_boards();
    test_all_to_all(2);
    test_all_to_all(4);
    puts("passed");
    return 0;
}
