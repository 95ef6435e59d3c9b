/* A die's DMA engine, outside shared memory: events, and what it keeps of each ring. */
#ifndef ST_ENGINE_H
#define ST_ENGINE_H

#include "st_hold.h"
#include "st_sdma.h"

#define ST_SDMA_EVENTS 8192u
#define ST_CYCLE_MOST 16u

/* Something that a host thread waits for.  Number 0 is none. */
struct st_event {
    uint64_t count;     /* how often it has been notified */
    uint32_t status;    /* of the first descriptor of its chains that failed; ST_OK: none */
    uint32_t cancel;    /* nonzero: its chains end with this status */
    uint32_t used;
    uint32_t wake_word; /* futex, of waiters */
    uint32_t sleepers;
    uint32_t pad;
    uint32_t *also_word; /* another futex to wake, where a waiter waits for other things, too; NULL */
    uint32_t *also_sleepers;
    /* the descriptor that failed; written before `status` */
    uint32_t ring;
    uint32_t ncycle;
    uint64_t index;
    struct st_descriptor failed;
    struct st_gate { /* with ST_EDEADLOCK: the gates of the cycle */
        uint32_t die, ring;
        uint64_t va, value;
    } cycle[ST_CYCLE_MOST];
};

struct st_engine_counters {
    uint64_t descriptors, bytes, failed, doorbells, sleeps, gates, calls, notifies, looks;
};

struct st_engine {
    struct st_ctx *ctx;
    struct st_sdma *shared;
    struct st_hold hold;
    pthread_t thread;
    pthread_mutex_t lock; /* of opening and closing rings, and of events' `used` */
    uint32_t runs;        /* there is a thread */
    uint32_t stop;        /* everything ends with ST_ENOJOB */
    uint64_t round;       /* odd: the thread is at rings */
    uint64_t timeout_ns;  /* of gates that name none; 0: none */
    uint64_t linger_ns;   /* that the thread yields, when it has nothing to do, before it sleeps */
    uint64_t openings;
    uint32_t next_event;  /* there is no free one before it */
    uint32_t notifying;   /* event that the thread has in hand */
    uint32_t turn;        /* ring that comes first in the next round, or the next one that has something */
    uint64_t active[ST_SDMA_RINGS / 64]; /* rings that have something, as far as the thread knows */
    uint64_t nranges;     /* what the descriptor in hand touches */
    struct st_range ranges[ST_HOLD_MOST];
    struct st_sdma_operand operands[2 * ST_MAX_DIES];
    void *pointers[2 * ST_MAX_DIES];
    struct st_engine_counters count;
    uint64_t look_ns;     /* no look for cycles before: they take an eighth of the thread's time at most */
    uint32_t look_turn;   /* a ring that has looked in this turn looks again when no other wants to, in this */
    uint32_t wanted, wanted_before; /* round and the one before; else who comes first in rounds keeps others from it */
    uint32_t ncycle;      /* gates of the cycle that the gate in hand is on */
    struct st_tracer *trace; /* of the thread, for the turn in hand; NULL: off */
    struct st_gate cycle[ST_CYCLE_MOST];
    struct st_engine_ring {
        uint64_t at;          /* its struct st_ring; 0: closed */
        struct st_ring *ring; /* the same, for the thread, which may still have a closed one in hand */
        uint64_t head;
        uint64_t done;        /* in a call: descriptors of its list behind it */
        uint64_t gated_at;    /* in a trace: the same in ticks, or 0 */
        uint64_t gated_ns;    /* since when the gate at the head is shut; 0: it is not at one */
        uint64_t looked_ns;   /* last slow look at that gate */
        uint64_t suspect;     /* what that look found, if it was a cycle; 0: it was none */
        uint32_t depth;
        uint32_t status;      /* of the chain */
        uint32_t look_turn;   /* in which it last looked */
    } rings[ST_SDMA_RINGS];
    struct st_event events[ST_SDMA_EVENTS];
};

/* What the calling thread has had of a CPU. */
static inline uint64_t st_thread_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static inline size_t st_engine_bytes(void) { return sizeof(struct st_engine); }

static inline int st_engine_init(struct st_engine *e, struct st_ctx *ctx, uint64_t timeout_ns)
{
    e->ctx = ctx; /* the memory is zeroed */
    e->timeout_ns = timeout_ns;
    e->linger_ns = 50000;
    return pthread_mutex_init(&e->lock, NULL) == 0 ? ST_OK : ST_ESYS;
}

