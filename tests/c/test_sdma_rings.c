/* Rings under threads: many producers, some of which die; dies that ring each other; fairness; sleep; pages that go
 * while the DMA thread is at them.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_sdma_rings.c && ./a.out [seed]
 *
 * tsan must report: st_hold_none st_lane_ring st_lane_unlock st_ring_pass st_engine_flag
 */
#include <setjmp.h>

#include "rigs.h"

static struct rig *rig; /* of the test that runs */

/* ---- many producers -------------------------------------------------------------------- */

enum { PER_DIE = 2, MOST_PRODUCERS = DIES_MOST * PER_DIE };

/* A producer's chains carry its numbers, one after the other, into a record in the order of execution. */
struct producer {
    uint32_t die, index;
    uint64_t seed, chains, sent;
    struct st_lane lane;
    uint64_t *number; /* in fabric memory of its die: what a chain's copy brings */
    pthread_t thread;
};

/* In the ring's die: [0] counts, [1 + k] the last number of producer k. */
static uint64_t *record;

static void *produce(void *arg)
{
    struct producer *p = arg;
    struct st_ctx *ctx = &rig->d->ctx[p->die];
    uint64_t first, done, n, k;
    struct st_descriptor d[8];

    CHECK_IS(st_lane_attach(ctx, 0, p->lane.index, &p->lane), ST_OK);
    for (; p->sent < p->chains; p->sent++) {
        n = 2 + next(&p->seed) % 6; /* longer than some rings are deep */
        for (k = 0; k < n; k++) /* each waits for the one before it: who comes too early, or twice, stops the ring */
            d[k] = k % 2 ? make_add(record, 1) : make_gate(&record[1 + p->index], p->sent);
        d[n - 1] = make_write(&record[1 + p->index], p->sent + 1);
        CHECK_IS(st_lane_submit(ctx, &p->lane, d, n, &ctx->wait, next(&p->seed) % 2 ? 0 : RIG_TIMEOUT, &first, &done),
                 ST_OK);
        CHECK(done == n);
        p->number[0] += (n - 1) / 2; /* additions */
    }
    return NULL;
}

static void test_producers(uint32_t n, uint32_t depth, uint64_t first, uint64_t chains)
{
    struct producer p[MOST_PRODUCERS];
    struct st_lane lane;
    uint64_t sum = 0, i;

    rig = rig_open(n, 16, 1);
    lane = rig_ring(rig, 0, depth, first);
    record = rig_take(rig, 0, 8 * (1 + MOST_PRODUCERS));
    for (i = 0; i < n * PER_DIE; i++) {
        p[i] = (struct producer){.die = (uint32_t)(i % n), .index = (uint32_t)i, .seed = dies_seed + i, .chains = chains,
                                 .lane = lane};
        p[i].number = rig_take(rig, p[i].die, 64);
    }
    for (i = 0; i < n * PER_DIE; i++)
        CHECK(pthread_create(&p[i].thread, NULL, produce, &p[i]) == 0);
    for (i = 0; i < n * PER_DIE; i++)
        CHECK(pthread_join(p[i].thread, NULL) == 0);
    while (rig_head(&lane) != lane.ring->tail)
        sched_yield();
    for (i = 0; i < n * PER_DIE; i++) {
        CHECK(st_load_acquire_64(&record[1 + i]) == chains);
        sum += *p[i].number;
    }
    CHECK(st_load_acquire_64(&record[0]) == sum && lane.ring->failed == 0 && lane.ring->lock == 0);
    CHECK(lane.ring->room_sleepers == 0);
    rig_close(rig);
}

/* ---- producers that die ------------------------------------------------------------------- */

static __thread jmp_buf death;
static __thread const char *death_at; /* a function of the core, */
static __thread uint64_t death_after; /* at so many of whose accesses it ends */

static void maybe_die(const char *function)
{
    if (death_at && strcmp(function, death_at) == 0 && death_after-- == 0) {
        death_at = NULL;
        longjmp(death, 1);
    }
}

struct deadly {
    const char *at;
    uint64_t most; /* accesses there */
    uint64_t seed;
    struct st_lane lane;
    struct st_descriptor d[3];
    int died;
};

