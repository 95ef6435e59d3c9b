/* Asynchronous work: collectives and transfers by worker threads while the die's own
 * threads communicate too; items that are freed the moment they are done; stopping
 * against submitting.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_worker.c && ./a.out [seed]
 *
 * tsan must report: st_item_finish
 */
#include "workers.h"

/* ---- everything at once -------------------------------------------------------------- */

/* Ring of transfers, blocking and not, in a second thread of each die. */
static void *talk(void *arg)
{
    struct die *die = arg;
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    struct st_worker *w = &s->transfers[die->rank];
    uint32_t right = (g->me + 1) % g->n, left = (g->me + g->n - 1) % g->n, k;
    uint64_t *out = (uint64_t *)(void *)s->page[g->me], *in = out + 8 * LARGE / 8, seed = dies_seed * 3 + die->rank;

    for (uint64_t r = 0; r < s->rounds; r++) {
        struct st_item *item[8];
        uint64_t common = dies_seed + r, bytes[4];

        for (k = 0; k < 4; k++) {
            bytes[k] = next(&common) % 2 ? LARGE : next(&common) % 400 * 8;
            for (uint64_t i = 0; i < bytes[k] / 8; i++)
                out[k * LARGE / 8 + i] = r * 1000003 + g->me * 101 + k * 11 + i;
            item[k] = receive_item(left, k, in + k * LARGE / 8, bytes[k]);
            item[4 + k] = send_item(right, k, out + k * LARGE / 8, bytes[k]);
        }
        for (k = 0; k < 8; k++) {
            CHECK_IS(st_worker_submit(w, item[k]), ST_OK);
            if (next(&seed) % 8 == 0)
                sched_yield();
        }
        for (k = 8; k-- > 0;) {
            CHECK_IS(item_end(item[k], &die->ctx->wait), ST_OK);
            if (k < 4)
                for (uint64_t i = 0; i < bytes[k] / 8; i++)
                    CHECK(in[k * LARGE / 8 + i] == r * 1000003 + left * 101 + k * 11 + i);
        }
        memset(out, (int)r, 4 * LARGE); /* ours again */
        CHECK(st_worker_idle(w));
        if (g->n == 2) { /* idle: a call of one's own is in order */
            struct st_transfer t = {.receive = (r + g->me) % 2, .peer = right, .tag = 60, .buf = out, .bytes = LARGE,
                                    .count = LARGE / 8, .desc = ST_DESC(10, 0, ST_I64, 0, 0)};

            CHECK_IS(st_p2p_run(g, &t, LONG), ST_OK);
        }
    }
    return NULL;
}

/* Collectives, a few on their way at a time, and now and then one of the die's own. */
static void busy(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    struct st_worker *w = &s->collectives[die->rank];
    struct st_item *item[SETS] = {NULL};
    struct hand_plan *plan = calloc(SETS, sizeof *plan);
    struct round round[SETS];
    pthread_t talker;
    uint64_t i;
    int k, rc;

    CHECK(plan && pthread_create(&talker, NULL, talk, die) == 0);
    for (i = 1; i <= s->rounds; i++) {
        k = (int)(i % SETS);
        round[k] = round_draw(i, g->n, 5);
        if (st_worker_idle(w) && next(&die->seed) % 2) { /* as the front does */
            struct st_request q = round_request(&round[k], &plan[k], s->buffers[g->me][k], g->n, g->me, LONG);

            CHECK_IS(st_group_acquire(g, &die->ctx->wait, LONG), ST_OK);
            rc = st_collective(g, &q);
            st_group_release(g);
            CHECK_IS(rc, round[k].odd < g->n ? ST_EMISMATCH : ST_OK);
            free(q.lines);
            item[k] = NULL;
        } else {
            item[k] = item_new();
            item[k]->request = round_request(&round[k], &plan[k], s->buffers[g->me][k], g->n, g->me, LONG);
            CHECK_IS(st_worker_submit(w, item[k]), ST_OK);
        }
        k = (k + 1) % SETS; /* the oldest */
        if (i < SETS || next(&die->seed) % 8 == 0)
            sched_yield();
        if (i >= SETS - 1) {
            uint64_t *lines;

            if (item[k]) {
                CHECK_IS(st_item_wait(item[k], &die->ctx->wait, LONG), ST_OK);
                lines = item[k]->request.lines;
                CHECK_IS(item_end(item[k], &die->ctx->wait), round[k].odd < g->n ? ST_EMISMATCH : ST_OK);
                free(lines);
                item[k] = NULL;
            }
            if (round[k].odd == g->n && i >= SETS)
                round_check(&round[k], s->buffers[g->me][k], g->n);
            buffers_scribble(s->buffers[g->me][k], i);
        }
    }
    for (k = 0; k < SETS; k++)
        if (item[k]) {
            CHECK_IS(st_item_wait(item[k], &die->ctx->wait, LONG), ST_OK);
            free(item[k]->request.lines);
            CHECK_IS(item_end(item[k], &die->ctx->wait), round[k].odd < g->n ? ST_EMISMATCH : ST_OK);
        }
    CHECK(pthread_join(talker, NULL) == 0);
    CHECK(st_worker_idle(w) && st_worker_idle(&s->transfers[g->me]));
    free(plan);
}

