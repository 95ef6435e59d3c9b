/* How a heap gets its pages: cached runs that are extended, a limit, a pool.
 *
 *     gcc -std=gnu11 -O1 -g -pthread -Istrata/_core/include tests/c/test_heap_pages.c && ./a.out [seed]
 */
#include <time.h>

#include "heaps.h"
#include "st_atomic.h"

/* A request that no cached run satisfies maps what is missing behind one, or before it. */
static void test_extend(void)
{
    struct bed *b = bed_open(64, 64, 64 * PAGE);
    uint64_t one = take(b, 4 * PAGE), two, three, four, unmaps;
    int fresh;

    memset((void *)(uintptr_t)one, 7, 4 * PAGE);
    CHECK(st_heap_free(b->heap, one) == ST_OK);
    CHECK(st_heap_take(b->heap, 6 * PAGE, &two, &fresh) == ST_AGAIN);
    CHECK(st_heap_grow(b->heap, 6 * PAGE, &two, &fresh) == ST_OK && two == one && !fresh);
    CHECK(b->fake.mapped == 6 && b->fake.extended == 2 && stats(b).maps == 2);
    CHECK(stats(b).remaps == 1 && stats(b).remapped_pages == 2 && stats(b).segments.now[ALL] == 1);
    CHECK(*(uint8_t *)(uintptr_t)two == 7); /* the old pages are where they were */
    SOUND(b->heap);
    three = take(b, PAGE);
    CHECK(three == two + 6 * PAGE && st_heap_free(b->heap, two) == ST_OK);
    CHECK(take(b, 4 * PAGE) == one); /* so that only pages 4 and 5 are cached, and 6 is not free */
    CHECK(st_heap_free(b->heap, one) == ST_OK && st_heap_trim(b->heap, PAGE) == ST_OK);
    CHECK(b->fake.mapped == 2 && stats(b).segments.now[ALL] == 2); /* page 0 cached, 6 live */
    four = take(b, 3 * PAGE);
    CHECK(four == one && stats(b).remaps == 2 && b->fake.extended == 4);
    CHECK(st_heap_free(b->heap, four) == ST_OK && st_heap_trim(b->heap, 0) == ST_OK);
    b->fake.cursor = 4; /* pages 4 and 5 now, page 6 is live: only the front is free */
    four = take(b, 2 * PAGE);
    CHECK(four == one + 4 * PAGE && st_heap_free(b->heap, four) == ST_OK);
    CHECK(take(b, 5 * PAGE) == one + PAGE && stats(b).remaps == 3 && b->fake.extended == 7);
    SOUND(b->heap);
    unmaps = stats(b).unmaps;
    CHECK(st_heap_free(b->heap, one + PAGE) == ST_OK && st_heap_trim(b->heap, 0) == ST_OK);
    CHECK(stats(b).unmaps == unmaps + 2 && stats(b).unmap_errors == 0 && b->fake.mapped == 1);
    bed_close(b);
}

/* Who wants zeros gets them, and only the old pages are written for that. */
static void test_extend_zeroed(void)
{
    struct bed *b = bed_open(64, 64, 64 * PAGE);
    uint64_t one = take(b, 4 * PAGE), two;
    unsigned char seen[8];
    int fresh = 0;

    memset((void *)(uintptr_t)one, 7, 4 * PAGE);
    CHECK(st_heap_free(b->heap, one) == ST_OK && st_heap_trim(b->heap, 3 * PAGE) == ST_OK);
    b->fake.cursor = 0;
    CHECK(st_heap_grow_as(b->heap, 8 * PAGE, ST_HEAP_STAGING | ST_HEAP_ZEROED, &two, &fresh) == ST_OK);
    CHECK(two == one && fresh && stats(b).remaps == 1);
    CHECK(b->heap->nodes[b->heap->pages[0]].tag == ST_HEAP_STAGING);
    for (uint64_t k = 0; k < 3 * PAGE; k += 8)
        CHECK(*(uint64_t *)(uintptr_t)(two + k) == 0);
    for (uint64_t k = 3; k < 8; k++) { /* never touched: not even there */
        CHECK(mincore((void *)(uintptr_t)(two + k * PAGE), 4096, seen) == 0 && !(seen[0] & 1));
    }
    SOUND(b->heap);
    bed_close(b);
}