static void submit_and_die(struct die *die)
{
    struct deadly *x = die->arg;
    struct st_ctx *ctx = die->ctx;
    uint64_t first, done;

    if (die->rank != 1)
        return;
    dies_hook = maybe_die;
    if (setjmp(death) == 0) {
        death_after = next(&x->seed) % x->most;
        death_at = x->at;
        CHECK_IS(st_lane_submit(ctx, &x->lane, x->d, 3, &ctx->wait, RIG_TIMEOUT, &first, &done), ST_OK);
    } else {
        x->died = 1;
    }
    death_at = NULL;
    dies_end(die);
}

/* Whatever a producer was at: others go on, and nothing is executed of which not all is there. */
static void test_deaths(uint64_t rounds)
{
    static const struct {
        const char *at;
        uint64_t most;
    } where[] = {{"st_lane_room", 1}, {"st_lane_put", 24}, {"st_lane_ring", 1}, {"st_sdma_bell", 1}, {"st_wake", 1},
                 {"st_lane_unlock", 1}, {"st_lane_submit", 1}};
    uint64_t first, done, deaths = 0, round;
    int rc;

    for (round = 0; round < rounds; round++) {
        struct deadly x = {.at = where[round % 7].at, .most = where[round % 7].most, .seed = dies_seed + round};
        uint64_t *flags, wait = round / 7 % 2 ? ST_SDMA_NOWAIT : RIG_TIMEOUT;
        struct st_descriptor d[2];
        struct st_lane lane;

        rig = rig_open(3, 16, 1);
        lane = rig_ring(rig, 0, round % 3 ? 8 : 4, round);
        flags = rig_take(rig, 0, 128);
        x.lane = rig_lane(rig, 1, 0, lane.index);
        x.d[0] = make_add(&flags[0], 1);
        x.d[1] = make_add(&flags[1], 1);
        x.d[2] = make_add(&flags[2], 1);
        dies_run(rig->d, submit_and_die, &x);
        deaths += (uint64_t)x.died;
        lane = rig_lane(rig, 2, 0, lane.index);
        d[0] = make_write(&flags[8], 1);
        d[1] = with_event(make_notify(0), st_event_take(rig->e[0], NULL, NULL));
        do {
            rc = st_lane_submit(&rig->d->ctx[2], &lane, d, 2, &rig->d->ctx[2].wait, wait, &first, &done);
        } while (rc == ST_EFULL && wait == ST_SDMA_NOWAIT);
        CHECK_IS(rc, ST_OK);
        CHECK_IS(rig_wait(rig, 0, d[1].event, 1), ST_OK);
        CHECK(flags[0] == flags[1] && flags[1] == flags[2] && flags[8] == 1); /* all of the chain, or nothing */
        CHECK(flags[0] == (x.died ? first - round == 3 : 1) && first - round == 3 * flags[0]);
        CHECK(lane.ring->failed == 0);
        rig_close(rig);
    }
    CHECK(deaths > rounds / 2);
}

/* One that died before it rang: closing the ring has it looked at. */
static void test_death_before_bell(void)
{
    struct deadly x = {.at = "st_sdma_bell", .most = 1, .seed = dies_seed};
    struct st_lane lane;
    uint64_t *flags;
    int rc;

    rig = rig_open(2, 16, 1);
    lane = rig_ring(rig, 0, 4, 0);
    flags = rig_take(rig, 0, 64);
    x.lane = rig_lane(rig, 1, 0, lane.index);
    for (uint32_t i = 0; i < 3; i++)
        x.d[i] = make_write(&flags[i], 1);
    dies_run(rig->d, submit_and_die, &x);
    CHECK(x.died && lane.ring->tail == 3);
    while ((rc = st_engine_remove(rig->e[0], lane.index)) == ST_AGAIN)
        sched_yield();
    CHECK_IS(rc, ST_OK);
    CHECK(flags[2] == 1);
    rig_close(rig);
}

/* One that is stopped there, and lives: nobody takes the ring from it. */
static void test_stopped_producer(void)
{
    struct st_lane lane;
    struct st_waiter w;
    struct st_descriptor d;
    uint64_t first, done;

    rig = rig_open(3, 16, 1);
    lane = rig_ring(rig, 0, 4, 0);
    d = make_write(rig_take(rig, 0, 64), 1);
    st_wait_begin(&w, &rig->d->ctx[1].wait, NULL, NULL, 0);
    CHECK_IS(st_lane_lock(&rig->d->ctx[1], &lane, &w), ST_OK);
    st_wait_end(&w);
    CHECK_IS(st_lane_submit(&rig->d->ctx[2], &lane, &d, 1, &rig->d->ctx[2].wait, 20000000, &first, &done), ST_ETIMEOUT);
    CHECK_IS(st_lane_submit(&rig->d->ctx[2], &lane, &d, 1, &rig->d->ctx[2].wait, ST_SDMA_NOWAIT, &first, &done), ST_EFULL);
    CHECK(done == 0 && lane.ring->lock == 2 && lane.ring->tail == 0);
    st_lane_unlock(&lane);
    CHECK_IS(st_lane_submit(&rig->d->ctx[2], &lane, &d, 1, &rig->d->ctx[2].wait, ST_SDMA_NOWAIT, &first, &done), ST_OK);
    rig_close(rig);
}

