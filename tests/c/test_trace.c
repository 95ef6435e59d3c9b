/* Traces: threads that write at once under the eyes of a reader, slices that change hands, what is lost, and garbage.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_trace.c && ./a.out [seed]
 */
#include "dies.h"
#include "st_trace_read.h"

enum { EVENTS = ST_TRACE_EVENTS, THREADS = 6, TURNS = 100000 / DIES_SLOW };

static struct st_trace_event room[EVENTS];

static struct st_inspect view(struct dies *d)
{
    struct st_inspect v;

    CHECK_IS(st_inspect_open(&v, d->fd), ST_OK);
    return v;
}

/* Every word of an event says which it is. */
static void put(struct st_tracer *t, uint64_t id, uint64_t n)
{
    st_trace_put(t, ST_TRACE_WHAT(ST_TRACE_PROBE, id, n, n), id << 32 | n, id << 32 | (n + 1), id << 32 | (n + 2));
}

static uint64_t number_of(const struct st_trace_event *e, uint64_t id)
{
    uint64_t n = e->begin & UINT32_MAX;

    CHECK(e->begin >> 32 == id && e->end == e->begin + 1 && e->arg == e->begin + 2);
    CHECK(e->what == ST_TRACE_WHAT(ST_TRACE_PROBE, id, n, n));
    return n;
}

static struct st_trace_found slice(const struct st_inspect *v, uint32_t die, uint32_t k)
{
    struct st_trace_found f;

    CHECK_IS(st_trace_slice_read(v, die, k, room, &f), ST_OK);
    CHECK(f.first + f.count <= EVENTS);
    return f;
}

/* Pages of a die's trace that have memory: offset of the first, or UINT64_MAX. */
static uint64_t touched(struct dies *d, uint32_t die)
{
    const struct st_header *job = &d->ctx[0].job;
    off_t at = (off_t)(job->control_offset + st_trace_at(job, die)), data = lseek(d->fd, at, SEEK_DATA);

    return data >= 0 && data < at + (off_t)st_trace_bytes(job->trace_events) ? (uint64_t)(data - at) : UINT64_MAX;
}

/* ---- modes ---------------------------------------------------------------------- */

static void test_off(void)
{
    struct dies *d = dies_open(2, 4, 1000000);
    struct st_inspect v = view(d);
    struct st_trace trace;
    struct st_die die;

    CHECK(st_trace_on(&d->ctx[0]) == NULL);
    CHECK_IS(st_trace_read(&v, 0, &die, &trace), ST_AGAIN);
    CHECK_IS(st_trace_read(&v, 2, &die, &trace), ST_EINVAL);
    st_trace_clear(&d->ctx[0], 1);
    CHECK(touched(d, 0) == UINT64_MAX && touched(d, 1) == UINT64_MAX);
    st_trace_set_mode(&d->ctx[0], 1, ST_TRACE_RING); /* another die's */
    CHECK(st_trace_on(&d->ctx[0]) == NULL && st_trace_on(&d->ctx[1]) != NULL);
    CHECK(touched(d, 0) == UINT64_MAX && touched(d, 1) == 0);
    CHECK_IS(st_trace_read(&v, 1, &die, &trace), ST_OK);
    st_trace_set_mode(&d->ctx[0], 1, ST_TRACE_OFF);
    CHECK(st_trace_on(&d->ctx[1]) == NULL);
    dies_close(d);
}

static void test_ring(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace_found f;
    struct st_tracer *t;

    st_trace_set_mode(c, 0, ST_TRACE_RING);
    t = st_trace_on(c);
    CHECK(t && st_trace_on(c) == t && t->reserved == 0);
    for (uint64_t n = 0; n < EVENTS; n++)
        put(t, 1, n);
    f = slice(&v, 0, 0);
    CHECK(f.role == ST_TRACE_CALLER && f.tid == (uint32_t)syscall(SYS_gettid));
    CHECK(f.count == EVENTS - 1 && f.lost == 1); /* the next event may be on its way over the oldest */
    for (uint64_t n = EVENTS; n < 2 * EVENTS + 77; n++)
        put(t, 1, n);
    f = slice(&v, 0, 0);
    CHECK(f.count == EVENTS - 1 && f.lost == EVENTS + 78);
    for (uint64_t k = 0; k < f.count; k++)
        CHECK(number_of(&room[f.first + k], 1) == EVENTS + 78 + k);
    st_trace_clear(c, 0);
    f = slice(&v, 0, 0);
    CHECK(f.count == 0 && f.lost == 0 && f.role == ST_TRACE_CALLER);
    put(t, 1, 5);
    f = slice(&v, 0, 0);
    CHECK(f.count == 1 && f.lost == 0 && number_of(&room[f.first], 1) == 5);
    dies_close(d);
}

