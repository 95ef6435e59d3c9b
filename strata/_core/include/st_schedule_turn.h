/* A die's peers in turn, lest all dies begin with the same one. */
#ifndef ST_SCHEDULE_TURN_H
#define ST_SCHEDULE_TURN_H

#include "st_schedule_types.h"

/* A peer's place in the die's order; -1: before all. */
static inline int32_t st_sched_turn(const struct st_sched *s, int32_t peer)
{
    int32_t turn = peer - s->rank - 1;

    if (peer == s->rank && s->local_first)
        return -1;
    return turn < 0 ? turn + s->nranks : turn;
}

/* Turns each tier's peers further by the die's rank.  In turn alone, the first far peer is the
 * same for all dies of a node, and all would begin with it.  A stage's bundles are in turn. */
static inline void st_sched_spin(const struct st_sched *s, struct st_sched_bundle *b, uint32_t n)
{
    int32_t number[ST_NTIERS] = {0}, below[ST_NTIERS] = {0}, was[ST_NTIERS] = {-1, -1, -1, -1}, by[ST_NTIERS];
    uint32_t i;
    int t;

    for (i = 0; i < n; i++) {
        t = b[i].tier;
        if (b[i].peer >= 0 && b[i].peer != was[t]) {
            number[t]++;
            below[t] += b[i].peer < s->rank;
            was[t] = b[i].peer;
        }
        b[i].spin = number[t] - 1; /* its place in the tier, in turn */
    }
    for (t = 0; t < ST_NTIERS; t++)
        by[t] = number[t] ? number[t] - 1 - (s->rank - below[t] + number[t] - 1) % number[t] : 0;
    for (i = 0; i < n; i++) {
        t = b[i].tier;
        if (b[i].peer < 0 || t == ST_TIER_LOCAL)
            b[i].spin = b[i].turn;
        else
            b[i].spin += b[i].spin + by[t] < number[t] ? by[t] : by[t] - number[t];
    }
}

#endif
