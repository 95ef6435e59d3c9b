/* The heap over fake pages: alone, under injected failures, across fork, and
 * with threads that allocate and free each other's memory at once.
 *
 *     gcc -std=gnu11 -O1 -g -pthread -Istrata/_core/include tests/c/test_heap.c && ./a.out [seed]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "forks.h"
#include "heaps.h"
#include "st_atomic.h"

/* ---- bins ------------------------------------------------------------------ */

static void test_bins(uint64_t seed)
{
    const uint32_t caps[] = {1, 63, 64, 4095, 4096, 32768, 262144};

    for (unsigned c = 0; c < sizeof caps / sizeof *caps; c++) {
        struct st_bins b = {0};
        uint32_t cap = caps[c];
        size_t n = st_bins_layout(NULL, cap, NULL);
        void *mem = map_memory(n, PROT_READ | PROT_WRITE);
        uint8_t *model = calloc(cap + 1, 1);

        CHECK(st_bins_layout(&b, cap, mem) == n);
        CHECK(st_bins_find(&b, 1) == 0 && st_bins_largest(&b) == 0);
        for (int step = 0; step < 300; step++) {
            uint32_t size = 1 + (uint32_t)(next(&seed) % cap), want = 0, top = 0;
            uint32_t from = 1 + (uint32_t)(next(&seed) % cap);
            model[size] ^= 1;
            if (model[size])
                st_bins_mark(&b, size);
            else
                st_bins_clear(&b, size);
            for (uint32_t i = cap; i >= 1; i--) {
                if (model[i] && !top)
                    top = i;
                if (model[i] && i >= from)
                    want = i;
            }
            CHECK(st_bins_find(&b, from) == want && st_bins_largest(&b) == top);
        }
        free(model);
        munmap(mem, n);
    }
    CHECK(st_bins_layout(NULL, UINT32_MAX, NULL) == 0);
}

/* ---- one thread --------------------------------------------------------------- */

static void test_sizes(void)
{
    const uint64_t sizes[] = {0, 1, 63, 64, 65, 4096, 4097, MIB - 1, MIB, MIB + 1, PAGE - 4096,
                              PAGE - 4095, PAGE - 1, PAGE, PAGE + 1, 7 * PAGE};
    enum { N = sizeof sizes / sizeof *sizes };
    struct bed *b = bed_open(64, 64, 0);
    uint64_t va[N], asked = 0;

    for (int i = 0; i < N; i++) {
        va[i] = take(b, sizes[i]);
        CHECK(va[i] % alignment(sizes[i]) == 0 && va[i] >= b->fake.base);
        memset((void *)(uintptr_t)va[i], i + 1, sizes[i]); /* a page too few would fault or overlap */
        asked += sizes[i];
        SOUND(b->heap);
    }
    CHECK(stats(b).count.now[ALL] == N && stats(b).requested.now[ALL] == asked);
    for (int i = 0; i < N; i++)
        for (uint64_t k = 0; k < sizes[i]; k += sizes[i] > 4096 ? 511 : 1)
            CHECK(((uint8_t *)(uintptr_t)va[i])[k] == i + 1);
    for (int i = 0; i < N; i++) {
        CHECK(st_heap_free(b->heap, va[i]) == ST_OK);
        SOUND(b->heap);
    }
    CHECK(stats(b).reserved.now[ALL] == 0 && stats(b).allocated.now[ALL] == 0 && b->fake.mapped == 0);
    CHECK(stats(b).requested.now[ALL] == 0 && stats(b).count.now[ALL] == 0);
    bed_close(b);
}

static void test_sharing(void)
{
    struct bed *b = bed_open(64, 64, 64 * PAGE);
    uint64_t first = take(b, MIB), second = take(b, MIB), odd, third;

    CHECK(second == first + MIB && b->fake.mapped == 1); /* two MiB fill a page */
    odd = take(b, 100);
    third = take(b, MIB);
    CHECK(third / PAGE == odd / PAGE && third % 4096 == 0 && b->fake.mapped == 2);
    for (int i = 0; i < 8000; i++)
        take(b, 100);
    CHECK(b->fake.mapped == 2); /* 8,000 x 128 bytes: the rest of a page */
    SOUND(b->heap);
    bed_close(b);
}

