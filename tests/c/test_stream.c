/* Streams: items of one follow one another, whoever carries them out, and see what those before did; one that fails
 * ends the others; the members of a group and the peers of messages hear of it.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_stream.c && ./a.out [seed]
 *
 * tsan must report: st_stream_end st_stream_look
 */
#include "workers.h"

enum { STREAMS = 2, STEPS = 5, WORDS = 8 }; /* items of a round: local, collective, send, receive, local */

/* One stream of a die; a thread stands for the DMA engine and carries local items out. */
struct lane {
    struct die *die;
    struct st_progress *p;
    struct buffers *buffers;
    uint64_t *words; /* what is sent, and what is received */
    struct hand_plan plan;
    uint64_t rounds, which;
    struct st_item **items; /* [rounds][STEPS] */
    pthread_t thread;
};

static uint64_t word_of(uint32_t die, uint64_t which, uint64_t r, uint64_t i)
{
    return r * 1000003 + which * 131 + die * 17 + i;
}

/* Prepares what the collective of a round takes, and what is sent. */
static void local_before(struct lane *l, uint64_t r)
{
    struct scene *s = l->die->arg;
    struct st_group *g = &s->handle[l->die->rank].g;
    struct round round = round_draw(r * STREAMS + l->which, g->n, 0);

    l->items[r * STEPS + 1]->request = round_request(&round, &l->plan, l->buffers, g->n, g->me, LONG);
    for (uint64_t i = 0; i < WORDS; i++) {
        l->words[i] = word_of(g->me, l->which, r, i);
        l->words[WORDS + i] = 0;
    }
}

/* Looks at what came of it, and takes it away. */
static void local_after(struct lane *l, uint64_t r)
{
    struct scene *s = l->die->arg;
    struct st_group *g = &s->handle[l->die->rank].g;
    struct round round = round_draw(r * STREAMS + l->which, g->n, 0);

    round_check(&round, l->buffers, g->n);
    for (uint64_t i = 0; i < WORDS; i++)
        CHECK(l->words[WORDS + i] == word_of((g->me + g->n - 1) % g->n, l->which, r, i));
    buffers_scribble(l->buffers, r);
    memset(l->words, (int)r, 16 * WORDS);
}

static void *local_items(void *arg)
{
    struct lane *l = arg;

    for (uint64_t r = 0; r < l->rounds; r++)
        for (uint64_t k = 0; k < STEPS; k += STEPS - 1) {
            CHECK_IS(st_stream_turn(l->p, r * STEPS + k, &l->die->ctx->wait), ST_OK);
            if (k == 0)
                local_before(l, r);
            else
                local_after(l, r);
            st_stream_end(l->die->ctx, l->p, r * STEPS + k, ST_OK);
        }
    return NULL;
}

/* Queues everything at once, and waits for the end alone. */
static void queue(struct die *die)
{
    struct scene *s = die->arg;
    struct st_group *g = &s->handle[die->rank].g;
    struct st_engine *engine = calloc(1, sizeof *engine);
    struct lane lane[STREAMS];
    uint64_t rounds = s->rounds, r, k, i;

    CHECK(engine);
    engine->ctx = die->ctx;
    for (i = 0; i < STREAMS; i++) {
        lane[i] = (struct lane){.die = die, .buffers = s->buffers[die->rank][i], .rounds = rounds, .which = i};
        lane[i].p = (struct st_progress *)(void *)s->page[die->rank] + i;
        lane[i].words = (uint64_t *)(void *)(s->page[die->rank] + 4096 * (i + 1));
        lane[i].items = calloc(rounds * STEPS, sizeof *lane[i].items);
        CHECK(lane[i].items);
        st_stream_reset(lane[i].p);
    }
    for (r = 0; r < rounds; r++)
        for (i = 0; i < STREAMS; i++)
            for (k = 1; k < STEPS - 1; k++) {
                struct st_item *item = k == 1 ? item_new()
                                       : k == 2 ? send_item((g->me + 1) % g->n, (int64_t)i, lane[i].words, 8 * WORDS)
                                                : receive_item((g->me + g->n - 1) % g->n, (int64_t)i,
                                                               lane[i].words + WORDS, 8 * WORDS);

                item->stream = lane[i].p;
                item->turn = r * STEPS + k;
                item->timeout_ns = LONG;
                lane[i].items[r * STEPS + k] = item;
            }
    for (i = 0; i < STREAMS; i++)
        CHECK(pthread_create(&lane[i].thread, NULL, local_items, &lane[i]) == 0);
    for (r = 0; r < rounds; r++)
        for (k = 1; k < STEPS - 1; k++)
            for (i = 0; i < STREAMS; i++)
                CHECK_IS(st_worker_submit(k == 1 ? &s->collectives[g->me] : &s->transfers[g->me],
                                          lane[i].items[r * STEPS + k]), ST_OK);
    for (i = 0; i < STREAMS; i++) {
        CHECK_IS(st_stream_wait(engine, lane[i].p, rounds * STEPS, &die->ctx->wait, LONG), ST_OK);
        CHECK(st_stream_done(lane[i].p) == rounds * STEPS);
        CHECK(lane[i].words[0] == lane[i].words[1]); /* what the last item left */
        CHECK(pthread_join(lane[i].thread, NULL) == 0);
        for (r = 0; r < rounds * STEPS; r++)
            if (lane[i].items[r])
                CHECK_IS(item_end(lane[i].items[r], &die->ctx->wait), ST_OK);
        free(lane[i].items);
    }
    free(engine);
}

