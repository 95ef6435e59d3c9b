/* One collective operation, from arrival to completion. */
#ifndef ST_COLLECTIVE_H
#define ST_COLLECTIVE_H

#include "st_crew.h"
#include "st_exec_sdma.h"

/* What the caller asks for.  Private memory; filled by the front, which has
 * checked the arguments. */
struct st_request {
    uint64_t desc;
    uint64_t count;
    const struct st_plan *plan; /* NULL: no bytes move (barrier) */
    const void *src;            /* payload (mailbox) or fabric address */
    void *out;
    void *scratch;
    struct st_lanes *sdma; /* the DMA thread moves the bytes; NULL: cores do, as always with mailboxes */
    uint64_t payload; /* bytes this member puts in its mailbox */
    uint64_t solo;    /* bytes of the result in a group of one */
    uint64_t src_bytes; /* of this member's own arrays, which must be readable */
    uint64_t out_bytes; /* and writable here */
    uint64_t timeout_ns;
    uint32_t fence; /* registration fence: map what the peers have logged */
    /* results */
    uint32_t phase;
    uint64_t number;
    uint64_t failed_number; /* of the operation in which the group failed */
    uint64_t failed_desc;
    uint32_t failed_by;
    uint32_t nlate;
    int err; /* errno of ST_ESYS */
    uint32_t refused; /* 1: src, 2: out is fabric memory without that access; nothing was touched */
    uint64_t *lines; /* after ST_EMISMATCH: desc and count of each member, from g->alloc; NULL: no memory */
    uint64_t mask[ST_MASK_WORDS]; /* members concerned */
    uint64_t late[ST_MASK_WORDS]; /* members that may still write to this one's buffers */
};

/* Fills in who and what from the published failure. */
static inline int st_request_failed(struct st_group *g, struct st_request *r, int status)
{
    struct st_group_header *h = g->header;
    uint32_t i, state = st_load_acquire_32(&h->fail_state); /* pairs with st_group_fail */

    if (state >> 8 < g->n && state != ST_FAIL_NONE && state != ST_FAIL_PUBLISHED) { /* it stands still while it says why */
        r->failed_by = state >> 8;
        st_mask_set(r->mask, state >> 8);
    }
    if (state == ST_FAIL_PUBLISHED) {
        r->phase = h->fail_phase;
        r->failed_number = st_load_relaxed_64(&h->fail_number);
        r->failed_desc = h->fail_desc;
        r->failed_by = h->fail_by < g->n ? h->fail_by : 0;
        for (i = 0; i < ST_MASK_WORDS; i++)
            r->mask[i] = st_load_relaxed_64(&h->fail_mask[i]);
    }
    return status;
}

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

static inline void st_request_publish(struct st_group *g, struct st_request *r)
{
    struct st_arrival *line = st_line(g, r->number, g->me);

    st_store_relaxed_64(&line->desc, r->desc);
    st_store_relaxed_64(&line->count, r->count);
    ST_FAULT(LINE_HALF);
    if (r->payload > ST_INLINE_BYTES) {
        st_copy(st_mailbox(g, r->number, g->me), r->src, r->payload, 0);
        ST_FAULT(MAILBOX_FILLED);
    } else if (r->payload) {
        st_copy(line->u.data, r->src, r->payload, 0);
    } else {
        st_store_relaxed_64(&line->u.at.src, (uint64_t)(uintptr_t)r->src);
        st_store_relaxed_64(&line->u.at.out, (uint64_t)(uintptr_t)r->out);
        st_store_relaxed_64(&line->u.at.scratch, (uint64_t)(uintptr_t)r->scratch);
        st_store_relaxed_64(&line->u.at.log_head, st_log_head(g->ctx, g->ctx->rank));
    }
    st_group_arrive(g, r->number);
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

static inline int st_request_run(struct st_group *g, struct st_request *r)
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
    return st_exec(g, p, r->number, at, r->timeout_ns);
}

/* What everybody asked for, while the lines still hold it. */
static inline void st_request_lines(struct st_group *g, struct st_request *r)
{
    const struct st_arrival *line = st_line(g, r->number, 0);
    uint32_t j;

    r->lines = g->alloc(2 * sizeof *r->lines * g->n);
    for (j = 0; j < g->n && r->lines; j++) {
        r->lines[2 * j] = line[j].desc;
        r->lines[2 * j + 1] = line[j].count;
    }
}

/* Is there the access to this member's own arrays that the operation needs? */
static inline int st_request_access(struct st_group *g, struct st_request *r)
{
    int rc = st_ensure_own(g->ctx, r->src, r->src_bytes, 0);

    r->refused = rc != ST_OK;
    if (rc == ST_OK) {
        rc = st_ensure_own(g->ctx, r->out, r->out_bytes, 1);
        r->refused = rc != ST_OK ? 2 : 0;
    }
    r->err = rc != ST_OK ? errno : 0;
    return rc;
}

/* What a member that cannot take part says instead: the others get ST_EMISMATCH. */
static inline void st_request_abstain(struct st_group *g, const struct st_request *r)
{
    struct st_request nothing;

    memset(&nothing, 0, sizeof nothing);
    nothing.desc = ST_DESC_NOTHING;
    nothing.number = r->number;
    ST_FAULT(ABSTAIN_BEFORE);
    st_request_publish(g, &nothing);
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

/* Runs one operation.  The caller holds g->lock.  ST_EMISMATCH leaves the
 * group in step: nothing was touched. */
static inline int st_collective(struct st_group *g, struct st_request *r)
{
    struct st_flight_record *record;
    int rc = st_group_failed(g), refused;

    if (rc != ST_OK) {
        r->number = g->number + 1;
        return st_request_failed(g, r, rc);
    }
    r->number = ++g->number;
    st_count(&g->ctx->count.operations, 1);
    refused = st_request_access(g, r);
    if (g->n == 1) {
        if (refused != ST_OK)
            return refused;
        if (r->solo && r->src != r->out) /* with one member every operation is a copy */
            st_copy(r->out, r->src, r->solo, 0);
        ST_DRAIN();
        return ST_OK;
    }
    st_wait_begin(&g->waiter, &g->policy, &g->header->wake_word, &g->header->sleepers, r->timeout_ns);
    record = st_request_record(g, r);
    if (__builtin_expect(refused != ST_OK, 0))
        st_request_abstain(g, r);
    else
        st_request_publish(g, r);
    if (!st_group_all_here(g, ST_PHASE_ARRIVAL, r->number))
        st_flight_time(g->ctx, record); /* it waits anyway; a look at the counter is long for one that need not */
    rc = st_group_wait_all(g, ST_PHASE_ARRIVAL, r->number);
    if (rc != ST_OK) {
        r->phase = ST_PHASE_ARRIVAL;
        rc = st_request_abort(g, r, rc, ST_PHASE_ARRIVAL);
        goto out;
    }
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
        rc = st_request_run(g, r);
    }
    if (rc != ST_OK) {
        r->err = errno;
        rc = st_request_abort(g, r, rc, ST_PHASE_EXECUTION);
        goto out;
    }
    if (r->plan && r->plan->needs_done) {
        st_flight_phase(record, ST_PHASE_COMPLETION);
        rc = st_group_complete(g, r->number);
        if (rc != ST_OK)
            rc = st_request_abort(g, r, rc, ST_PHASE_COMPLETION);
    }
out:
    st_wait_end(&g->waiter);
    ST_DRAIN(); /* the caller reads its arrays */
    st_flight_end(g->ctx, record, rc, st_request_timed(g, r, rc));
    return rc;
}

#endif