/* Where neither side has room, or the provider cannot, a run of its own is mapped. */
static void test_extend_not(void)
{
    struct bed *b = bed_open(64, 64, 64 * PAGE);
    uint64_t va[6], x;

    for (int i = 0; i < 6; i++)
        va[i] = take(b, 2 * PAGE);
    CHECK(st_heap_free(b->heap, va[1]) == ST_OK && st_heap_free(b->heap, va[3]) == ST_OK);
    x = take(b, 3 * PAGE); /* live on both sides: the provider is not even asked */
    CHECK(x == va[5] + 2 * PAGE && stats(b).remaps == 0 && b->fake.calls == 7);
    CHECK(st_heap_free(b->heap, va[4]) == ST_OK && st_heap_trim(b->heap, 2 * PAGE) == ST_OK);
    CHECK(stats(b).cached_bytes == 2 * PAGE && b->fake.mapped == 11); /* pages 6 and 7 */
    CHECK(take(b, 5 * PAGE) == x + 3 * PAGE); /* asked for 8 to 10, of which 10 is live */
    CHECK(stats(b).remaps == 0 && b->fake.extended == 0);
    CHECK(take(b, 4 * PAGE) == va[3] && stats(b).remaps == 1 && b->fake.extended == 2);
    SOUND(b->heap);
    b->heap->cfg.extend = NULL;
    CHECK(st_heap_free(b->heap, x) == ST_OK && st_heap_trim(b->heap, PAGE) == ST_OK);
    CHECK(take(b, 2 * PAGE) != x && stats(b).remaps == 1);
    bed_close(b);
    b = bed_open(8, 8, 8 * PAGE); /* the segment's own ends */
    x = take(b, 8 * PAGE);
    CHECK(st_heap_free(b->heap, x) == ST_OK && st_heap_trim(b->heap, 3 * PAGE) == ST_OK);
    b->fake.cursor = 3;
    CHECK(take(b, 3 * PAGE) == x);
    CHECK(take(b, 5 * PAGE) == x + 3 * PAGE);
    bed_close(b);
}

/* The largest runs are looked at first, and not more than a few of them. */
static void test_extend_largest(void)
{
    struct bed *b = bed_open(256, 256, 256 * PAGE);
    uint64_t va[40], x;

    for (int i = 0; i < 40; i++)
        va[i] = take(b, (i % 2 ? 1 : 1 + i / 10) * PAGE);
    for (int i = 0; i < 40; i += 2)
        CHECK(st_heap_free(b->heap, va[i]) == ST_OK);
    b->fake.calls = 0;
    x = take(b, 9 * PAGE); /* all have live neighbours */
    CHECK(b->fake.calls == 1 && stats(b).remaps == 0);
    CHECK(st_heap_free(b->heap, va[39]) == ST_OK); /* joins the one of 4 pages before it; x follows */
    CHECK(take(b, 5 * PAGE) == va[38] && st_heap_free(b->heap, x) == ST_OK);
    CHECK(take(b, 30 * PAGE) == x && stats(b).remaps == 1 && b->fake.extended == 21);
    SOUND(b->heap);
    bed_close(b);
}

/* What other threads do during the provider's call: the call does it itself, since
 * `mu` is free then, so that all of it happens in the middle. */
struct meddler {
    struct bed *bed;
    uint64_t give, took, want;
    int result;
};

static int meddle(void *arg, uint64_t va, uint64_t n)
{
    struct meddler *m = arg;
    int fresh, rc = m->result == ST_OK ? st_fake_extend(&m->bed->fake, va, n) : m->result;

    SOUND(m->bed->heap);
    if (m->give)
        CHECK(st_heap_put(m->bed->heap, m->give) == ST_OK);
    m->give = 0;
    m->took = st_heap_take(m->bed->heap, m->want, &va, &fresh) == ST_OK ? va : m->took;
    SOUND(m->bed->heap);
    return rc;
}

static int meddled_map(void *arg, uint64_t n, uint64_t *va)
{
    return st_fake_map(&((struct meddler *)arg)->bed->fake, n, va);
}