static void test_stop(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace_found f;
    struct st_tracer *t;

    st_trace_set_mode(c, 0, ST_TRACE_STOP);
    t = st_trace_on(c);
    for (uint64_t turn = 0; turn < 2; turn++) { /* again after a clear, in another place of the ring */
        for (uint64_t n = 0; n < EVENTS + 100; n++)
            put(t, 2, n);
        f = slice(&v, 0, 0);
        CHECK(f.count == EVENTS && f.lost == 100);
        for (uint64_t k = 0; k < f.count; k++)
            CHECK(number_of(&room[f.first + k], 2) == k);
        st_trace_clear(c, 0);
        put(t, 2, 0);
        f = slice(&v, 0, 0);
        CHECK(f.count == 1 && f.lost == 0);
        st_trace_clear(c, 0);
    }
    st_trace_set_mode(c, 0, ST_TRACE_RING); /* goes on as a ring, and back */
    CHECK(st_trace_on(c) == t);
    for (uint64_t n = 0; n < 3 * EVENTS; n++)
        put(t, 2, n);
    st_trace_set_mode(c, 0, ST_TRACE_STOP);
    CHECK(st_trace_on(c) == t);
    put(t, 2, 0);
    f = slice(&v, 0, 0);
    CHECK(f.count >= EVENTS - 1 && f.count + f.lost == 3 * EVENTS + 1);
    CHECK(number_of(&room[f.first + f.count - 1], 2) == 3 * EVENTS - 1);
    dies_close(d);
}

/* No memory: events are lost, and counted; when the mode is set again it is tried again. */
static void test_no_memory(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace_found f;
    struct st_tracer *t;

    c->fd = -1;
    st_trace_set_mode(c, 0, ST_TRACE_RING);
    errno = 5;
    CHECK(!st_trace_on(c) && !st_trace_on(c) && c->dies[0].trace_lost == 2 && errno == 5);
    CHECK(st_trace_name(c, "x", 1) == 0);
    c->fd = d->fd;
    CHECK(!st_trace_on(c));
    st_trace_set_mode(c, 0, ST_TRACE_RING);
    t = st_trace_on(c);
    CHECK(t != NULL);
    put(t, 3, 0);
    t->fd = -1;
    for (uint64_t n = 1; n < ST_TRACE_STEP + 10; n++)
        put(t, 3, n);
    f = slice(&v, 0, 0);
    CHECK(f.count == ST_TRACE_STEP && f.lost == 10);
    t->fd = d->fd;
    st_trace_set_mode(c, 0, ST_TRACE_STOP);
    CHECK(st_trace_on(c) == t);
    put(t, 3, ST_TRACE_STEP);
    f = slice(&v, 0, 0);
    CHECK(f.count == ST_TRACE_STEP + 1 && f.lost == 10);
    dies_close(d);
}

/* ---- threads ----------------------------------------------------------------------- */

struct writer {
    struct st_ctx *ctx;
    uint64_t id, turns;
    uint32_t role, index;
    uint64_t lost;
    pthread_barrier_t *together;
    pthread_t thread;
};

static void *write_many(void *arg)
{
    struct writer *w = arg;
    struct st_tracer *t;

    for (uint64_t n = 0; n < w->turns; n++) {
        t = w->role ? st_trace_as(w->ctx, w->role, w->index) : st_trace_on(w->ctx);
        w->lost += !t;
        if (t)
            put(t, w->id, n);
    }
    if (w->together)
        pthread_barrier_wait(w->together);
    return NULL;
}

static void begin(struct writer *w) { CHECK(pthread_create(&w->thread, NULL, write_many, w) == 0); }

