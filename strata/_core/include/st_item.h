/* An asynchronous operation, and the worker that runs it. */
#ifndef ST_ITEM_H
#define ST_ITEM_H

#include "st_collective.h"
#include "st_p2p.h"
#include "st_stream.h"

enum st_item_state { ST_ITEM_QUEUED = 0, ST_ITEM_DONE = 1 };

/* One asynchronous operation.  Owned by the caller; must stay put until done, and
 * may be gone the moment that it is. */
struct st_item {
    struct st_item *next;
    struct st_worker *worker;
    struct st_item *ahead;  /* the worker's: transfers of one kind, peer and tag keep their order */
    struct st_item *behind;
    uint32_t state; /* the commit word */
    int status;
    uint64_t deadline_ns; /* transfers; 0: none.  On a stream it is made from timeout_ns, when the turn has come */
    uint64_t timeout_ns;
    struct st_progress *stream; /* that it is on, or NULL */
    uint64_t turn;              /* it begins when the stream has come to this, and raises it by one */
    uint32_t begun;             /* the turn has come */
    uint32_t cancelled;         /* it is not carried out, since the stream failed before; 1 from the start: in any case */
    struct st_request request;
    struct st_transfer transfer;
};

struct st_worker {
    struct st_group *group;
    uint32_t transfers; /* drives transfers, instead of running collectives */
    uint32_t started;
    uint32_t stop;
    uint32_t outstanding; /* items that are not done */
    uint32_t wake_word;   /* futex: an item is done */
    uint32_t sleepers;
    struct st_item *first;
    struct st_item **last;
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
};

/* What an item's stream fails with.  If a member stood in for its part since a die is dead, that: whoever waits for what
 * this stream does not do is told the same, and not of a mismatch. */
static inline int st_item_cause(const struct st_worker *w, const struct st_item *item, int status)
{
    const uint64_t *lines = item->request.lines;
    uint32_t j;

    if (status != ST_EMISMATCH)
        return status;
    if (w->transfers || item->transfer.cast)
        return item->transfer.m.desc == ST_DESC_NOTHING && item->transfer.m.count ? ST_EDEAD : status;
    for (j = 0; lines && j < w->group->n; j++)
        if (lines[2 * j] == ST_DESC_NOTHING && lines[2 * j + 1])
            return ST_EDEAD;
    return status;
}

static inline void st_item_finish(struct st_worker *w, struct st_item *item, int status)
{
    if (item->stream && !item->cancelled)
        st_stream_end(w->group->ctx, item->stream, item->turn, st_item_cause(w, item, status));
    item->status = status;
    ST_FAULT(ITEM_OVER);
    st_add_acq_rel_32(&w->outstanding, (uint32_t)-1); /* pairs with st_worker_idle */
    st_store_seqcst_32(&item->state, ST_ITEM_DONE); /* pairs with st_item_done */
    st_wake(&w->wake_word, &w->sleepers); /* not the item's: its owner may have freed it */
}

static inline int st_item_done(const struct st_item *item)
{
    return st_load_acquire_32(&item->state) == ST_ITEM_DONE; /* pairs with st_item_finish */
}

/* What a member says in place of an operation on a stream that has failed: if that was since a die is dead, its world
 * rank, and one more. */
static inline uint64_t st_item_lost(struct st_ctx *ctx, const struct st_progress *p)
{
    uint64_t done = st_load_acquire_64(&p->done); /* pairs with st_stream_end */
    uint32_t i;

    for (i = 0; done & ST_SDMA_POISON && st_flag_status(done) == ST_EDEAD && i < ctx->ndies; i++)
        if (i != ctx->rank && !st_die_alive(ctx, i))
            return i + 1;
    return 0;
}

/* Nothing takes a message's place, since its stream has failed. */
static inline void st_item_nothing(struct st_item *item)
{
    item->cancelled = 1;
    item->transfer.desc = ST_DESC_NOTHING;
    item->transfer.count = st_item_lost(item->worker->group->ctx, item->stream);
    item->transfer.bytes = 0;
    item->transfer.buf = NULL;
}

/* Waits until the stream of an item has come to it; ST_ECANCELED: it has failed before. */
static inline int st_item_await(const struct st_item *item, const struct st_wait_policy *policy)
{
    if (!item->stream)
        return ST_OK;
    return item->cancelled ? ST_ECANCELED : st_stream_turn(item->stream, item->turn, policy);
}

/* Has the turn of a transfer on a stream come?  If the stream has failed, nothing takes its place among the messages,
 * and the peer hears of it. */
static inline int st_item_turn(struct st_item *item)
{
    int rc;

    if (!item->stream || item->begun)
        return 1;
    rc = item->cancelled ? ST_ECANCELED : st_stream_look(item->stream, item->turn);
    if (rc == ST_AGAIN)
        return 0;
    item->begun = 1;
    item->deadline_ns = item->timeout_ns ? st_now_ns() + item->timeout_ns : 0;
    if (rc == ST_ECANCELED)
        st_item_nothing(item);
    return 1;
}

/* Waits for an item.  ST_ETIMEOUT, ST_EINTR: it goes on without the waiter. */
static inline int st_item_wait(struct st_item *item, const struct st_wait_policy *policy,
                               uint64_t timeout_ns)
{
    const struct st_group *g = item->worker->group;
    struct st_tracer *t = st_trace_on(g->ctx);
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    int rc = ST_OK;

    st_trace_begins(t);
    st_wait_begin(&w, policy, &item->worker->wake_word, &item->worker->sleepers, timeout_ns);
    while (!st_item_done(item)) {
        rc = st_wait_step(&w);
        if (rc == ST_ETIMEOUT || rc == ST_EINTR)
            break;
        if (rc == ST_AGAIN)
            st_flight_waits(g->ctx, &record, ST_FLIGHT_WORK, ST_FLIGHT_NOBODY, g->id, 0, 0);
        rc = ST_OK;
    }
    st_wait_end(&w);
    st_flight_waited(g->ctx, record, rc);
    ST_TRACE(t, ST_TRACE_WAIT, 0, ST_TRACE_NOBODY, ST_TRACE_WORK, 0);
    return rc;
}

/* ---- order of transfers ------------------------------------------------------------ */

/* Appends an item to the pending ones.  It stays behind the last of its kind, peer
 * and tag that has not been posted or matched: messages do not overtake. */
static inline void st_item_append(struct st_item **pending, struct st_item *item)
{
    const struct st_transfer *t = &item->transfer;
    struct st_item **at;

    item->next = item->ahead = item->behind = NULL;
    for (at = pending; *at; at = &(*at)->next) {
        const struct st_transfer *o = &(*at)->transfer;

        if (o->state == ST_P2P_NEW && o->receive == t->receive && o->peer == t->peer && o->tag == t->tag)
            item->ahead = *at;
    }
    if (item->ahead)
        item->ahead->behind = item;
    *at = item;
}

/* It has its place among the messages, or has ended: the next may come. */
static inline void st_item_pass(struct st_item *item)
{
    if (item->behind)
        item->behind->ahead = item->ahead;
    if (item->ahead)
        item->ahead->behind = item->behind;
    item->ahead = item->behind = NULL;
}

#endif
