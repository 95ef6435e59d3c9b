/* A graph and its replays.
 *
 * All replays of a graph are one chain of a ring of its own: after a failure nothing that is
 * behind it is executed, and flags are poisoned.  So the failure of one member is that of all,
 * for good. */
#ifndef ST_GRAPH_H
#define ST_GRAPH_H

#include "st_abi_graph.h"
#include "st_engine.h"
#include "st_flag.h"
#include "st_group.h"

#define ST_GRAPH_NOBODY UINT32_MAX /* part of an operation that concerns this die alone */

/* A group of the graph. */
struct st_graph_part {
    struct st_group *g;
    struct st_graph_line *lines; /* [n], own */
    uint32_t joined; /* peers know the lines, and may write to them */
    uint32_t pad;
};

/* An operation of the list. */
struct st_graph_step {
    uint64_t first; /* descriptor */
    uint64_t desc;  /* its fingerprint */
    uint32_t part;
    uint32_t pad;
};

struct st_graph {
    struct st_engine *e;
    struct st_lane lane; /* its ring; the first descriptor has index 0 */
    const struct st_descriptor *list;
    const struct st_graph_part *parts;
    const struct st_graph_step *steps;
    uint64_t length;
    uint64_t begun; /* replays */
    uint32_t nparts;
    uint32_t nsteps;
    uint32_t event;
};

/* ---- begin -------------------------------------------------------------------------- */

/* Puts descriptors into the graph's ring, as they are: no new chain begins.  ST_EFULL: there is no room.
 * ST_ECORRUPT: somebody else has used the ring. */
static inline int st_graph_put(struct st_graph *g, const struct st_descriptor *d, uint64_t n, uint64_t timeout_ns)
{
    struct st_ctx *ctx = g->e->ctx;
    struct st_tracer *t = st_trace_on(ctx);
    struct st_waiter w;
    uint64_t k;
    int rc;

    st_trace_begins(t);
    st_wait_begin(&w, &ctx->wait, NULL, NULL, timeout_ns);
    rc = st_lane_lock(ctx, &g->lane, &w);
    st_wait_end(&w);
    if (rc != ST_OK)
        return rc;
    if (st_lane_tail(&g->lane) != 2 * g->begun)
        rc = ST_ECORRUPT;
    else if (st_lane_room(&g->lane, &rc) < n)
        rc = rc == ST_OK ? ST_EFULL : rc;
    for (k = 0; k < n && rc == ST_OK; k++)
        st_lane_put(&g->lane, k, &d[k]);
    ST_FAULT(GRAPH_PUT);
    ST_TRACE(t, ST_TRACE_SUBMIT, 0, ctx->rank, g->lane.index, n);
    if (rc == ST_OK)
        st_lane_ring(&g->lane, n);
    ST_TRACE(t, ST_TRACE_DOORBELL, 0, ctx->rank, g->lane.index, n);
    ST_FAULT(GRAPH_RUNG);
    st_lane_unlock(&g->lane);
    return rc;
}

static inline int st_graph_replay(struct st_graph *g, uint64_t timeout_ns)
{
    struct st_descriptor d[2] = {
        {.type = ST_SDMA_CALL, .event = g->event, .src = (uint64_t)(uintptr_t)g->list, .bytes = g->length,
         .value = g->begun * ST_GRAPH_SPAN},
        {.type = ST_SDMA_NOTIFY, .event = g->event},
    };
    int rc;

    st_sdma_seal(g->e->ctx, &d[0]);
    rc = st_graph_put(g, d, 2, timeout_ns);
    g->begun += rc == ST_OK;
    return rc;
}

/* The last chain: says to all peers that no replay comes any more.  `farewell`: so many descriptors. */
static inline int st_graph_close(struct st_graph *g, const struct st_descriptor *farewell, uint64_t count)
{
    struct st_descriptor d = {.type = ST_SDMA_CALL, .flags = ST_SDMA_BEGIN, .src = (uint64_t)(uintptr_t)farewell,
                              .bytes = count, .value = g->begun};

    st_sdma_seal(g->e->ctx, &d);
    return st_graph_put(g, &d, 1, 1000000000ull);
}

/* Has everything in the ring been executed? */
static inline int st_graph_drained(const struct st_graph *g)
{
    return st_lane_head(&g->lane) == st_lane_tail(&g->lane);
}

/* Will no peer write to this die's lines any more? */
static inline int st_graph_gone(const struct st_graph *g)
{
    uint32_t i, j;

    for (i = 0; i < g->nparts; i++) {
        const struct st_graph_part *p = &g->parts[i];

        for (j = 0; j < p->g->n && p->joined; j++)
            if (j != p->g->me && !st_load_acquire_64(&p->lines[j].closed) && /* pairs with st_engine_flag */
                st_member_alive(p->g, j))
                return 0;
    }
    return 1;
}

/* ---- where it is ---------------------------------------------------------------------- */

/* The descriptor of the list that is being executed; of a graph that has failed the one that did: the ring may be
 * past it. */
static inline uint64_t st_graph_at(const struct st_graph *g, uint64_t *replay)
{
    const struct st_event *v = &g->e->events[g->event];
    const struct st_descriptor *d = &v->failed;
    uint64_t head = st_lane_head(&g->lane), called, k = 0;

    if (st_event_status(g->e, g->event) != ST_OK) {
        *replay = v->index / 2;
        while (k + 1 < g->length && (g->list[k].src != d->src || g->list[k].dst != d->dst ||
                                     (d->value - g->list[k].value) % ST_GRAPH_SPAN || g->list[k].type != d->type))
            k++;
        return k;
    }
    *replay = head / 2;
    called = head & 1 ? g->length : st_load_acquire_64(&g->lane.ring->called); /* pairs with st_engine_call */
    return called < g->length ? called : g->length ? g->length - 1 : 0;
}

/* Does it stand at a gate whose flag has not come?  Else it goes on by itself, and needs no peer for that. */
static inline int st_graph_waits(const struct st_graph *g)
{
    uint64_t replay, value = 0, index = st_graph_at(g, &replay);
    const struct st_descriptor *d = &g->list[index];

    return g->length && d->type == ST_SDMA_GATE &&
           (st_flag_read(g->e->ctx, d->src, &value) != ST_OK || value < d->value + replay * ST_GRAPH_SPAN);
}

/* The operation that a descriptor belongs to. */
static inline uint32_t st_graph_step_of(const struct st_graph *g, uint64_t index)
{
    uint32_t k = 0;

    while (k + 1 < g->nsteps && g->steps[k + 1].first <= index)
        k++;
    return k;
}

#endif
