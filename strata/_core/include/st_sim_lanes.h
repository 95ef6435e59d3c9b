/* What lanes do: the steps of their tasks, as st_timing.h has them, flags, and the cores of pools. */
#ifndef ST_SIM_LANES_H
#define ST_SIM_LANES_H

#include "st_sim_events.h"
#include "st_sim_flows.h"
#include "st_sim_meet.h"

static inline void st_sim_pool(struct st_sim *s, int32_t link, int32_t cores)
{
    uint32_t id = s->solved[link];

    s->link[link].held += cores;
    st_sim_capacity_of(s, (uint32_t)link, st_sim_capacity(s, (uint32_t)link));
    s->dirty |= id != ST_SIM_NONE && s->mm.link[id].count > 0;
}

static inline void st_sim_flow_after(struct st_sim *s, uint32_t i, int64_t from)
{
    const struct st_timing_task *t = &s->tasks[s->lane[i].at];

    st_sim_push(s, from + t->hold_ps + t->latency_ps, ST_SIM_FLOW, i);
}

static inline void st_sim_taken(struct st_sim *s, uint32_t i)
{
    s->lane[i].holds = 1;
    st_sim_pool(s, s->lanes[i].pool, 1);
}

/* Step 1: the lane's task waits for a flag, or is seen to have waited. */
static inline void st_sim_await(struct st_sim *s, uint32_t i)
{
    struct st_sim_lane *lane = &s->lane[i];
    const struct st_timing_task *t = &s->tasks[lane->at];
    int64_t begun = s->now;

    for (int k = 0; k < ST_TIMING_WAITS; k++) {
        int32_t flag = t->wait[k];

        if (flag == ST_TIMING_NONE)
            continue;
        if (s->raised[flag] == ST_TIMING_NONE) {
            lane->waiter = s->waiters[flag];
            s->waiters[flag] = i + 1;
            return;
        }
        st_sim_raise_to(&begun, s->raised[flag] + t->wait_ps[k]);
    }
    s->times[lane->at].begun = begun;
    if (s->lanes[i].pool != ST_TIMING_NONE && lane->at == s->lanes[i].first)
        st_sim_push(s, begun, ST_SIM_TAKEN, i);
    else
        st_sim_flow_after(s, i, begun);
}

/* The lane comes to its next task. */
static inline void st_sim_come(struct st_sim *s, uint32_t i)
{
    if (s->lane[i].at == s->lane[i].end)
        return;
    s->times[s->lane[i].at].ready = s->now;
    st_sim_await(s, i);
}

static inline void st_sim_raise(struct st_sim *s, int32_t flag)
{
    uint32_t next;
    int32_t r = s->flags[flag].rendezvous;

    if (s->raised[flag] != ST_TIMING_NONE)
        return;
    s->raised[flag] = s->now;
    next = s->waiters[flag];
    s->waiters[flag] = 0;
    while (next) {
        uint32_t i = next - 1;

        next = s->lane[i].waiter;
        st_sim_await(s, i);
    }
    if (r != ST_TIMING_NONE && --s->meeting[r] == 0)
        st_sim_meet(s, (uint32_t)r);
}

/* Step 5. */
static inline void st_sim_done(struct st_sim *s, uint32_t i, uint32_t task, int32_t flag)
{
    s->times[task].done = s->end = s->now;
    s->undone--;
    if (flag != ST_TIMING_NONE && s->need[flag] > 0 && --s->need[flag] == 0)
        st_sim_raise(s, flag);
    if (task + 1 == s->lane[i].end && s->lane[i].holds) {
        s->lane[i].holds = 0;
        st_sim_pool(s, s->lanes[i].pool, -1);
    }
}

/* Step 4 of the task that the lane is at; the lane comes to the next one where it goes ahead, or is through. */
static inline void st_sim_begin(struct st_sim *s, uint32_t i)
{
    struct st_sim_lane *lane = &s->lane[i];
    uint32_t task = lane->at;
    int flows = s->tasks[task].work > 0.0;

    s->times[task].flowing = s->now;
    if (flows)
        st_sim_join(s, i, task);
    else
        st_sim_done(s, i, task, s->tasks[task].post);
    if (!flows || s->lanes[i].ahead) {
        lane->at++;
        st_sim_come(s, i);
    }
}

static inline void st_sim_handle(struct st_sim *s, uint64_t what)
{
    uint32_t id = (uint32_t)what;
    struct st_sim_lane *lane = &s->lane[id];
    const struct st_sim_slot *slot;

    s->events++;
    st_sim_digest(s, (uint64_t)s->now);
    st_sim_digest(s, what);
    switch (what >> 32) {
    case ST_SIM_DONE:
        slot = &s->slot[lane->flow];
        st_sim_leave(s, id);
        st_sim_done(s, id, slot->task, slot->post);
        if (lane->blocked) {
            lane->blocked = 0;
            st_sim_begin(s, id);
        } else if (!s->lanes[id].ahead) {
            lane->at++;
            st_sim_come(s, id);
        }
        break;
    case ST_SIM_START:
        st_sim_raise(s, s->members[id].start);
        break;
    case ST_SIM_TAKEN:
        st_sim_taken(s, id);
        st_sim_flow_after(s, id, s->now);
        break;
    default:
        if (lane->flow != ST_SIM_NONE)
            lane->blocked = 1;
        else
            st_sim_begin(s, id);
    }
}

#endif
