/* One transfer from its begin to its end, by the thread that wants it. */
#ifndef ST_P2P_RUN_H
#define ST_P2P_RUN_H

#include "st_p2p.h"

/* st_p2p_try of what is small enough for it; trace: of this thread, NULL: it is not traced. */
ST_TRACE_TWICE int st_p2p_try_by(struct st_group *g, struct st_transfer *t, struct st_tracer *trace)
{
    uint32_t left = g->ctx->wait.pauses;
    uint64_t looked = 0;
    int rc, waited = 0;

    st_trace_begins(trace);
    st_p2p_record(g, t, 0);
    while ((rc = st_p2p_progress(g, t)) == ST_AGAIN && --left) {
        waited = 1;
        looked = trace ? st_trace_now(trace) : 0;
        st_pause();
    }
    if (rc == ST_AGAIN)
        return rc;
    t->err = errno;
    st_p2p_recorded(g, t, rc, waited);
    if (__builtin_expect(trace != NULL, 0))
        st_p2p_traced(g, t, trace, looked);
    return rc;
}

static __attribute__((noinline, unused)) int st_p2p_try_traced(struct st_group *g, struct st_transfer *t,
                                                               struct st_tracer *trace)
{
    return st_p2p_try_by(g, t, trace);
}

/* As far as a small transfer comes without a wait that is more than pauses: mostly to its end, in less time than it takes
 * to let go of the interpreter's lock and get it again.  ST_AGAIN: st_p2p_run goes on with it. */
static inline int st_p2p_try(struct st_group *g, struct st_transfer *t)
{
    struct st_tracer *trace;

    if (!g->ctx->wait.pauses || t->bytes > ST_EAGER_BYTES)
        return ST_AGAIN;
    trace = st_trace_on(g->ctx);
    return __builtin_expect(trace != NULL, 0) ? st_p2p_try_traced(g, t, trace) : st_p2p_try_by(g, t, NULL);
}

/* Drives one transfer to its end. */
static inline int st_p2p_run_by(struct st_group *g, struct st_transfer *t, const struct st_wait_policy *policy,
                                uint64_t timeout_ns)
{
    struct st_tracer *trace = st_trace_on(g->ctx);
    uint64_t looked = 0;
    struct st_waiter w;
    int rc, why, waited = 0;

    if (!t->record)
        st_trace_begins(trace);
    st_wait_begin(&w, policy, &g->header->wake_word, &g->header->sleepers, timeout_ns);
    if (!t->record) /* st_p2p_try has made one */
        st_p2p_record(g, t, policy->arg ? ST_FLIGHT_ASYNC : 0); /* arg: a thread of the group's */
    while ((rc = st_p2p_progress(g, t)) == ST_AGAIN) {
        waited = 1;
        looked = trace ? st_trace_now(trace) : 0;
        why = st_wait_step(&w);
        if (why == ST_OK)
            continue;
        rc = why == ST_EINTR ? why : st_p2p_look(g, t);
        if (rc == ST_AGAIN && why == ST_ETIMEOUT)
            rc = why;
        if (rc != ST_AGAIN)
            break;
    }
    why = st_p2p_cancel(g, t, rc);
    rc = rc == ST_EINTR ? rc : why;
    t->err = errno;
    st_wait_end(&w);
    st_p2p_recorded(g, t, rc, waited);
    if (__builtin_expect(trace != NULL, 0))
        st_p2p_traced(g, t, trace, looked);
    return rc;
}

static inline int st_p2p_run(struct st_group *g, struct st_transfer *t, uint64_t timeout_ns)
{
    return st_p2p_run_by(g, t, &g->ctx->wait, timeout_ns);
}

#endif
