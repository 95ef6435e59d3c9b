/* A message on its way, as its sender or its receiver has it. */
#ifndef ST_TRANSFER_H
#define ST_TRANSFER_H

#include "st_channel.h"

enum st_p2p_state { ST_P2P_NEW = 0, ST_P2P_POSTED = 1, ST_P2P_MATCHED = 2, ST_P2P_DONE = 3 };

struct st_transfer {
    uint32_t receive;
    uint32_t peer;
    uint32_t state;
    int err;
    uint32_t cast;    /* to all, or from one that speaks to all: st_cast.h.  peer: the root */
    uint32_t refused; /* buf is fabric memory without the access that it takes; nothing was sent or taken */
    int64_t tag;
    uint64_t desc;
    uint64_t count;
    uint64_t bytes;
    void *buf;
    uint64_t seq;
    struct st_message m;           /* receive: what matched; send: its reply, and the receiver's wish if refused */
    struct st_unexpected *matched; /* receive: if it came from the list */
    struct st_flight_record *record;
};

/* The flight recorder's lines of a transfer. */
static inline void st_p2p_record(const struct st_group *g, struct st_transfer *t, uint32_t how)
{
    uint32_t kind = t->cast ? ST_FLIGHT_CAST : t->receive ? ST_FLIGHT_RECV : ST_FLIGHT_SEND;
    uint64_t number = t->cast ? g->p2p[t->peer].cast_next + 1 : (uint64_t)t->tag;

    t->record = st_flight_begin(g->ctx, how | kind, g->ranks[t->peer], g->id, number, t->desc, t->count, t->bytes);
    st_flight_time(g->ctx, t->record);
}

/* A transfer is over.  looked: when it had last been found that it was not; 0: it went on at once. */
ST_TRACE_COLD void st_p2p_traced(const struct st_group *g, const struct st_transfer *t, struct st_tracer *trace, uint64_t looked)
{
    uint32_t peer = g->ranks[t->peer];

    if (looked) {
        st_trace_put(trace, ST_TRACE_WHAT(ST_TRACE_WAIT, 0, peer, ST_TRACE_MESSAGE), trace->last, looked, (uint64_t)t->tag);
        trace->last = looked;
    }
    st_trace_span(trace, ST_TRACE_WHAT(t->receive ? ST_TRACE_RECV : ST_TRACE_SEND, 0, peer, g->id), t->bytes);
}

static inline void st_p2p_recorded(const struct st_group *g, struct st_transfer *t, int rc, int waited)
{
    st_flight_end(g->ctx, t->record, rc, waited || t->bytes > ST_EAGER_BYTES);
    t->record = NULL;
}

#endif