/* A ring that stays full: whoever waits for room gives up in time, hears of the end, and what was in is intact. */
static void test_full(void)
{
    struct st_descriptor d[5];
    struct st_lane lane;
    uint64_t *flags, first, done;
    uint32_t event;

    rig = rig_open(2, 16, 1);
    lane = rig_ring(rig, 0, 4, UINT64_MAX - 1);
    flags = rig_take(rig, 0, 128);
    event = st_event_take(rig->e[0], NULL, NULL);
    d[0] = make_gate(flags, 1);
    for (uint32_t i = 1; i < 5; i++)
        d[i] = make_write(&flags[i], i);
    CHECK_IS(st_lane_submit(&rig->d->ctx[1], &lane, d, 5, &rig->d->ctx[1].wait, 20000000, &first, &done), ST_ETIMEOUT);
    CHECK(done == 4 && first == UINT64_MAX - 1 && lane.ring->tail == 2 && lane.ring->lock == 0);
    CHECK_IS(st_lane_submit(&rig->d->ctx[1], &lane, d, 1, &rig->d->ctx[1].wait, ST_SDMA_NOWAIT, &first, &done), ST_EFULL);
    CHECK(flags[1] == 0);
    d[0] = make_write(flags, 1); /* from another ring */
    {
        struct st_lane other = rig_ring(rig, 0, 2, 0);

        rig_put(rig, 0, &other, d, 1);
    }
    d[0] = make_notify(event);
    rig_put(rig, 1, &lane, d, 1);
    CHECK_IS(rig_wait(rig, 0, event, 1), ST_OK);
    for (uint32_t i = 1; i < 4; i++)
        CHECK(flags[i] == i);
    CHECK(flags[4] == 0);
    rig_close(rig);
}

/* ---- dies that ring each other -------------------------------------------------------------- */

struct pingpong {
    struct st_lane lane[2];
    uint64_t *flag[2], *ball[2]; /* of each die */
    uint64_t rounds;
};

/* Each round: wait for the ball, add 1, throw it; the payload is plain memory. */
static void play(struct die *die)
{
    struct pingpong *g = die->arg;
    uint32_t me = die->rank;
    uint64_t first, done, k;
    struct st_descriptor d[5];

    for (k = 1; k <= g->rounds; k++) {
        d[0] = make_gate(g->flag[me], me ? k : k - 1);
        d[1] = make_copy(g->ball[me] + 1, g->ball[me], 8);
        d[2] = make_add(&g->ball[me][1], 1);
        d[3] = make_copy(g->ball[!me], g->ball[me] + 1, 8);
        d[4] = make_write(g->flag[!me], k);
        CHECK_IS(st_lane_submit(die->ctx, &g->lane[me], d, 5, &die->ctx->wait, RIG_TIMEOUT, &first, &done), ST_OK);
    }
}

static void test_pingpong(uint64_t rounds, uint64_t linger_ns)
{
    struct pingpong g = {.rounds = rounds};
    uint32_t i;

    rig = rig_open(2, 16, 0);
    for (i = 0; i < 2; i++) {
        rig->e[i]->linger_ns = linger_ns;
        CHECK_IS(st_engine_start(rig->e[i]), ST_OK);
        g.lane[i] = rig_ring(rig, i, 8, UINT32_MAX - 100);
        g.flag[i] = rig_take(rig, i, 64);
        g.ball[i] = rig_take(rig, i, 64);
    }
    dies_run(rig->d, play, &g);
    while (st_load_acquire_64(g.flag[0]) != rounds)
        sched_yield();
    CHECK(g.ball[0][0] == 2 * rounds && rig->e[0]->count.failed == 0);
    rig_close(rig);
}

/* ---- fairness, sleep ----------------------------------------------------------------------------- */