static void end(struct writer *w) { CHECK(pthread_join(w->thread, NULL) == 0); }

/* A reader sees whole events, in order and without gaps, whatever is being written meanwhile; what it does not see it
 * counts. */
static void test_threads(void)
{
    struct dies *d = dies_open(2, 4, 1000000);
    struct st_inspect v = view(d);
    struct writer w[THREADS];
    struct st_trace_found f;
    uint64_t looks, seen = 0, whole = 0;
    uint32_t k;

    st_trace_set_mode(&d->ctx[0], 1, ST_TRACE_RING);
    for (k = 0; k < THREADS; k++) {
        w[k] = (struct writer){.ctx = &d->ctx[1], .id = k + 1, .turns = TURNS, .role = ST_TRACE_CORE, .index = k};
        begin(&w[k]);
    }
    for (looks = 0; looks < 60 || seen < 1000; looks++) {
        f = slice(&v, 1, (uint32_t)(looks % THREADS));
        if (f.role == ST_TRACE_NO_ROLE || !f.count)
            continue;
        CHECK(f.role == ST_TRACE_CORE && f.index < THREADS);
        for (uint64_t i = 0; i < f.count; i++)
            CHECK(number_of(&room[f.first + i], f.index + 1) == f.lost + i);
        seen += f.count;
    }
    for (k = 0; k < THREADS; k++) {
        end(&w[k]);
        CHECK(w[k].lost == 0);
    }
    for (k = 0; k < THREADS; k++) {
        f = slice(&v, 1, k);
        CHECK(f.count + f.lost == TURNS && f.count >= (TURNS < EVENTS ? TURNS : EVENTS - 1));
        whole += f.count;
    }
    CHECK(whole > 0 && d->ctx[1].dies[1].trace_lost == 0);
    dies_close(d);
}

/* More threads than slices: those that find none count what they lose; when one ends its slice is another's. */
static void test_too_many(void)
{
    enum { MANY = ST_TRACE_SLICES + 4, EACH = 100 };
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct writer w[MANY];
    struct st_trace_found f;
    pthread_barrier_t together;
    uint64_t lost = 0, found = 0;
    uint32_t k;

    CHECK(pthread_barrier_init(&together, NULL, MANY) == 0);
    st_trace_set_mode(c, 0, ST_TRACE_RING);
    for (k = 0; k < MANY; k++) {
        w[k] = (struct writer){.ctx = c, .id = k + 1, .turns = EACH, .together = &together};
        begin(&w[k]);
    }
    for (k = 0; k < MANY; k++) {
        end(&w[k]);
        lost += w[k].lost;
    }
    for (k = 0; k < ST_TRACE_SLICES; k++)
        found += slice(&v, 0, k).count;
    CHECK(lost >= 4 * EACH - MANY * ST_TRACE_SLICES && found + lost == MANY * EACH && c->dies[0].trace_lost == lost);
    st_trace_clear(c, 0);
    for (k = 0; k < 40; k++) { /* one after another: a slice of its kind goes on */
        w[0] = (struct writer){.ctx = c, .id = 7, .turns = 10, .role = ST_TRACE_WORKER};
        begin(&w[0]);
        end(&w[0]);
        CHECK(w[0].lost == 0);
    }
    for (k = 0, found = 0; k < ST_TRACE_SLICES; k++) {
        f = slice(&v, 0, k);
        found += f.role == ST_TRACE_WORKER;
        CHECK(f.role != ST_TRACE_WORKER || (f.count == 400 && f.lost == 0));
    }
    CHECK(found == 1 && c->dies[0].trace_lost == 0);
    pthread_barrier_destroy(&together);
    dies_close(d);
}

/* A thread of another kind has the slice: what was there is lost, and counted. */
static void test_hands(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace_found f;
    struct writer w;
    uint32_t k;

    st_trace_set_mode(c, 0, ST_TRACE_RING);
    for (k = 0; k < ST_TRACE_SLICES; k++) {
        w = (struct writer){.ctx = c, .id = k, .turns = 50, .role = ST_TRACE_CORE, .index = k};
        begin(&w);
        end(&w);
    }
    w = (struct writer){.ctx = c, .id = 99, .turns = 3, .role = ST_TRACE_ENGINE};
    begin(&w);
    end(&w);
    f = slice(&v, 0, 0);
    CHECK(f.role == ST_TRACE_ENGINE && f.count == 3 && f.lost == 50 && number_of(&room[f.first], 99) == 0);
    CHECK(slice(&v, 0, 1).count == 50);
    dies_close(d);
}

