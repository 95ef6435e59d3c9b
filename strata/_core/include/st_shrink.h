/* shrink(): the members of a group that are left agree on who they are, and on whether they have their new group. */
#ifndef ST_SHRINK_H
#define ST_SHRINK_H

#include "st_sync.h"

/* Waits until every member has called shrink() for the round-th time or is
 * dead.  *mask: those that called; the same on all survivors, since a call
 * stays visible after death and a dead member cannot call any more.  *missing,
 * after ST_ETIMEOUT: those that neither called nor died. */
static inline int st_group_survivors(struct st_group *g, uint64_t round, uint64_t timeout_ns,
                                     uint64_t *mask, uint64_t *missing)
{
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    uint32_t j, absent;
    int rc = ST_AGAIN, alive, called; /* the first look is at everything */

    ST_FAULT(SHRINK_BEFORE);
    st_store_seqcst_64(&g->members[g->me].shrink, round); /* pairs with the loads below */
    ST_FAULT(SHRINK_CALLED);
    st_group_wake(g);
    st_wait_begin(&w, &g->ctx->wait, &g->header->wake_word, &g->header->sleepers, timeout_ns);
    for (;;) {
        memset(mask, 0, ST_MASK_WORDS * 8);
        memset(missing, 0, ST_MASK_WORDS * 8);
        for (j = 0, absent = 0; j < g->n; j++) {
            called = st_load_acquire_64(&g->members[j].shrink) >= round; /* pairs with the store above */
            alive = called || rc == ST_OK || st_member_alive(g, j);
            if (!alive) /* what it did before it died counts */
                called = st_load_acquire_64(&g->members[j].shrink) >= round; /* pairs with the store above */
            if (called)
                st_mask_set(mask, j);
            if (called || !alive)
                continue;
            st_mask_set(missing, j);
            absent++;
        }
        if (rc == ST_ETIMEOUT || rc == ST_EINTR || !absent)
            break;
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            st_flight_waits(g->ctx, &record, ST_FLIGHT_SHRINK, ST_FLIGHT_NOBODY, g->id, round, missing[0]);
    }
    st_wait_end(&w);
    ST_FAULT(SHRINK_AGREED);
    st_flight_waited(g->ctx, record, absent && rc != ST_EINTR ? ST_ETIMEOUT : rc == ST_AGAIN ? ST_OK : rc);
    return rc == ST_EINTR ? rc : absent ? ST_ETIMEOUT : ST_OK;
}

/* What a member has said of the outcome of the round-th shrink(): 1: it has the new group; 0: it has not, nor will it;
 * -1: nothing yet, or ever, if it is dead. */
static inline int st_group_outcome(const struct st_group *g, uint32_t j, uint64_t round)
{
    uint64_t said = st_load_acquire_64(&g->members[j].formed); /* pairs with st_group_formed */

    if (said >> 1 == round)
        return (int)(said & 1);
    return st_load_acquire_64(&g->members[j].shrink) > round ? 0 : -1; /* pairs with st_group_survivors: it gave up */
}

/* Says whether this member has the group that the round-th shrink() of those in mask makes, and waits until all of them
 * have said so or are dead.  ST_EBROKEN: one has not got it, so nobody goes on with it; the same on all survivors,
 * since what was said stays.  Its leader may have died, and have been started again, before the last one looked. */
static inline int st_group_formed(struct st_group *g, uint64_t round, int ok, const uint64_t *mask, uint64_t timeout_ns)
{
    struct st_waiter w;
    uint32_t j, absent;
    int rc = ST_AGAIN, said;

    st_store_seqcst_64(&g->members[g->me].formed, round << 1 | (uint64_t)ok); /* pairs with st_group_outcome */
    st_group_wake(g);
    if (!ok)
        return ST_EBROKEN;
    st_wait_begin(&w, &g->ctx->wait, &g->header->wake_word, &g->header->sleepers, timeout_ns);
    for (;;) {
        for (j = 0, absent = 0; j < g->n; j++) {
            if (!(mask[j >> 6] >> (j & 63) & 1))
                continue;
            said = st_group_outcome(g, j, round);
            if (said < 0 && rc == ST_AGAIN && !st_member_alive(g, j)) {
                said = st_group_outcome(g, j, round); /* before it died */
                said = said < 0 ? 1 : said;
            }
            if (!said) {
                st_wait_end(&w);
                return ST_EBROKEN;
            }
            absent += said < 0;
        }
        if (!absent || rc == ST_ETIMEOUT || rc == ST_EINTR)
            break;
        rc = st_wait_step(&w);
    }
    st_wait_end(&w);
    return !absent ? ST_OK : rc;
}

#endif