static int meddled_unmap(void *arg, uint64_t va, uint64_t n)
{
    return st_fake_unmap(&((struct meddler *)arg)->bed->fake, va, n);
}

static void test_extend_meddled(int result)
{
    struct bed *b = bed_open(64, 64, 64 * PAGE);
    struct meddler m = {.bed = b, .result = result, .want = 3 * PAGE};
    uint64_t left = take(b, 2 * PAGE), run = take(b, 3 * PAGE), x;
    int fresh, rc;

    b->heap->cfg.map = meddled_map;
    b->heap->cfg.extend = meddle;
    b->heap->cfg.unmap = meddled_unmap;
    b->heap->cfg.arg = &m;
    m.give = left;
    CHECK(st_heap_free(b->heap, run) == ST_OK);
    rc = st_heap_grow(b->heap, 5 * PAGE, &x, &fresh);
    CHECK(m.took == 0); /* neither the held run, nor what was freed beside it */
    SOUND(b->heap);
    if (result == ST_OK) {
        CHECK(rc == ST_OK && x == run && stats(b).cached_bytes == 2 * PAGE);
    } else if (result == ST_ESYS) {
        CHECK(rc == ST_ESYS && stats(b).cached_bytes == 5 * PAGE && take(b, 5 * PAGE) == left);
    } else if (result == ST_EINVAL) { /* they are one run after that, and it is long enough */
        CHECK(rc == ST_OK && b->fake.mapped == 10 && stats(b).cached_bytes == 5 * PAGE);
    } else { /* no room there, also with nothing cached but the run: so another, elsewhere */
        CHECK(rc == ST_OK && b->fake.mapped == 8 && stats(b).cached_bytes == 3 * PAGE);
    }
    CHECK(st_heap_free(b->heap, rc == ST_OK ? x : left) == ST_OK);
    CHECK(st_heap_trim(b->heap, 0) == ST_OK && b->fake.mapped == 0);
    bed_close(b);
}

/* No more of the cache goes than is wanted, the oldest first; all of it only if that does not help. */
static void test_short_of_room(void)
{
    struct bed *b = bed_open(256, 16, 16 * PAGE);
    uint64_t va[8], x;

    for (int i = 0; i < 8; i++)
        va[i] = take(b, 2 * PAGE);
    for (int i = 0; i < 8; i += 2)
        CHECK(st_heap_free(b->heap, va[i]) == ST_OK);
    b->heap->cfg.extend = NULL;
    x = take(b, 3 * PAGE);
    CHECK(x == va[7] + 2 * PAGE && stats(b).cached_bytes == 5 * PAGE && stats(b).flushes == 1);
    CHECK(take(b, 2 * PAGE) == va[6] && take(b, 2 * PAGE) == va[4]); /* the oldest are gone */
    CHECK(st_heap_free(b->heap, va[4]) == ST_OK && st_heap_free(b->heap, va[6]) == ST_OK);
    b->fake.share = 14; /* another process takes room: what is wanted does not do, all does */
    CHECK(take(b, 3 * PAGE) && stats(b).cached_bytes == 0 && b->fake.mapped == 14);
    CHECK(stats(b).flushes == 2 && st_heap_alloc(b->heap, 1, &x) == ST_ENOMEM);
    CHECK(stats(b).flushes == 2); /* there was nothing to give back */
    bed_close(b);
}