/* Another process of that rank: what was written before stays while there is room, and names go on. */
static void test_successor(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace trace;
    struct st_die die;
    struct st_trace_found f;
    uint8_t names[ST_TRACE_NAMES];
    uint32_t used;

    st_trace_set_mode(c, 0, ST_TRACE_RING);
    put(st_trace_on(c), 1, 8);
    CHECK(st_trace_name(c, "first", 5) == 1);
    st_trace_join(c, 0);
    put(st_trace_on(c), 2, 9);
    CHECK(st_trace_name(c, "second", 6) == 2);
    f = slice(&v, 0, 0);
    CHECK(f.count == 1 && number_of(&room[f.first], 1) == 8);
    f = slice(&v, 0, 1);
    CHECK(f.count == 1 && number_of(&room[f.first], 2) == 9);
    CHECK_IS(st_trace_read(&v, 0, &die, &trace), ST_OK);
    CHECK_IS(st_trace_names_read(&v, 0, &trace, names, &used), ST_OK);
    CHECK(used == 15 && memcmp(names, "\5\0first\6\0second", 15) == 0);
    for (uint32_t k = 0; k < ST_TRACE_SLICES; k++) { /* its slices run out: the oldest goes, even a lapped one */
        c->traces.area->slices[k].role = ST_TRACE_CORE;
        c->traces.area->slices[k].head = 5 * EVENTS + 3;
    }
    st_trace_join(c, 0);
    put(st_trace_on(c), 3, 1);
    f = slice(&v, 0, 0);
    CHECK(f.count == 1 && f.role == ST_TRACE_CALLER && number_of(&room[f.first], 3) == 1);
    dies_close(d);
}

static void test_names(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace trace;
    struct st_die die;
    static uint8_t names[ST_TRACE_NAMES];
    char text[ST_TRACE_NAME_MOST + 1] = {0};
    uint32_t used, made = 0, id;

    while ((id = st_trace_name(c, text, ST_TRACE_NAME_MOST)) != 0)
        CHECK(id == ++made);
    CHECK(made == ST_TRACE_NAMES / (ST_TRACE_NAME_MOST + 2));
    CHECK(st_trace_name(c, text, ST_TRACE_NAME_MOST + 1) == 0);
    CHECK(st_trace_name(c, "", 0) == made + 1);
    CHECK_IS(st_trace_read(&v, 0, &die, &trace), ST_OK);
    CHECK(trace.names == made + 1 && trace.names_lost == 1);
    CHECK_IS(st_trace_names_read(&v, 0, &trace, names, &used), ST_OK);
    CHECK(used == made * (ST_TRACE_NAME_MOST + 2) + 2);
    dies_close(d);
}

/* ---- clocks -------------------------------------------------------------------------- */

struct turn {
    struct st_ctx *ctx;
    uint64_t *mine, *other;
    struct st_tracer *t;
};

/* Raises a flag, then waits for the other's. */
static void *take_turns(void *arg)
{
    struct turn *turn = arg;

    turn->t = st_trace_on(turn->ctx);
    CHECK(turn->t);
    for (uint64_t n = 1; n <= 2000; n++) {
        st_trace_mark(turn->t);
        st_store_seqcst_64(turn->mine, n); /* pairs with the load below */
        st_trace_span(turn->t, ST_TRACE_WHAT(ST_TRACE_FLAG_SET, 0, 0, 0), n);
        while (st_load_acquire_64(turn->other) < n) /* pairs with the store above */
            sched_yield();
        st_trace_span(turn->t, ST_TRACE_WHAT(ST_TRACE_FLAG_WAIT, 0, 0, 0), n);
    }
    return NULL;
}

