/* Operations on rings of a DMA thread, with members that run their cores themselves among them: rounds with known
 * results, rings that are too small for their plans, deaths, timeouts, interruptions, descriptors that fail, and
 * engines that end.  After each return a member overwrites its buffers: a DMA thread that still used them would race.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_exec_sdma.c && ./a.out [seed]
 *
 * tsan must report: st_ring_pass
 */
#include "machines.h"

#define LONG 60000000000ull /* ns; a wait that lasts that long is a failure */

struct scene {
    uint8_t *memory;
    struct buffers buffers[DIES_MOST];
    struct machine machine[DIES_MOST];
    uint64_t rounds;
    /* failures */
    enum kind kind;
    uint64_t trial, timeout_ns;
    uint32_t victim;
    int how;
    int status[DIES_MOST];
    struct st_request request[DIES_MOST];
};

static struct dies *scene_open(struct scene *s, uint32_t n, uint64_t sleep_ns)
{
    struct dies *d = dies_open(n, 4, sleep_ns);

    memset(s, 0, sizeof *s);
    s->memory = dies_group(d, NULL);
    for (uint32_t i = 0; i < n; i++) {
        buffers_make(&s->buffers[i], &d->ctx[i]);
        machine_open(&s->machine[i], &d->ctx[i]);
        CHECK_IS(st_engine_start(s->machine[i].e), ST_OK);
    }
    return d;
}

static void scene_close(struct scene *s, struct dies *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        st_engine_end(s->machine[i].e);
        free(s->machine[i].e);
    }
    dies_close(d);
}

/* Rings of 2 to 64 descriptors, blocks of 64 bytes and more. */
static struct st_lanes *lanes_of(struct die *die, struct st_group *g)
{
    struct scene *s = die->arg;

    return machine_lanes(&s->machine[die->rank], g, 2u << next(&die->seed) % 6, 64ull << next(&die->seed) % 9);
}

/* Of rounds that touch members' buffers. */
static struct round zero_copy(uint64_t i, uint32_t n)
{
    struct round r;

    do
        r = round_draw(i++ * 977, n, 0);
    while (r.kind < GATHER);
    return r;
}

/* ---- rounds ------------------------------------------------------------------------------ */

static void play(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct st_lanes *lanes;

    g->va = (uint64_t)(uintptr_t)s->memory; /* a group like any other: in a die's HBM */
    lanes = lanes_of(die, g);
    for (uint64_t i = 1; i <= s->rounds; i++) {
        struct round r = i % 8 ? zero_copy(i, g->n) : round_draw(i, g->n, 0);
        struct st_request q = round_request(&r, &plan, b, g->n, g->me, LONG);

        q.sdma = next(&die->seed) % 4 ? lanes : NULL;
        CHECK_IS(st_collective(g, &q), ST_OK);
        round_check(&r, b, g->n);
        buffers_scribble(b, i);
        if (i % 50 == 0) {
            machine_leave(&s->machine[die->rank]);
            lanes = lanes_of(die, g);
        }
    }
    machine_leave(&s->machine[die->rank]);
    CHECK(s->machine[die->rank].e->count.failed == 0 && s->machine[die->rank].e->count.descriptors > s->rounds);
}

static void test_rounds(uint32_t n, uint64_t sleep_ns, uint64_t rounds)
{
    struct scene s;
    struct dies *d = scene_open(&s, n, sleep_ns);

    s.rounds = rounds;
    dies_run(d, play, &s);
    CHECK(((struct st_group_header *)(void *)s.memory)->sleepers == 0);
    scene_close(&s, d);
}

/* ---- failures ------------------------------------------------------------------------------ */

enum how { DIES, SLEEPS, POLLS, SPOILS, STRAYS, ENDS, HOWS };

static int poll_after(void *arg) { return --*(int *)arg <= 0; }