static void test_bad_frees(void)
{
    struct bed *b = bed_open(16, 16, 0);
    uint64_t small = take(b, 1000), big = take(b, 3 * PAGE), end = b->fake.base + 16 * PAGE;
    const uint64_t bad[] = {0, 1, small + 1, small + 64, small + 4096, big + 64, big + PAGE,
                            big + 2 * PAGE, big - PAGE + 64, b->fake.base - 64, end, end - PAGE,
                            UINT64_MAX, UINT64_MAX - 63};

    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK(st_heap_free(b->heap, bad[i]) == ST_EINVAL);
    CHECK(st_heap_free(b->heap, small) == ST_OK && st_heap_free(b->heap, big) == ST_OK);
    CHECK(st_heap_free(b->heap, small) == ST_EINVAL && st_heap_free(b->heap, big) == ST_EINVAL);
    small = take(b, 64);
    big = take(b, 128);
    CHECK(st_heap_free(b->heap, big) == ST_OK && st_heap_free(b->heap, big) == ST_EINVAL);
    CHECK(stats(b).bad_frees == sizeof bad / sizeof *bad + 3);
    CHECK(st_heap_free(b->heap, small) == ST_OK);
    bed_close(b);
}

/* An entry of the chunk's table outlives its block, and its node lives on elsewhere. */
static void test_stale_entry(void)
{
    struct bed *b = bed_open(16, 16, 0);
    uint64_t va[5];

    for (int i = 0; i < 5; i++)
        va[i] = take(b, 64);
    for (int i = 1; i < 4; i++)
        CHECK(st_heap_free(b->heap, va[i]) == ST_OK);
    CHECK(take(b, 128) == va[1] && take(b, 64) == va[3]);
    for (int i = 0; i < 8; i++)
        take(b, 64);
    CHECK(st_heap_free(b->heap, va[2]) == ST_EINVAL);
    bed_close(b);
}

/* Memory counts as zero only until it is handed out for the first time. */
static void test_fresh(void)
{
    struct bed *b = bed_open(16, 16, 0);
    uint64_t first, second, big;
    int fresh;

    CHECK(st_heap_take(b->heap, 64, &first, &fresh) == ST_AGAIN);
    CHECK(st_heap_grow(b->heap, 64, &first, &fresh) == ST_OK && fresh);
    CHECK(st_heap_take(b->heap, 64, &second, &fresh) == ST_OK && fresh);
    CHECK(st_heap_take(b->heap, MIB, &big, &fresh) == ST_OK && fresh && big == first + 4096);
    CHECK(st_heap_free(b->heap, second) == ST_OK); /* joins the gap behind it */
    CHECK(st_heap_take(b->heap, 3000, &second, &fresh) == ST_OK && !fresh && second == first + 64);
    CHECK(st_heap_free(b->heap, big) == ST_OK); /* joins a gap on both sides */
    CHECK(st_heap_take(b->heap, 512, &big, &fresh) == ST_OK && !fresh);
    CHECK(st_heap_take(b->heap, MIB, &big, &fresh) == ST_OK && !fresh);
    SOUND(b->heap);
    bed_close(b);
    b = bed_open(16, 16, 0);
    first = take(b, 64);
    big = take(b, MIB);
    CHECK(st_heap_free(b->heap, big) == ST_OK); /* joins a gap before it that was never used */
    CHECK(st_heap_take(b->heap, 64, &big, &fresh) == ST_OK && !fresh && big == first + 64);
    bed_close(b);
}

/* What one mapping gave is unmapped in pieces, and mapped again as another. */
static void test_pieces(void)
{
    struct bed *b = bed_open(6, 6, 6 * PAGE);
    uint64_t all = take(b, 6 * PAGE), front, rest, unmaps;

    CHECK(st_heap_free(b->heap, all) == ST_OK);
    front = take(b, 3 * PAGE);
    rest = take(b, 3 * PAGE);
    CHECK(front == all && rest == all + 3 * PAGE && stats(b).maps == 1);
    CHECK(st_heap_free(b->heap, front) == ST_OK && st_heap_trim(b->heap, 0) == ST_OK);
    CHECK(take(b, 3 * PAGE) == front && stats(b).maps == 2);
    CHECK(st_heap_free(b->heap, rest) == ST_OK && st_heap_free(b->heap, front) == ST_OK);
    CHECK(stats(b).largest_free == 6 * PAGE); /* one cached run, of two mappings */
    CHECK(st_heap_trim(b->heap, 0) == ST_OK && stats(b).unmap_errors == 0 && b->fake.mapped == 0);
    unmaps = stats(b).unmaps;
    CHECK(st_heap_free(b->heap, take(b, 6 * PAGE)) == ST_OK && st_heap_trim(b->heap, 0) == ST_OK);
    CHECK(stats(b).unmaps == unmaps + 1); /* old borders are forgotten */
    bed_close(b);
}

