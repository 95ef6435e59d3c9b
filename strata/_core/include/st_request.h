/* What a member asks of a collective, and what it tells the others of it. */
#ifndef ST_REQUEST_H
#define ST_REQUEST_H

#include "st_copy.h"
#include "st_exec_plan.h"
#include "st_sync.h"

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

/* t: of this thread; NULL: it is not traced. */
ST_TRACE_TWICE void st_request_publish(struct st_group *g, struct st_request *r, struct st_tracer *t)
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
    if (r->payload)
        ST_TRACE(t, ST_TRACE_MAILBOX, 0, ST_TRACE_NOBODY, 0, r->payload);
    st_group_arrive(g, r->number);
    ST_TRACE(t, ST_TRACE_ARRIVE, 0, ST_TRACE_NOBODY, g->id, r->number);
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
    st_request_publish(g, &nothing, NULL);
}

#endif
