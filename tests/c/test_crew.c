/* A crew that is ended while operations begin, and the caller's interruption beside its threads.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_crew.c && ./a.out [seed]
 */
#include "handles.h"
#include "st_crew.h"

enum { CORES = 4, OPERATIONS = 50 };

struct scene {
    struct handle handle;
    struct st_crew crew;
    struct st_plan plan;
    struct st_unit units[CORES];
    uint32_t begin[CORES + 1];
    uint64_t next[CORES], bytes[2 * ST_NBUFS];
    uint64_t done; /* operations */
};

/* One sync unit a core; flag >= 0: of die 1, which never raises it. */
static struct st_group *scene_open(struct scene *s, struct dies *d, uint8_t *memory, int32_t flag)
{
    struct st_group *g;

    dies_group(d, memory);
    memset(s, 0, sizeof *s);
    g = handle_bind(&s->handle, &d->ctx[0], memory);
    CHECK_IS(st_crew_init(&s->crew), ST_OK);
    d->ctx[0].crew = &s->crew;
    d->ctx[0].workers = CORES;
    for (uint32_t i = 0; i < CORES; i++) {
        s->begin[i + 1] = i + 1;
        s->units[i] = (struct st_unit){.kind = ST_UNIT_SYNC, .wait_peer = 1, .wait_flag = flag, .post_flag = -1};
    }
    s->plan = (struct st_plan){.units = s->units, .nunits = CORES, .core_begin = s->begin, .cores = CORES,
                               .buffer_bytes = s->bytes, .next = s->next, .needs_done = 1};
    CHECK_IS(st_plan_check(&s->plan, d->n), ST_OK);
    return g;
}

static int execute(struct scene *s, uint64_t number)
{
    struct st_group *g = &s->handle.g;
    void *at[2];
    int rc;

    st_wait_begin(&g->waiter, &g->policy, &g->header->wake_word, &g->header->sleepers, 0);
    rc = st_exec(g, &s->plan, number, at, 0);
    st_wait_end(&g->waiter);
    return rc;
}

/* ---- the end --------------------------------------------------------------------- */

static void *operate(void *arg)
{
    struct scene *s = arg;

    for (uint64_t i = 1; i <= OPERATIONS; i++) {
        CHECK_IS(execute(s, i), ST_OK);
        st_add_acq_rel_64(&s->done, 1); /* pairs with the load in test_end */
    }
    return NULL;
}

/* Every operation comes to its end, with the crew's threads or without. */
static void test_end(struct dies *d, uint8_t *memory, int trials)
{
    for (int t = 0; t < trials; t++) {
        struct scene s;
        pthread_t caller;

        scene_open(&s, d, memory, -1);
        CHECK(pthread_create(&caller, NULL, operate, &s) == 0);
        while (st_load_acquire_64(&s.done) < (uint64_t)t % OPERATIONS)
            sched_yield();
        st_crew_end(&s.crew);
        CHECK(pthread_join(caller, NULL) == 0); /* the alarm of dies_setup, if it hangs */
        CHECK(s.done == OPERATIONS && s.crew.working == 0);
    }
}

/* ---- an interruption ---------------------------------------------------------------- */

static int poll_now(void *arg) { return --*(int *)arg <= 0; }

/* Holds the caller up when it has declared the failure: its threads hear of it first. */
static void late(const char *function)
{
    struct timespec ts = {0, 5000000};

    if (strcmp(function, "st_crew_give_up") == 0)
        nanosleep(&ts, NULL);
}

/* The caller has an exception to raise: its status counts, not its threads'. */
static void test_interrupt(struct dies *d, uint8_t *memory, int trials)
{
    for (int t = 0; t < trials; t++) {
        struct scene s;
        int polls = 3;
        struct st_group *g = scene_open(&s, d, memory, 0);

        g->policy.poll = poll_now;
        g->policy.arg = &polls;
        dies_hook = late;
        CHECK_IS(execute(&s, 1), ST_EINTR);
        dies_hook = NULL;
        CHECK_IS(st_group_failed(g), ST_EBROKEN);
        st_crew_end(&s.crew);
    }
}

int main(int argc, char **argv)
{
    struct dies *d;
    uint8_t *memory;

    dies_setup("test_crew", argc, argv);
    d = dies_open(2, 4, 1000000);
    d->ctx[0].wait.poll_ns = 100000;
    memory = dies_group(d, NULL);
    test_interrupt(d, memory, 20);
    test_end(d, memory, 400 / DIES_SLOW);
    dies_close(d);
    printf("test_crew: ok\n");
    return 0;
}
