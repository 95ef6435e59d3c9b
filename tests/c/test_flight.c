/* The flight recorder: threads of a die that write at once, records in progress, and what an inspector makes of them.
 *
 *     gcc -std=gnu11 -D_GNU_SOURCE -O2 -pthread -Istrata/_core/include tests/c/test_flight.c && ./a.out [seed]
 */
#include "dies.h"
#include "st_inspect.h"

enum { THREADS = 4, TURNS = 40000 / DIES_SLOW };

struct writer {
    struct st_ctx *ctx;
    uint64_t id, missed;
    pthread_t thread;
};

/* Every word says whose the record is. */
static struct st_flight_record *write_one(struct st_ctx *ctx, uint64_t id, uint64_t turn)
{
    return st_flight_begin(ctx, ST_FLIGHT_COLLECTIVE, ST_FLIGHT_NOBODY, id, turn, id, turn, id);
}

static int whole(const struct st_flight_record *r)
{
    return r->group == r->desc && r->group == r->bytes && r->number == r->count;
}

static void *write_many(void *arg)
{
    struct writer *w = arg;

    for (uint64_t turn = 0; turn < TURNS; turn++) {
        struct st_flight_record *r = write_one(w->ctx, w->id, turn);

        w->missed += !r;
        st_flight_time(w->ctx, r);
        st_flight_phase(r, ST_PHASE_EXECUTION);
        CHECK(!r || (whole(r) && r->group == w->id && r->number == turn));
        st_flight_end(w->ctx, r, ST_OK, (int)(turn & 1));
    }
    return NULL;
}

/* Threads at once, with records in progress that nobody may write over, under the eyes of an inspector. */
static void test_threads(void)
{
    struct dies *d = dies_open(2, 4, 1000000);
    struct st_ctx *c = &d->ctx[1];
    struct st_flight_record *open[5];
    struct writer w[THREADS];
    struct st_inspect v;
    struct st_flight f;
    uint64_t k, looks = 0, seen = 0, still;

    CHECK_IS(st_inspect_open(&v, d->fd), ST_OK);
    for (k = 0; k < 5; k++) {
        open[k] = write_one(c, 1000 + k, k);
        CHECK(open[k]);
    }
    for (k = 0; k < THREADS; k++) {
        w[k] = (struct writer){.ctx = c, .id = k + 1};
        CHECK(pthread_create(&w[k].thread, NULL, write_many, &w[k]) == 0);
    }
    for (; looks < 50 || seen < 1000; looks++) {
        CHECK_IS(st_inspect_flight(&v, 1, &f), ST_OK);
        for (k = still = 0; k < ST_FLIGHT_RECORDS; k++) {
            struct st_flight_record *r = &f.records[k];

            if (!(r->state >> 16 & 0xff))
                continue;
            CHECK(whole(r) && (r->state >> 40) % ST_FLIGHT_RECORDS == k);
            seen++;
            still += r->group >= 1000 && ST_FLIGHT_STATUS(r->state) == ST_FLIGHT_OPEN;
        }
        CHECK(still == 5);
    }
    for (k = 0; k < THREADS; k++) {
        CHECK(pthread_join(w[k].thread, NULL) == 0);
        CHECK(w[k].missed == 0);
    }
    for (k = 0; k < 5; k++)
        CHECK(open[k]->group == 1000 + k && whole(open[k]));
    CHECK_IS(st_inspect_flight(&v, 1, &f), ST_OK);
    for (k = seen = 0; k < ST_FLIGHT_RECORDS; k++)
        seen += (f.records[k].state >> 40) / ST_FLIGHT_RECORDS + 1;
    CHECK(seen == THREADS * TURNS + 5); /* none lost, none counted twice */
    dies_close(d);
}

/* A recorder full of records in progress takes no more, and says so; after an end it does again. */
static void test_full(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0];
    struct st_flight_record *r[ST_FLIGHT_RECORDS];

    for (uint64_t k = 0; k < ST_FLIGHT_RECORDS; k++)
        CHECK((r[k] = write_one(c, 1, k)) != NULL);
    CHECK(write_one(c, 2, 0) == NULL && c->flight->lost == 1);
    st_flight_time(c, NULL);
    st_flight_phase(NULL, 1);
    st_flight_peer(NULL, 1);
    st_flight_count(NULL, 1);
    st_flight_end(c, NULL, ST_OK, 1);
    for (uint64_t k = 0; k < ST_FLIGHT_RECORDS; k++)
        st_flight_end(c, r[k], ST_OK, 1);
    r[0] = write_one(c, 2, 0);
    CHECK(r[0]);
    st_flight_open(c, 0); /* another process of that rank */
    CHECK(ST_FLIGHT_STATUS(r[0]->state) == ST_FLIGHT_LOST);
    dies_close(d);
}