/* While one ring has a lot of work, another's small chain has its turn: it finds the first one's head half way. */
static void test_fairness(void)
{
    struct st_lane big, small;
    struct st_descriptor d[64], e[3];
    uint8_t *data;
    uint64_t *go, k, i, at;
    uint32_t event;

    rig = rig_open(1, 16, 1);
    big = rig_ring(rig, 0, 128, 0);
    small = rig_ring(rig, 0, 4, 0);
    data = dies_pages(&rig->d->ctx[0], 2);
    go = rig_take(rig, 0, 64);
    event = st_event_take(rig->e[0], NULL, NULL);
    for (k = 1; k <= 5; k++) {
        e[0] = make_gate(go, k);
        e[1] = make_copy(&go[1], &big.ring->head, 8);
        e[2] = make_notify(event);
        rig_put(rig, 0, &small, e, 3);
        d[0] = make_write(go, k);
        for (i = 1; i < 64; i++)
            d[i] = make_copy(data + ST_PAGE_BYTES, data, ST_PAGE_BYTES);
        at = rig_put(rig, 0, &big, d, 64);
        CHECK_IS(rig_wait(rig, 0, event, k), ST_OK);
        CHECK(go[1] > at && go[1] < at + 8);
        while (rig_head(&big) != at + 64)
            sched_yield();
    }
    rig_close(rig);
}

/* No bell is lost, whether the thread is falling asleep or being woken. */
static void test_sleep(uint64_t rounds)
{
    struct st_lane lane, far;
    struct st_descriptor d[2];
    uint64_t *flag, seed = dies_seed, k, spin, sleeps;
    uint32_t event;

    rig = rig_open(2, 16, 0);
    rig->e[0]->linger_ns = 0; /* it sleeps whenever there is nothing */
    rig->d->ctx[0].wait.poll_ns = rig->d->ctx[1].wait.poll_ns = 60000000000ull; /* nothing but a wake-up helps */
    lane = rig_ring(rig, 0, 4, 0);
    flag = rig_take(rig, 0, 64);
    event = st_event_take(rig->e[0], NULL, NULL);
    far = rig_lane(rig, 1, 0, lane.index);
    CHECK_IS(st_engine_start(rig->e[0]), ST_OK);
    for (k = 1; k <= rounds; k++) {
        sleeps = st_load_relaxed_64(&rig->e[0]->count.sleeps);
        if (next(&seed) % 2)
            while (st_load_relaxed_64(&rig->e[0]->count.sleeps) == sleeps && k > 1 && next(&seed) % 64)
                sched_yield();
        for (spin = next(&seed) % 512; spin--;)
            st_pause();
        d[0] = make_write(flag, k);
        d[1] = make_notify(event);
        rig_put(rig, k % 2, k % 2 ? &far : &lane, d, 2);
        CHECK_IS(rig_wait(rig, 0, event, k), ST_OK);
        CHECK(*flag == k);
    }
    CHECK(st_load_relaxed_64(&rig->e[0]->count.sleeps) > 0);
    rig_close(rig);
}

/* Nor is one at a gate: a flag that another die's DMA thread writes, and a cancellation. */
static void test_gate_sleep(uint64_t rounds)
{
    struct st_lane lane[2];
    struct st_descriptor d[2];
    uint64_t *flag, seed = dies_seed, k, spin;
    uint32_t event, other;

    rig = rig_open(2, 16, 0);
    rig->e[0]->linger_ns = 0;
    flag = rig_take(rig, 0, 64);
    event = st_event_take(rig->e[0], NULL, NULL);
    for (k = 0; k < 2; k++) {
        lane[k] = rig_ring(rig, (uint32_t)k, 4, 0);
        CHECK_IS(st_engine_start(rig->e[k]), ST_OK);
    }
    for (k = 1; k <= rounds; k++) {
        other = st_event_take(rig->e[0], NULL, NULL);
        d[0] = with_event(make_gate(flag, 2 * k - 1), event);
        d[1] = make_notify(event);
        rig_put(rig, 0, &lane[0], d, 2);
        d[0] = with_event(make_gate(flag, 2 * k + 1), other);
        d[1] = make_notify(other);
        rig_put(rig, 0, &lane[0], d, 2);
        for (spin = next(&seed) % 20000; spin--;)
            st_pause();
        d[0] = make_write(flag, 2 * k - 1);
        rig_put(rig, 1, &lane[1], d, 1);
        CHECK_IS(rig_wait(rig, 0, event, k), ST_OK);
        for (spin = next(&seed) % 20000; spin--;)
            st_pause();
        st_event_cancel(rig->e[0], other, ST_ECANCELED);
        CHECK_IS(rig_wait(rig, 0, other, 1), ST_ECANCELED);
        st_event_give(rig->e[0], other);
    }
    rig_close(rig);
}

