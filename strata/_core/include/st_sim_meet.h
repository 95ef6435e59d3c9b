/* Rendezvous of the simulation: when each member is let go, once all have arrived. */
#ifndef ST_SIM_MEET_H
#define ST_SIM_MEET_H

#include "st_sim_events.h"

/* Which die, package, node: two members are of the tier of the first that they share, as plan.topology has it. */
static inline int64_t st_sim_place(const struct st_sim *s, int32_t die, int level)
{
    if (s->flat || level == 3)
        return 0;
    return level == 0 ? die : level == 1 ? die / s->package : die / s->node;
}

static inline int st_sim_tier(const struct st_sim *s, int32_t a, int32_t b)
{
    int level = 0;

    while (st_sim_place(s, a, level) != st_sim_place(s, b, level))
        level++;
    return level;
}

static inline void st_sim_raise_to(int64_t *a, int64_t b)
{
    *a = b > *a ? b : *a;
}

/* Members in ascending order of dies: what all before it in its place of `level`, but outside its place of the level
 * below, have to say to each; then the same from behind. */
static inline void st_sim_meet_level(struct st_sim *s, const struct st_timing_rendezvous *r, int level, int64_t step)
{
    uint32_t n = r->count, i = step > 0 ? r->first : r->first + n - 1;
    int64_t outer = -1, inner = -1, parent = -1, child = -1;

    for (; n--; i = (uint32_t)(i + step)) {
        int64_t p = st_sim_place(s, s->members[i].die, level), c = st_sim_place(s, s->members[i].die, level - 1);

        if (p != parent)
            outer = inner = -1;
        else if (c != child) {
            st_sim_raise_to(&outer, inner);
            inner = -1;
        }
        parent = p;
        child = c;
        st_sim_raise_to(&inner, s->raised[s->members[i].arrive]);
        if (outer >= 0)
            st_sim_raise_to(&s->let_go[i], outer + r->seen_ps[level]);
    }
}

/* Members on one die, or in one memory. */
static inline void st_sim_meet_local(struct st_sim *s, const struct st_timing_rendezvous *r)
{
    uint32_t end = r->first + r->count, next;

    for (uint32_t i = r->first; i < end; i = next) {
        int64_t last = -1;

        for (next = i; next < end && st_sim_tier(s, s->members[i].die, s->members[next].die) == 0; next++)
            st_sim_raise_to(&last, s->raised[s->members[next].arrive]);
        for (uint32_t k = i; k < next; k++)
            s->let_go[k] = last + r->seen_ps[0];
    }
}

/* All of rendezvous r have arrived. */
static inline void st_sim_meet(struct st_sim *s, uint32_t number)
{
    const struct st_timing_rendezvous *r = &s->rendezvous[number];
    uint32_t end = r->first + r->count, i = r->first + 1;

    while (i < end && s->members[i - 1].die <= s->members[i].die)
        i++;
    if (s->flat || i >= end) {
        st_sim_meet_local(s, r);
        for (int level = 1; level < 4 && !s->flat; level++) {
            st_sim_meet_level(s, r, level, 1);
            st_sim_meet_level(s, r, level, -1);
        }
    } else {
        for (i = r->first; i < end; i++) {
            s->let_go[i] = -1;
            for (uint32_t j = r->first; j < end; j++)
                st_sim_raise_to(&s->let_go[i], s->raised[s->members[j].arrive] +
                                               r->seen_ps[st_sim_tier(s, s->members[i].die, s->members[j].die)]);
        }
    }
    for (i = r->first; i < end; i++)
        st_sim_push(s, s->let_go[i] + r->base_ps, ST_SIM_START, i);
}

#endif