static void test_words(void)
{
    struct dies *d = dies_open(1, 4, 1000000);
    struct st_ctx *c = &d->ctx[0], stranger;
    struct st_inspect v;
    struct st_flight f;
    struct st_flight_record *r = st_flight_begin(c, ST_FLIGHT_RECV | ST_FLIGHT_ASYNC, 7, 1, (uint64_t)-5, 2, 3, 4);
    uint64_t before = st_now_ns(), at, ticks;

    st_flight_time(c, r);
    st_flight_phase(r, 2);
    st_flight_peer(r, 1023);
    CHECK((r->state & 0xffffffffffull) == ST_FLIGHT_STATE(0, 1023, ST_FLIGHT_RECV | ST_FLIGHT_ASYNC, 2, ST_FLIGHT_OPEN));
    st_flight_end(c, r, ST_EDEAD, 1);
    CHECK(ST_FLIGHT_STATUS(r->state) == ST_EDEAD && (r->state >> 24 & 0xffff) == 1023);
    usleep(2000); /* the clock's rate is found by two moments that are apart */
    CHECK_IS(st_inspect_open(&v, d->fd), ST_OK);
    CHECK_IS(st_inspect_flight(&v, 0, &f), ST_OK);
    at = st_now_ns();
    ticks = st_flight_ticks(f.clock);
    CHECK(st_inspect_time(&f, r->begin, ticks, at) >= f.time_ns && st_inspect_time(&f, r->end, ticks, at) <= at);
    CHECK(st_inspect_time(&f, r->begin, ticks, at) + 1000000000 > before);
    CHECK(st_inspect_time(&f, ticks + 1, ticks, at) == 0 && st_inspect_time(&f, 0, ticks, at) == 0);
    f.ticks = UINT64_MAX;
    CHECK(f.clock == ST_CLOCK_MONOTONIC || st_inspect_time(&f, r->begin, ticks, at) == 0);
    CHECK_IS(st_inspect_flight(&v, 1, &f), ST_EINVAL);
    CHECK_IS(st_inspect_read(&v, v.h.object_bytes - 8, &at, 16), ST_ECORRUPT);
    CHECK_IS(st_inspect_read(&v, UINT64_MAX, &at, 8), ST_ECORRUPT);
    CHECK_IS(st_inspect_control(&v, v.h.control_bytes - 4, &at, 8), ST_ECORRUPT);
    CHECK_IS(st_inspect_va(&v, 1ull << 40, &at, 8), ST_EREG);
    memset(&stranger, 0, sizeof stranger);
    CHECK(st_flight_begin(&stranger, ST_FLIGHT_SEND, 0, 0, 0, 0, 0, 0) == NULL);
    dies_close(d);
}

/* Addresses lead to what stands there, over frames that lie apart, and nowhere else. */
static void test_addresses(void)
{
    struct dies *d = dies_open(2, 8, 1000000);
    uint8_t *p = dies_pages(&d->ctx[1], 2), got[64];
    struct st_inspect v;

    CHECK_IS(st_inspect_open(&v, d->fd), ST_OK);
    CHECK_IS(st_inspect_va(&v, (uint64_t)(uintptr_t)p, got, 1), ST_EREG); /* no window yet */
    st_inspect_window(&v, d->ctx[0].dies[0].window_mask & d->ctx[0].dies[1].window_mask);
    CHECK(v.base == DIES_WINDOW);
    for (uint32_t k = 0; k < 64; k++)
        p[ST_PAGE_BYTES - 32 + k] = (uint8_t)k;
    CHECK_IS(st_inspect_va(&v, (uint64_t)(uintptr_t)p + ST_PAGE_BYTES - 32, got, 64), ST_OK);
    for (uint32_t k = 0; k < 64; k++)
        CHECK(got[k] == k);
    CHECK_IS(st_inspect_va(&v, (uint64_t)(uintptr_t)p + 2 * ST_PAGE_BYTES - 32, got, 64), ST_EREG);
    CHECK_IS(st_inspect_va(&v, v.base + v.h.seg_bytes * 2, got, 1), ST_EREG);
    CHECK_IS(st_inspect_va(&v, v.base - 1, got, 1), ST_EREG);
    st_inspect_window(&v, 0);
    CHECK(v.base == 0);
    dies_close(d);
}

int main(int argc, char **argv)
{
    dies_setup("test_flight", argc, argv);
    test_words();
    test_full();
    test_addresses();
    test_threads();
    puts("passed");
    return 0;
}