static void test_limits(void)
{
    struct bed *b = bed_open(64, 8, 8 * PAGE);
    uint64_t va[8], x;
    int fresh;

    CHECK(st_heap_alloc(b->heap, UINT64_MAX, &x) == ST_ENOMEM);
    CHECK(st_heap_alloc(b->heap, 8 * PAGE + 1, &x) == ST_ENOMEM);
    x = take(b, 8 * PAGE); /* an exact fit */
    CHECK(st_heap_alloc(b->heap, 1, &va[0]) == ST_ENOMEM);
    CHECK(st_heap_free(b->heap, x) == ST_OK && b->fake.mapped == 8);
    for (int i = 0; i < 8; i++)
        va[i] = take(b, PAGE - 1);
    for (int i = 0; i < 8; i += 2)
        CHECK(st_heap_free(b->heap, va[i]) == ST_OK);
    CHECK(stats(b).cached_bytes == 4 * PAGE && b->fake.mapped == 8 && stats(b).flushes == 0);
    x = take(b, 4 * PAGE); /* none cached is long enough: all go back, and then it fits */
    CHECK(stats(b).flushes == 1 && stats(b).cached_bytes == 0);
    CHECK(st_heap_alloc(b->heap, 64, &va[0]) == ST_ENOMEM);
    CHECK(stats(b).count.now[ALL] == 5 && stats(b).flushes == 1);
    CHECK(st_heap_free(b->heap, x) == ST_OK);
    CHECK(st_heap_take(b->heap, 64, &va[0], &fresh) == ST_OK && !fresh); /* used before */
    for (int i = 0; i < 8; i += i ? 2 : 1)
        CHECK(st_heap_free(b->heap, va[i]) == ST_OK);
    CHECK(st_heap_trim(b->heap, 3 * PAGE) == ST_OK && b->fake.mapped == 3);
    CHECK(st_heap_trim(b->heap, 0) == ST_OK && b->fake.mapped == 0);
    CHECK(st_heap_take(b->heap, 64, &x, &fresh) == ST_AGAIN);
    CHECK(st_heap_grow(b->heap, 64, &x, &fresh) == ST_OK && fresh);
    CHECK(st_heap_take(b->heap, 64, &x, &fresh) == ST_OK && fresh); /* the rest of the page */
    CHECK(stats(b).largest_free == PAGE - 128);
    bed_close(b);
}

static void test_cache_limit(void)
{
    struct bed *b = bed_open(64, 64, 4 * PAGE);
    uint64_t one = take(b, 3 * PAGE), two = take(b, 3 * PAGE), small = take(b, 64);

    CHECK(st_heap_put(b->heap, one) == ST_OK); /* below the limit */
    CHECK(st_heap_put(b->heap, two) == ST_AGAIN);
    CHECK(st_heap_settle(b->heap) == ST_OK);
    CHECK(stats(b).cached_bytes == 4 * PAGE && b->fake.mapped == 5);
    CHECK(stats(b).unmap_errors == 0); /* two mappings are neighbours, and were not mixed up */
    SOUND(b->heap);
    CHECK(st_heap_free(b->heap, small) == ST_OK && b->fake.mapped == 4);
    bed_close(b);
}

/* Every call of the provider fails once, in turn; nothing else may break. */
static void test_failures(uint64_t seed)
{
    const int failures[] = {ST_ENOMEM, ST_ESYS};

    for (int f = 0; f < 2; f++) {
        for (uint64_t at = 1;; at++) {
            struct bed *b = bed_open(64, 32, 2 * PAGE);
            uint64_t va[64] = {0}, s = seed, lost = 0;
            int failed = 0;

            b->fake.fail_at = at;
            b->fake.failure = failures[f];
            for (int i = 0; i < 300; i++) {
                unsigned k = next(&s) % 64;
                if (va[k]) {
                    CHECK(st_heap_free(b->heap, va[k]) == ST_OK);
                    va[k] = 0;
                } else {
                    int rc = st_heap_alloc(b->heap, some_size(&s), &va[k]);
                    CHECK(rc == ST_OK || rc == ST_ENOMEM || rc == failures[f]);
                    failed += rc != ST_OK;
                    va[k] = rc == ST_OK ? va[k] : 0;
                }
                SOUND(b->heap);
            }
            for (int k = 0; k < 64; k++)
                CHECK(!va[k] || st_heap_free(b->heap, va[k]) == ST_OK);
            CHECK(st_heap_trim(b->heap, 0) == ST_OK || b->fake.fail_at == 0);
            if (stats(b).unmap_errors)
                for (uint64_t p = 0; p < 64; p++)
                    lost += b->fake.run[p] != 0;
            CHECK(b->fake.mapped == lost && stats(b).reserved.now[ALL] == 0);
            if (b->fake.fail_at) { /* never reached: all calls have had their turn */
                bed_close(b);
                break;
            }
            bed_close(b);
        }
    }
}

