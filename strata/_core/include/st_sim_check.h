/* What is given to a simulation is looked at once, before anything is an index. */
#ifndef ST_SIM_CHECK_H
#define ST_SIM_CHECK_H

#include <string.h>

#include "st_sim_types.h"

#define ST_SIM_LARGE 1e30

/* What is wrong with a record; the front has the words. */
enum st_sim_wrong {
    ST_SIM_RIGHT = 0,
    ST_SIM_WLINK_NUMBER,  /* capacity or loss is negative or above ST_SIM_LARGE */
    ST_SIM_WLINK_KIND,
    ST_SIM_WUSE_LINK,     /* no such link */
    ST_SIM_WUSE_WEIGHT,   /* neither 0 nor from 1 / ST_SIM_LARGE to ST_SIM_LARGE */
    ST_SIM_WUSE_PEER,     /* the link has a loss, and the peer is no die */
    ST_SIM_WTASK_TIME,    /* hold_ps, latency_ps or wait_ps is negative or above ST_SIM_MOST */
    ST_SIM_WTASK_WORK,    /* negative or above ST_SIM_LARGE */
    ST_SIM_WTASK_BOUND,   /* of a task with work: not above 0 */
    ST_SIM_WTASK_FREE,    /* neither a bound nor a link */
    ST_SIM_WTASK_USES,    /* beyond the uses */
    ST_SIM_WTASK_FLAG,    /* no such flag */
    ST_SIM_WTASK_KIND,
    ST_SIM_WTASK_BACKLOG,
    ST_SIM_WTASK_LANE,    /* of no lane */
    ST_SIM_WLANE_TASKS,   /* beyond the tasks */
    ST_SIM_WLANE_SHARED,  /* has a task of another lane */
    ST_SIM_WLANE_POOL,    /* no link of kind POOL */
    ST_SIM_WLANE_AHEAD,
    ST_SIM_WFLAG_NEED,    /* negative */
    ST_SIM_WFLAG_MEETING, /* no such rendezvous, or none of its members arrives with the flag */
    ST_SIM_WMEMBER_DIE,
    ST_SIM_WMEMBER_FLAG,  /* no such flag */
    ST_SIM_WMEMBER_ARRIVE, /* its flag is another rendezvous's or another member's */
    ST_SIM_WMEMBER_START, /* its flag is raised at time 0 */
    ST_SIM_WMEETING_TIME,
    ST_SIM_WMEETING_MEMBERS, /* beyond the members, none, or those of another */
    ST_SIM_NWRONG
};

static inline int st_sim_is_number(double x)
{
    return x >= 0.0 && x <= ST_SIM_LARGE;
}

/* No use at all, or a number whose quotients with others are numbers. */
static inline int st_sim_is_weight(double x)
{
    return x == 0.0 || (x >= 1.0 / ST_SIM_LARGE && x <= ST_SIM_LARGE);
}

static inline int st_sim_is_time(int64_t x)
{
    return x >= 0 && x <= ST_SIM_MOST;
}

static inline int st_sim_is_flag(const struct st_sim *s, int32_t flag)
{
    return flag == ST_TIMING_NONE || (flag >= 0 && (uint64_t)flag < s->nflags);
}

static inline enum st_sim_wrong st_sim_check_links(const struct st_sim *s, uint64_t *at)
{
    for (*at = 0; *at < s->nlinks; ++*at) {
        const struct st_timing_link *l = &s->links[*at];

        if (!st_sim_is_number(l->capacity) || !st_sim_is_number(l->loss))
            return ST_SIM_WLINK_NUMBER;
        if (l->kind < 0 || l->kind >= ST_LINK_KINDS)
            return ST_SIM_WLINK_KIND;
    }
    for (*at = 0; *at < s->nuses; ++*at) {
        const struct st_timing_use *u = &s->uses[*at];

        if (u->link >= s->nlinks)
            return ST_SIM_WUSE_LINK;
        if (!st_sim_is_weight(u->weight))
            return ST_SIM_WUSE_WEIGHT;
        if (s->links[u->link].loss > 0.0 && u->peer < 0)
            return ST_SIM_WUSE_PEER;
    }
    return ST_SIM_RIGHT;
}

static inline enum st_sim_wrong st_sim_check_flow(const struct st_sim *s, const struct st_timing_task *t)
{
    int held = t->bound <= 0x1.fffffffffffffp1023;

    if (!(t->bound > 0.0))
        return ST_SIM_WTASK_BOUND;
    for (uint32_t u = 0; u < t->nuse && !held; u++)
        held = s->uses[t->use_first + u].weight > 0.0;
    return held ? ST_SIM_RIGHT : ST_SIM_WTASK_FREE;
}

static inline enum st_sim_wrong st_sim_check_tasks(const struct st_sim *s, uint64_t *at)
{
    for (*at = 0; *at < s->ntasks; ++*at) {
        const struct st_timing_task *t = &s->tasks[*at];
        enum st_sim_wrong wrong;

        if (!st_sim_is_time(t->hold_ps) || !st_sim_is_time(t->latency_ps))
            return ST_SIM_WTASK_TIME;
        for (int k = 0; k < ST_TIMING_WAITS; k++) {
            if (!st_sim_is_flag(s, t->wait[k]))
                return ST_SIM_WTASK_FLAG;
            if (t->wait[k] != ST_TIMING_NONE && !st_sim_is_time(t->wait_ps[k]))
                return ST_SIM_WTASK_TIME;
        }
        if (!st_sim_is_flag(s, t->post))
            return ST_SIM_WTASK_FLAG;
        if (!st_sim_is_number(t->work))
            return ST_SIM_WTASK_WORK;
        if ((uint64_t)t->use_first + t->nuse > s->nuses)
            return ST_SIM_WTASK_USES;
        if (t->kind >= ST_TASK_KINDS)
            return ST_SIM_WTASK_KIND;
        if (t->backlog < 0 || t->backlog > ST_TIMING_BACKLOG_ONE)
            return ST_SIM_WTASK_BACKLOG;
        if (t->work > 0.0 && (wrong = st_sim_check_flow(s, t)) != ST_SIM_RIGHT)
            return wrong;
    }
    return ST_SIM_RIGHT;
}

