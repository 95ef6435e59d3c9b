/* N dies as threads of one process: one memfd, one control mapping and one VA
 * window for all, so that ThreadSanitizer sees every access of every die.
 *
 * A die "dies" when its flag in `gone` is set; its thread must then touch nothing.
 *
 * Under ThreadSanitizer ST_TEST_BREAK=function in the environment takes the memory orders
 * out of that function of the core: what it publishes is then published without order, and
 * ThreadSanitizer must say so.  tools/ctest.py does that for each name after "tsan must report:".  ST_TEST_TRACE: traced.
 */
#ifndef DIES_H
#define DIES_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "st_atomic.h"

#ifndef ST_CHECKED /* else they are in the hands of the checked core's hooks */
/* ---- every atomic access of the core, in the test's hands ---------------------- */

static __thread uint64_t dies_dice;
static __thread void (*dies_hook)(const char *function); /* called before each access */

/* Now and then a thread is held up just before an access, so that others get into
 * windows of a few instructions. */
static inline void dies_dawdle(const char *function)
{
    uint64_t x = dies_dice ? dies_dice : (uint64_t)(uintptr_t)&dies_dice | 1;

    if (dies_hook)
        dies_hook(function);
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    dies_dice = x;
    if (__builtin_expect((x & 255) == 0, 0)) {
        if ((x >> 8 & 31) == 0)
            sched_yield();
        else
            for (x = x >> 13 & 511; x--;)
                st_pause();
    }
}