static int corrupt_map(void *arg, uint64_t n, uint64_t *va)
{
    (void)n;
    *va = *(uint64_t *)arg;
    return ST_OK;
}

static uint64_t returned_va, returned_pages;

static int note_unmap(void *arg, uint64_t va, uint64_t n)
{
    (void)arg;
    returned_va = va;
    returned_pages = n;
    return ST_OK;
}

static void test_corrupt_provider(void)
{
    struct bed *b = bed_open(16, 16, 0);
    const uint64_t wrong[] = {0, b->fake.base - PAGE, b->fake.base + 64, b->fake.base + 15 * PAGE,
                              b->fake.base + 16 * PAGE, UINT64_MAX};
    uint64_t va, give;

    b->heap->cfg.map = corrupt_map;
    b->heap->cfg.unmap = note_unmap;
    b->heap->cfg.arg = &give;
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        give = wrong[i];
        CHECK(st_heap_alloc(b->heap, 2 * PAGE, &va) == ST_ECORRUPT);
        CHECK(returned_va == give && returned_pages == 2 && stats(b).reserved.now[ALL] == 0);
    }
    bed_close(b);
}

static void test_out_of_nodes(void)
{
    struct bed *b = bed_open(16, 16, 0);
    uint64_t va, n = 0;
    int rc;

    b->heap->nodes_most = 100;
    while ((rc = st_heap_alloc(b->heap, 64, &va)) == ST_OK)
        n++;
    CHECK(rc == ST_ENOMEM && n > 90 && stats(b).count.now[ALL] == n);
    SOUND(b->heap);
    CHECK(st_heap_free(b->heap, va) == ST_OK && st_heap_alloc(b->heap, 64, &va) == ST_OK);
    bed_close(b);
}

/* A child must not touch the heap, even if it was locked when it forked. */
static void test_fork(int wiped)
{
    struct bed *b = bed_open(16, 16, 0);
    uint64_t va = take(b, 10), x;
    struct st_heap_stats s;
    int status;
    pid_t child;

    if (!wiped && b->heap->wiped) { /* as on a kernel that cannot wipe */
        CHECK(madvise(b->arena, ST_HEAP_HEADER, MADV_KEEPONFORK) == 0);
        b->heap->wiped = 0;
    }
    pthread_mutex_lock(&b->heap->mu);
    child = fork();
    if (child == 0) {
        int fresh, ok = st_heap_free(b->heap, va) == ST_ENOJOB &&
                        st_heap_alloc(b->heap, 1, &x) == ST_ENOJOB &&
                        st_heap_take(b->heap, 1, &x, &fresh) == ST_ENOJOB &&
                        st_heap_grow(b->heap, 1, &x, &fresh) == ST_ENOJOB &&
                        st_heap_put(b->heap, va) == ST_ENOJOB &&
                        st_heap_trim(b->heap, 0) == ST_ENOJOB &&
                        st_heap_settle(b->heap) == ST_ENOJOB &&
                        st_heap_set_limit(b->heap, 0) == ST_ENOJOB &&
                        st_heap_fill_pool(b->heap, 1) == ST_ENOJOB &&
                        st_heap_reset_peaks(b->heap) == ST_ENOJOB &&
                        st_heap_stats(b->heap, &s) == ST_ENOJOB &&
                        st_heap_walk(b->heap, NULL, NULL) == ST_ENOJOB;
        _exit(ok ? 0 : 1);
    }
    pthread_mutex_unlock(&b->heap->mu);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(stats(b).count.now[ALL] == 1 && st_heap_free(b->heap, va) == ST_OK);
    bed_close(b);
}

/* ---- threads --------------------------------------------------------------------- */

enum { THREADS = 4, SLOTS = 256 };

struct cell {
    uint64_t va, bytes;
};

struct party {
    struct bed *bed;
    uint64_t *slots; /* exchanged atomically, so that a thread frees what another allocated */
    uint64_t seed, rounds, refused;
};

static void paint(uint64_t va, uint64_t bytes)
{
    for (uint64_t k = 0; k < bytes; k += bytes > 4096 ? 1021 : 1)
        ((uint8_t *)(uintptr_t)va)[k] = (uint8_t)(va / 64 + k * 7);
}