/* One member arrives, and does no more; or is late, interrupted, or without room, fabric memory, or its engine. */
static void trouble(struct die *die)
{
    struct scene *s = die->arg;
    struct buffers *b = &s->buffers[die->rank];
    struct st_request *q = &s->request[die->rank];
    struct handle h;
    struct st_group *g = handle_bind(&h, die->ctx, s->memory);
    struct hand_plan plan;
    struct round r = zero_copy(s->trial, g->n);
    int victim = s->victim == die->rank, left = 1 + (int)(s->trial % 3);

    g->va = (uint64_t)(uintptr_t)s->memory;
    g->policy.poll_ns = 100000;
    r.kind = s->kind;
    r.count = 100 + r.count % 1000; /* something for everybody */
    *q = round_request(&r, &plan, b, g->n, g->me, s->timeout_ns);
    q->sdma = lanes_of(die, g);
    if (victim && s->how == DIES) {
        q->number = ++g->number;
        st_request_publish(g, q, NULL);
        machine_leave(&s->machine[die->rank]);
        dies_end(die);
        return;
    }
    if (victim && s->how == POLLS) {
        g->policy.poll = poll_after;
        g->policy.arg = &left;
    } else if (s->how == POLLS && die->rank % 2) {
        struct timespec ts = {0, (long)(next(&die->seed) % 600000)};
        nanosleep(&ts, NULL);
    } else if (victim && s->how == SLEEPS) {
        struct timespec ts = {0, (long)(next(&die->seed) % 600000)};
        nanosleep(&ts, NULL);
    } else if (victim && s->how == SPOILS) {
        s->machine[die->rank].lanes.l.room = 1; /* no list fits */
    } else if (victim && s->how == STRAYS) {
        q->out = b->mail_out; /* no fabric memory */
    } else if (victim && s->how == ENDS) {
        st_engine_end(s->machine[die->rank].e);
    }
    s->status[die->rank] = st_collective(g, q);
    if (s->status[die->rank] == ST_OK)
        round_check(&r, b, g->n);
    buffers_scribble(b, die->rank);
    machine_leave(&s->machine[die->rank]);
    buffers_scribble(b, die->rank + 100);
}

/* Whether some kind of trouble has not yet made an operation fail: on a busy host some may come too late often. */
static int unseen(const uint64_t *failed)
{
    for (int i = 0; i < HOWS; i++)
        if (!failed[i])
            return 1;
    return 0;
}

static void test_failures(uint32_t n, int trials)
{
    static const int expected[HOWS] = {ST_EDEAD, ST_ETIMEOUT, ST_EBROKEN, ST_EFULL, ST_EREG, ST_ENOJOB};
    struct scene s;
    struct dies *d = scene_open(&s, n, 200000);
    uint64_t seed = dies_seed + n, ends[2][HOWS] = {{0}};

    for (int t = 0; t < trials || (unseen(ends[1]) && t < 50 * trials); t++) {
        dies_group(d, s.memory);
        memset(s.request, 0, sizeof s.request);
        s.how = t % HOWS;
        s.kind = s.how == SPOILS ? PUSH : s.how == STRAYS ? GATHER : GATHER + (enum kind)(next(&seed) % (KINDS - GATHER));
        s.trial = next(&seed) % 1000000;
        s.timeout_ns = s.how == SLEEPS ? 300000 : LONG;
        s.victim = (uint32_t)(next(&seed) % n);
        dies_run(d, trouble, &s);
        for (uint32_t j = 0; j < n; j++) {
            int own = j == s.victim;

            if (own && s.how == DIES)
                continue;
            ends[s.status[j] != ST_OK][s.how]++;
            if (s.status[j] == ST_OK)
                CHECK(s.how == SLEEPS || s.how == POLLS);
            else
                CHECK_IS(s.status[j], own && s.how == POLLS ? ST_EINTR : expected[s.how]);
            CHECK(s.request[j].nlate == 0);
        }
        if (s.how == ENDS) {
            st_engine_open(s.machine[s.victim].e, (struct st_sdma *)(void *)s.machine[s.victim].page);
            CHECK_IS(st_engine_start(s.machine[s.victim].e), ST_OK);
        }
    }
    CHECK(!unseen(ends[1]));
    scene_close(&s, d);
}

int main(int argc, char **argv)
{
    dies_setup("test_exec_sdma", argc, argv);
    for (uint32_t n = 2; n <= 4; n++) {
        test_rounds(n, 1000000, 120 / DIES_SLOW);
        test_rounds(n, 0, 120 / DIES_SLOW); /* sleeps at once */
        test_failures(n, 100);
    }
    printf("test_exec_sdma: ok\n");
    return 0;
}
