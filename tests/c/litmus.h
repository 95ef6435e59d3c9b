/* Litmus tests under weak order: small programs of two to four threads, run over and over.
 *
 * In plain builds the threads run in turn (fibers of one), switched by dice before each atomic access of the core; clocks,
 * sleeps and futexes are played.  So a seed gives the same run to the last step, and a run costs microseconds.  Under
 * sanitizers they are threads, and their late stores are made by the thread that makes them in a die as well.
 *
 * A test has a right form, of which the forbidden outcome must never be seen, and names the functions of which the memory
 * orders are then taken out, one at a time: the forbidden outcome must be seen within LITMUS_FIND runs.
 */
#ifndef LITMUS_H
#define LITMUS_H

#define ST_CHECKED 1
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "st_hooks.h"

#if defined(ST_TSAN) || defined(__SANITIZE_ADDRESS__)
#define LITMUS_THREADS 1
#else
#define LITMUS_THREADS 0
#endif

static void litmus_turn(void);
static int litmus_clock(struct timespec *ts);
static long litmus_futex(uint32_t *word, int op, uint32_t value);

#if !LITMUS_THREADS /* what the core's headers call, from here on */
#define sched_yield() litmus_turn()
#define nanosleep(a, b) ((void)(a), litmus_turn())
#define clock_gettime(id, ts) litmus_clock(ts)
#define syscall(n, word, op, value, timeout, ...) ((void)(timeout), litmus_futex((word), (op), (value)))
#endif
#include "handles.h"
#include "st_board.h"
#include "st_sdma.h"

enum { LITMUS_MOST = 4, LITMUS_FIND = 50000, LITMUS_STACK = 96 << 10, LITMUS_TURNS = 20000 };

struct litmus {
    const char *name;
    uint32_t threads;
    void (*begin)(void);                  /* before each run; NULL: nothing */
    void (*run[LITMUS_MOST])(void);
    int (*seen)(void);                    /* after it: the outcome in question */
    const char *without[6];               /* functions, without whose orders it must be seen */
    int allowed;                          /* it must be seen as it is */
};

#include "litmus_fibers.h"

/* ---- threads ------------------------------------------------------------------------- */

static void *litmus_thread(void *arg)
{
    uint64_t number = (uint64_t)(uintptr_t)arg;

    litmus_self = number;
    for (;;) {
        pthread_barrier_wait(&litmus.all);
        if (!litmus.running)
            return NULL;
        litmus.test->run[number]();
        st_hook_drain();
        pthread_barrier_wait(&litmus.all);
    }
}

static uint64_t litmus_threads(const struct litmus *t, uint64_t seed, uint64_t runs, uint64_t *times)
{
    pthread_t thread[LITMUS_MOST];
    uint64_t r, found = 0;
    uint32_t i;

    *times = 0;
    litmus.test = t;
    litmus.dice = seed;
    litmus.running = 1;
    CHECK(pthread_barrier_init(&litmus.all, NULL, t->threads + 1) == 0);
    st_weak_begin(seed, 0, NULL);
    for (i = 0; i < t->threads; i++)
        CHECK(pthread_create(&thread[i], NULL, litmus_thread, (void *)(uintptr_t)i) == 0);
    for (r = 1; r <= runs; r++) {
        litmus.lost = 0;
        if (t->begin)
            t->begin();
        st_hook_drain();
        pthread_barrier_wait(&litmus.all);
        pthread_barrier_wait(&litmus.all);
        st_hook_forget();
        if (t->seen()) {
            found = found ? found : r;
            ++*times;
        }
    }
    litmus.running = 0;
    pthread_barrier_wait(&litmus.all);
    for (i = 0; i < t->threads; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    pthread_barrier_destroy(&litmus.all);
    st_weak_begin(0, 0, NULL);
    return found;
}

static const char *litmus_without;

/* ---- driving ------------------------------------------------------------------------- */

/* The same seed, the same run to the last step; after one that maps what is mapped at first use. */
static void litmus_repeats(const struct litmus *t, uint64_t runs)
{
    uint64_t times[3], dice[3], k;

    for (k = 0; k < 3; k++) {
        (void)litmus_fibers(t, dies_seed | 1, NULL, runs < 200 ? runs : 200, 0, &times[k]);
        dice[k] = litmus.dice + litmus.fiber[0].weak->dice + litmus.fiber[1].weak->dice;
    }
    CHECK(times[1] == times[2] && dice[1] == dice[2]);
}

/* For tools/weak_mutants.py: without the orders of one function, whatever it is. */
static void litmus_mutant(const struct litmus *t, uint64_t runs)
{
    uint64_t times, found;

    st_weak.broke = 0;
    found = litmus_fibers(t, dies_seed | 1, litmus_without, runs < 50 ? runs : 50, 1, &times);
    if (!st_weak.broke)
        return; /* not part of this protocol */
    found = found ? found : litmus_fibers(t, dies_seed | 1, litmus_without, runs, 1, &times);
    printf("mutant\t%s\t%s\t%llu\n", litmus_without, t->name, (unsigned long long)found);
}

/* All forms of a test; `runs` of the right one. */
static void litmus_test(const struct litmus *t, uint64_t runs)
{
    uint64_t times, found, k;

    if (litmus_without) {
        if (!LITMUS_THREADS && !t->allowed)
            litmus_mutant(t, runs);
        return;
    }
    if (LITMUS_THREADS) {
        if (t->allowed) /* it may not end */
            return;
        runs = runs < 100 ? runs : 100;
        found = litmus_threads(t, dies_seed | 1, runs, &times);
        CHECK(!found);
        return;
    }
    litmus_repeats(t, runs);
    found = litmus_fibers(t, dies_seed | 1, NULL, runs, 0, &times);
    printf("%-28s %-10s %7llu in %llu\n", t->name, t->allowed ? "allowed" : "forbidden", (unsigned long long)times,
           (unsigned long long)runs);
    CHECK_IS(found != 0, t->allowed != 0);
    for (k = 0; k < sizeof t->without / sizeof *t->without && t->without[k]; k++) {
        found = litmus_fibers(t, dies_seed | 1, t->without[k], LITMUS_FIND, 1, &times);
        printf("  without the order of %-22s found in run %llu\n", t->without[k], (unsigned long long)found);
        CHECK(found);
    }
}

/* Arguments: seed (drawn if it is not there), runs of each right form, and a function to go without. */
static uint64_t litmus_begin(const char *name, int argc, char **argv, uint64_t runs)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* a failure must not take what was said before with it */
    dies_setup(name, argc, argv);
    litmus_without = argc > 3 ? argv[3] : NULL;
    return argc > 2 ? strtoull(argv[2], NULL, 0) : runs;
}

#endif
