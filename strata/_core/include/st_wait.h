/* The one place that waits.
 *
 * A waiter polls a condition and calls st_wait_step() each time it does not
 * hold.  A step pauses, yields or sleeps on a futex, by how long the wait has
 * lasted, and now and then returns ST_AGAIN: the caller then looks whether the
 * peers it waits for are alive.  Every wait ends: by its condition, by the
 * deadline (ST_ETIMEOUT), or because the poll hook says so (ST_EINTR).
 */
#ifndef ST_WAIT_H
#define ST_WAIT_H

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "st_atomic.h"
#include "st_spread.h"
#include "st_status.h"

struct st_wait_policy {
    uint32_t pauses;       /* polls before the first yield; 0 when oversubscribed */
    uint32_t pad;
    uint64_t sleep_ns;     /* age of a wait at which yielding turns into sleeping */
    uint64_t poll_ns;      /* time between two looks at signals and liveness */
    int (*poll)(void *arg); /* nonzero: stop waiting (a signal handler raised) */
    void *arg;
    struct st_spread *spread; /* NULL: stay where the scheduler puts us */
};

struct st_waiter {
    const struct st_wait_policy *policy;
    uint32_t *wake_word; /* futex of the thing waited on; may be NULL */
    uint32_t *sleepers;
    uint64_t start_ns;    /* of this wait; 0 until the first look at the clock */
    uint64_t deadline_ns; /* 0: none, or not looked at the clock yet */
    uint64_t timeout_ns;
    uint64_t next_poll_ns;
    uint32_t steps;
    uint32_t armed;
    uint32_t seen; /* wake word when armed */
};

static inline uint64_t st_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static inline long st_futex(uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* timeout_ns 0: no deadline. */
static inline void st_wait_begin(struct st_waiter *w, const struct st_wait_policy *policy,
                                 uint32_t *wake_word, uint32_t *sleepers, uint64_t timeout_ns)
{
    w->policy = policy;
    w->wake_word = wake_word;
    w->sleepers = sleepers;
    w->start_ns = 0;
    w->deadline_ns = 0;
    w->timeout_ns = timeout_ns;
    w->next_poll_ns = 0;
    w->steps = 0;
    w->armed = 0;
    w->seen = 0;
}

static inline void st_wait_disarm(struct st_waiter *w)
{
    if (w->armed) {
        w->armed = 0;
        st_add_seqcst_32(w->sleepers, (uint32_t)-1); /* pairs with the load in st_wake */
    }
}

/* The next wait of the same operation: same deadline, fresh patience. */
static inline void st_wait_again(struct st_waiter *w)
{
    st_wait_disarm(w);
    w->steps = 0;
    w->start_ns = 0;
}

/* Called once, however the wait ended. */
static inline void st_wait_end(struct st_waiter *w) { st_wait_disarm(w); }

static inline void st_wait_sleep(struct st_waiter *w, uint64_t now)
{
    struct timespec ts;
    uint64_t ns = w->next_poll_ns > now ? w->next_poll_ns - now : 1;

    if (!w->wake_word) {
        ns = ns < 200000 ? ns : 200000;
        ts.tv_sec = 0;
        ts.tv_nsec = (long)ns;
        nanosleep(&ts, NULL);
        return;
    }
    if (!w->armed) { /* announce first, look at the condition once more, then sleep */
        w->seen = st_load_acquire_32(w->wake_word);
        st_add_seqcst_32(w->sleepers, 1); /* pairs with the load in st_wake */
        st_fence_seqcst(); /* a load_acquire of the condition must not overtake the announcement */
        w->armed = 1;
        return;
    }
    ts.tv_sec = (time_t)(ns / 1000000000ull);
    ts.tv_nsec = (long)(ns % 1000000000ull);
    st_futex(w->wake_word, FUTEX_WAIT, w->seen, &ts);
    st_wait_disarm(w);
}

static int st_wait_slow(struct st_waiter *w)
{
    const struct st_wait_policy *p = w->policy;
    uint64_t now = st_now_ns();

    if (w->start_ns == 0)
        w->start_ns = now;
    if (w->deadline_ns == 0 && w->timeout_ns)
        w->deadline_ns = w->timeout_ns < UINT64_MAX - now ? now + w->timeout_ns : UINT64_MAX;
    if (w->next_poll_ns == 0)
        w->next_poll_ns = now + p->poll_ns;
    if (now >= w->next_poll_ns) {
        w->next_poll_ns = now + p->poll_ns;
        if (p->poll && p->poll(p->arg))
            return ST_EINTR;
        if (w->deadline_ns && now >= w->deadline_ns)
            return ST_ETIMEOUT;
        return ST_AGAIN;
    }
    if (w->deadline_ns && now >= w->deadline_ns)
        return ST_ETIMEOUT;
    if (w->deadline_ns && w->next_poll_ns > w->deadline_ns)
        w->next_poll_ns = w->deadline_ns;
    if (now - w->start_ns < p->sleep_ns)
        sched_yield();
    else
        st_wait_sleep(w, now);
    return ST_OK;
}

/* ST_OK: look again.  ST_AGAIN: look again, and at the peers' liveness.
 * ST_ETIMEOUT, ST_EINTR: stop. */
static inline int st_wait_step(struct st_waiter *w)
{
    uint32_t n = w->steps++;

    if (n < w->policy->pauses) {
        st_pause();
        return ST_OK;
    }
    /* A look at the clock costs a tenth of a yield: leave it out only at first. */
    n -= w->policy->pauses;
    if (w->policy->spread)
        st_spread_tick(w->policy->spread);
    if (n < 64 && (n & 3u) != 3u) {
        sched_yield();
        return ST_OK;
    }
    return st_wait_slow(w);
}

/* After a store that may end somebody's wait.  The store must have been a
 * seqcst one: it and the load of sleepers must not change places, or a waiter
 * that announces itself between them is never woken. */
static inline void st_wake(uint32_t *wake_word, uint32_t *sleepers)
{
    if (st_load_seqcst_32(sleepers)) { /* pairs with the add in st_wait_sleep */
        st_add_seqcst_32(wake_word, 1); /* pairs with the load_acquire in st_wait_sleep */
        st_futex(wake_word, FUTEX_WAKE, INT32_MAX, NULL);
    }
}

#endif
