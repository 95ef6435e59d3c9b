/* Weak order: threads come and go, and one makes the stores of those that do something else. */
#ifndef ST_WEAK_THREADS_H
#define ST_WEAK_THREADS_H

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "st_weak_buffer.h"

#define ST_WEAK_TICK_NS 100000l

static struct st_weak_thread *st_weak_made(void)
{
    struct st_weak_thread *t = calloc(1, sizeof *t);

    if (!t || (pthread_mutex_init)(&t->mu, NULL) != 0)
        abort(); /* a test cannot go on without what it tests with */
    return t;
}

/* An ending thread's stores take effect. */
static void st_weak_leave(void *arg)
{
    struct st_weak_thread *t = arg, **at;
    uint32_t i;

    (pthread_mutex_lock)(&st_weak.mu);
    for (at = &st_weak.first; *at && *at != t; at = &(*at)->next) {
    }
    if (*at)
        *at = t->next;
    (pthread_mutex_lock)(&t->mu);
    st_weak_flush(t);
    for (i = 0; i < ST_WEAK_COUNTS; i++)
        st_weak.counts[i] += t->counts[i];
    (pthread_mutex_unlock)(&t->mu);
    (pthread_mutex_unlock)(&st_weak.mu);
    st_weak_me = NULL;
    (void)pthread_mutex_destroy(&t->mu);
    free(t);
}

/* Of all threads of the process; what they remember goes, too. */
static void st_weak_flush_all(void)
{
    struct st_weak_thread *t;

    (pthread_mutex_lock)(&st_weak.mu);
    for (t = st_weak.first; t; t = t->next) {
        (pthread_mutex_lock)(&t->mu);
        st_weak_flush(t);
        st_weak_unknown(t);
        (pthread_mutex_unlock)(&t->mu);
    }
    (pthread_mutex_unlock)(&st_weak.mu);
}

static void *st_weak_drain_main(void *arg)
{
    struct timespec tick = {0, ST_WEAK_TICK_NS};

    for (;;) {
        uint32_t seen = (st_load_acquire_32)(&st_weak.kick), waiting = 0; /* pairs with st_weak_kick */
        struct st_weak_thread *t;

        (pthread_mutex_lock)(&st_weak.mu);
        for (t = st_weak.first; t; t = t->next) {
            (pthread_mutex_lock)(&t->mu);
            waiting += st_weak_overdue(t, st_weak_clock());
            (pthread_mutex_unlock)(&t->mu);
        }
        (pthread_mutex_unlock)(&st_weak.mu);
        if (waiting) {
            (st_store_relaxed_32)(&st_weak.idle, 0);
            nanosleep(&tick, NULL);
        } else if (!(st_load_relaxed_32)(&st_weak.idle)) {
            (st_store_seqcst_32)(&st_weak.idle, 1); /* pairs with st_weak_kick */
        } else {
            syscall(SYS_futex, &st_weak.kick, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        }
    }
    return arg;
}

/* There is something to be made later. */
static inline void st_weak_kick(void)
{
    if (!(st_load_seqcst_32)(&st_weak.idle)) /* pairs with st_weak_drain_main */
        return;
    (st_store_seqcst_32)(&st_weak.idle, 0);
    (void)(st_add_seqcst_32)(&st_weak.kick, 1); /* pairs with st_weak_drain_main */
    syscall(SYS_futex, &st_weak.kick, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* The caller has the lock of the list. */
static void st_weak_employ(void)
{
    sigset_t all, before;
    pthread_t thread;

    if (st_weak.drainer || st_weak.yield)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if ((pthread_create)(&thread, NULL, st_weak_drain_main, NULL) != 0)
        abort(); /* without it stores of a thread that sleeps would never take effect */
    (void)pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    st_weak.drainer = 1;
}

/* This thread's state, made at its first access. */
static struct st_weak_thread *st_weak_enter(void)
{
    struct st_weak_thread *t = st_weak_me;

    (pthread_mutex_lock)(&st_weak.mu);
    if (!t) {
        t = st_weak_made();
        t->next = st_weak.first;
        st_weak.first = t;
        st_weak_me = t;
        pthread_setspecific(st_weak.key, t);
    }
    st_weak_throw(t, st_weak.numbers++);
    st_weak_employ();
    (pthread_mutex_unlock)(&st_weak.mu);
    return t;
}

static inline struct st_weak_thread *st_weak_self(void)
{
    struct st_weak_thread *t = st_weak_me;

    return t && t->epoch == st_weak.epoch ? t : st_weak_enter();
}

/* ---- fork and exit ------------------------------------------------------------------ */

/* A fork is made with nothing pending and no lock in the middle of anything. */
static void st_weak_prepare(void)
{
    struct st_weak_thread *t;

    st_weak_flush_all();
    (pthread_mutex_lock)(&st_weak.mu);
    for (t = st_weak.first; t; t = t->next)
        (pthread_mutex_lock)(&t->mu);
}

static void st_weak_parent(void)
{
    struct st_weak_thread *t;

    for (t = st_weak.first; t; t = t->next)
        (pthread_mutex_unlock)(&t->mu);
    (pthread_mutex_unlock)(&st_weak.mu);
}

/* The other threads are not there: neither are their stores, which the parent makes. */
static void st_weak_child(void)
{
    struct st_weak_thread *t, *next;

    for (t = st_weak.first; t; t = next) {
        next = t->next;
        if (t != st_weak_me) {
            for (; t->nstores; t->nstores--)
                free(t->stores[t->nstores - 1].data);
            free(t);
        }
    }
    st_weak.first = st_weak_me;
    st_weak.drainer = st_weak.idle = 0;
    if (st_weak_me) {
        st_weak_me->next = NULL;
        (void)pthread_mutex_init(&st_weak_me->mu, NULL);
    }
    (void)pthread_mutex_init(&st_weak.mu, NULL);
    st_weak.epoch++; /* the drainer is made anew */
}

static __attribute__((constructor)) void st_weak_loaded(void)
{
    (void)pthread_key_create(&st_weak.key, st_weak_leave);
    (void)pthread_atfork(st_weak_prepare, st_weak_parent, st_weak_child);
}

static __attribute__((destructor)) void st_weak_unloaded(void)
{
    if (st_weak.seed)
        st_weak_flush_all();
}

#endif