/* By the dies' clocks no flag is seen before it was raised, to within a microsecond. */
static void test_clocks(void)
{
    struct dies *d = dies_open(2, 4, 1000000);
    struct st_inspect v = view(d);
    static struct st_trace_event events[2][EVENTS];
    uint64_t flags[16] = {0}, ticks, ns;
    struct st_trace_found f;
    struct turn turn[2];
    pthread_t threads[2];
    double rate, least = 0;
    uint32_t k;

    for (k = 0; k < 2; k++) {
        st_trace_set_mode(&d->ctx[k], k, ST_TRACE_STOP);
        turn[k] = (struct turn){.ctx = &d->ctx[k], .mine = &flags[8 * k], .other = &flags[8 - 8 * k]};
    }
    for (k = 0; k < 2; k++)
        CHECK(pthread_create(&threads[k], NULL, take_turns, &turn[k]) == 0);
    for (k = 0; k < 2; k++) {
        CHECK(pthread_join(threads[k], NULL) == 0);
        CHECK_IS(st_trace_slice_read(&v, k, 0, events[k], &f), ST_OK);
        CHECK(f.first == 0 && f.count == 4000 && f.lost == 0);
    }
    usleep(1000); /* the rate is found by two moments that are apart */
    st_flight_moment(st_flight_clock(), &ticks, &ns);
    rate = st_trace_rate(&v, st_flight_clock(), ticks, ns);
    CHECK(rate > 0);
    for (uint64_t n = 0; n < 2000; n++)
        for (k = 0; k < 2; k++) {
            const struct st_trace_event *set = &events[k][2 * n], *wait = &events[1 - k][2 * n + 1];
            double after = ((double)wait->end - (double)set->begin) * rate;

            CHECK(set->arg == n + 1 && wait->arg == n + 1 && wait->begin <= wait->end);
            least = after < least ? after : least;
        }
    printf("a flag is seen %.0f ns before it was raised, at most\n", -least);
    CHECK(least > -1000);
    dies_close(d);
}

/* ---- garbage ------------------------------------------------------------------------- */

/* Whatever stands there is read within its bounds, and a die that goes on writes within its own. */
static void test_garbage(void)
{
    struct dies *d = dies_open(2, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_inspect v = view(d);
    struct st_trace_found f;
    struct st_trace trace;
    struct st_die die;
    static uint8_t names[ST_TRACE_NAMES];
    uint64_t seed = dies_seed, *words;
    uint32_t used;

    st_trace_set_mode(c, 0, ST_TRACE_RING);
    put(st_trace_on(c), 1, 1);
    words = (uint64_t *)(void *)c->traces.area;
    for (uint32_t turn = 0; turn < 3000 / DIES_SLOW; turn++) {
        for (uint32_t k = 0; k < 1 + next(&seed) % 8; k++) {
            uint64_t value = next(&seed) % 3 ? next(&seed) >> (next(&seed) & 63) : (1ull << (next(&seed) & 63)) - next(&seed) % 2;

            words[next(&seed) % (next(&seed) % 2 ? sizeof trace / 8 : (4096 + 64) / 8)] = value;
        }
        if (!st_trace_read(&v, 0, &die, &trace)) {
            CHECK_IS(st_trace_names_read(&v, 0, &trace, names, &used), ST_OK);
            CHECK(used <= ST_TRACE_NAMES);
        }
        for (uint32_t k = 0; k < ST_TRACE_SLICES; k++) {
            f = slice(&v, 0, k);
            CHECK(f.role < ST_TRACE_ROLES);
        }
        if (turn % 16 == 0)
            st_trace_join(c, 0);
        put(st_trace_on(c), 1, turn);
        CHECK(c->traces.tracers[0].slice == &c->traces.area->slices[0]);
        (void)st_trace_name(c, "abc", 3);
        CHECK(c->traces.names_used <= ST_TRACE_NAMES);
    }
    CHECK(touched(d, 1) == UINT64_MAX);
    dies_close(d);
}

int main(int argc, char **argv)
{
    dies_setup("trace", argc, argv);
    test_off();
    test_ring();
    test_stop();
    test_no_memory();
    test_threads();
    test_too_many();
    test_hands();
    test_successor();
    test_names();
    test_clocks();
    test_garbage();
    return 0;
}
