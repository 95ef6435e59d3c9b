/* One collective operation, from arrival to completion. */
#ifndef ST_COLLECTIVE_H
#define ST_COLLECTIVE_H

#include "st_crew.h"
#include "st_exec_sdma.h"
#include "st_request.h"

/* Gives an operation up in which this member's buffers may be in use. */
static inline int st_request_abort(struct st_group *g, struct st_request *r, int status, uint32_t phase)
{
    uint64_t mask[ST_MASK_WORDS] = {0};

    if (status != ST_ETIMEOUT && status != ST_EINTR && status != ST_EBROKEN) {
        int failed = st_group_failed(g);

        if (failed == ST_OK && st_group_lost(g, status == ST_EDEAD, mask))
            status = ST_EDEAD;
        else if (failed == ST_OK)
            st_mask_set(mask, g->me); /* trouble of our own: the others must hear of it */
        status = failed == ST_OK ? st_group_fail(g, status, phase, r->desc, mask) : failed;
    }
    ST_FAULT(ABORT_BEFORE);
    st_store_seqcst_64(&g->members[g->me].done, r->number); /* pairs with st_group_quiesce */
    ST_FAULT(ABORT_AFTER);
    st_group_wake(g);
    if (r->plan && !r->plan->mailbox)
        r->nlate = st_group_quiesce(g, r->number, 500000000ull, r->late);
    return st_request_failed(g, r, status);
}

/* Where each member's buffers are, from the lines just read. */
static inline void st_request_bases(struct st_group *g, struct st_request *r)
{
    uint32_t j;

    for (j = 0; j < g->n; j++) {
        struct st_arrival *line = st_line(g, r->number, j);
        struct st_base *b = &g->bases[j];

        if (r->plan->mailbox) {
            /* What fits the line is in the line: the plan tells, alike on all. */
            b->va[ST_BUF_SRC] = r->plan->mail_bytes <= ST_INLINE_BYTES
                                    ? (uint64_t)(uintptr_t)line->u.data
                                    : (uint64_t)(uintptr_t)st_mailbox(g, r->number, j);
            b->va[ST_BUF_OUT] = b->va[ST_BUF_SCRATCH] = 0;
        } else {
            b->va[ST_BUF_SRC] = line->u.at.src;
            b->va[ST_BUF_OUT] = line->u.at.out;
            b->va[ST_BUF_SCRATCH] = line->u.at.scratch;
        }
    }
    if (!r->plan->mailbox) /* not what the line says of it: others could have written there */
        g->bases[g->me].va[ST_BUF_SRC] = (uint64_t)(uintptr_t)r->src;
    g->bases[g->me].va[ST_BUF_OUT] = (uint64_t)(uintptr_t)r->out;
    g->bases[g->me].va[ST_BUF_SCRATCH] = (uint64_t)(uintptr_t)r->scratch;
}

static inline int st_request_fence(struct st_group *g, struct st_request *r)
{
    uint32_t j;
    int rc = ST_OK;

    for (j = 0; j < g->n && rc == ST_OK; j++)
        if (j != g->me)
            rc = st_shadow_follow(g->ctx, g->ranks[j], st_line(g, r->number, j)->u.at.log_head, 1);
    return rc;
}

static inline int st_request_run(struct st_group *g, struct st_request *r, struct st_tracer *t)
{
    const struct st_plan *p = r->plan;
    void *space[2 * ST_EXEC_OPERANDS], *large[2 * ST_MAX_DIES], **at;
    int rc;

    at = p->max_operands <= ST_EXEC_OPERANDS ? space : large;
    st_request_bases(g, r);
    if (!p->mailbox) {
        rc = st_group_begin(g, r->number);
        if (rc != ST_OK)
            return rc;
    }
    if (p->staged_bytes)
        st_count(&g->ctx->count.staged_bytes, p->staged_bytes);
    if (r->sdma && !p->mailbox)
        return st_exec_sdma(g, p, r->sdma, r->number);
    return st_exec_by(g, p, r->number, at, r->timeout_ns, t);
}

static inline struct st_flight_record *st_request_record(struct st_group *g, const struct st_request *r)
{
    g->waited = 0;
    return st_flight_begin(g->ctx, ST_FLIGHT_COLLECTIVE | (g->policy.arg ? ST_FLIGHT_ASYNC : 0), ST_FLIGHT_NOBODY,
                           g->id, r->number, r->desc, r->count,
                           r->src_bytes > r->out_bytes ? r->src_bytes : r->out_bytes);
}