static void test_order(uint32_t n, uint64_t sleep_ns, uint64_t rounds)
{
    struct scene *s = calloc(1, sizeof *s);
    struct dies *d;

    CHECK(s);
    d = scene_open(s, n, sleep_ns);
    s->rounds = rounds;
    dies_run(d, queue, s);
    scene_close(s, d);
    free(s);
}

static struct st_item *on(struct st_item *item, struct st_progress *p, uint64_t turn)
{
    item->stream = p;
    item->turn = turn;
    item->request.timeout_ns = item->timeout_ns = LONG;
    return item;
}

static int outcome(struct st_worker *w, struct st_item *item)
{
    CHECK_IS(st_worker_submit(w, item), ST_OK);
    CHECK_IS(st_item_wait(item, &w->group->ctx->wait, LONG), ST_OK);
    free(item->request.lines);
    return item_end(item, &w->group->ctx->wait);
}

/* A stream of die 0 has failed: it stands in for a collective and for messages with nothing. */
static void test_failure(void)
{
    struct scene *s = calloc(1, sizeof *s);
    struct st_progress *p;
    struct st_item *item;
    struct dies *d;
    uint64_t *words[2];

    CHECK(s);
    d = scene_open(s, 2, 100000);
    for (int i = 0; i < 2; i++)
        words[i] = (uint64_t *)(void *)(s->page[i] + 4096);
    p = (struct st_progress *)(void *)s->page[0];
    st_stream_end(&d->ctx[0], p, 0, ST_OK);
    CHECK_IS(st_stream_look(p, 1), ST_OK);
    CHECK_IS(st_stream_look(p, 2), ST_AGAIN);
    st_stream_end(&d->ctx[0], p, 1, ST_EREG);
    CHECK_IS(st_stream_look(p, 2), ST_ECANCELED);
    CHECK(st_stream_done(p) == UINT64_MAX);
    for (int dropped = 0; dropped < 2; dropped++) { /* the second time another stream, of which it is said beforehand */
        item = on(item_new(), p + dropped, 2);
        item->cancelled = (uint32_t)dropped;
        CHECK_IS(st_worker_submit(&s->collectives[0], item), ST_OK);
        CHECK_IS(outcome(&s->collectives[1], on(item_new(), NULL, 0)), ST_EMISMATCH);
        CHECK_IS(item_end(item, &d->ctx[0].wait), ST_ECANCELED);
        for (uint64_t bytes = 64; bytes <= LARGE; bytes += LARGE - 64) {
            item = on(send_item(1, 1, words[0], bytes), p + dropped, 2);
            item->cancelled = (uint32_t)dropped;
            CHECK_IS(outcome(&s->transfers[0], item), ST_ECANCELED);
            CHECK_IS(outcome(&s->transfers[1], on(receive_item(0, 1, words[1], bytes), NULL, 0)), ST_EMISMATCH);
            words[0][0] = bytes; /* the next message is the next one's */
            item = send_item(1, 1, words[0], bytes);
            CHECK_IS(st_worker_submit(&s->transfers[0], item), ST_OK);
            CHECK_IS(outcome(&s->transfers[1], receive_item(0, 1, words[1], bytes)), ST_OK);
            CHECK_IS(item_end(item, &d->ctx[0].wait), ST_OK);
            CHECK(words[1][0] == bytes);
            item = send_item(0, 2, words[1], bytes);
            CHECK_IS(st_worker_submit(&s->transfers[1], item), ST_OK);
            CHECK_IS(outcome(&s->transfers[0], on(receive_item(1, 2, words[0], bytes), p + dropped, 2)), ST_ECANCELED);
            CHECK_IS(item_end(item, &d->ctx[1].wait), bytes > ST_EAGER_BYTES ? ST_EMISMATCH : ST_OK);
            st_stream_end(&d->ctx[0], p + 1, 2, ST_EREG);
        }
        CHECK(st_stream_done(p) == UINT64_MAX);
    }
    scene_close(s, d);
    free(s);
}