static void verify(uint64_t va, uint64_t bytes)
{
    for (uint64_t k = 0; k < bytes; k += bytes > 4096 ? 1021 : 1)
        CHECK(((uint8_t *)(uintptr_t)va)[k] == (uint8_t)(va / 64 + k * 7));
}

static void *mingle(void *arg)
{
    struct party *p = arg;
    uint64_t s = p->seed;

    for (uint64_t i = 0; i < p->rounds; i++) {
        struct cell *mine = malloc(sizeof *mine), *old;
        mine->bytes = some_size(&s);
        if (st_heap_alloc(p->bed->heap, mine->bytes, &mine->va) != ST_OK) {
            free(mine);
            mine = NULL;
            p->refused++;
        } else {
            CHECK(mine->va % alignment(mine->bytes) == 0);
            paint(mine->va, mine->bytes);
        }
        old = (struct cell *)(uintptr_t)st_swap_acq_rel_64(p->slots + next(&s) % SLOTS, (uintptr_t)mine);
        if (old) {
            verify(old->va, old->bytes);
            CHECK(st_heap_free(p->bed->heap, old->va) == ST_OK);
            free(old);
        }
        if (i % 256 == 0)
            SOUND(p->bed->heap);
        if (i % 100 == 50)
            CHECK(st_heap_trim(p->bed->heap, PAGE) == ST_OK);
    }
    return NULL;
}

#ifdef ST_EMULATED
enum { HEAP_SLOW = 8 };
#else
enum { HEAP_SLOW = 1 };
#endif

static void test_threads(uint64_t seed, uint64_t rounds)
{
    struct bed *b = bed_open(256, 64, 8 * PAGE);
    uint64_t slots[SLOTS] = {0}; /* addresses of cells */
    struct party party[THREADS];
    pthread_t thread[THREADS];

    for (int t = 0; t < THREADS; t++) {
        party[t] = (struct party){b, slots, seed + 977 * (t + 1), rounds, 0};
        CHECK(pthread_create(&thread[t], NULL, mingle, &party[t]) == 0);
    }
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_join(thread[t], NULL) == 0);
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i]) {
            struct cell *cell = (struct cell *)(uintptr_t)slots[i];
            verify(cell->va, cell->bytes);
            CHECK(st_heap_free(b->heap, cell->va) == ST_OK);
            free(cell);
        }
    }
    CHECK(st_heap_trim(b->heap, 0) == ST_OK && b->fake.mapped == 0);
    CHECK(stats(b).count.now[ALL] == 0 && stats(b).bad_frees == 0 && stats(b).unmap_errors == 0);
    bed_close(b);
}

/* Two threads each want all but a page or two, over and over, with the caches
 * full of the other's: an exact fit is refused only if the other really has it. */
static void *insist(void *arg)
{
    struct party *p = arg;

    for (uint64_t i = 0; i < p->rounds; i++) {
        uint64_t va = 0, bytes = (1 + (i + p->seed) % 4) * PAGE;
        CHECK(st_heap_alloc(p->bed->heap, bytes, &va) == ST_OK);
        CHECK(st_heap_free(p->bed->heap, va) == ST_OK);
    }
    return NULL;
}

static void test_exact_fit_threads(uint64_t rounds)
{
    struct bed *b = bed_open(64, 8, 3 * PAGE); /* 4 + 4 pages fit, and not a page more */
    struct party party[2];
    pthread_t thread[2];

    for (int t = 0; t < 2; t++) {
        party[t] = (struct party){b, NULL, (uint64_t)t, rounds, 0};
        CHECK(pthread_create(&thread[t], NULL, insist, &party[t]) == 0);
    }
    for (int t = 0; t < 2; t++)
        CHECK(pthread_join(thread[t], NULL) == 0);
    bed_close(b);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;

    printf("test_heap: seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    test_bins(seed);
    test_sizes();
    test_sharing();
    test_bad_frees();
    test_stale_entry();
    test_fresh();
    test_pieces();
    test_limits();
    test_cache_limit();
    test_failures(seed);
    test_corrupt_provider();
    test_out_of_nodes();
    if (forks_wipe())
        test_fork(1);
    else
        printf("test_heap: MADV_WIPEONFORK does nothing here (an emulator): not tested\n");
    test_fork(0);
    test_threads(seed, 1500 / HEAP_SLOW);
    test_exact_fit_threads(1500 / HEAP_SLOW);
    printf("test_heap: ok\n");
    return 0;
}