/* Is the end of the operation worth a look at the clock?  Not if it was a matter of lines and mailboxes. */
static inline int st_request_timed(const struct st_group *g, const struct st_request *r, int rc)
{
    return rc != ST_OK || g->waited || (r->plan && !r->plan->mailbox);
}

/* With one member every operation is a copy. */
static inline int st_request_alone(struct st_group *g, struct st_request *r, struct st_tracer *t)
{
    if (r->solo && r->src != r->out) {
        st_copy(r->out, r->src, r->solo, 0);
        ST_TRACE(t, ST_TRACE_COPY, 0, g->ctx->rank, 0, r->solo);
    }
    ST_DRAIN();
    return ST_OK;
}

/* Waits until all members are in a phase of the operation. */
ST_TRACE_TWICE int st_request_await(struct st_group *g, struct st_request *r, uint32_t phase, struct st_tracer *t)
{
    int rc = phase == ST_PHASE_ARRIVAL ? st_group_wait_all(g, phase, r->number) : st_group_complete(g, r->number);

    if (__builtin_expect(t != NULL, 0))
        st_group_traced(g, t, phase, r->number); /* enum st_trace_why begins with the phases */
    if (rc == ST_OK)
        return rc;
    if (phase == ST_PHASE_ARRIVAL)
        r->phase = phase;
    return st_request_abort(g, r, rc, phase);
}

/* st_collective; t: of this thread, NULL: it is not traced. */
ST_TRACE_TWICE int st_collective_by(struct st_group *g, struct st_request *r, struct st_tracer *t)
{
    struct st_flight_record *record;
    int rc = st_group_failed(g), refused;

    if (rc != ST_OK) {
        r->number = g->number + 1;
        return st_request_failed(g, r, rc);
    }
    r->number = ++g->number;
    st_count(&g->ctx->count.operations, 1);
    st_trace_begins(t);
    refused = st_request_access(g, r);
    ST_TRACE(t, ST_TRACE_CHECK, 0, ST_TRACE_NOBODY, 0, r->src_bytes + r->out_bytes);
    if (g->n == 1)
        return refused == ST_OK ? st_request_alone(g, r, t) : refused;
    st_wait_begin(&g->waiter, &g->policy, &g->header->wake_word, &g->header->sleepers, r->timeout_ns);
    record = st_request_record(g, r);
    if (__builtin_expect(refused != ST_OK, 0))
        st_request_abstain(g, r);
    else
        st_request_publish(g, r, t);
    if (!st_group_all_here(g, ST_PHASE_ARRIVAL, r->number))
        st_flight_time(g->ctx, record); /* it waits anyway; a look at the counter is long for one that need not */
    rc = st_request_await(g, r, ST_PHASE_ARRIVAL, t);
    if (rc != ST_OK)
        goto out;
    ST_FAULT(ALL_ARRIVED);
    rc = st_group_compare(g, r->number);
    if (refused != ST_OK) {
        rc = refused;
        goto out;
    }
    if (rc != ST_OK) {
        st_request_lines(g, r);
        goto out;
    }
    if (r->fence)
        rc = st_request_fence(g, r);
    if (rc == ST_OK && r->plan) {
        st_count(&g->ctx->count.mailbox_operations, r->plan->mailbox);
        st_flight_phase(record, ST_PHASE_EXECUTION);
        if (!r->plan->mailbox && !g->waited)
            st_flight_time(g->ctx, record);
        rc = st_request_run(g, r, t);
    }
    if (rc != ST_OK) {
        r->err = errno;
        rc = st_request_abort(g, r, rc, ST_PHASE_EXECUTION);
        goto out;
    }
    if (r->plan && r->plan->needs_done) {
        st_flight_phase(record, ST_PHASE_COMPLETION);
        rc = st_request_await(g, r, ST_PHASE_COMPLETION, t);
    }
out:
    st_wait_end(&g->waiter);
    ST_DRAIN(); /* the caller reads its arrays */
    st_flight_end(g->ctx, record, rc, st_request_timed(g, r, rc));
    return rc;
}

static __attribute__((noinline, unused)) int st_collective_traced(struct st_group *g, struct st_request *r,
                                                                  struct st_tracer *t)
{
    g->late = 0; /* of an operation before, which was not traced */
    return st_collective_by(g, r, t);
}

/* Runs one operation.  The caller holds g->lock.  ST_EMISMATCH leaves the
 * group in step: nothing was touched. */
static inline int st_collective(struct st_group *g, struct st_request *r)
{
    struct st_tracer *t = st_trace_on(g->ctx);

    return __builtin_expect(t != NULL, 0) ? st_collective_traced(g, r, t) : st_collective_by(g, r, NULL);
}

#endif
