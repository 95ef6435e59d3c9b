/* The SDMA executor: has a plan's units carried out by the die's DMA thread.
 *
 * Each core of the plan has a ring that is the group's alone, so that no gate but its own stands
 * before it.  All rings are filled side by side as they have room, and end with a
 * notification each; further ones between call for more descriptors.  The caller waits for all of them, on
 * the group's futex.  Members that run their cores themselves take part alike: flags are the same.
 */
#ifndef ST_EXEC_SDMA_H
#define ST_EXEC_SDMA_H

#include "st_engine.h"
#include "st_exec_trace.h"
#include "st_lower.h"
#include "st_sync.h"

/* A group's rings and what they need; one operation at a time has them. */
struct st_lanes {
    struct st_engine *e;
    struct st_lane *lanes;  /* [count] */
    struct st_lane_at {
        uint64_t unit, end; /* units of its core that are not submitted yet */
        uint64_t piece;     /* of the first of them */
        uint32_t since;     /* descriptors since the last notification */
        uint32_t filled;    /* the last one is in it */
    } *at;                  /* [count] */
    uint32_t count;
    uint32_t unfilled;      /* lanes that do not have all of theirs */
    uint32_t nflags;        /* that l.counters has room for */
    uint64_t notified;      /* what the event comes to when all that has been submitted is done */
    struct st_lowering l;   /* all but the operation's own */
};

/* Takes rings that this die has opened, and fabric memory for counters and lists, for a group.  The caller has set e,
 * lanes, at, count, nflags and, in l, counters, lists and room; flag_at has room for n.  ST_EFULL: there is no event
 * left. */
static inline int st_lanes_take(struct st_lanes *s, struct st_group *g, uint64_t *flag_at)
{
    uint64_t from = g->va ? (uint64_t)(uintptr_t)g->header : 0; /* the world's memory is in nobody's HBM */
    struct st_waiter w;
    uint32_t i;
    int rc = ST_OK;

    for (i = 0; i < g->n; i++)
        flag_at[i] = from + st_group_flags_off(g->n) + 8ull * i * ST_GROUP_FLAGS;
    s->l.ctx = g->ctx;
    s->l.me = g->me;
    s->l.flag_at = flag_at;
    s->l.wake_at = from + offsetof(struct st_group_header, wake_word);
    s->l.block = ST_SDMA_BLOCK;
    s->l.flag_bits = ST_SDMA_SILENT | (g->va ? 0 : ST_SDMA_WORLD);
    s->l.event = st_event_take(s->e, &g->header->wake_word, &g->header->sleepers);
    s->notified = 0;
    st_wait_begin(&w, &g->ctx->wait, NULL, NULL, 0);
    for (i = 0; i < s->count && rc == ST_OK; i++)
        rc = st_lane_lock(g->ctx, &s->lanes[i], &w); /* for good */
    st_wait_end(&w);
    return rc != ST_OK ? rc : s->l.event ? ST_OK : ST_EFULL;
}

static inline void st_lanes_give(struct st_lanes *s)
{
    if (s->l.event)
        st_event_give(s->e, s->l.event);
    s->l.event = 0;
}

/* The next descriptor of a lane. */
static inline int st_lane_next(struct st_lanes *s, const struct st_lane *lane, struct st_lane_at *at,
                               struct st_descriptor *d)
{
    const struct st_unit *u = &s->l.p->units[at->unit];

    while (at->unit < at->end && at->piece == st_lower_pieces(u, s->l.block)) {
        u = &s->l.p->units[++at->unit];
        at->piece = 0;
    }
    if (at->unit < at->end && at->since < lane->depth / 2) {
        at->since++;
        return st_lower(&s->l, u, at->piece++, d);
    }
    memset(d, 0, sizeof *d);
    d->type = ST_SDMA_NOTIFY;
    d->event = s->l.event;
    at->filled = at->unit == at->end;
    at->since = 0;
    s->unfilled -= at->filled;
    s->notified++;
    return ST_OK;
}

/* Whoever has waited for the engine no longer does. */
static inline struct st_tracer *st_lanes_waited(const struct st_lanes *s)
{
    struct st_tracer *t = st_trace_on(s->e->ctx);

    if (__builtin_expect(t && t->waits, 0)) {
        t->waits = 0;
        st_trace_span(t, ST_TRACE_WHAT(ST_TRACE_NOTIFY, 0, ST_TRACE_NOBODY, 0), s->l.event);
    }
    return t;
}

/* Puts into a lane what it has room for, if that is half of it. */
static inline int st_lane_fill(struct st_lanes *s, uint32_t c, int begin)
{
    struct st_lane *lane = &s->lanes[c];
    struct st_lane_at *at = &s->at[c];
    struct st_tracer *t;
    struct st_descriptor d;
    uint64_t room, put = 0;
    int rc;

    if (at->filled)
        return ST_OK;
    room = st_lane_room(lane, &rc);
    if (rc != ST_OK || room < lane->depth / 2)
        return rc;
    t = st_lanes_waited(s);
    while (put < room && !at->filled && (rc = st_lane_next(s, lane, at, &d)) == ST_OK) {
        d.flags |= begin && !put ? ST_SDMA_BEGIN : 0;
        st_lane_put(lane, put++, &d);
        ST_FAULT(LANE_PUT);
    }
    ST_TRACE(t, ST_TRACE_SUBMIT, c, s->l.ctx->rank, lane->index, put);
    if (put)
        st_lane_ring(lane, put);
    ST_TRACE(t, ST_TRACE_DOORBELL, c, s->l.ctx->rank, lane->index, put);
    return rc;
}