/* From now on whoever takes pages away stills them first; who is about to, without, is waited for. */
static inline void st_engine_hold_begin(struct st_engine *e)
{
    struct st_ctx *ctx = e->ctx;
    uint32_t i;

    pthread_mutex_lock(&ctx->lock);
    for (i = 0; i < ctx->ndies; i++)
        pthread_mutex_lock(&ctx->follow[i].map_lock);
    ctx->hold = &e->hold;
    while (i--)
        pthread_mutex_unlock(&ctx->follow[i].map_lock);
    pthread_mutex_unlock(&ctx->lock);
}

/* Makes zeroed fabric memory of this die what peers find its rings by.  There is no thread yet. */
static inline void st_engine_open(struct st_engine *e, struct st_sdma *shared)
{
    uint32_t i;

    e->shared = shared;
    e->stop = 0;
    for (i = 0; i < ST_SDMA_RINGS; i++) {
        e->rings[i].at = 0;
        st_store_relaxed_64(&shared->rings[i], 0); /* of the time before, if the die has left and come back */
    }
    memset(e->active, 0, sizeof e->active);
    st_engine_hold_begin(e);
    shared->magic = ST_SDMA_MAGIC;
    shared->open = 1;
    ST_FAULT(ENGINE_OPENING);
    st_store_release_64(&e->ctx->dies[e->ctx->rank].sdma, (uint64_t)(uintptr_t)shared); /* pairs with st_sdma_of */
}

/* Opens a ring in zeroed fabric memory of st_ring_bytes(depth); its first descriptor has index `first`.
 * ST_EFULL: there are ST_SDMA_RINGS.  ST_ENOJOB: the engine has ended. */