/* ---- rings that come and go ----------------------------------------------------------------------- */

/* A ring is closed as soon as it is drained; what its memory holds then is nobody's descriptor. */
static void test_close(uint64_t rounds)
{
    struct st_ring *memory;
    struct st_descriptor d;
    struct st_lane lane;
    uint64_t *flag, k;
    uint32_t index;
    int rc;

    rig = rig_open(1, 16, 1);
    memory = rig_take(rig, 0, st_ring_bytes(4));
    flag = rig_take(rig, 0, 64);
    for (k = 1; k <= rounds; k++) {
        CHECK_IS(st_engine_add(rig->e[0], memory, 4, k, &index), ST_OK);
        lane = rig_lane(rig, 0, 0, index);
        d = make_write(flag, k);
        rig_put(rig, 0, &lane, &d, 1);
        while ((rc = st_engine_remove(rig->e[0], index)) == ST_AGAIN)
            sched_yield();
        CHECK_IS(rc, ST_OK);
        CHECK(*flag == k);
        memset(memory, 0x5a, st_ring_bytes(4)); /* were it looked at, there would be no end of descriptors */
        memset(memory, 0, st_ring_bytes(4));
    }
    CHECK(rig->e[0]->count.descriptors == rounds && rig->e[0]->count.failed == 0);
    rig_close(rig);
}

/* ---- pages that go ------------------------------------------------------------------------------------ */

struct going {
    struct st_lane lane;
    uint8_t *stable;
    uint64_t rounds, reserved, words[2];
    uint32_t stop;
};

/* Executes copies from and to pages that another thread takes away and brings back. */
static void keep_copying(struct going *g, uint64_t va, uint32_t event, uint64_t *k)
{
    struct st_descriptor d[3];
    int status;

    d[0] = with_event(make_copy((void *)(uintptr_t)va, g->stable, ST_PAGE_BYTES / 4), event);
    d[1] = with_event(make_copy(g->stable + ST_PAGE_BYTES / 2, (void *)(uintptr_t)(va + ST_PAGE_BYTES / 8), 4096), event);
    d[2] = make_notify(event);
    rig_put(rig, 0, &g->lane, d, 3);
    status = rig_wait(rig, 0, event, ++*k);
    CHECK(status == ST_OK || status == ST_EREG);
    if (status == ST_EREG) { /* an event keeps its first failure */
        st_event_give(rig->e[0], event);
        CHECK(st_event_take(rig->e[0], NULL, NULL) == event);
        *k = 0;
    }
}

static void *copy_on(void *arg)
{
    struct going *g = arg;
    uint32_t event = st_event_take(rig->e[0], NULL, NULL);
    uint64_t k = 0;

    while (!st_load_acquire_32(&g->stop))
        keep_copying(g, g->reserved, event, &k);
    return NULL;
}

static void test_pages_go(uint64_t rounds)
{
    struct going g = {.rounds = rounds};
    struct st_ctx *c;
    uint64_t done, k, missed, seed = dies_seed;
    pthread_t copier;
    int handles;

    for (handles = 0; handles < 2; handles++) {
        rig = rig_open(1, 64, 1);
        c = &rig->d->ctx[0];
        g.lane = rig_ring(rig, 0, 8, 0);
        g.stable = dies_pages(c, 1);
        st_store_release_32(&g.stop, 0);
        memset(g.stable, 7, ST_PAGE_BYTES);
        if (handles) {
            CHECK_IS(st_va_reserve(c, 2, 1, &g.reserved), ST_OK);
            CHECK_IS(st_handle_create(c, 2, g.words), ST_OK);
        } else {
            g.reserved = VA(dies_pages(c, 2));
        }
        CHECK(pthread_create(&copier, NULL, copy_on, &g) == 0);
        for (k = 0; k < rounds; k++) {
            if (!handles) {
                CHECK_IS(st_pages_unmap(c, g.reserved, 2), ST_OK);
                CHECK_IS(st_pages_map_at(c, g.reserved, 2), ST_OK);
                continue;
            }
            CHECK_IS(st_vmm_map(c, g.reserved, g.words, 2), ST_OK);
            CHECK_IS(st_vmm_access(c, g.reserved, 2, ST_PAGE_MAPPED, &done), ST_OK);
            for (missed = next(&seed) % 4; missed--;)
                sched_yield();
            if (next(&seed) % 2)
                CHECK_IS(st_vmm_access(c, g.reserved, 2, next(&seed) % 2 ? ST_PAGE_READ : ST_PAGE_HELD, &done), ST_OK);
            CHECK_IS(st_vmm_unmap(c, g.reserved, 2), ST_OK);
        }
        st_store_release_32(&g.stop, 1);
        CHECK(pthread_join(copier, NULL) == 0);
        CHECK(g.lane.ring->failed == 0 || (int)g.lane.ring->failed_status == ST_EREG);
        rig_close(rig);
    }
}