static inline int st_lanes_fill(struct st_lanes *s, int begin)
{
    uint32_t c, cores = st_plan_cores(s->l.p);
    int rc = ST_OK;

    for (c = 0; c < cores && rc == ST_OK; c++)
        rc = st_lane_fill(s, c, begin);
    return rc;
}

/* The DMA thread may be asleep at gates on flags that a core has raised, who woke the group alone. */
static inline void st_lanes_tell(struct st_group *g, struct st_lanes *s)
{
    struct st_engine *e = s->e;
    uint32_t c;

    if (!st_load_relaxed_32(&e->shared->bell_sleepers))
        return;
    for (c = 0; c < s->count; c++) {
        struct st_lane *lane = &s->lanes[c];
        const struct st_descriptor *d = st_ring_slot(lane->ring, lane->depth, st_lane_head(lane));
        uint64_t flag;

        if (!st_load_acquire_64(&lane->ring->gated_ns)) /* pairs with st_engine_patience */
            continue;
        flag = (d->src - s->l.flag_at[0]) / 8;
        if (d->type == ST_SDMA_GATE && flag < (uint64_t)g->n * ST_GROUP_FLAGS &&
            st_load_acquire_64(&g->flags[flag]) >= d->value) { /* pairs with st_unit_done */
            st_wake(&e->shared->bell, &e->shared->bell_sleepers);
            return;
        }
    }
}

/* Does some lane have descriptors, and none of them a gate that is shut? */
static inline int st_lanes_move(const struct st_lanes *s)
{
    uint32_t c;

    for (c = 0; c < s->count; c++)
        if (st_lane_head(&s->lanes[c]) != st_lane_tail(&s->lanes[c]) &&
            !st_load_acquire_64(&s->lanes[c].ring->gated_ns)) /* pairs with st_engine_patience */
            return 1;
    return 0;
}

/* ST_OK, or what has gone wrong with a descriptor: that is the group's failure, unless it has another. */
static inline int st_lanes_status(struct st_group *g, const struct st_lanes *s)
{
    int status = st_event_status(s->e, s->l.event);
    uint64_t mask[ST_MASK_WORDS] = {0};

    if (status == ST_OK)
        return ST_OK;
    if (st_group_lost(g, status == ST_EDEAD, mask))
        status = ST_EDEAD;
    else
        st_mask_set(mask, g->me);
    return st_group_fail(g, status, ST_PHASE_EXECUTION, st_line(g, s->l.number, g->me)->desc, mask);
}

/* A step of the wait for the engine. */
static inline int st_lanes_step(struct st_group *g, struct st_lanes *s)
{
    struct st_tracer *t = st_trace_on(g->ctx);
    int rc = st_wait_step(&g->waiter);

    if (__builtin_expect(t != NULL, 0))
        t->waits = 1;
    if (rc == ST_ETIMEOUT && st_lanes_move(s)) { /* what moves is not waited for, on cores, either */
        sched_yield();
        rc = ST_OK;
    }
    if (rc != ST_OK) {
        if (rc == ST_AGAIN && !st_load_acquire_32(&s->e->runs)) /* pairs with st_engine_end */
            return ST_ENOJOB;
        rc = st_group_look(g, ST_PHASE_EXECUTION, s->l.number, rc);
    } else {
        rc = st_group_failed(g);
    }
    rc = rc == ST_OK ? st_lanes_status(g, s) : rc;
    if (rc == ST_OK)
        st_lanes_tell(g, s);
    return rc;
}

/* Nothing of the operation is in the lanes any more, and the DMA thread is at none of it. */
static inline void st_lanes_drain(struct st_lanes *s)
{
    uint32_t c;

    st_event_cancel(s->e, s->l.event, ST_ECANCELED);
    for (c = 0; c < s->count; c++)
        while (st_lane_head(&s->lanes[c]) != st_lane_tail(&s->lanes[c]) &&
               st_load_acquire_32(&s->e->runs)) /* pairs with st_engine_end */
            sched_yield();
}

/* Runs all units of a plan that needs no more than s has, from bases and flags that are the group's.  No thread
 * touches a buffer when it returns; after a failure the group is broken, and so are the lanes. */
static inline int st_exec_sdma(struct st_group *g, const struct st_plan *p, struct st_lanes *s, uint64_t number)
{
    uint32_t c, cores = st_plan_cores(p);
    int rc = ST_OK;

    if (cores > s->count || p->nflags > s->nflags || p->by_rows)
        return ST_EINVAL;
    for (c = 0; c < p->nflags; c++)
        ((uint64_t *)(uintptr_t)s->l.counters)[c] = 0;
    (void)st_exec_tracer(g);
    s->unfilled = 0;
    for (c = 0; c < cores; c++) {
        uint64_t first = p->core_begin ? p->core_begin[c] : 0, end = p->core_begin ? p->core_begin[c + 1] : p->nunits;

        s->at[c] = (struct st_lane_at){.unit = first, .end = end, .filled = first == end};
        s->unfilled += first != end;
        if (rc == ST_OK)
            rc = st_lane_open(g->ctx, &s->lanes[c]);
    }
    if (rc != ST_OK)
        return rc;
    s->l.p = p;
    s->l.bases = g->bases;
    s->l.number = number;
    s->l.listed = 0;
    rc = st_lanes_fill(s, 1);
    while (rc == ST_OK && (s->unfilled || st_event_count(s->e, s->l.event) < s->notified)) {
        rc = st_lanes_step(g, s);
        if (rc == ST_OK)
            rc = st_lanes_fill(s, 0);
    }
    rc = rc == ST_OK ? st_lanes_status(g, s) : rc;
    st_wait_again(&g->waiter);
    (void)st_lanes_waited(s);
    ST_FAULT(LANES_OVER);
    if (rc != ST_OK)
        st_lanes_drain(s);
    return rc;
}

#endif
