/* The DMA thread: a round after another, and sleep when there is nothing to do. */
#ifndef ST_ENGINE_THREAD_H
#define ST_ENGINE_THREAD_H

#include "st_engine_run.h"
#include "st_thread.h"

/* Between looks at gates, when nothing else is to be done, it sleeps for a quarter of the time that they have
 * been shut, within these bounds: so nobody's wait gets much longer, and long ones cost nothing. */
#define ST_GATE_SLEEP_LEAST 50000ull
#define ST_GATE_SLEEP_MOST 2000000ull

/* Sleeps until the bell, or for limit_ns; not if a ring has been rung meanwhile. */
static inline void st_engine_sleep(struct st_engine *e, uint64_t limit_ns)
{
    struct timespec ts = {.tv_nsec = (long)limit_ns};
    struct st_sdma *s = e->shared;
    uint32_t seen = st_load_acquire_32(&s->bell), i; /* pairs with st_wake in st_lane_ring */
    uint64_t rung = 0;

    st_add_seqcst_32(&s->bell_sleepers, 1); /* pairs with st_wake in st_lane_ring */
    st_fence_seqcst();
    for (i = 0; i < ST_SDMA_RINGS / 64; i++)
        rung |= st_load_seqcst_64(&s->pending[i]); /* pairs with st_lane_ring */
    if (!rung && !st_load_seqcst_32(&e->stop)) { /* pairs with st_engine_end */
        st_count(&e->count.sleeps, 1);
        st_futex(&s->bell, FUTEX_WAIT, seen, limit_ns ? &ts : NULL);
    }
    st_add_seqcst_32(&s->bell_sleepers, (uint32_t)-1); /* pairs with st_wake in st_lane_ring */
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
    enum st_turn turn;

    for (;;) {
        turn = st_engine_round(e);
        if (turn == ST_TURN_MORE) {
            since = 0;
            continue;
        }
        if (turn == ST_TURN_EMPTY && st_load_acquire_32(&e->stop)) /* pairs with st_engine_end */
            return NULL;
        now = st_now_ns();
        since = since ? since : now;
        if (now - since < e->linger_ns)
            sched_yield();
        else
            st_engine_sleep(e, turn == ST_TURN_GATED ? st_gate_sleep(now - since) : 0);
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

    st_store_seqcst_64(&e->ctx->dies[e->ctx->rank].sdma, 0); /* pairs with st_sdma_of */
    pthread_mutex_lock(&e->lock);
    for (i = 0; i < ST_SDMA_RINGS; i++)
        if (e->rings[i].at) /* pairs with st_lane_open */
            st_store_seqcst_64(&((struct st_ring *)(uintptr_t)e->rings[i].at)->opened, 0);
    pthread_mutex_unlock(&e->lock);
    st_store_seqcst_32(&e->stop, 1); /* pairs with st_engine_cancelled, st_engine_sleep */
    st_add_seqcst_32(&e->shared->bell, 1); /* pairs with st_engine_sleep */
    st_futex(&e->shared->bell, FUTEX_WAKE, INT32_MAX, NULL);
    if (e->runs)
        pthread_join(e->thread, NULL);
    st_store_release_32(&e->runs, 0); /* pairs with st_event_wait */
}

#endif
