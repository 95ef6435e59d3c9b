/* Weak order: what is kept for each thread, and where its dice come from. */
#ifndef ST_WEAK_STATE_H
#define ST_WEAK_STATE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "st_atomic.h"
#include "st_copy.h"
#include "st_faults.h"

#define ST_WEAK_STORES 64u           /* of a thread that have not taken effect */
#define ST_WEAK_COPY (64u << 10)     /* bytes of the largest copy that waits as a whole */
#define ST_WEAK_KEPT (1u << 20)      /* bytes of all copies of a thread that wait */
#define ST_WEAK_LINES 64u            /* that a thread knows */
#define ST_WEAK_READ (16u << 10)     /* bytes of the largest copy that may see old ones */
#define ST_WEAK_KNOWN_NS 20000000ull /* after which a line that is not used is forgotten */
#define ST_WEAK_RANGES 64u           /* of shared memory */
#define ST_WEAK_MOST_NS 2000000ull   /* after which a store takes effect in any case */

/* A store that has not taken effect: a word, or the bytes of a copy. */
struct st_weak_store {
    uint8_t *to;
    uint8_t *data; /* NULL: a word */
    uint64_t bytes;
    uint64_t value;
    uint64_t due;    /* step of its thread from which it may take effect */
    uint64_t due_ns; /* when it does in any case */
    uint32_t release;
    st_accumulate_fn *run; /* an accumulation of data: how it is made; else NULL */
    uint64_t count;
    int dtype, op;
};

/* What a thread has seen of a line. */
struct st_weak_line {
    uint64_t word[8];
    uint32_t sight; /* its thread's when it was seen */
    uint8_t seen;   /* words of it that may still be seen so */
    uint32_t left;  /* times that they may */
    uint64_t until_ns, used_ns;
};

enum st_weak_count { ST_WEAK_LATE, ST_WEAK_OVERTOOK, ST_WEAK_STALE, ST_WEAK_PIECES, ST_WEAK_TURNS, ST_WEAK_PAUSES, ST_WEAK_COUNTS };

struct st_weak_thread {
    pthread_mutex_t mu; /* of all of it; the thread that makes late stores takes it, too */
    struct st_weak_thread *next;
    uint64_t dice, steps, kept;
    uint32_t epoch; /* of the set-up that its dice are from */
    uint32_t nstores, nlines;
    uint32_t sight; /* of loads: those seen under another one do not count */
    uint64_t counts[ST_WEAK_COUNTS];
    struct st_weak_store stores[ST_WEAK_STORES]; /* in program order */
    uint64_t places[ST_WEAK_LINES]; /* addresses of lines that it has read */
    struct st_weak_line lines[ST_WEAK_LINES];
};

/* Of the process. */
static struct st_weak {
    uint64_t seed; /* 0: order is as strong as the hardware's */
    uint32_t rank;
    uint32_t epoch;
    uint32_t numbers;     /* given to threads */
    uint32_t nranges;
    uint64_t ranges[ST_WEAK_RANGES][2];
    const char *broken;   /* function of the core whose orders are taken out */
    uint32_t broke;       /* that has been done */
    void (*yield)(void);  /* tests that run threads in turn: before each access; then nothing here sleeps */
    pthread_mutex_t mu;   /* of the list; taken before a thread's */
    struct st_weak_thread *first;
    uint64_t counts[ST_WEAK_COUNTS]; /* of threads that have ended */
    pthread_key_t key;
    uint32_t drainer; /* the thread that makes late stores: 1, it runs */
    uint32_t idle, kick;
} st_weak = {.mu = PTHREAD_MUTEX_INITIALIZER};

static __thread struct st_weak_thread *st_weak_me;
static __thread int st_weak_making; /* a kernel is run by a hook: its accesses are what they are */

static inline uint64_t st_weak_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint64_t st_weak_roll(struct st_weak_thread *t) { return st_weak_mix(t->dice += 0x9e3779b97f4a7c15u); }

/* Below n, which is not 0. */
static inline uint64_t st_weak_below(struct st_weak_thread *t, uint64_t n) { return (st_weak_roll(t) >> 11) % n; }

/* Stands still where threads run in turn: there steps alone count. */
static inline uint64_t st_weak_clock(void)
{
    struct timespec ts;

    if (st_weak.yield)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* A thread's numbers depend on seed, rank and how many threads came before it alone. */
static inline void st_weak_throw(struct st_weak_thread *t, uint64_t number)
{
    t->dice = st_weak_mix(st_weak.seed ^ st_weak_mix(((uint64_t)st_weak.rank << 32) + number + 1));
    t->epoch = st_weak.epoch;
}

/* Can peers see it?  What they cannot is not delayed: it may be a word on a stack that is gone when it takes effect. */
static inline int st_weak_shared(const void *p)
{
    uint32_t i, n = (st_load_acquire_32)(&st_weak.nranges); /* pairs with st_hook_shared */

    for (i = 0; i < n; i++)
        if ((uint64_t)(uintptr_t)p - st_weak.ranges[i][0] < st_weak.ranges[i][1])
            return 1;
    return 0;
}

static inline int st_weak_meets(const void *a, uint64_t abytes, const void *b, uint64_t bbytes)
{
    uint64_t p = (uint64_t)(uintptr_t)a, q = (uint64_t)(uintptr_t)b;

    return p < q + bbytes && q < p + abytes;
}

#endif
