/* The two synchronisations of a group, arrival and completion, and giving up. */
#ifndef ST_SYNC_H
#define ST_SYNC_H

#include "st_group.h"

/* Takes the group for a collective, if nobody has it. */
static inline int st_group_take(struct st_group *g, const struct st_wait_policy *policy)
{
    if (pthread_mutex_trylock(&g->lock) != 0)
        return 0;
    g->policy = *policy;
    return 1;
}

/* This thread has the group: a signal handler interrupted its operation in a wait, and calls another one, which would
 * wait for the end of the first, as that does for the handler's. */
static inline int st_group_nested(struct st_group *g)
{
    static const struct timespec past;
    int rc = pthread_mutex_timedlock(&g->lock, &past);

    if (rc == 0)
        pthread_mutex_unlock(&g->lock);
    return rc == EDEADLK;
}

/* ---- waiting for members --------------------------------------------------------- */

static inline int st_here(const struct st_group *g, uint32_t phase, uint64_t number, uint32_t j)
{
    if (phase == ST_PHASE_ARRIVAL) /* pairs with st_group_arrive */
        return st_load_acquire_64(&st_line(g, number, j)->epoch) == number;
    return st_load_acquire_64(&g->members[j].done) >= number; /* pairs with st_group_complete */
}

/* The slow look of a wait: has the group failed, has a missing member died?
 * With give_up, the missing members become the failure. */
static inline int st_group_look(struct st_group *g, uint32_t phase, uint64_t number, int give_up)
{
    uint64_t dead[ST_MASK_WORDS] = {0}, missing[ST_MASK_WORDS] = {0};
    uint64_t desc = st_line(g, number, g->me)->desc;
    uint32_t j, ndead = 0, nmissing = 0;
    int rc = st_group_failed(g);

    if (rc != ST_OK && give_up == ST_EINTR)
        return ST_EINTR; /* the caller has an exception to raise, whatever else happened */
    if (rc != ST_OK)
        return phase != ST_PHASE_EXECUTION && st_group_failed_later(g, number) ? ST_OK : rc;
    for (j = 0; j < g->n; j++) {
        if (j == g->me || st_here(g, phase, number, j))
            continue;
        if (!st_member_alive(g, j) && !st_here(g, phase, number, j)) {
            st_mask_set(dead, j);
            ndead++;
        }
        st_mask_set(missing, j);
        nmissing++;
    }
    if (ndead)
        return st_group_fail(g, ST_EDEAD, phase, desc, dead);
    if (give_up == ST_ETIMEOUT && nmissing)
        return st_group_fail(g, ST_ETIMEOUT, phase, desc, missing);
    if (give_up == ST_EINTR) {
        memset(missing, 0, sizeof missing);
        st_mask_set(missing, g->me);
        st_group_fail(g, ST_EBROKEN, phase, desc, missing);
        return ST_EINTR;
    }
    return ST_OK;
}

/* The wait of a phase is over.  One that there was none of is no event: the time is the next one's. */
ST_TRACE_COLD void st_group_traced(struct st_group *g, struct st_tracer *t, uint32_t why, uint64_t number)
{
    if (g->late)
        st_trace_span(t, ST_TRACE_WHAT(ST_TRACE_WAIT, 0, g->ranks[g->late - 1], why), number);
    g->late = 0;
}

/* Waits until member j is in the given phase of the operation. */
static inline int st_group_wait_for(struct st_group *g, uint32_t phase, uint64_t number, uint32_t j)
{
    struct st_waiter *w = &g->waiter;
    int rc;

    if (st_here(g, phase, number, j))
        return ST_OK;
    st_count(&g->ctx->count.waits, 1);
    g->waited = 1;
    g->late = j + 1; /* had it come before one that was waited for before, it would have been there */
    while (!st_here(g, phase, number, j)) {
        rc = st_wait_step(w);
        if (__builtin_expect(rc != ST_OK, 0)) {
            rc = st_group_look(g, phase, number, rc);
            if (rc != ST_OK)
                return rc;
        }
    }
    return ST_OK;
}

static inline int st_group_all_here(const struct st_group *g, uint32_t phase, uint64_t number)
{
    uint32_t j;

    for (j = 0; j < g->n; j++)
        if (j != g->me && !st_here(g, phase, number, j))
            return 0;
    return 1;
}

static inline int st_group_wait_all(struct st_group *g, uint32_t phase, uint64_t number)
{
    uint32_t k, j;
    int rc = ST_OK;

    for (k = 1, j = g->me + 1; k < g->n && rc == ST_OK; k++, j++) {
        if (j >= g->n)
            j = 0;
        rc = st_group_wait_for(g, phase, number, j);
    }
    st_wait_again(&g->waiter);
    return rc;
}