/* Whoever waits is woken, or hears that nobody will raise the flag; what waits for its turn ends with its worker. */
static void test_ends(void)
{
    struct scene *s = calloc(1, sizeof *s);
    struct st_engine *engine = calloc(1, sizeof *engine);
    struct st_item *item[3];
    struct st_progress *p;
    struct dies *d;

    CHECK(s && engine);
    d = scene_open(s, 2, 100000);
    d->ctx[0].wait.poll_ns = MS;
    engine->ctx = &d->ctx[0];
    p = (struct st_progress *)(void *)s->page[0];
    CHECK_IS(st_stream_wait(engine, p, 0, &d->ctx[0].wait, MS), ST_OK);
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, MS), ST_ETIMEOUT);
    st_store_seqcst_32(&engine->stop, 1);
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, LONG), ST_ENOJOB);
    st_stream_end(&d->ctx[0], p, 4, ST_EDEAD);
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, LONG), ST_EDEAD);
    st_stream_end(&d->ctx[0], p, 4, ST_ETIMEOUT); /* the item's patience, not the waiter's */
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, LONG), ST_ECANCELED);
    st_store_seqcst_64(&p->done, ST_SDMA_POISON | 77); /* no status */
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, LONG), ST_ECORRUPT);
    st_stream_reset(p);
    st_stream_end(&d->ctx[0], p, 0, ST_OK);
    st_stream_end(&d->ctx[0], p, 1, ST_EREG); /* the first has ended well all the same, whoever asks late */
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, LONG), ST_OK);
    CHECK_IS(st_stream_wait(engine, p, 2, &d->ctx[0].wait, LONG), ST_EREG);
    CHECK(st_stream_look(p, 1) == ST_OK && st_stream_look(p, 2) == ST_ECANCELED && st_stream_done(p) == UINT64_MAX);
    st_stream_reset(p);
    item[0] = on(item_new(), p, 1); /* each on a stream of its own */
    item[1] = on(send_item(1, 1, NULL, 0), p + 1, 1);
    item[2] = on(receive_item(1, 1, NULL, 0), p + 2, 1);
    for (int k = 0; k < 3; k++) {
        CHECK_IS(st_worker_submit(k ? &s->transfers[0] : &s->collectives[0], item[k]), ST_OK);
        CHECK_IS(st_item_wait(item[k], &d->ctx[0].wait, MS), ST_ETIMEOUT);
    }
    st_worker_stop(&s->collectives[0]);
    st_worker_stop(&s->transfers[0]);
    for (int k = 0; k < 3; k++)
        CHECK_IS(item_end(item[k], &d->ctx[0].wait), ST_EINTR);
    CHECK_IS(st_stream_wait(engine, p, 1, &d->ctx[0].wait, LONG), ST_ENOJOB);
    scene_close(s, d);
    free(engine);
    free(s);
}

int main(int argc, char **argv)
{
    dies_setup("test_stream", argc, argv);
    test_failure();
    test_ends();
    test_order(2, LONG, 100 / DIES_SLOW); /* nobody sleeps: the futex's words give no order */
    test_order(2, 0, 100 / DIES_SLOW);
    test_order(3, 200000, 60 / DIES_SLOW);
    printf("test_stream: ok\n");
    return 0;
}