/* Each task is one lane's; `owner` has a byte, zero, for each. */
static inline enum st_sim_wrong st_sim_check_lanes(const struct st_sim *s, uint8_t *owner, uint64_t *at)
{
    for (*at = 0; *at < s->nlanes; ++*at) {
        const struct st_timing_lane *l = &s->lanes[*at];

        if ((uint64_t)l->first + l->count > s->ntasks)
            return ST_SIM_WLANE_TASKS;
        if (l->pool != ST_TIMING_NONE &&
            (l->pool < 0 || (uint64_t)l->pool >= s->nlinks || s->links[l->pool].kind != ST_LINK_POOL))
            return ST_SIM_WLANE_POOL;
        if (l->ahead > 1)
            return ST_SIM_WLANE_AHEAD;
        for (uint32_t t = l->first; t < l->first + l->count; t++) {
            if (owner[t])
                return ST_SIM_WLANE_SHARED;
            owner[t] = 1;
        }
    }
    for (*at = 0; *at < s->ntasks; ++*at)
        if (!owner[*at])
            return ST_SIM_WTASK_LANE;
    return ST_SIM_RIGHT;
}

static inline enum st_sim_wrong st_sim_check_member(const struct st_sim *s, const struct st_timing_member *m,
                                                    uint64_t rendezvous)
{
    if (m->die < 0)
        return ST_SIM_WMEMBER_DIE;
    if (m->arrive < 0 || m->start < 0 || !st_sim_is_flag(s, m->arrive) || !st_sim_is_flag(s, m->start))
        return ST_SIM_WMEMBER_FLAG;
    if (s->flags[m->start].need == 0)
        return ST_SIM_WMEMBER_START;
    return s->flags[m->arrive].rendezvous == (int32_t)rendezvous ? ST_SIM_RIGHT : ST_SIM_WMEMBER_ARRIVE;
}

/* `owner` as above, of members and then of flags. */
static inline enum st_sim_wrong st_sim_check_meetings(const struct st_sim *s, uint8_t *owner, uint64_t *at)
{
    uint8_t *arrives = owner + s->nmembers;

    for (*at = 0; *at < s->nflags; ++*at) {
        const struct st_timing_flag *f = &s->flags[*at];

        if (f->need < 0)
            return ST_SIM_WFLAG_NEED;
        if (f->rendezvous != ST_TIMING_NONE && (f->rendezvous < 0 || (uint64_t)f->rendezvous >= s->nrendezvous))
            return ST_SIM_WFLAG_MEETING;
    }
    for (uint64_t i = 0; i < s->nrendezvous; i++) {
        const struct st_timing_rendezvous *r = &s->rendezvous[i];
        int right = st_sim_is_time(r->base_ps) && r->count && (uint64_t)r->first + r->count <= s->nmembers;

        for (int k = 0; k < 4; k++)
            right = right && st_sim_is_time(r->seen_ps[k]);
        for (uint32_t m = r->first; right && m < r->first + r->count; m++) {
            enum st_sim_wrong wrong = owner[m] ? ST_SIM_WMEETING_MEMBERS : st_sim_check_member(s, &s->members[m], i);

            *at = owner[m] ? i : m;
            if (wrong == ST_SIM_RIGHT && arrives[s->members[m].arrive])
                wrong = ST_SIM_WMEMBER_ARRIVE;
            if (wrong != ST_SIM_RIGHT)
                return wrong;
            owner[m] = arrives[s->members[m].arrive] = 1;
        }
        *at = i;
        if (!right)
            return r->count && (uint64_t)r->first + r->count <= s->nmembers ? ST_SIM_WMEETING_TIME
                                                                           : ST_SIM_WMEETING_MEMBERS;
    }
    for (*at = 0; *at < s->nflags; ++*at)
        if (s->flags[*at].rendezvous != ST_TIMING_NONE && !arrives[*at])
            return ST_SIM_WFLAG_MEETING;
    return ST_SIM_RIGHT;
}

/* RIGHT, or what is wrong with record `at`.  `owner`: max(ntasks, nmembers + nflags) bytes, any; they are used up. */
static inline enum st_sim_wrong st_sim_check(const struct st_sim *s, uint8_t *owner, uint64_t *at)
{
    enum st_sim_wrong wrong = st_sim_check_links(s, at);

    if (wrong == ST_SIM_RIGHT)
        wrong = st_sim_check_tasks(s, at);
    memset(owner, 0, s->ntasks);
    if (wrong == ST_SIM_RIGHT)
        wrong = st_sim_check_lanes(s, owner, at);
    memset(owner, 0, s->nmembers + s->nflags);
    if (wrong == ST_SIM_RIGHT)
        wrong = st_sim_check_meetings(s, owner, at);
    return wrong;
}

#endif