#if defined(__SANITIZE_THREAD__) /* gcc; clang says it otherwise */
#define DIES_BREAK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DIES_BREAK 1
#endif
#endif
#ifdef DIES_BREAK
static const char *dies_broken; /* written before there are threads */
static __attribute__((constructor)) void dies_break(void)
{
    dies_broken = getenv("ST_TEST_BREAK");
}
#define BROKEN (__builtin_expect(dies_broken != NULL, 0) && strcmp(__func__, dies_broken) == 0)
#else
#define BROKEN 0
#endif
static inline int dies_cas_64(uint64_t *p, uint64_t old, uint64_t v)
{
    return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#define st_load_relaxed_32(p) (dies_dawdle(__func__), (st_load_relaxed_32)(p))
#define st_load_relaxed_64(p) (dies_dawdle(__func__), (st_load_relaxed_64)(p))
#define st_store_relaxed_32(p, v) (dies_dawdle(__func__), (st_store_relaxed_32)(p, v))
#define st_store_relaxed_64(p, v) (dies_dawdle(__func__), (st_store_relaxed_64)(p, v))
#define st_store_release_32(p, v) (BROKEN ? st_store_relaxed_32(p, v) : (dies_dawdle(__func__), (st_store_release_32)(p, v)))
#define st_store_release_64(p, v) (BROKEN ? st_store_relaxed_64(p, v) : (dies_dawdle(__func__), (st_store_release_64)(p, v)))
#define st_store_seqcst_32(p, v) (BROKEN ? st_store_relaxed_32(p, v) : (dies_dawdle(__func__), (st_store_seqcst_32)(p, v)))
#define st_store_seqcst_64(p, v) (BROKEN ? st_store_relaxed_64(p, v) : (dies_dawdle(__func__), (st_store_seqcst_64)(p, v)))
#define st_load_acquire_32(p) (BROKEN ? st_load_relaxed_32(p) : (dies_dawdle(__func__), (st_load_acquire_32)(p)))
#define st_load_acquire_64(p) (BROKEN ? st_load_relaxed_64(p) : (dies_dawdle(__func__), (st_load_acquire_64)(p)))
#define st_load_seqcst_32(p) (BROKEN ? st_load_relaxed_32(p) : (dies_dawdle(__func__), (st_load_seqcst_32)(p)))
#define st_load_seqcst_64(p) (BROKEN ? st_load_relaxed_64(p) : (dies_dawdle(__func__), (st_load_seqcst_64)(p)))
#define st_cas_acq_rel_64(p, old, v) \
    (BROKEN ? dies_cas_64(p, old, v) : (dies_dawdle(__func__), (st_cas_acq_rel_64)(p, old, v)))
#define st_cas_acq_rel_32(p, old, v) (dies_dawdle(__func__), (st_cas_acq_rel_32)(p, old, v))
#define st_add_seqcst_32(p, v) (dies_dawdle(__func__), (st_add_seqcst_32)(p, v))
#define st_add_seqcst_64(p, v) (dies_dawdle(__func__), (st_add_seqcst_64)(p, v))
#define st_or_acq_rel_64(p, v) (dies_dawdle(__func__), (st_or_acq_rel_64)(p, v))
#define st_swap_acq_rel_64(p, v) (dies_dawdle(__func__), (st_swap_acq_rel_64)(p, v))
#endif

#include "st_join.h"
#include "st_p2p_run.h"
#include "st_page.h"
#include "st_registrar.h"
#include "st_rendezvous.h"
#include "st_ready.h"

#define CHECK(truth)                                                               \
    do {                                                                           \
        if (!(truth)) {                                                            \
            fprintf(stderr, "%s:%d: %s (seed %llu)\n", __FILE__, __LINE__, #truth, \
                    (unsigned long long)dies_seed);                                \
            _exit(1); /* other threads run: no destructors under them */           \
        }                                                                          \
    } while (0)
#define CHECK_IS(value, expected)                                                            \
    do {                                                                                     \
        long long value_ = (long long)(value), expected_ = (long long)(expected);            \
        if (value_ != expected_) {                                                           \
            fprintf(stderr, "%s:%d: %s is %lld, not %s = %lld (seed %llu)\n", __FILE__,      \
                    __LINE__, #value, value_, #expected, expected_,                          \
                    (unsigned long long)dies_seed);                                          \
            _exit(1);                                                                        \
        }                                                                                    \
    } while (0)

#if defined(ST_TSAN) || defined(__SANITIZE_ADDRESS__)
enum { DIES_SLOW = 4 }; /* rounds are divided by this */
#elif defined(ST_EMULATED)
enum { DIES_SLOW = 8 }; /* each instruction is some ten */
#elif defined(ST_CHECKED)
enum { DIES_SLOW = 4 }; /* stores are late, and on a busy machine each wait for one is a turn of everybody else */
#else
enum { DIES_SLOW = 1 };
#endif

enum { DIES_MOST = 8 };
#ifdef ST_TSAN /* each sanitizer leaves other addresses free */
#define DIES_WINDOW 0x4000000000ull
#else
#define DIES_WINDOW 0x200000000000ull
#endif
#define DIES_MAILBOX 4096u

static uint64_t dies_seed;

struct dies {
    uint32_t n;
    int fd;
    struct st_ctx ctx[DIES_MOST];
    uint32_t gone[DIES_MOST];
};

/* One die's thread. */
struct die {
    struct dies *dies;
    struct st_ctx *ctx;
    uint32_t rank;
    uint64_t seed;
    void *arg;
    void (*run)(struct die *die);
    pthread_t thread;
};

static inline uint64_t next(uint64_t *seed) /* splitmix64 */
{
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Prints the seed; ends the program should it hang. */
static inline uint64_t dies_setup(const char *name, int argc, char **argv)
{
    dies_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL) * 2654435761u + (uint64_t)getpid();
    printf("%s: seed %llu\n", name, (unsigned long long)dies_seed);
    fflush(stdout);
    alarm(110);
    return dies_seed;
}

static int dies_alive(struct st_ctx *ctx, uint32_t die)
{
    struct st_ctx *first = ctx - ctx->rank;
    struct dies *d = (struct dies *)((uint8_t *)first - offsetof(struct dies, ctx));

    return !st_load_acquire_32(&d->gone[die]); /* pairs with dies_end */
}

static inline void dies_end(struct die *die) { st_store_release_32(&die->dies->gone[die->rank], 1); }

/* n dies that have joined and agreed.  sleep_ns: when waiters go to sleep. */
static inline struct dies *dies_open(uint32_t n, uint64_t hbm_pages, uint64_t sleep_ns)
{
    struct dies *d = calloc(1, sizeof *d);
    struct st_header h;
    uint32_t i, missing;

    CHECK(d && n <= DIES_MOST);
    d->n = n;
    d->fd = memfd_create("dies", MFD_CLOEXEC);
    CHECK(d->fd >= 0);
    CHECK_IS(st_space_layout(&h, n, hbm_pages * ST_PAGE_BYTES, DIES_MAILBOX, DIES_WINDOW), ST_OK);
    CHECK_IS(st_space_format(d->fd, &h, 1, 2), ST_OK);
    CHECK_IS(st_space_map(&d->ctx[0], d->fd), ST_OK);
    for (i = 0; i < n; i++) {
        struct st_ctx *c = &d->ctx[i];

        *c = d->ctx[0]; /* one mapping for all */
        CHECK_IS(st_space_private(c), ST_OK);
        c->alive = dies_alive;
        c->spread.me = i;
        c->wait = (struct st_wait_policy){.sleep_ns = sleep_ns, .poll_ns = 2000000};
        CHECK_IS(st_space_join(c, i), ST_OK);
    }
    for (i = 0; i < n; i++) {
        d->ctx[i].shared_window = i > 0;
        CHECK_IS(st_space_agree(&d->ctx[i], 1000000000, &missing), ST_OK);
        CHECK(d->ctx[i].base == DIES_WINDOW);
        d->ctx[i].shared_window = 1;
        st_trace_set_mode(&d->ctx[i], i, getenv("ST_TEST_TRACE") ? ST_TRACE_RING : ST_TRACE_OFF);
    }
    return d;
}

static inline void dies_close(struct dies *d)
{
    munmap((void *)(uintptr_t)d->ctx[0].base, d->ctx[0].seg_bytes * d->n);
    for (uint32_t i = 0; i < d->n; i++)
        st_registrar_end(&d->ctx[i]);
    for (uint32_t i = 0; i < d->n; i++) {
        CHECK(pthread_mutex_destroy(&d->ctx[i].lock) == 0);
        for (uint32_t j = 0; j < d->n; j++)
            CHECK(pthread_mutex_destroy(&d->ctx[i].follow[j].log_lock) == 0 &&
                  pthread_mutex_destroy(&d->ctx[i].follow[j].map_lock) == 0);
        munmap(d->ctx[i].shadow, d->ctx[i].private_bytes);
        if (d->ctx[i].mark)
            munmap((void *)(uintptr_t)d->ctx[i].mark, 4096);
    }
    munmap(d->ctx[0].control, d->ctx[0].control_bytes);
    close(d->fd);
    free(d);
}

/* A registrar thread for each die. */
static inline struct dies *dies_register(struct dies *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        CHECK_IS(st_registrar_begin(&d->ctx[i]), ST_OK);
    return d;
}

/* What registrars do, here and now: every log is followed, every quarantine over. */
static inline void dies_settle(struct dies *d)
{
    for (uint32_t i = 0; i < d->n; i++)
        for (uint32_t j = 0; j < d->n; j++)
            CHECK_IS(st_shadow_follow(&d->ctx[i], j, st_log_head(&d->ctx[i], j), 1), ST_OK);
    for (uint32_t i = 0; i < d->n; i++) {
        st_quarantine_reclaim(&d->ctx[i]);
        CHECK(d->ctx[i].quarantined_frames == 0);
    }
}

/* The registrars have freed all that a die had given back. */
static inline void dies_drain(struct st_ctx *c)
{
    while (st_load_relaxed_64(&c->quarantined_frames))
        sched_yield();
    pthread_mutex_lock(&c->lock); /* what freed them is over */
    pthread_mutex_unlock(&c->lock);
}

static void *die_main(void *arg)
{
    struct die *die = arg;

    die->run(die);
    return NULL;
}

/* Runs all dies to their end, as threads. */
static inline void dies_run(struct dies *d, void (*run)(struct die *die), void *arg)
{
    struct die die[DIES_MOST];
    uint32_t i;

    for (i = 0; i < d->n; i++) {
        die[i] = (struct die){d, &d->ctx[i], i, dies_seed + 1000 * i, arg, run, 0};
        st_store_release_32(&d->gone[i], 0);
    }
    for (i = 0; i < d->n; i++)
        CHECK(pthread_create(&die[i].thread, NULL, die_main, &die[i]) == 0);
    for (i = 0; i < d->n; i++)
        CHECK(pthread_join(die[i].thread, NULL) == 0);
}

/* npages pages of a die. */
static inline uint8_t *dies_pages(struct st_ctx *ctx, uint64_t npages)
{
    uint64_t va = 0;

    CHECK_IS(st_pages_map(ctx, npages, &va), ST_OK);
    return (uint8_t *)(uintptr_t)va;
}

#endif
