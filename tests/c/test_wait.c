/* Waiting: policies, deadlines, the poll hook, and no wake-up is ever lost.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_wait.c && ./a.out [seed]
 */
#include "dies.h"

#define MS 1000000ull

static int polled;

static int poll_never(void *arg)
{
    (void)arg;
    polled++;
    return 0;
}

static int poll_third(void *arg)
{
    return ++*(int *)arg == 3;
}

/* Steps until something else than ST_OK comes; how many. */
static uint64_t step_until(struct st_waiter *w, int *rc)
{
    uint64_t n = 1;

    while ((*rc = st_wait_step(w)) == ST_OK)
        n++;
    return n;
}

static void test_ends(void)
{
    static const uint64_t timeouts[] = {1, 50000, 3 * MS, 7 * MS};
    static const uint64_t sleeps[] = {0, 1, MS, 3600000 * MS};
    uint32_t word = 0, sleepers = 0, i, j, k;
    int rc;

    for (i = 0; i < 4; i++)
        for (j = 0; j < 4; j++)
            for (k = 0; k < 4; k++) {
                struct st_wait_policy p = {.pauses = k & 1 ? 1000 : 0, .sleep_ns = sleeps[j], .poll_ns = 2 * MS,
                                           .poll = poll_never};
                uint64_t begin = st_now_ns(), looks = 0;
                struct st_waiter w;

                polled = 0;
                st_wait_begin(&w, &p, k & 2 ? &word : NULL, k & 2 ? &sleepers : NULL, timeouts[i]);
                for (;;) {
                    step_until(&w, &rc);
                    if (rc != ST_AGAIN)
                        break;
                    looks++;
                }
                CHECK_IS(rc, ST_ETIMEOUT);
                CHECK(st_now_ns() - begin >= timeouts[i]);
                CHECK((uint64_t)polled >= looks);
                st_wait_end(&w);
                CHECK(sleepers == 0);
            }
    CHECK(word == 0);
}

static void test_hook(void)
{
    uint32_t word = 0, sleepers = 0;
    int calls = 0, rc, again = 0;
    struct st_wait_policy p = {.sleep_ns = 0, .poll_ns = MS, .poll = poll_third, .arg = &calls};
    struct st_waiter w;

    st_wait_begin(&w, &p, &word, &sleepers, 0);
    for (;;) {
        step_until(&w, &rc);
        if (rc != ST_AGAIN)
            break;
        again++;
    }
    CHECK_IS(rc, ST_EINTR);
    CHECK(calls == 3 && again == 2);
    st_wait_end(&w);
    CHECK(sleepers == 0);
}

/* The longest timeouts do not wrap into the past. */
static void test_far_deadline(void)
{
    static const uint64_t far[] = {0, UINT64_MAX, UINT64_MAX - 1, UINT64_MAX / 2};
    struct st_wait_policy p = {.sleep_ns = 0, .poll_ns = 20000};
    int rc, i, k;

    for (i = 0; i < 4; i++) {
        uint32_t word = 0, sleepers = 0;
        struct st_waiter w;

        st_wait_begin(&w, &p, &word, &sleepers, far[i]);
        for (k = 0; k < 20; k++) {
            step_until(&w, &rc);
            CHECK_IS(rc, ST_AGAIN);
        }
        st_wait_end(&w);
    }
}

/* Pauses come first: no look at the clock, no system call. */
static void test_pauses(void)
{
    struct st_wait_policy p = {.pauses = 5000, .sleep_ns = 0, .poll_ns = 1};
    struct st_waiter w;
    uint32_t i;

    st_wait_begin(&w, &p, NULL, NULL, 1);
    for (i = 0; i < 5000; i++)
        CHECK_IS(st_wait_step(&w), ST_OK);
    CHECK(w.start_ns == 0);
    for (i = 0; i < 3; i++)
        CHECK_IS(st_wait_step(&w), ST_OK); /* yields */
    CHECK(w.start_ns == 0);
    st_wait_step(&w);
    CHECK(w.start_ns != 0);
    st_wait_again(&w); /* the next wait pauses again, to the same deadline */
    CHECK(w.start_ns == 0 && w.deadline_ns != 0);
    for (i = 0; i < 5000; i++)
        CHECK_IS(st_wait_step(&w), ST_OK);
    st_wait_end(&w);
}

/* ---- no wake-up is lost ----------------------------------------------------------- */

enum { PLAYERS = 4 };

struct ring {
    uint32_t word, sleepers;
    uint64_t turn __attribute__((aligned(64)));
    uint64_t rounds;
    uint64_t payload; /* plain: each turn hands it over */
    uint32_t slept;
    uint32_t players;
};

struct player {
    struct ring *ring;
    uint32_t me;
    uint64_t seed;
    pthread_t thread;
};

static void *play(void *arg)
{
    struct player *me = arg;
    struct ring *r = me->ring;
    struct st_wait_policy p = {.sleep_ns = 0, .poll_ns = 60000 * MS}; /* nothing but a wake-up helps */
    uint64_t turn;

    for (turn = me->me; turn < r->rounds; turn += r->players) {
        struct st_waiter w;
        uint64_t spin = next(&me->seed) % 256;

        st_wait_begin(&w, &p, &r->word, &r->sleepers, 0);
        if (next(&me->seed) % 4)
            w.steps = 64; /* straight to sleep */
        while (st_load_acquire_64(&r->turn) != turn) { /* pairs with the store below */
            if (w.armed) { /* about to sleep: let the wake-up come just now */
                st_store_relaxed_32(&r->slept, st_load_relaxed_32(&r->slept) + 1);
                for (uint64_t gap = next(&me->seed) % 2048; gap--;)
                    st_pause();
                if (next(&me->seed) % 4 == 0)
                    sched_yield();
            }
            CHECK_IS(st_wait_step(&w), ST_OK);
        }
        st_wait_end(&w);
        CHECK(r->payload == turn * 7);
        while (spin--)
            st_pause();
        r->payload = (turn + 1) * 7;
        st_store_seqcst_64(&r->turn, turn + 1); /* pairs with the load above */
        st_wake(&r->word, &r->sleepers);
    }
    return NULL;
}

static void test_wakes(uint32_t players, uint64_t rounds)
{
    struct ring r = {.rounds = rounds, .players = players};
    struct player p[PLAYERS];
    uint32_t i;

    for (i = 0; i < players; i++) {
        p[i] = (struct player){&r, i, dies_seed + i, 0};
        CHECK(pthread_create(&p[i].thread, NULL, play, &p[i]) == 0);
    }
    for (i = 0; i < players; i++)
        CHECK(pthread_join(p[i].thread, NULL) == 0);
    CHECK(r.turn == rounds && r.sleepers == 0);
    CHECK(r.slept > 0 && r.word > 0); /* sleepers there were, and they were woken */
}

int main(int argc, char **argv)
{
    dies_setup("test_wait", argc, argv);
    test_ends();
    test_hook();
    test_far_deadline();
    test_pauses();
    test_wakes(2, 30000 / DIES_SLOW);
    test_wakes(3, 20000 / DIES_SLOW);
    test_wakes(4, 20000 / DIES_SLOW);
    printf("test_wait: ok\n");
    return 0;
}
