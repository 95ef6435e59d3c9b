/* numpy's four functions over a heap of fake pages and a heap below, as numpy calls them:
 * with the interpreter's lock and without, in threads, in forked children, without room.
 *
 *     gcc -std=gnu11 -O1 -g -pthread -Istrata/_core/include tests/c/test_intercept.c && ./a.out [seed]
 */
#include <sys/wait.h>
#include <time.h>

#include "heaps.h"

#include "forks.h"
#include "st_intercept.h"

enum { SLOTS = 64, THREADS = 4, TURNS = 1500 };

/* ---- the interpreter's lock, and what is below ------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int holds, resizing;
static uint64_t below_live, below_calls, notices; /* under the lock */
static int notice_fails;

static void acquire(void)
{
    pthread_mutex_lock(&lock);
    holds = 1;
}

static void release(void)
{
    CHECK(holds);
    holds = 0;
    pthread_mutex_unlock(&lock);
}

static void *detach(void)
{
    CHECK(!resizing); /* nobody else may run while an array is resized */
    if (!holds)
        return NULL;
    release();
    return &lock;
}

static void attach(void *state)
{
    CHECK(state == &lock);
    acquire();
}

static int hold(void)
{
    int had = holds;

    if (!had)
        acquire();
    return had;
}

static void drop(int had)
{
    if (!had)
        release();
}

static int notice(void *arg)
{
    (void)arg;
    (void)st_add_acq_rel_64(&notices, 1); /* pairs with itself */
    return notice_fails;
}

static const struct st_intercept_hooks hooks = {detach, attach, hold, drop, notice};

static void *below_zero(void *arg, size_t count, size_t size)
{
    size_t bytes;

    CHECK(holds && arg == &below_calls);
    below_calls++;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > (UINT64_C(1) << 40))
        return NULL;
    below_live++;
    return calloc(count, size);
}

static void *below_obtain(void *arg, size_t bytes) { return below_zero(arg, bytes, 1); }

static void *below_resize(void *arg, void *p, size_t bytes)
{
    CHECK(p && arg == &below_calls); /* as numpy's own, it needs no lock */
    return realloc(p, bytes);
}

static void below_release(void *arg, void *p, size_t bytes)
{
    (void)bytes;
    CHECK(holds && arg == &below_calls);
    below_live--;
    free(p);
}

struct set {
    struct bed *bed;
    struct st_intercept_source source;
    struct st_intercept all, large; /* every size, and from 4 KiB on */
};

static void set_open(struct set *s, uint64_t pages, uint64_t cache)
{
    const struct st_below below = {&below_calls, below_obtain, below_zero, below_resize, below_release};

    memset(s, 0, sizeof *s);
    s->bed = bed_open(pages, pages, cache);
    s->source.hooks = &hooks;
    st_intercept_bind(&s->source, s->bed->heap, NULL);
    s->all = (struct st_intercept){&s->source, 0, below};
    s->large = (struct st_intercept){&s->source, 4096, below};
    below_live = below_calls = notices = 0;
}

static void set_close(struct set *s)
{
    CHECK(below_live == 0 && stats(s->bed).count.now[ALL] == 0 && stats(s->bed).bad_frees == 0);
    bed_close(s->bed);
}

static int from_heap(struct set *s, const void *p) { return st_intercept_find(&s->all, p) != NULL; }

static void *resize(struct st_intercept *s, void *p, size_t bytes)
{
    resizing = 1;
    p = st_intercept_realloc(s, p, bytes);
    resizing = 0;
    return p;
}

/* ---- arrays whose contents are known ----------------------------------------------- */

struct array {
    uint8_t *p;
    size_t bytes;
    uint8_t seed;
};

static uint8_t expected(const struct array *a, size_t i) { return (uint8_t)(a->seed + i * 7 + (i >> 9)); }

/* Every byte of the first lines, then one of each: all of it takes too long under a sanitizer. */
static size_t after(size_t i) { return i < 200 ? i + 1 : i + 61; }

static void fill(struct array *a, uint8_t seed)
{
    a->seed = seed;
    for (size_t i = 0; i < a->bytes; i = after(i))
        a->p[i] = expected(a, i);
}

static void look(const struct array *a, size_t bytes)
{
    for (size_t i = 0; i < bytes; i = after(i))
        CHECK(a->p[i] == expected(a, i));
}

static size_t size_of_array(uint64_t *seed)
{
    uint64_t kind = next(seed) % 100;

    return 1 + (kind < 60 ? next(seed) % 9000 : kind < 95 ? next(seed) % (PAGE / 16) : next(seed) % (2 * PAGE));
}

/* One call of numpy's on one of its arrays. */
static void turn(struct set *s, struct st_intercept *h, struct array *a, uint64_t *seed)
{
    size_t bytes = size_of_array(seed), old = a->bytes;
    uint64_t what = next(seed) % 10;
    void *p;

    if (!a->p) {
        a->p = what % 2 ? st_intercept_calloc(h, bytes, 1) : st_intercept_malloc(h, bytes);
        CHECK(a->p);
        if (what % 2)
            for (size_t i = 0; i < bytes; i = after(i))
                CHECK(a->p[i] == 0);
        CHECK(!from_heap(s, a->p) || (uintptr_t)a->p % 64 == 0);
        CHECK(bytes >= h->min_bytes || !from_heap(s, a->p));
    } else if (what < 4) {
        look(a, old);
        st_intercept_free(h, a->p, old);
        a->p = NULL;
        return;
    } else {
        if (what > 7)
            release(); /* as numpy does when it reads text */
        p = resize(h, a->p, bytes);
        if (what > 7)
            acquire();
        CHECK(p);
        a->p = p;
        look(a, old < bytes ? old : bytes);
    }
    a->bytes = bytes;
    fill(a, (uint8_t)next(seed));
}

