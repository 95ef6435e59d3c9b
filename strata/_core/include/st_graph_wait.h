/* Waiting for replays, and giving a graph up.
 *
 * Who waits has the deadline, and looks whether the members are alive. */
#ifndef ST_GRAPH_WAIT_H
#define ST_GRAPH_WAIT_H

#include "st_graph.h"
#include "st_sync.h"

#define ST_GRAPH_DRAIN_NS 10000000000ull
#define ST_GRAPH_CALM_NS 500000000ull

enum st_graph_cause {
    ST_GRAPH_HERE = 0,     /* this die found it out while it waited */
    ST_GRAPH_DECLARED = 1, /* a group of the graph has failed */
    ST_GRAPH_CLOSED = 2,   /* a member has closed its graph */
    ST_GRAPH_POISONED = 3, /* a member has given up */
    ST_GRAPH_ENGINE = 4    /* a descriptor of this die has failed */
};

/* Why a graph is given up. */
struct st_graph_end {
    int status;
    uint32_t cause;
    uint32_t part;
    uint32_t step;
    uint32_t stuck; /* the DMA thread has not come to the end of it: what it uses must stay */
    uint32_t nlate;
    uint64_t replay; /* the first that has not ended well, counted from 1 */
    uint64_t mask[ST_MASK_WORDS]; /* world ranks concerned */
    uint64_t late[ST_MASK_WORDS]; /* world ranks that may still write to this die's arrays */
};

/* Whom the graph waits for. */
static inline void st_graph_missing(const struct st_graph *g, struct st_graph_end *end)
{
    struct st_ctx *ctx = g->e->ctx;
    uint64_t replay, index = st_graph_at(g, &replay), value;
    const struct st_descriptor *d = &g->list[index];
    const struct st_graph_part *p;
    uint32_t j, found = 0;
    int64_t owner;

    end->step = st_graph_step_of(g, index);
    end->part = g->steps[end->step].part;
    if (d->type == ST_SDMA_GATE && end->part < g->nparts) {
        p = &g->parts[end->part];
        value = d->value + replay * ST_GRAPH_SPAN;
        owner = st_owner(ctx, d->src);
        if (owner >= 0 && owner != (int64_t)ctx->rank) { /* a flag of the plan */
            st_mask_set(end->mask, (uint32_t)owner);
            return;
        }
        for (j = 0; j < p->g->n; j++)
            if (j != p->g->me && st_load_acquire_64(&p->lines[j].phase) < value) { /* pairs with st_engine_flag */
                st_mask_set(end->mask, p->g->ranks[j]);
                found++;
            }
    }
    if (!found)
        st_mask_set(end->mask, ctx->rank); /* its own DMA thread is busy, or has just gone on */
}

/* ---- waiting -------------------------------------------------------------------------- */

/* Members of a part that are dead; how many. */
static inline uint32_t st_graph_dead(const struct st_graph_part *p, uint64_t *mask)
{
    uint32_t j, n = 0;

    for (j = 0; j < p->g->n; j++)
        if (j != p->g->me && !st_member_alive(p->g, j)) {
            st_mask_set(mask, p->g->ranks[j]);
            n++;
        }
    return n;
}

/* The slow look of a wait for the end of `count` replays; ST_OK: go on.  A member may leave when its replay has ended:
 * that it is gone says nothing until something is still to come from it, or from who waits for it. */
static inline int st_graph_look(const struct st_graph *g, uint64_t count, int rc, struct st_graph_end *end)
{
    uint64_t closed, replay;
    uint32_t i, j, needed = st_event_status(g->e, g->event) != ST_OK || st_graph_waits(g);

    memset(end, 0, sizeof *end);
    end->step = st_graph_step_of(g, st_graph_at(g, &replay));
    end->part = g->nsteps ? g->steps[end->step].part : ST_GRAPH_NOBODY;
    end->replay = st_event_count(g->e, g->event) + 1;
    if (rc == ST_EINTR) {
        st_mask_set(end->mask, g->e->ctx->rank);
        return end->status = ST_EBROKEN;
    }
    if (!st_load_acquire_32(&g->e->runs)) /* pairs with st_engine_end */
        return end->status = ST_ENOJOB;
    for (i = 0; i < g->nparts && end->status == ST_OK; i++) {
        const struct st_graph_part *p = &g->parts[i];

        end->status = st_group_failed(p->g);
        if (end->status != ST_OK)
            end->cause = ST_GRAPH_DECLARED;
        else if (needed && st_graph_dead(p, end->mask))
            end->status = ST_EDEAD;
        for (j = 0; j < p->g->n && end->status == ST_OK; j++) {
            closed = st_load_acquire_64(&p->lines[j].closed); /* pairs with st_engine_flag */
            if (!closed || closed > count)
                continue;
            st_mask_set(end->mask, p->g->ranks[j]);
            end->status = ST_ECANCELED;
            end->cause = ST_GRAPH_CLOSED;
        }
        if (end->status != ST_OK)
            end->part = i;
    }
    if (end->status == ST_OK && rc == ST_ETIMEOUT) {
        end->status = ST_ETIMEOUT;
        st_graph_missing(g, end);
    }
    return end->status;
}

