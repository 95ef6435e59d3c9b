/* What a trace says of units and their flags. */
#ifndef ST_EXEC_TRACE_H
#define ST_EXEC_TRACE_H

#include "st_exec_plan.h"

/* Of the operands [first, first + count): adds those in other dies' memory; *peer: whose the first of them is. */
static inline uint32_t st_unit_remote(const struct st_group *g, const struct st_plan *p, uint32_t first, uint32_t count,
                                      uint32_t *peer)
{
    uint32_t k, remote = 0;

    for (k = first; k < first + count; k++)
        if ((uint32_t)p->operands[k].member != g->me) {
            if (*peer == g->ranks[g->me])
                *peer = g->ranks[p->operands[k].member];
            remote++;
        }
    return remote;
}

/* A unit is done. */
ST_TRACE_COLD void st_unit_traced(struct st_tracer *t, const struct st_group *g, const struct st_plan *p, uint64_t index)
{
    const struct st_unit *u = &p->units[index];
    uint32_t peer = g->ranks[g->me], remote, kind = ST_TRACE_COPY;

    switch (u->kind) {
    case ST_UNIT_SYNC:
        return;
    case ST_UNIT_COPY:
        kind = p->mailbox ? ST_TRACE_MAILBOX : ST_TRACE_COPY;
        break;
    case ST_UNIT_REDUCE:
    case ST_UNIT_COMBINE:
        kind = ST_TRACE_REDUCE;
        break;
    case ST_UNIT_ACCUMULATE:
        kind = ST_TRACE_ACCUMULATE;
        break;
    }
    remote = st_unit_remote(g, p, u->src_first, u->nsrc, &peer);
    remote += st_unit_remote(g, p, u->dst_first, u->ndst, &peer);
    st_trace_span(t, ST_TRACE_WHAT(kind, u->core, peer, ST_TRACE_UNIT(index, remote)), u->bytes);
}

/* A core goes on, after all of its thread's had nothing to do. */
ST_TRACE_COLD void st_unit_waited(struct st_tracer *t, const struct st_group *g, const struct st_unit *u, uint64_t number)
{
    t->waits = 0;
    st_trace_span(t, ST_TRACE_WHAT(ST_TRACE_FLAG_WAIT, u->core, u->wait_flag < 0 ? g->ranks[g->me] : g->ranks[u->wait_peer], g->id),
                  ST_TRACE_FLAG(number, u->wait_flag));
}

/* Of the thread that runs a plan; NULL: off. */
static inline struct st_tracer *st_exec_tracer(const struct st_group *g)
{
    struct st_tracer *t = st_trace_on(g->ctx);

    if (__builtin_expect(t != NULL, 0))
        t->waits = 0;
    return t;
}

/* A core's thread begins with an operation. */
static inline void st_exec_traced(struct st_tracer *t, const struct st_group *g, uint64_t number)
{
    if (__builtin_expect(!t, 1))
        return;
    t->waits = 0;
    st_trace_mark(t);
    st_trace_put(t, ST_TRACE_WHAT(ST_TRACE_ARRIVE, 0, ST_TRACE_NOBODY, g->id), t->last, t->last, number);
}

#endif