static void test_busy(uint32_t n, uint64_t sleep_ns, uint64_t rounds)
{
    struct scene *s = calloc(1, sizeof *s);
    struct dies *d;

    CHECK(s);
    d = scene_open(s, n, sleep_ns);
    s->rounds = rounds;
    dies_run(d, busy, s);
    scene_close(s, d);
    free(s);
}

/* ---- stopping ------------------------------------------------------------------------------ */

struct rush {
    struct scene *s;
    uint32_t transfers; /* which worker */
    uint64_t seed;
    uint64_t ended;
    pthread_t thread;
};

/* Submits what never ends by itself, until it is told that the worker has stopped. */
static void *submit(void *arg)
{
    struct rush *r = arg;
    struct st_worker *w = r->transfers ? &r->s->transfers[0] : &r->s->collectives[0];
    struct st_wait_policy policy = {.sleep_ns = 0, .poll_ns = LONG}; /* a lost wake-up would show */
    uint64_t word[8];
    int stopped = 0;

    while (!stopped) {
        struct st_item *item[6];
        int k;

        for (k = 0; k < 6; k++) {
            item[k] = receive_item(1, 5, word, 8);
            item[k]->request = (struct st_request){.timeout_ns = LONG};
            CHECK_IS(st_worker_submit(w, item[k]), ST_OK);
        }
        for (k = 0; k < 6; k++) {
            int status = item_end(item[k], &policy);

            CHECK(status == ST_EINTR || (!r->transfers && status == ST_EBROKEN));
            stopped = 1;
            r->ended++;
        }
    }
    return NULL;
}

static void *halt(void *arg)
{
    struct rush *r = arg;

    for (uint64_t spin = next(&r->seed) % 200000; spin--;)
        st_pause();
    st_worker_stop(r->transfers ? &r->s->transfers[0] : &r->s->collectives[0]);
    return NULL;
}

static void test_stop(int trials)
{
    for (int t = 0; t < trials; t++) {
        struct scene *s = calloc(1, sizeof *s);
        struct rush r[4];
        struct dies *d;

        CHECK(s);
        d = scene_open(s, 2, 50000);
        d->ctx[0].wait.poll_ns = 500000;
        for (int i = 0; i < 4; i++) { /* two submit, two stop */
            r[i] = (struct rush){s, (uint32_t)t % 2, dies_seed + (uint64_t)(t * 4 + i), 0, 0};
            CHECK(pthread_create(&r[i].thread, NULL, i < 2 ? submit : halt, &r[i]) == 0);
        }
        for (int i = 0; i < 4; i++)
            CHECK(pthread_join(r[i].thread, NULL) == 0);
        CHECK(r[0].ended >= 6 && r[1].ended >= 6);
        CHECK(st_worker_idle(&s->transfers[0]) && st_worker_idle(&s->collectives[0]));
        CHECK(!s->transfers[0].started && !s->collectives[0].started);
        scene_close(s, d);
        free(s);
    }
}

/* ---- one die's view --------------------------------------------------------------------------- */

