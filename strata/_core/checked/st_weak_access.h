/* Weak order: one access of a thread. */
#ifndef ST_WEAK_ACCESS_H
#define ST_WEAK_ACCESS_H

#include <sched.h>

#include "st_weak_threads.h"

/* A die is held up: sometimes for a moment, seldom for long; each die of its own. */
static void st_weak_pause(struct st_weak_thread *t, uint64_t one_in)
{
    uint64_t r = st_weak_roll(t);
    struct timespec ts = {0, 0};

    if (st_weak.yield) {
        st_weak.yield();
        return;
    }
    if (r % one_in)
        return;
    t->counts[ST_WEAK_PAUSES]++;
    if ((r >> 40 & 3) != 0) {
        sched_yield();
        return;
    }
    ts.tv_nsec = (long)(1000u << (r >> 50 & 7)) * (1 + (long)((st_weak_mix(st_weak.seed + st_weak.rank) & 3) == 0) * 4);
    nanosleep(&ts, NULL);
}

/* Before an access: this thread's state, locked. */
static struct st_weak_thread *st_weak_step(uint64_t one_in)
{
    struct st_weak_thread *t = st_weak_self();

    st_weak_glance(t);
    st_weak_pause(t, one_in);
    (pthread_mutex_lock)(&t->mu);
    t->steps++;
    st_weak_settle(t);
    return t;
}

static inline void st_weak_over(struct st_weak_thread *t)
{
    uint32_t waiting = t->nstores;

    (pthread_mutex_unlock)(&t->mu);
    if (waiting && !st_weak.yield)
        st_weak_kick();
}

static inline enum st_order st_weak_order(enum st_order order, const char *where)
{
    if (!st_weak.broken || order == ST_RELAXED || strcmp(st_weak.broken, where) != 0)
        return order;
    (st_store_relaxed_32)(&st_weak.broke, 1);
    return ST_RELAXED;
}

static uint64_t st_weak_load(const void *p, uint32_t bytes, enum st_order order, const char *where)
{
    struct st_weak_thread *t = st_weak_step(4096);
    uint64_t v = 0;
    int relaxed = (order = st_weak_order(order, where)) == ST_RELAXED, shared = st_weak_shared(p);
    int own = st_weak_own(t, p, bytes, &v);

    if (own <= 0 && !(own == 0 && relaxed && shared && st_weak_stale(t, p, bytes, &v))) {
        st_weak_touch(t, p, bytes);
        if (order == ST_SEQCST) /* pairs with whatever the caller's does */
            v = bytes == 4 ? (st_load_seqcst_32)(p) : (st_load_seqcst_64)(p);
        else /* pairs with whatever the caller's does */
            v = bytes == 4 ? (st_load_acquire_32)(p) : (st_load_acquire_64)(p);
        if (relaxed && shared)
            st_weak_forget(t, p, bytes);
    }
    if (!relaxed) {
        if (shared && !st_weak_line(t, (uint64_t)(uintptr_t)p & ~(ST_WEAK_SIZE - 1ull)))
            st_weak_learn(t, (uint64_t)(uintptr_t)p & ~(ST_WEAK_SIZE - 1ull));
        st_weak_acquired(t);
    }
    st_weak_over(t);
    return v;
}

static void st_weak_store(void *p, uint32_t bytes, uint64_t v, enum st_order order, const char *where)
{
    struct st_weak_thread *t = st_weak_step(128);

    order = st_weak_order(order, where);
    st_weak_forget(t, p, bytes);
    if (order != ST_SEQCST && st_weak_shared(p)) {
        st_weak_push(t, (struct st_weak_store){.to = p, .bytes = bytes, .value = v, .release = order != ST_RELAXED});
        st_weak_settle(t);
        st_weak_over(t);
        return;
    }
    if (order != ST_RELAXED)
        st_weak_flush(t);
    if (order == ST_SEQCST) /* a full barrier */
        st_weak_blind(t);
    st_weak_touch(t, p, bytes);
    if (bytes == 4) /* both pair with whatever the caller's does */
        (st_store_seqcst_32)(p, (uint32_t)v);
    else
        (st_store_seqcst_64)(p, v);
    st_weak_over(t);
}

#endif
