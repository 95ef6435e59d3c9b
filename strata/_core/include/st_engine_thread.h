/* The DMA thread: a round after another, and sleep when there is nothing to do. */
#ifndef ST_ENGINE_THREAD_H
#define ST_ENGINE_THREAD_H

#include "st_engine_run.h"
#include "st_thread.h"

/* Between looks at gates, when nothing else is to be done, it sleeps for a quarter of the time that they have
 * been shut, within these bounds: so nobody's wait gets much longer, and long ones cost nothing. */
#define ST_GATE_SLEEP_LEAST 50000ull
#define ST_GATE_SLEEP_MOST 2000000ull

/* Announces that the thread is about to sleep.  It looks at everything once more before it does: at rings, gates and
 * what has been cancelled; whoever changes one of them later wakes it. */
static inline uint32_t st_engine_arm(struct st_engine *e)
{
    uint32_t seen = st_load_acquire_32(&e->shared->bell); /* pairs with st_wake, st_engine_end */

    st_add_seqcst_32(&e->shared->bell_sleepers, 1); /* pairs with st_wake */
    st_fence_seqcst(); /* pairs with st_sdma_bell */
    return seen;
}

static inline void st_engine_disarm(struct st_engine *e)
{
    st_add_seqcst_32(&e->shared->bell_sleepers, (uint32_t)-1); /* pairs with st_wake */
}

/* Sleeps until the bell, or for limit_ns. */
static inline void st_engine_sleep(struct st_engine *e, uint32_t seen, uint64_t limit_ns)
{
    struct timespec ts = {.tv_nsec = (long)limit_ns};

    st_count(&e->count.sleeps, 1);
    st_futex(&e->shared->bell, FUTEX_WAIT, seen, limit_ns ? &ts : NULL);
}

static inline uint64_t st_gate_sleep(uint64_t waited_ns)
{
    uint64_t ns = waited_ns / 4;

    return ns < ST_GATE_SLEEP_LEAST ? ST_GATE_SLEEP_LEAST : ns < ST_GATE_SLEEP_MOST ? ns : ST_GATE_SLEEP_MOST;
}

static void *st_engine_main(void *arg)
{
    struct st_engine *e = arg;
    uint64_t since = 0, now;
    uint32_t seen = 0, stop, armed = 0;
    enum st_turn turn;

    for (;;) {
        stop = st_load_acquire_32(&e->stop); /* pairs with st_engine_end */
        if (stop)
            st_fence_seqcst(); /* pairs with st_sdma_bell: whoever still found a ring open is in this last round */
        turn = st_engine_round(e);
        if (turn == ST_TURN_MORE || (turn == ST_TURN_EMPTY && stop)) {
            if (armed)
                st_engine_disarm(e);
            if (turn == ST_TURN_EMPTY)
                return NULL;
            since = armed = 0;
            continue;
        }
        now = st_now_ns();
        since = since ? since : now;
        if (armed) { /* nothing has come up since */
            st_engine_sleep(e, seen, turn == ST_TURN_GATED ? st_gate_sleep(now - since) : 0);
            st_engine_disarm(e);
            armed = 0;
        } else if (now - since >= e->linger_ns) {
            seen = st_engine_arm(e);
            armed = 1;
        } else {
            sched_yield();
        }
    }
}

/* Starts the thread.  ST_ESYS: errno says why. */
static inline int st_engine_start(struct st_engine *e)
{
    sigset_t before;
    int err;

    st_thread_signals(&before);
    err = pthread_create(&e->thread, NULL, st_engine_main, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = err;
    st_store_release_32(&e->runs, err == 0); /* pairs with st_event_wait */
    return err ? ST_ESYS : ST_OK;
}

/* Ends it: what is in the rings ends with ST_ENOJOB, and nobody finds them any more. */
static inline void st_engine_end(struct st_engine *e)
{
    uint32_t i;

    if (!e->shared)
        return;
    ST_FAULT(ENGINE_ENDING);
    st_store_seqcst_64(&e->ctx->dies[e->ctx->rank].sdma, 0); /* pairs with st_sdma_of */
    pthread_mutex_lock(&e->lock);
    for (i = 0; i < ST_SDMA_RINGS; i++)
        if (e->rings[i].at) /* pairs with st_lane_open */
            st_store_seqcst_64(&((struct st_ring *)(uintptr_t)e->rings[i].at)->opened, 0);
    e->shared->open = 0;
    st_store_seqcst_32(&e->stop, 1); /* pairs with st_engine_cancelled, st_engine_main */
    pthread_mutex_unlock(&e->lock);
    ST_FAULT(ENGINE_STOPPED);
    st_add_seqcst_32(&e->shared->bell, 1); /* pairs with st_engine_arm */
    st_futex(&e->shared->bell, FUTEX_WAKE, INT32_MAX, NULL);
    if (e->runs)
        pthread_join(e->thread, NULL);
    st_store_release_32(&e->runs, 0); /* pairs with st_event_wait */
}

#endif