static void test_ends(void)
{
    struct scene *s = calloc(1, sizeof *s);
    struct dies *d;
    struct st_group *g0, *g1;
    struct st_item *item, *late, *self;
    uint64_t word[8] = {0}, begin;
    uint64_t *from, *to;
    struct st_transfer t;

    CHECK(s);
    d = scene_open(s, 3, 100000);
    g0 = &s->handle[0].g;
    g1 = &s->handle[1].g;
    from = (uint64_t *)(void *)s->page[0];
    to = (uint64_t *)(void *)s->page[1];
    CHECK(st_worker_idle(&s->transfers[0]));

    item = receive_item(1, 1, word, 8); /* nobody sends: its deadline passes */
    begin = st_now_ns();
    item->deadline_ns = begin + 5 * MS;
    late = receive_item(2, 2, word + 1, 8); /* its sender will die */
    CHECK_IS(st_worker_submit(&s->transfers[0], item), ST_OK);
    CHECK_IS(st_worker_submit(&s->transfers[0], late), ST_OK);
    CHECK_IS(item_end(item, &g0->ctx->wait), ST_ETIMEOUT);
    CHECK(st_now_ns() >= begin + 5 * MS && !st_item_done(late) && !st_worker_idle(&s->transfers[0]));
    CHECK_IS(st_item_wait(late, &g0->ctx->wait, MS), ST_ETIMEOUT); /* the waiter's patience, not the item's */
    CHECK(!st_item_done(late));
    st_store_release_32(&d->gone[2], 1);
    CHECK_IS(item_end(late, &g0->ctx->wait), ST_EDEAD);
    CHECK(st_worker_idle(&s->transfers[0]));

    item = send_item(1, 3, from, LARGE); /* taken back at its deadline: never sent */
    item->deadline_ns = st_now_ns() + 3 * MS;
    CHECK_IS(st_worker_submit(&s->transfers[0], item), ST_OK);
    CHECK_IS(item_end(item, &g0->ctx->wait), ST_ETIMEOUT);
    item = receive_item(0, 3, to, LARGE);
    t = item->transfer;
    free(item);
    CHECK_IS(st_p2p_run(g1, &t, 3 * MS), ST_ETIMEOUT);

    self = receive_item(0, 4, word, 8); /* to oneself, receive first */
    CHECK_IS(st_worker_submit(&s->transfers[0], self), ST_OK);
    word[2] = 42;
    item = send_item(0, 4, word + 2, 8);
    CHECK_IS(st_worker_submit(&s->transfers[0], item), ST_OK);
    CHECK_IS(item_end(item, &g0->ctx->wait), ST_OK);
    CHECK_IS(item_end(self, &g0->ctx->wait), ST_OK);
    CHECK(word[0] == 42);

    st_worker_stop(&s->transfers[0]);
    st_worker_stop(&s->transfers[0]); /* twice is once */
    st_worker_stop(&s->collectives[0]); /* was never started */
    for (int k = 0; k < 3; k++) { /* what comes now is over at once */
        item = receive_item(1, 1, word, 8);
        CHECK_IS(st_worker_submit(&s->transfers[0], item), ST_OK);
        CHECK(st_item_done(item) && st_worker_idle(&s->transfers[0]));
        CHECK_IS(item_end(item, &g0->ctx->wait), ST_EINTR);
        item = item_new();
        CHECK_IS(st_worker_submit(&s->collectives[0], item), ST_OK);
        CHECK_IS(item_end(item, &g0->ctx->wait), ST_EINTR);
    }
    scene_close(s, d);
    free(s);
}

static uint64_t flood_bytes(int k) { return k % 3 ? LARGE : 64 + (uint64_t)(k % 5) * 8; }

/* Hundreds of messages on their way in both directions, small ones between large
 * ones: those of one tag arrive in order, whatever has to wait for room. */
static void flood(struct die *die)
{
    enum { MANY = 330 };
    struct scene *s = die->arg;
    struct st_worker *w = &s->transfers[die->rank];
    struct st_item *item[2 * MANY];
    uint64_t *out = (uint64_t *)(void *)s->page[die->rank], *in = out + MANY * LARGE / 8;
    uint32_t peer = 1 - die->rank;

    CHECK(2ull * MANY * LARGE <= 4 * ST_PAGE_BYTES);
    for (int k = 0; k < MANY; k++) {
        for (uint64_t i = 0; i < LARGE / 8; i++)
            out[k * LARGE / 8 + i] = (uint64_t)k * 77 + i + die->rank;
        item[k] = send_item(peer, k % 7, out + k * LARGE / 8, flood_bytes(k));
        CHECK_IS(st_worker_submit(w, item[k]), ST_OK);
    }
    for (int tag = 6; tag >= 0; tag--) /* the last tag first */
        for (int k = tag; k < MANY; k += 7) {
            item[MANY + k] = receive_item(peer, tag, in + k * LARGE / 8, flood_bytes(k));
            CHECK_IS(st_worker_submit(w, item[MANY + k]), ST_OK);
        }
    for (int k = 2 * MANY; k-- > 0;)
        CHECK_IS(item_end(item[k], &die->ctx->wait), ST_OK);
    for (int k = 0; k < MANY; k++)
        for (uint64_t i = 0; i < flood_bytes(k) / 8; i++)
            CHECK(in[k * LARGE / 8 + i] == (uint64_t)k * 77 + i + peer);
}

int main(int argc, char **argv)
{
    struct scene *s = calloc(1, sizeof *s);
    struct dies *d;

    CHECK(s);
    dies_setup("test_worker", argc, argv);
    test_ends();
    test_busy(2, LONG, 400 / DIES_SLOW); /* nobody sleeps: the futex's words give no order */
    test_busy(2, 0, 400 / DIES_SLOW);
    test_busy(4, 200000, 200 / DIES_SLOW);
    d = scene_open(s, 2, 100000);
    dies_run(d, flood, s);
    scene_close(s, d);
    test_stop(40 / DIES_SLOW);
    free(s);
    printf("test_worker: ok\n");
    return 0;
}