static void test_limit_bytes(void)
{
    struct bed *b = bed_open(64, 64, 64 * PAGE);
    uint64_t a = take(b, 4 * PAGE), c = take(b, 4 * PAGE), x, calls;

    CHECK(st_heap_set_limit(b->heap, 9 * PAGE) == ST_OK && st_heap_free(b->heap, a) == ST_OK);
    calls = b->fake.calls;
    CHECK(st_heap_alloc(b->heap, 6 * PAGE, &x) == ST_ENOMEM); /* not even without a cache */
    CHECK(b->fake.calls == calls && stats(b).cached_bytes == 4 * PAGE && stats(b).flushes == 0);
    CHECK(stats(b).refusals == 1);
    CHECK(st_heap_alloc(b->heap, 5 * PAGE, &x) == ST_OK && x == c + 4 * PAGE); /* exactly to the limit */
    CHECK(b->fake.mapped == 9 && stats(b).flushes == 1);
    CHECK(st_heap_alloc(b->heap, 1, &a) == ST_ENOMEM);
    CHECK(st_heap_set_limit(b->heap, 2 * PAGE) == ST_OK && b->fake.mapped == 9); /* in use stays */
    CHECK(st_heap_free(b->heap, x) == ST_OK && stats(b).cached_bytes == 5 * PAGE);
    CHECK(st_heap_alloc(b->heap, 5 * PAGE, &x) == ST_OK); /* what is mapped may be used */
    CHECK(st_heap_free(b->heap, x) == ST_OK && st_heap_set_limit(b->heap, 5 * PAGE + 1) == ST_OK);
    CHECK(b->fake.mapped == 5 && stats(b).cached_bytes == PAGE); /* no more than it must */
    CHECK(st_heap_set_limit(b->heap, 0) == ST_OK && b->fake.mapped == 4);
    CHECK(st_heap_free(b->heap, c) == ST_OK);
    CHECK(st_heap_set_limit(b->heap, 0) == ST_OK && b->fake.mapped == 0);
    CHECK(st_heap_alloc(b->heap, 1, &x) == ST_ENOMEM);
    CHECK(st_heap_set_limit(b->heap, UINT64_MAX) == ST_OK && take(b, 64 * PAGE));
    bed_close(b);
}

static void test_pool(void)
{
    struct bed *b = bed_open(64, 32, 2 * PAGE);
    uint64_t a, c, d, x, calls;
    int fresh;

    CHECK(st_heap_fill_pool(b->heap, 0) == ST_EINVAL && st_heap_fill_pool(b->heap, 33) == ST_EINVAL);
    b->fake.fail_at = 1;
    b->fake.failure = ST_ENOMEM;
    CHECK(st_heap_fill_pool(b->heap, 8) == ST_ENOMEM && b->heap->pool_pages == 0);
    CHECK(st_heap_fill_pool(b->heap, 8) == ST_OK && st_heap_fill_pool(b->heap, 8) == ST_EINVAL);
    calls = b->fake.calls;
    SOUND(b->heap);
    CHECK(b->fake.mapped == 8 && stats(b).largest_free == 8 * PAGE && stats(b).maps == 1);
    CHECK(st_heap_take(b->heap, 3 * PAGE, &a, &fresh) == ST_OK && fresh);
    CHECK(st_heap_take(b->heap, 100, &c, &fresh) == ST_OK && fresh && c == a + 3 * PAGE);
    CHECK(st_heap_take(b->heap, 4 * PAGE, &d, &fresh) == ST_OK && fresh && d == c + PAGE);
    CHECK(st_heap_alloc(b->heap, PAGE, &x) == ST_ENOMEM);
    CHECK(st_heap_put(b->heap, a) == ST_OK && st_heap_put(b->heap, d) == ST_OK); /* above cache_bytes */
    CHECK(st_heap_alloc(b->heap, 5 * PAGE, &x) == ST_ENOMEM && stats(b).refusals == 2);
    CHECK(st_heap_trim(b->heap, 0) == ST_OK && st_heap_settle(b->heap) == ST_OK);
    CHECK(stats(b).cached_bytes == 7 * PAGE && stats(b).segments.now[ALL] == 3);
    CHECK(st_heap_take(b->heap, 3 * PAGE, &x, &fresh) == ST_OK && x == a && !fresh);
    CHECK(st_heap_free(b->heap, c) == ST_OK && st_heap_free(b->heap, x) == ST_OK);
    CHECK(st_heap_set_limit(b->heap, 0) == ST_OK && take(b, 8 * PAGE) == a);
    CHECK(b->fake.calls == calls && b->fake.mapped == 8); /* nothing was mapped or given back */
    bed_close(b);
}