static inline int st_engine_add(struct st_engine *e, struct st_ring *r, uint32_t depth, uint64_t first, uint32_t *index)
{
    uint32_t i = 0;
    int rc;

    if (!depth || depth & (depth - 1) || depth > 1u << 20)
        return ST_EINVAL;
    pthread_mutex_lock(&e->lock);
    while (i < ST_SDMA_RINGS && e->rings[i].at)
        i++;
    rc = !e->shared || st_load_relaxed_32(&e->stop) ? ST_ENOJOB : i < ST_SDMA_RINGS ? ST_OK : ST_EFULL;
    if (rc == ST_OK) {
        struct st_engine_ring *own = &e->rings[i]; /* the thread may be looking at `at` */

        r->magic = ST_SDMA_MAGIC; /* a peer's look for cycles may be at the ring that was here */
        st_store_relaxed_32(&r->depth, depth);
        r->index = *index = i;
        r->lock = 0;
        st_store_relaxed_64(&r->head, first);
        st_store_relaxed_64(&r->tail, first);
        r->failed = 0;
        own->ring = r;
        own->head = first;
        own->depth = depth;
        own->done = own->gated_at = own->gated_ns = own->looked_ns = own->suspect = 0;
        own->status = ST_OK;
        st_store_release_64(&own->at, (uint64_t)(uintptr_t)r); /* pairs with st_engine_round */
        st_store_release_64(&r->opened, ++e->openings); /* pairs with st_lane_attach */
        ST_FAULT(RING_OPENED);
        if (i >= e->shared->top)
            st_store_relaxed_32(&e->shared->top, i + 1);
        st_store_release_64(&e->shared->rings[i], (uint64_t)(uintptr_t)r); /* pairs with st_lane_attach */
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* Closes a ring that is drained, and to which nobody submits; its memory is the caller's again.  Peers that have
 * found it before may look at it a moment longer, to see that it is closed.  ST_AGAIN: it is not empty. */
static inline int st_engine_remove(struct st_engine *e, uint32_t index)
{
    struct st_engine_ring *r = &e->rings[index < ST_SDMA_RINGS ? index : 0];
    struct st_ring *ring;
    uint64_t round;
    int rc = ST_OK;

    pthread_mutex_lock(&e->lock);
    ring = (struct st_ring *)(uintptr_t)r->at;
    if (index >= ST_SDMA_RINGS || !ring) {
        rc = ST_EINVAL;
    } else if (e->runs && st_load_acquire_64(&ring->head) != st_load_acquire_64(&ring->tail)) {
        rc = ST_AGAIN; /* pairs with st_ring_pass, st_lane_ring */
        st_sdma_bell(e->shared, index); /* a producer may have died before it rang */
    } else {
        st_store_release_64(&ring->opened, 0); /* pairs with st_lane_open */
        ST_FAULT(RING_CLOSED);
        st_store_release_64(&e->shared->rings[index], 0); /* pairs with st_lane_attach */
        st_store_seqcst_64(&r->at, 0); /* pairs with st_engine_round */
        round = st_load_seqcst_64(&e->round); /* the thread may still have it in hand: pairs with st_engine_round */
        while (round & 1 && st_load_acquire_64(&e->round) == round) /* pairs with st_engine_round */
            sched_yield();
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- events --------------------------------------------------------------------------- */

/* A free event, made new; 0: there is none. */
static inline uint32_t st_event_take(struct st_engine *e, uint32_t *also_word, uint32_t *also_sleepers)
{
    uint32_t k, found = 0;

    pthread_mutex_lock(&e->lock);
    for (k = e->next_event ? e->next_event : 1; k < ST_SDMA_EVENTS && !found; k++)
        found = e->events[k].used ? 0 : k;
    e->next_event = k;
    if (found) {
        struct st_event *v = &e->events[found];

        memset(v, 0, sizeof *v);
        v->also_word = also_word;
        v->also_sleepers = also_sleepers;
        st_store_release_32(&v->used, 1); /* pairs with st_event_notify */
    }
    pthread_mutex_unlock(&e->lock);
    return found;
}

/* Gives an event back, when nothing in a ring names it any more.  Whoever has seen it happen may come here while the
 * thread still wakes others; after this it touches neither the event nor its other futex. */
static inline void st_event_give(struct st_engine *e, uint32_t event)
{
    if (!event)
        return;
    pthread_mutex_lock(&e->lock);
    st_store_seqcst_32(&e->events[event].used, 0); /* pairs with st_event_notify */
    while (st_load_seqcst_32(&e->notifying) == event) /* pairs with st_event_notify */
        sched_yield();
    e->next_event = event < e->next_event ? event : e->next_event;
    pthread_mutex_unlock(&e->lock);
}

static inline uint64_t st_event_count(const struct st_engine *e, uint32_t event)
{
    return st_load_acquire_64(&e->events[event].count); /* pairs with st_event_notify */
}

static inline int st_event_status(const struct st_engine *e, uint32_t event)
{
    return (int)st_load_acquire_32(&e->events[event].status); /* pairs with st_event_fail */
}

/* The DMA thread: the event happens. */
static inline void st_event_notify(struct st_engine *e, uint32_t event)
{
    struct st_event *v = &e->events[event];

    st_store_seqcst_32(&e->notifying, event); /* pairs with st_event_give */
    if (event && st_load_seqcst_32(&v->used)) { /* pairs with st_event_take, st_event_give */
        st_add_seqcst_64(&v->count, 1); /* pairs with st_event_count */
        ST_FAULT(ENGINE_NOTIFIED);
        st_wake(&v->wake_word, &v->sleepers);
        if (v->also_word)
            st_wake(v->also_word, v->also_sleepers);
    }
    st_store_release_32(&e->notifying, 0); /* pairs with st_event_give */
}

/* Ends the chains of an event: what has not been executed yet is not, and they are notified with `status`. */
static inline void st_event_cancel(struct st_engine *e, uint32_t event, int status)
{
    st_store_seqcst_32(&e->events[event].cancel, (uint32_t)status); /* pairs with st_engine_cancelled */
    st_wake(&e->shared->bell, &e->shared->bell_sleepers);
}

/* Waits until an event has been notified `count` times.  ST_ENOJOB: nobody will any more. */
static inline int st_event_wait(struct st_engine *e, uint32_t event, uint64_t count,
                                const struct st_wait_policy *policy, uint64_t timeout_ns)
{
    struct st_event *v = &e->events[event];
    struct st_tracer *t = st_trace_on(e->ctx);
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    int rc = ST_OK;

    st_trace_begins(t);
    st_wait_begin(&w, policy, &v->wake_word, &v->sleepers, timeout_ns);
    while (st_event_count(e, event) < count) {
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            st_flight_waits(e->ctx, &record, ST_FLIGHT_EVENT, ST_FLIGHT_NOBODY, 0, event, count);
        if (rc == ST_AGAIN && !st_load_acquire_32(&e->runs) && st_event_count(e, event) < count)
            rc = ST_ENOJOB; /* pairs with st_engine_end */
        else if (rc == ST_AGAIN)
            rc = ST_OK;
        if (rc != ST_OK)
            break;
    }
    st_wait_end(&w);
    st_flight_waited(e->ctx, record, rc);
    ST_TRACE(t, ST_TRACE_NOTIFY, 0, ST_TRACE_NOBODY, 0, event);
    return rc;
}

#endif
