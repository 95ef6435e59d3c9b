/* Asynchronous operations: a thread that runs collectives in the order they
 * were started, or drives point-to-point transfers side by side.
 *
 * A group has at most one of each; they are made at first use and sleep when
 * there is nothing to do.  They know no Python.
 */
#ifndef ST_WORKER_H
#define ST_WORKER_H

#include "st_item.h"
#include "st_p2p_run.h"

/* Nonzero: the thread must end. */
static int st_worker_stopping(void *arg)
{
    return st_load_acquire_32(&((struct st_worker *)arg)->stop) != 0; /* pairs with st_worker_stop */
}

static inline int st_worker_idle(const struct st_worker *w)
{
    return st_load_acquire_32(&w->outstanding) == 0; /* pairs with st_item_finish */
}

/* The next item, or NULL at the end.  Without wait, NULL if there is none. */
static inline struct st_item *st_worker_next(struct st_worker *w, int wait)
{
    struct st_item *item = NULL;

    pthread_mutex_lock(&w->lock);
    while (wait && !w->first && !w->stop)
        pthread_cond_wait(&w->more, &w->lock);
    if (w->first) {
        item = w->first;
        w->first = item->next;
        if (!w->first)
            w->last = &w->first;
        item->next = NULL;
    }
    pthread_mutex_unlock(&w->lock);
    return item;
}

/* Takes the group for a collective; others wait their turn. */
static inline int st_group_acquire(struct st_group *g, const struct st_wait_policy *policy, uint64_t timeout_ns)
{
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    int rc = ST_OK;

    if (st_group_take(g, policy))
        return ST_OK;
    if (st_group_nested(g))
        return ST_EDEADLOCK;
    st_wait_begin(&w, policy, NULL, NULL, timeout_ns);
    while (!st_group_take(g, policy)) {
        rc = st_wait_step(&w);
        if (rc == ST_ETIMEOUT || rc == ST_EINTR)
            break;
        if (rc == ST_AGAIN)
            st_flight_waits(g->ctx, &record, ST_FLIGHT_LOCK, ST_FLIGHT_NOBODY, g->id, g->number + 1, 0);
        rc = ST_OK;
    }
    st_wait_end(&w);
    st_flight_waited(g->ctx, record, rc);
    return rc;
}

static inline void st_group_release(struct st_group *g) { pthread_mutex_unlock(&g->lock); }

/* Makes or takes a cast, which has its place among the collectives. */
static inline int st_worker_cast(struct st_worker *w, struct st_item *item, const struct st_wait_policy *policy)
{
    int rc = st_item_await(item, policy);

    if (rc == ST_ECANCELED)
        st_item_nothing(item);
    if (rc == ST_OK || rc == ST_ECANCELED)
        rc = st_worker_stopping(w) ? ST_EINTR : st_p2p_run_by(w->group, &item->transfer, policy, item->timeout_ns);
    return item->cancelled && rc != ST_EINTR ? ST_ECANCELED : rc;
}

/* Runs a collective; one on a stream when that has come to it.  If the stream has failed, nothing takes its place in
 * the group, and all members hear of it. */
static inline int st_worker_collective(struct st_worker *w, struct st_item *item, const struct st_wait_policy *policy)
{
    struct st_request nothing, *r = &item->request;
    int rc = st_item_await(item, policy);

    if (rc == ST_ECANCELED) {
        memset(&nothing, 0, sizeof nothing);
        nothing.desc = ST_DESC_NOTHING;
        nothing.count = st_item_lost(w->group->ctx, item->stream);
        nothing.timeout_ns = r->timeout_ns;
        item->cancelled = 1;
        r = &nothing;
        rc = ST_OK;
    }
    if (rc == ST_OK)
        rc = st_worker_stopping(w) ? ST_EINTR : st_group_acquire(w->group, policy, r->timeout_ns);
    if (rc == ST_OK) {
        rc = st_collective(w->group, r);
        st_group_release(w->group);
    }
    if (r != &nothing)
        return rc;
    item->request.number = nothing.number;
    w->group->release(nothing.lines);
    return rc == ST_EINTR ? rc : ST_ECANCELED;
}

static inline void st_worker_collectives(struct st_worker *w, const struct st_wait_policy *policy)
{
    struct st_item *item;

    while ((item = st_worker_next(w, 1)) != NULL) {
        (void)st_trace_as(w->group->ctx, ST_TRACE_WORKER, 0);
        st_item_finish(w, item, item->transfer.cast ? st_worker_cast(w, item, policy)
                                                    : st_worker_collective(w, item, policy));
    }
}

