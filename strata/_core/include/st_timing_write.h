/* Plans of one operation to tasks of the timing plane, last part: lanes, and who waits for whom.
 *
 * By cores (mte), a core is a lane and each of its units a task.  By the engine (sdma), a core is a lane that submits
 * its units' descriptors and is free then, and its ring another, that moves them. */
#ifndef ST_TIMING_WRITE_H
#define ST_TIMING_WRITE_H

#include "st_timing_count.h"
#include "st_timing_tasks.h"

/* Which of the die's cores, and which ring, a plan's core is; flags (ST_TIMING_NONE) that say that whoever had it
 * before is done, and that it is done. */
struct st_load_place {
    int32_t core, core_wait, core_post;
    int32_t ring, ring_wait, ring_post;
};

/* Where a plan's cores became lanes; ST_TIMING_NONE: they have nothing to do. */
struct st_load_lanes {
    int32_t core, ring;
};

/* Flags of the plan that a unit waits for and posts. */
static inline void st_load_flags(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u,
                                 uint32_t core, uint32_t unit, struct st_timing_task *t)
{
    if (u->wait_flag >= 0) {
        int64_t at = l->flag_base[u->wait_peer] + u->wait_flag;
        int tier = st_load_tier(l, u->wait_peer, p->member);
        int64_t seen = l->seen_ps[tier] + l->poll_ps;

        if (u->wait_peer == p->member && l->poster[at - l->flag_zero] == (int32_t)core)
            seen = 0; /* what it did itself */
        st_load_wait(t, (int32_t)at, st_load_jitter(l, seen, p->member, unit, 1));
    }
    if (u->post_flag >= 0)
        t->post = (int32_t)(l->flag_base[p->member] + u->post_flag);
}

/* Descriptors that a unit's bytes take, as st_lower.h cuts them. */
static inline int64_t st_load_blocks(const struct st_load *l, const struct st_load_plan *p, const struct st_unit *u)
{
    int64_t blocks = (int64_t)(u->bytes / l->block + (u->bytes % l->block != 0));

    if (u->kind == ST_UNIT_ROWS)
        return st_load_runs(l, p, u);
    if (u->kind == ST_UNIT_COMBINE)
        return st_load_tally(l, p, u); /* each row is copied, for cores to add up */
    return blocks * (u->kind == ST_UNIT_REDUCE ? u->ndst != 0 : u->ndst);
}

/* A core by MTE: its units. */
static inline void st_load_by_core(const struct st_load *l, struct st_load_out *out, const struct st_load_plan *p,
                                   uint32_t core, int32_t start, int32_t drained, const struct st_load_place *at)
{
    const struct st_load_die *die = &l->dies[p->member];
    int64_t hold = st_load_scaled(l->issue_ps, die->slow);
    uint32_t i;

    st_load_lane(out, die->die, at->core, die->port[ST_LOAD_POOL], l->ahead);
    st_load_pend(out, start);
    st_load_pend(out, at->core_wait);
    for (i = p->core_begin[core]; i < p->core_begin[core + 1]; i++) {
        const struct st_unit *u = &p->units[i];
        int moves = u->kind != ST_UNIT_SYNC;
        struct st_timing_task *t = st_load_next(l, out, moves ? ST_TASK_MOVE : ST_TASK_NOTHING, (int32_t)i,
                                                u->wait_flag >= 0);

        if (moves) {
            t->hold_ps = hold;
            st_load_move(l, out, p, u, i, t);
            if (st_load_of_rows(u))
                st_load_lead(l, p, u, t);
        }
        st_load_flags(l, p, u, core, i, t);
    }
    st_load_post(l, out, drained);
    st_load_post(l, out, at->core_post);
}

/* A core by SDMA: what it submits, and what its ring does with that. */
static inline void st_load_by_ring(const struct st_load *l, struct st_load_out *out, const struct st_load_plan *p,
                                   uint32_t core, int32_t start, int32_t drained, const struct st_load_place *at,
                                   int64_t submitted, int32_t cores)
{
    const struct st_load_die *die = &l->dies[p->member];
    double each = (double)l->descriptor_ps * die->slow;
    struct st_timing_task *t;
    uint32_t i;

    st_load_lane(out, die->die, at->core, die->port[ST_LOAD_POOL], 0);
    st_load_pend(out, start);
    st_load_pend(out, at->core_wait);
    for (i = p->core_begin[core]; i < p->core_begin[core + 1]; i++) {
        const struct st_unit *u = &p->units[i];
        int64_t pieces = st_load_blocks(l, p, u) + (u->wait_flag >= 0) + (u->post_flag >= 0);

        t = st_load_next(l, out, ST_TASK_SUBMIT, (int32_t)i, 0);
        t->hold_ps = (int64_t)(each * (double)pieces + 0.5);
        t->post = (int32_t)(submitted + i);
        out->flags[t->post].need = 1;
    }
    st_load_post(l, out, at->core_post);
    st_load_lane(out, die->die, cores + at->ring, ST_TIMING_NONE, 0);
    st_load_pend(out, at->ring_wait);
    for (i = p->core_begin[core]; i < p->core_begin[core + 1]; i++) {
        const struct st_unit *u = &p->units[i];
        int moves = u->kind != ST_UNIT_SYNC;

        t = st_load_next(l, out, moves ? ST_TASK_MOVE : ST_TASK_NOTHING, (int32_t)i, 1 + (u->wait_flag >= 0));
        st_load_wait(t, (int32_t)(submitted + i), 0);
        if (moves) {
            st_load_move(l, out, p, u, i, t);
            if (st_load_of_rows(u))
                st_load_lead(l, p, u, t);
            else
                t->latency_ps += st_load_blocks(l, p, u) * l->handover_ps;
        }
        st_load_flags(l, p, u, core, i, t);
    }
    st_load_post(l, out, drained);
    st_load_post(l, out, at->ring_post);
}

/* All of a member's plan.  Its lanes begin when `start` is raised; each posts `drained` when it is done, and one that
 * does nothing does so for a plan of no units.  `place`, `lanes`: [cores]; `submitted`: flags for its units, if sdma;
 * `cores` of a die. */
static inline void st_load_write(const struct st_load *l, struct st_load_out *out, const struct st_load_plan *p,
                                 int32_t start, int32_t drained, const struct st_load_place *place,
                                 struct st_load_lanes *lanes, int64_t submitted, int32_t cores)
{
    uint64_t before = out->nlanes;
    uint32_t c;

    for (c = 0; c < p->cores; c++) {
        lanes[c] = (struct st_load_lanes){ST_TIMING_NONE, ST_TIMING_NONE};
        if (p->core_begin[c] == p->core_begin[c + 1])
            continue;
        lanes[c].core = (int32_t)out->nlanes;
        if (l->sdma) {
            st_load_by_ring(l, out, p, c, start, drained, &place[c], submitted, cores);
            lanes[c].ring = lanes[c].core + 1;
        } else {
            st_load_by_core(l, out, p, c, start, drained, &place[c]);
        }
    }
    if (out->nlanes == before) {
        st_load_lane(out, l->dies[p->member].die, ST_TIMING_NONE, ST_TIMING_NONE, 0);
        st_load_pend(out, start);
        st_load_next(l, out, ST_TASK_NOTHING, ST_TIMING_NONE, 0);
        st_load_post(l, out, drained);
    }
}

#endif