/* ---- the two synchronisations ------------------------------------------------------- */

/* The caller has filled its line's other fields. */
static inline void st_group_arrive(struct st_group *g, uint64_t number)
{
    ST_FAULT(ARRIVE_BEFORE);
    st_store_seqcst_64(&st_line(g, number, g->me)->epoch, number); /* pairs with st_here */
    ST_FAULT(ARRIVE_AFTER);
    st_group_wake(g);
}

/* After this no member touches buffers for this operation any more. */
static inline int st_group_complete(struct st_group *g, uint64_t number)
{
    int rc;

    ST_FAULT(DONE_BEFORE);
    st_store_seqcst_64(&g->members[g->me].done, number); /* pairs with st_here */
    ST_FAULT(DONE_AFTER);
    st_group_wake(g);
    rc = st_group_wait_all(g, ST_PHASE_COMPLETION, number);
    if (rc != ST_OK)
        return rc;
    /* A member that gave up says so first and then that it is done.  A failure
     * in the next operation is not this one's. */
    ST_FAULT(ALL_DONE);
    rc = st_group_failed(g);
    return rc == ST_OK || st_group_failed_later(g, number) ? ST_OK : rc;
}

/* All members arrived; did they ask for the same? */
static inline int st_group_compare(const struct st_group *g, uint64_t number)
{
    const struct st_arrival *mine = st_line(g, number, g->me), *line = st_line(g, number, 0);
    uint32_t j;

    for (j = 0; j < g->n; j++)
        if (line[j].desc != mine->desc || line[j].count != mine->count)
            return ST_EMISMATCH;
    return ST_OK;
}

/* What goes wrong with memory of a member that has died is its death: how many are dead, and in mask which.
 * `sure`: one of them is, and will be seen to be. */
static inline uint32_t st_group_lost(struct st_group *g, int sure, uint64_t *mask)
{
    uint64_t until = st_now_ns() + 2000000000ull;
    uint32_t j, lost = 0;

    do {
        for (j = 0; j < g->n; j++)
            if (j != g->me && !st_member_alive(g, j)) {
                st_mask_set(mask, j);
                lost++;
            }
        if (sure && !lost)
            sched_yield();
    } while (sure && !lost && st_now_ns() < until);
    return lost;
}

/* Called by a member that gives an operation up: waits for those that may be
 * writing to its buffers.  The failure is published, so they stop after the
 * unit they are at.  Writers that do not stop within the grace go into mask;
 * the return value counts them. */
static inline uint32_t st_group_quiesce(struct st_group *g, uint64_t number, uint64_t grace_ns,
                                        uint64_t *mask)
{
    uint64_t until = st_now_ns() + grace_ns;
    uint32_t j, late = 0;

    for (j = 0; j < g->n; j++) {
        if (j == g->me)
            continue;
        while (st_load_seqcst_64(&g->members[j].began) == number && /* pairs with st_group_begin */
               st_load_acquire_64(&g->members[j].done) < number) { /* pairs with st_group_complete */
            if (!st_member_runs(g, j)) /* one that has left may still have a thread at it */
                break;
            if (st_now_ns() > until) {
                st_mask_set(mask, j);
                late++;
                break;
            }
            sched_yield();
        }
    }
    return late;
}

/* May any member in mask still write to this one's buffers for this operation? */
static inline int st_group_writing(struct st_group *g, uint64_t number, const uint64_t *mask)
{
    uint32_t j;

    for (j = 0; j < g->n; j++)
        if ((mask[j >> 6] >> (j & 63) & 1) &&
            st_load_acquire_64(&g->members[j].done) < number && /* pairs with st_group_complete */
            st_member_runs(g, j))
            return 1;
    return 0;
}

/* Before the first touch of a peer's buffer: either this member sees the
 * failure and stays away, or the member that declared it sees this one. */
static inline int st_group_begin(struct st_group *g, uint64_t number)
{
    int rc;

    ST_FAULT(BEGIN_BEFORE);
    st_store_seqcst_64(&g->members[g->me].began, number); /* pairs with st_group_quiesce */
    ST_FAULT(BEGIN_AFTER);
    rc = st_load_seqcst_32(&g->header->fail_state) == ST_FAIL_NONE ? ST_OK : st_group_failed(g);
    if (rc != ST_OK)
        st_store_seqcst_64(&g->members[g->me].done, number); /* pairs with st_group_quiesce */
    return rc;
}

#endif
