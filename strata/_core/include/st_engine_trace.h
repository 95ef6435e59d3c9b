/* What a trace says of descriptors. */
#ifndef ST_ENGINE_TRACE_H
#define ST_ENGINE_TRACE_H

#include "st_engine.h"

/* Whose memory an address is in. */
static inline uint32_t st_engine_whose(const struct st_engine *e, uint64_t va)
{
    int64_t die = st_owner(e->ctx, va);

    return die < 0 ? ST_TRACE_NOBODY : (uint32_t)die;
}

/* A descriptor has been looked at.  ST_AGAIN: it is a gate, and shut. */
ST_TRACE_COLD void st_engine_traced(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *d, int rc)
{
    struct st_tracer *t = e->trace;
    uint64_t begin = t->last, arg = d->bytes;
    uint32_t kind = ST_TRACE_DMA, peer = ST_TRACE_NOBODY;

    t->last = st_trace_now(t);
    if (rc == ST_AGAIN) {
        r->gated_at = r->gated_at ? r->gated_at : begin;
        return;
    }
    switch (d->type) {
    case ST_SDMA_COPY:
    case ST_SDMA_REDUCE:
    case ST_SDMA_ACCUMULATE:
        peer = d->type == ST_SDMA_REDUCE && d->flags & ST_SDMA_LIST ? e->ctx->rank : st_engine_whose(e, d->src);
        peer = peer == e->ctx->rank ? st_engine_whose(e, d->dst) : peer;
        break;
    case ST_SDMA_FILL:
        peer = st_engine_whose(e, d->dst);
        break;
    case ST_SDMA_WRITE:
    case ST_SDMA_ADD:
    case ST_SDMA_COUNT:
        arg = d->dst;
        peer = d->flags & ST_SDMA_WORLD ? peer : st_engine_whose(e, arg);
        break;
    case ST_SDMA_GATE:
        begin = r->gated_at ? r->gated_at : begin;
        arg = d->src;
        peer = d->flags & ST_SDMA_WORLD ? peer : st_engine_whose(e, arg);
        break;
    case ST_SDMA_NOTIFY:
        kind = ST_TRACE_NOTIFY;
        arg = d->event;
        break;
    }
    r->gated_at = 0;
    st_trace_put(t, ST_TRACE_WHAT(kind, d->type, peer, r->ring->index), begin, t->last, arg);
}

#endif