/* Waits until `count` replays have ended, well or not.  Other than ST_OK: *end says why not. */
static inline int st_graph_wait(const struct st_graph *g, uint64_t count, uint64_t timeout_ns, struct st_graph_end *end)
{
    struct st_event *v = &g->e->events[g->event];
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    int rc = ST_OK;

    st_wait_begin(&w, &g->e->ctx->wait, &v->wake_word, &v->sleepers, timeout_ns);
    while (rc == ST_OK && st_event_count(g->e, g->event) < count) {
        rc = st_wait_step(&w);
        if (rc == ST_OK)
            continue;
        st_flight_waits(g->e->ctx, &record, ST_FLIGHT_REPLAY, ST_FLIGHT_NOBODY, 0, count, 0);
        rc = st_graph_look(g, count, rc, end) == ST_OK ? ST_OK : rc == ST_EINTR ? ST_EINTR : end->status;
        if (rc != ST_EINTR && st_event_count(g->e, g->event) >= count)
            rc = ST_OK; /* it has come to its end meanwhile */
    }
    st_wait_end(&w);
    st_flight_waited(g->e->ctx, record, rc);
    return rc;
}

/* Why the engine has ended a replay. */
static inline void st_graph_failed(const struct st_graph *g, struct st_graph_end *end)
{
    const struct st_descriptor *d = &g->e->events[g->event].failed;
    int status = st_event_status(g->e, g->event), known;
    uint64_t line, value = 0;
    int64_t owner;

    known = st_graph_look(g, g->begun, ST_AGAIN, end) != ST_OK;
    end->replay = g->e->events[g->event].index / 2 + 1;
    if (known)
        return; /* that is the reason, and somebody's poison came of it */
    end->status = status;
    end->cause = ST_GRAPH_ENGINE;
    end->part = g->nsteps ? g->steps[end->step].part : ST_GRAPH_NOBODY;
    owner = st_owner(g->e->ctx, d->src);
    if (d->type == ST_SDMA_GATE && end->part < g->nparts && st_flag_read(g->e->ctx, d->src, &value) == ST_OK &&
        value & ST_SDMA_POISON) {
        const struct st_graph_part *p = &g->parts[end->part];

        end->cause = ST_GRAPH_POISONED;
        line = (d->src - (uint64_t)(uintptr_t)p->lines) / sizeof *p->lines;
        st_mask_set(end->mask, owner == (int64_t)g->e->ctx->rank && line < p->g->n ? p->g->ranks[line] : (uint32_t)owner);
    } else {
        st_mask_set(end->mask, g->e->ctx->rank);
    }
}

/* ---- giving up ------------------------------------------------------------------------ */

/* Groups that cannot be used any more hear of it: those that have lost a member, else the one whose operation failed. */
static inline void st_graph_declare(const struct st_graph *g, struct st_graph_end *end)
{
    uint64_t mask[ST_MASK_WORDS];
    uint32_t i, j, found;

    for (i = 0; i < g->nparts; i++) {
        struct st_group *group = g->parts[i].g;

        if (end->status != ST_EDEAD && i != end->part)
            continue;
        memset(mask, 0, sizeof mask);
        for (j = 0, found = 0; j < group->n; j++)
            if (end->mask[group->ranks[j] >> 6] >> (group->ranks[j] & 63) & 1) {
                st_mask_set(mask, j);
                found++;
            }
        if (found)
            st_group_fail(group, end->status, ST_PHASE_EXECUTION, g->steps[end->step].desc, mask);
    }
}

/* Peers that are in the middle of an operation may write to this die's arrays: waits until none is. */
static inline void st_graph_calm(const struct st_graph *g, struct st_graph_end *end)
{
    uint64_t until = st_now_ns() + ST_GRAPH_CALM_NS, phase;
    uint32_t i, j;

    for (i = 0; i < g->nparts; i++) {
        const struct st_graph_part *p = &g->parts[i];

        for (j = 0; j < p->g->n; j++)
            for (;;) {
                phase = st_load_seqcst_64(&p->lines[j].phase); /* pairs with st_engine_flag */
                if (j == p->g->me || !(phase & 1) || phase & ST_SDMA_POISON ||
                    !st_member_runs(p->g, j))
                    break;
                if (st_now_ns() > until) {
                    st_mask_set(end->late, p->g->ranks[j]);
                    end->nlate++;
                    break;
                }
                sched_yield();
            }
    }
}

/* Ends all replays that have been begun, for the reason in *end. */
static inline void st_graph_give_up(const struct st_graph *g, struct st_graph_end *end)
{
    struct st_wait_policy patient = g->e->ctx->wait;

    if (end->cause == ST_GRAPH_HERE || end->cause == ST_GRAPH_ENGINE)
        st_graph_declare(g, end);
    ST_FAULT(GRAPH_DECLARED);
    st_event_cancel(g->e, g->event, end->status);
    patient.poll = NULL; /* an exception may be waiting to be raised */
    end->stuck = st_event_wait(g->e, g->event, g->begun, &patient, ST_GRAPH_DRAIN_NS) == ST_ETIMEOUT;
    ST_FAULT(GRAPH_CANCELLED);
    st_graph_calm(g, end);
}

#endif