static void play(struct set *s, struct st_intercept *h, uint64_t seed, int turns)
{
    struct array arrays[SLOTS];

    memset(arrays, 0, sizeof arrays);
    for (int i = 0; i < turns; i++) {
        acquire();
        turn(s, h, &arrays[next(&seed) % SLOTS], &seed);
        release();
    }
    acquire();
    for (int i = 0; i < SLOTS; i++)
        if (arrays[i].p) {
            look(&arrays[i], arrays[i].bytes);
            st_intercept_free(h, arrays[i].p, arrays[i].bytes);
        }
    release();
}

/* ---- tests ---------------------------------------------------------------------------- */

static void test_alone(uint64_t seed)
{
    struct set s;

    set_open(&s, 512, 8 * PAGE);
    play(&s, &s.all, seed, TURNS);
    CHECK(below_calls == 0 && s.source.count.fallbacks == 0 && s.source.count.arrays > TURNS / 4);
    play(&s, &s.large, seed, TURNS);
    CHECK(below_calls > 0 && s.source.count.fallbacks == 0);
    set_close(&s);
}

static void test_sizes(void)
{
    struct set s;
    uint8_t *p, *q;

    set_open(&s, 64, 0);
    acquire();
    p = st_intercept_malloc(&s.large, 5000);
    CHECK(from_heap(&s, p) && resize(&s.large, p, 5100) == p); /* 5,120 bytes either way */
    memset(p, 9, 5100);
    q = resize(&s.large, p, 100);
    CHECK(!from_heap(&s, q) && q[0] == 9 && q[99] == 9 && below_live == 1);
    q = resize(&s.large, q, 6000);
    CHECK(from_heap(&s, q) && q[99] == 9 && below_live == 0);
    s.large.min_bytes = ST_INTERCEPT_OFF; /* the block is over: its arrays leave as they are resized */
    q = resize(&s.large, q, 6000);
    CHECK(!from_heap(&s, q) && q[99] == 9);
    st_intercept_free(&s.large, q, 6000);
    CHECK(st_intercept_malloc(&s.all, UINT64_MAX / 2) == NULL);
    CHECK(st_intercept_calloc(&s.all, UINT64_MAX / 2, 3) == NULL);
    CHECK(s.source.count.fallbacks == 0 && notices == 0); /* nobody could have met those */
    release();
    set_close(&s);
}

static void test_no_room(uint64_t seed)
{
    struct set s;

    set_open(&s, 3, PAGE);
    notice_fails = 1;
    play(&s, &s.all, seed, TURNS);
    CHECK(s.source.count.fallbacks > 10 && notices == s.source.count.fallbacks);
    notice_fails = 0;
    play(&s, &s.all, seed, TURNS);
    CHECK(notices > 0 && s.source.noticed && s.source.why == ST_ENOMEM && s.source.refused);
    s.bed->fake.fail_at = 1;
    s.bed->fake.failure = ST_ESYS;
    play(&s, &s.large, seed + 1, TURNS);
    set_close(&s);
}

struct player {
    struct set *set;
    struct st_intercept *handler;
    uint64_t seed;
};

static void *player(void *arg)
{
    struct player *p = arg;

    play(p->set, p->handler, p->seed, TURNS / 2);
    return NULL;
}

static void test_threads(uint64_t seed, uint64_t pages)
{
    struct player players[THREADS];
    pthread_t threads[THREADS];
    struct set s;

    set_open(&s, pages, PAGE);
    for (int i = 0; i < THREADS; i++) {
        players[i] = (struct player){&s, i % 2 ? &s.large : &s.all, seed + 1000 * (uint64_t)i};
        CHECK(pthread_create(&threads[i], NULL, player, &players[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK((s.source.count.fallbacks > 0) == (notices > 0) && notices <= 1);
    set_close(&s);
}

static void child(struct set *s, struct array *arrays, int n)
{
    acquire();
    for (int i = 0; i < n; i++) {
        size_t bytes = i % 2 ? arrays[i].bytes / 2 + 1 : arrays[i].bytes * 2;
        uint8_t *p = resize(&s->all, arrays[i].p, bytes);

        CHECK(p && !from_heap(s, p));
        arrays[i].p = p;
        look(&arrays[i], bytes < arrays[i].bytes ? bytes : arrays[i].bytes);
        st_intercept_free(&s->all, p, bytes);
    }
    CHECK(!from_heap(s, st_intercept_malloc(&s->all, 10000)) && s->source.count.fallbacks == 0);
    release();
}

static void test_fork(void)
{
    const size_t sizes[] = {1, 100, 5000, PAGE / 2, PAGE, 3 * PAGE + 5};
    enum { N = sizeof sizes / sizeof *sizes };
    struct array arrays[N];
    struct set s;
    int status = 0;
    pid_t pid;

    set_open(&s, 64, 0);
    acquire();
    for (int i = 0; i < N; i++) {
        arrays[i] = (struct array){st_intercept_malloc(&s.all, sizes[i]), sizes[i], 0};
        CHECK(from_heap(&s, arrays[i].p));
        fill(&arrays[i], (uint8_t)i);
    }
    release();
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        child(&s, arrays, N);
        _exit(0);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    acquire();
    for (int i = 0; i < N; i++) {
        look(&arrays[i], sizes[i]);
        st_intercept_free(&s.all, arrays[i].p, sizes[i]);
    }
    release();
    set_close(&s);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2654435761u + 1;

    printf("seed %llu\n", (unsigned long long)seed);
    test_sizes();
    test_alone(seed);
    test_no_room(seed);
    test_threads(seed, 512);
    test_threads(seed, 3);
    if (forks_wipe())
        test_fork();
    printf("ok\n");
    return 0;
}