/* Stills that cross each other and the thread's holds: only what does not meet is let through. */
struct crossing {
    struct st_hold *hold;
    struct st_ctx *ctx;
    uint64_t seed, rounds;
    uint64_t *pages; /* of each page: who is at it; plain memory */
    pthread_mutex_t *lock;
};

enum { CROSS_PAGES = 6 };

static void *still(void *arg)
{
    struct crossing *x = arg;
    uint64_t seed = next(&x->seed), k, n, i, from;
    uint32_t slot;

    for (k = 0; k < x->rounds; k++) {
        n = 1 + next(&seed) % 2;
        from = next(&seed) % (CROSS_PAGES - n + 1);
        for (i = from; i < from + n; i++) /* two never take one page away at once */
            pthread_mutex_lock(&x->lock[i]);
        slot = st_still_begin(x->ctx, from << ST_PAGE_SHIFT, n);
        for (i = from; i < from + n; i++)
            x->pages[i] = k;
        st_still_end(x->ctx, slot);
        for (i = from; i < from + n; i++)
            pthread_mutex_unlock(&x->lock[i]);
    }
    return NULL;
}

static void test_crossing(uint64_t rounds)
{
    pthread_mutex_t lock[CROSS_PAGES];
    uint64_t pages[CROSS_PAGES] = {0}, seed = dies_seed, k, held = 0, refused = 0, i, n;
    struct crossing x[3];
    struct st_range r[3];
    pthread_t thread[3];

    rig = rig_open(1, 16, 0);
    for (i = 0; i < CROSS_PAGES; i++)
        CHECK(pthread_mutex_init(&lock[i], NULL) == 0);
    for (i = 0; i < 3; i++) {
        x[i] = (struct crossing){&rig->e[0]->hold, &rig->d->ctx[0], dies_seed + i, rounds, pages, lock};
        CHECK(pthread_create(&thread[i], NULL, still, &x[i]) == 0);
    }
    for (k = 0; k < 2 * rounds; k++) {
        n = 1 + next(&seed) % 3;
        for (i = 0; i < n; i++)
            r[i] = (struct st_range){.va = (next(&seed) % CROSS_PAGES << ST_PAGE_SHIFT) + next(&seed) % 1000, .bytes = 100};
        if (!st_hold_all(&rig->e[0]->hold, r, n)) {
            refused++;
            sched_yield();
            continue;
        }
        held++;
        for (i = 0; i < n; i++)
            pages[r[i].va >> ST_PAGE_SHIFT]++; /* were somebody else at it, ThreadSanitizer would say so */
        st_hold_none(&rig->e[0]->hold);
    }
    for (i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(held > 0);
    printf("held %llu, refused %llu\n", (unsigned long long)held, (unsigned long long)refused);
    for (i = 0; i < CROSS_PAGES; i++)
        CHECK(pthread_mutex_destroy(&lock[i]) == 0);
    rig_close(rig);
}

int main(int argc, char **argv)
{
    dies_setup("test_sdma_rings", argc, argv);
    test_crossing(20000 / DIES_SLOW);
    for (uint32_t depth = 2; depth <= 8; depth *= 2)
        test_producers(depth, depth, depth == 4 ? UINT64_MAX - 50 : UINT32_MAX - 50, 400 / DIES_SLOW);
    test_deaths(56 / DIES_SLOW);
    test_death_before_bell();
    test_stopped_producer();
    test_full();
    test_pingpong(2000 / DIES_SLOW, 50000);
    test_pingpong(400 / DIES_SLOW, 0);
    test_fairness();
    test_sleep(2000 / DIES_SLOW);
    test_gate_sleep(200 / DIES_SLOW);
    test_close(4000 / DIES_SLOW);
    test_pages_go(400 / DIES_SLOW);
    printf("test_sdma_rings: ok\n");
    return 0;
}
