/* Streams: items that a die carries out one after another, whoever does: descriptors of the
 * stream's ring by the DMA thread, collectives and transfers by the workers of their groups.
 *
 * Items have numbers, 1, 2, ...  Number k begins when the stream's flag has come to k - 1, and
 * raises it to k when it has ended.  One that fails poisons the flag, so that no later one is
 * carried out: their gates fail, and workers stand in for them with nothing. */
#ifndef ST_STREAM_H
#define ST_STREAM_H

#include "st_engine.h"
#include "st_flag.h"

/* ST_AGAIN: it is not the turn of the item after number `turn`.  ST_ECANCELED: nor will it be, an earlier one failed. */
static inline int st_stream_look(const struct st_progress *p, uint64_t turn)
{
    int rc = st_flag_look(st_load_acquire_64(&p->done), turn); /* pairs with st_stream_end, st_engine_flag */

    return rc == ST_OK || rc == ST_AGAIN ? rc : ST_ECANCELED;
}

/* The same, waiting; ST_EINTR: the policy's hook says that there is no time for that.  It has no deadline, since what
 * is before it has: an item waits only for items that were queued before it. */
static inline int st_stream_turn(struct st_progress *p, uint64_t turn, const struct st_wait_policy *policy)
{
    struct st_waiter w;
    int rc, why;

    st_wait_begin(&w, policy, &p->wake_word, &p->sleepers, 0);
    while ((rc = st_stream_look(p, turn)) == ST_AGAIN) {
        why = st_wait_step(&w);
        if (why == ST_EINTR) {
            rc = why;
            break;
        }
    }
    st_wait_end(&w);
    return rc;
}

/* The item after number `turn` has ended. */
static inline void st_stream_end(struct st_ctx *ctx, struct st_progress *p, uint64_t turn, int status)
{
    ST_FAULT(STREAM_BEFORE);
    if (status == ST_OK)
        st_store_seqcst_64(&p->done, turn + 1); /* pairs with st_stream_look, st_engine_gate */
    else
        st_flag_poison(&p->done, status == ST_EINTR ? ST_ENOJOB : status); /* its worker ends: finalize */
    ST_FAULT(STREAM_AFTER);
    st_wake(&p->wake_word, &p->sleepers);
    st_flag_tell(ctx, (uint64_t)(uintptr_t)&p->done);
}

/* A host thread waits until item `number` has ended.  Another status than ST_OK, ST_ETIMEOUT, ST_EINTR: of the item that
 * failed, which is that one or one before it.  ST_ENOJOB: the engine has been stopped. */
static inline int st_stream_wait(struct st_engine *e, struct st_progress *p, uint64_t number,
                                 const struct st_wait_policy *policy, uint64_t timeout_ns)
{
    struct st_tracer *t = st_trace_on(e->ctx);
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    uint64_t done;
    int rc = ST_OK;

    st_trace_begins(t);
    st_wait_begin(&w, policy, &p->wake_word, &p->sleepers, timeout_ns);
    while ((done = st_load_acquire_64(&p->done)) < number) { /* pairs with st_stream_end, st_engine_flag */
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            st_flight_waits(e->ctx, &record, ST_FLIGHT_STREAM, ST_FLIGHT_NOBODY, 0, number, done);
        if (rc == ST_AGAIN)
            rc = st_load_acquire_32(&e->stop) ? ST_ENOJOB : ST_OK; /* pairs with st_engine_end */
        if (rc != ST_OK)
            break;
    }
    st_wait_end(&w);
    st_flight_waited(e->ctx, record, rc);
    ST_TRACE(t, ST_TRACE_WAIT, 0, ST_TRACE_NOBODY, ST_TRACE_STREAM, number);
    if (rc != ST_OK)
        return rc;
    rc = st_flag_look(done, number);
    return rc == ST_ETIMEOUT ? ST_ECANCELED : rc; /* the item's patience, not this wait's */
}

/* Items that have ended; of a stream that failed, UINT64_MAX. */
static inline uint64_t st_stream_done(const struct st_progress *p)
{
    uint64_t done = st_load_acquire_64(&p->done); /* pairs with st_stream_end, st_engine_flag */

    return done & ST_SDMA_POISON ? UINT64_MAX : done;
}

/* Memory that was another stream's becomes a new one's. */
static inline void st_stream_reset(struct st_progress *p) { st_store_release_64(&p->done, 0); /* pairs with st_stream_look */ }

#endif