static void test_peaks(void)
{
    struct bed *b = bed_open(64, 64, 0);
    uint64_t a = take(b, 100), c = take(b, PAGE + 1);
    struct st_heap_stats s;

    CHECK(st_heap_free(b->heap, a) == ST_OK && st_heap_free(b->heap, c) == ST_OK);
    s = stats(b);
    CHECK(s.allocated.peak[0] == 128 && s.allocated.peak[1] == 2 * PAGE);
    CHECK(s.allocated.peak[ALL] == 2 * PAGE + 128 && s.requested.peak[ALL] == PAGE + 101);
    CHECK(s.count.peak[ALL] == 2 && s.reserved.peak[ALL] == 3 * PAGE && s.reserved.now[ALL] == 0);
    CHECK(s.reserved.added[ALL] == 3 * PAGE && s.hole_bytes.peak[ALL] == PAGE - 128);
    CHECK(s.segments.peak[0] == 1 && s.segments.peak[1] == 1 && s.holes.peak[ALL] == 1);
    CHECK(st_heap_reset_peaks(b->heap) == ST_OK);
    s = stats(b);
    CHECK(s.allocated.peak[ALL] == 0 && s.reserved.peak[ALL] == 0 && s.count.peak[0] == 0);
    CHECK(s.allocated.added[ALL] == 2 * PAGE + 128 && s.count.added[ALL] == 2);
    bed_close(b);
}

/* ---- threads --------------------------------------------------------------------- */

struct grower {
    struct bed *bed;
    uint64_t seed, rounds, *shared; /* an allocation that threads exchange, so that they free each other's */
};

static void *grow(void *arg)
{
    struct grower *g = arg;
    uint64_t s = g->seed;

    for (uint64_t i = 0; i < g->rounds; i++) {
        uint64_t va = 0, old, pages = 1 + next(&s) % 7;
        int rc = st_heap_alloc(g->bed->heap, pages * PAGE, &va);

        CHECK(rc == ST_OK || rc == ST_ENOMEM);
        if (rc == ST_OK) {
            for (uint64_t k = 0; k < pages; k++) /* nobody else has any of them */
                st_store_relaxed_64((uint64_t *)(uintptr_t)(va + k * PAGE), va);
            for (uint64_t k = 0; k < pages; k++)
                CHECK(st_load_relaxed_64((uint64_t *)(uintptr_t)(va + k * PAGE)) == va);
        }
        old = st_swap_acq_rel_64(g->shared, va);
        CHECK(!old || st_heap_free(g->bed->heap, old) == ST_OK);
        if (i % 64 == 0)
            SOUND(g->bed->heap);
        if (i % 200 == 100) /* some of the time all of them are short of room */
            CHECK(st_heap_set_limit(g->bed->heap, (10 + next(&s) % 30) * PAGE) == ST_OK);
    }
    return NULL;
}

static void test_threads(uint64_t seed, uint64_t rounds)
{
    enum { THREADS = 4 };
    struct bed *b = bed_open(128, 40, 12 * PAGE);
    uint64_t shared = 0;
    struct grower growers[THREADS];
    pthread_t thread[THREADS];

    for (int t = 0; t < THREADS; t++) {
        growers[t] = (struct grower){b, seed + 977 * (t + 1), rounds, &shared};
        CHECK(pthread_create(&thread[t], NULL, grow, &growers[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_join(thread[t], NULL) == 0);
    CHECK(!shared || st_heap_free(b->heap, shared) == ST_OK);
    CHECK(stats(b).remaps > 0); /* else this has shown nothing */
    CHECK(st_heap_trim(b->heap, 0) == ST_OK && b->fake.mapped == 0);
    CHECK(stats(b).count.now[ALL] == 0 && stats(b).bad_frees == 0 && stats(b).unmap_errors == 0);
    bed_close(b);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;

    printf("test_heap_pages: seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    test_extend();
    test_extend_zeroed();
    test_extend_not();
    test_extend_largest();
    test_extend_meddled(ST_OK);
    test_extend_meddled(ST_EINVAL);
    test_extend_meddled(ST_ENOMEM);
    test_extend_meddled(ST_ESYS);
    test_short_of_room();
    test_limit_bytes();
    test_pool();
    test_peaks();
    test_threads(seed, 2000);
    printf("test_heap_pages: ok\n");
    return 0;
}