/* One look at a transfer; ST_AGAIN: it goes on. */
static inline int st_worker_drive(struct st_worker *w, struct st_item *item, int look)
{
    struct st_transfer *t = &item->transfer;
    struct st_tracer *trace = st_trace_as(w->group->ctx, ST_TRACE_TRANSFERS, 0);
    int early = !st_item_turn(item), waits = early || item->ahead != NULL; /* early, nothing but the end counts */
    int rc;

    if (!waits && !t->record)
        st_p2p_record(w->group, t, ST_FLIGHT_ASYNC);
    st_trace_begins(trace);
    rc = waits ? ST_AGAIN : st_p2p_progress(w->group, t);
    if (__builtin_expect(trace != NULL, 0) && rc != ST_AGAIN)
        st_p2p_traced(w->group, t, trace, 0);
    if (rc == ST_AGAIN && look) {
        if (!waits)
            rc = st_p2p_look(w->group, t);
        else if (!early && st_group_failed(w->group) != ST_OK)
            rc = ST_EBROKEN;
        if (rc == ST_AGAIN && item->deadline_ns && st_now_ns() >= item->deadline_ns)
            rc = ST_ETIMEOUT;
        if (rc == ST_AGAIN && st_worker_stopping(w))
            rc = ST_EINTR;
        if (rc != ST_AGAIN)
            rc = st_p2p_cancel(w->group, t, rc);
    }
    if (rc != ST_AGAIN || t->state != ST_P2P_NEW)
        st_item_pass(item);
    return item->cancelled && rc != ST_AGAIN && rc != ST_EINTR ? ST_ECANCELED : rc;
}

static inline void st_worker_transfers(struct st_worker *w, const struct st_wait_policy *policy)
{
    struct st_group_header *h = w->group->header;
    struct st_item *pending = NULL, **at, *item;
    struct st_waiter waiter;
    int look = 0, moved, early, rc;

    st_wait_begin(&waiter, policy, &h->wake_word, &h->sleepers, 0);
    for (;;) {
        while ((item = st_worker_next(w, pending == NULL)) != NULL)
            st_item_append(&pending, item);
        if (!pending)
            break; /* stopped, and nothing left */
        moved = early = 0;
        for (at = &pending; (item = *at) != NULL;) {
            rc = st_worker_drive(w, item, look);
            if (rc == ST_AGAIN) {
                early |= item->stream && !item->begun;
                at = &item->next;
                continue;
            }
            *at = item->next;
            item->transfer.err = errno;
            st_p2p_recorded(w->group, &item->transfer, rc, 1);
            st_item_finish(w, item, rc);
            moved = 1;
        }
        look = 0;
        if (early != !waiter.wake_word) { /* streams do not ring the group */
            st_wait_disarm(&waiter);
            waiter.wake_word = early ? NULL : &h->wake_word;
        }
        if (moved)
            st_wait_again(&waiter);
        else
            look = st_wait_step(&waiter) != ST_OK;
    }
    st_wait_end(&waiter);
}

static void *st_worker_main(void *arg)
{
    struct st_worker *w = arg;
    struct st_wait_policy policy = w->group->ctx->wait;

    st_thread_background();
    policy.poll = st_worker_stopping;
    policy.arg = w;
    policy.spread = NULL; /* it is the die's main thread that has a place */
    if (w->transfers)
        st_worker_transfers(w, &policy);
    else
        st_worker_collectives(w, &policy);
    return NULL;
}

static inline int st_worker_init(struct st_worker *w, struct st_group *g, uint32_t transfers)
{
    memset(w, 0, sizeof *w);
    w->group = g;
    w->transfers = transfers;
    w->last = &w->first;
    return pthread_mutex_init(&w->lock, NULL) == 0 && pthread_cond_init(&w->more, NULL) == 0
               ? ST_OK
               : ST_ESYS;
}

static inline int st_worker_spawn(struct st_worker *w)
{
    sigset_t before;
    int err;

    st_thread_signals(&before);
    err = pthread_create(&w->thread, NULL, st_worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

/* Hands an item over.  ST_ESYS: no thread could be made.  After st_worker_stop it
 * is done at once, with ST_EINTR. */
static inline int st_worker_submit(struct st_worker *w, struct st_item *item)
{
    int err = 0;

    item->next = NULL;
    item->worker = w;
    item->state = ST_ITEM_QUEUED;
    pthread_mutex_lock(&w->lock);
    if (!w->started && !w->stop) {
        err = st_worker_spawn(w);
        w->started = err == 0;
    }
    if (!err)
        st_add_acq_rel_32(&w->outstanding, 1); /* pairs with st_worker_idle */
    if (w->stop) {
        st_item_finish(w, item, ST_EINTR);
    } else if (!err) {
        *w->last = item;
        w->last = &item->next;
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->lock);
    if (w->transfers) { /* it may sleep on the group's word, with others pending */
        st_fence_seqcst();
        st_group_wake(w->group);
    }
    errno = err;
    return err ? ST_ESYS : ST_OK;
}

/* Ends the thread, for good.  What is queued ends with ST_EINTR. */
static inline void st_worker_stop(struct st_worker *w)
{
    uint32_t started;

    pthread_mutex_lock(&w->lock);
    st_store_seqcst_32(&w->stop, 1); /* pairs with st_worker_stopping */
    pthread_cond_broadcast(&w->more);
    started = w->started;
    w->started = 0; /* one caller joins */
    pthread_mutex_unlock(&w->lock);
    if (!started)
        return;
    st_group_wake(w->group);
    pthread_join(w->thread, NULL);
}

#endif
