/* A group: arrival, completion, failure.
 *
 * Every operation begins with everybody's arrival: each member writes its line
 * (fingerprint, and addresses or the payload itself) and reads all others'.
 * Operations on user buffers end with everybody's completion.  All state is in
 * the group's own memory; numbers only grow.
 */
#ifndef ST_GROUP_H
#define ST_GROUP_H

#include <string.h>

#include "st_ctx.h"
#include "st_group_layout.h"
#include "st_live.h"
#include "st_plan.h"
#include "st_shadow.h"

#define ST_MASK_WORDS (ST_MAX_DIES / 64)

enum st_phase { ST_PHASE_ARRIVAL = 0, ST_PHASE_EXECUTION = 1, ST_PHASE_COMPLETION = 2 };

struct st_base {
    uint64_t va[ST_NBUFS];
};

/* A die's handle on a group; private to the die. */
struct st_group {
    struct st_ctx *ctx;
    struct st_group_header *header;
    struct st_arrival *arrivals; /* [2][n] */
    struct st_member *members;
    uint64_t *flags;    /* [n][ST_GROUP_FLAGS] */
    uint64_t *channels; /* [n][n] */
    uint8_t *mailboxes; /* [n][2][mailbox_bytes] */
    uint64_t mailbox_bytes;
    uint32_t n;
    uint32_t me;
    uint64_t number;     /* of the last operation begun here */
    uint64_t va;         /* of the memory, 0 for the world */
    const uint32_t *ranks; /* world ranks, a private copy */
    struct st_base *bases; /* [n], of the operation in progress */
    struct st_waiter waiter;
    struct st_wait_policy policy; /* of whoever runs the operation */
    pthread_mutex_t lock;       /* one collective at a time */
    struct st_p2p *p2p;         /* [n], point to point by peer */
    pthread_mutex_t p2p_lock;   /* their lists and cursors; held for moments */
    void *(*alloc)(size_t);     /* for messages nobody has asked for yet */
    void (*release)(void *);
};

/* Points g at a group's memory and checks that it is one.  The caller has
 * filled ctx, n, me, ranks, bases. */
static inline int st_group_bind(struct st_group *g, uint8_t *memory, uint64_t bytes)
{
    struct st_group_header *h = (struct st_group_header *)memory;

    if (bytes < sizeof *h || h->magic != ST_MAGIC || h->nmembers != g->n ||
        h->mailbox_bytes != g->ctx->header->mailbox_bytes ||
        h->bytes != st_group_bytes(g->n, h->mailbox_bytes) || h->bytes > bytes)
        return ST_EABI;
    if (memcmp(memory + st_group_ranks_off(), g->ranks, 4 * (size_t)g->n) != 0)
        return ST_EABI;
    g->header = h;
    g->arrivals = (struct st_arrival *)(memory + st_group_arrivals_off(g->n));
    g->members = (struct st_member *)(memory + st_group_members_off(g->n));
    g->flags = (uint64_t *)(memory + st_group_flags_off(g->n));
    g->channels = (uint64_t *)(memory + st_group_channels_off(g->n));
    g->mailboxes = memory + st_group_mailboxes_off(g->n);
    g->mailbox_bytes = h->mailbox_bytes;
    g->number = 0;
    g->policy = g->ctx->wait;
    if (pthread_mutex_init(&g->lock, NULL) != 0 || pthread_mutex_init(&g->p2p_lock, NULL) != 0)
        return ST_ESYS;
    return ST_OK;
}

/* Makes zeroed memory a group's. */
static inline void st_group_format(uint8_t *memory, uint32_t n, uint64_t mailbox_bytes,
                                   const uint64_t id[2], const uint32_t *ranks)
{
    struct st_group_header *h = (struct st_group_header *)memory;

    memset(memory, 0, st_group_mailboxes_off(n));
    h->id[0] = id[0];
    h->id[1] = id[1];
    h->nmembers = n;
    h->mailbox_bytes = mailbox_bytes;
    h->bytes = st_group_bytes(n, mailbox_bytes);
    memcpy(memory + st_group_ranks_off(), ranks, 4 * (size_t)n);
    h->magic = ST_MAGIC;
}

static inline struct st_arrival *st_line(const struct st_group *g, uint64_t number, uint32_t member)
{
    return &g->arrivals[(number & 1) * g->n + member];
}

static inline uint8_t *st_mailbox(const struct st_group *g, uint64_t number, uint32_t member)
{
    return g->mailboxes + ((uint64_t)member * 2 + (number & 1)) * g->mailbox_bytes;
}

static inline void st_mask_set(uint64_t *mask, uint32_t i) { mask[i >> 6] |= 1ull << (i & 63); }

static inline void st_group_wake(struct st_group *g)
{
    st_wake(&g->header->wake_word, &g->header->sleepers);
}

/* ---- failure ----------------------------------------------------------------- */

/* Declares the group's first failure; later ones are dropped.  Returns the
 * status that counts. */
static inline int st_group_fail(struct st_group *g, int status, uint32_t phase, uint64_t desc,
                                const uint64_t *mask)
{
    struct st_group_header *h = g->header;
    uint32_t i, state;

    if (st_cas_acq_rel_32(&h->fail_state, ST_FAIL_NONE, ST_FAIL_CLAIMED)) { /* pairs with st_group_failed */
        h->fail_status = (uint32_t)status;
        h->fail_by = g->me;
        h->fail_phase = phase;
        h->fail_number = g->number;
        h->fail_desc = desc;
        for (i = 0; i < ST_MASK_WORDS; i++)
            h->fail_mask[i] = mask[i];
        st_store_seqcst_32(&h->fail_state, ST_FAIL_PUBLISHED); /* pairs with st_group_failed */
        st_group_wake(g);
        return status;
    }
    for (i = 0; i < 100000; i++) { /* its writer is a few stores from the end, or dead */
        state = st_load_acquire_32(&h->fail_state); /* pairs with the store above */
        if (state == ST_FAIL_PUBLISHED)
            return (int)st_load_relaxed_32(&h->fail_status);
        sched_yield();
    }
    return ST_EBROKEN;
}

/* ST_OK, or the status of the failure that somebody has declared. */
static inline int st_group_failed(const struct st_group *g)
{
    uint32_t state = st_load_acquire_32(&g->header->fail_state); /* pairs with st_group_fail */

    if (__builtin_expect(state == ST_FAIL_NONE, 1))
        return ST_OK;
    if (state != ST_FAIL_PUBLISHED)
        return ST_EBROKEN;
    return (int)st_load_relaxed_32(&g->header->fail_status);
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

    if (rc != ST_OK)
        return rc;
    for (j = 0; j < g->n; j++) {
        if (j == g->me || st_here(g, phase, number, j))
            continue;
        if (!st_die_alive(g->ctx, g->ranks[j]) && !st_here(g, phase, number, j)) {
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

/* Waits until member j is in the given phase of the operation. */
static inline int st_group_wait_for(struct st_group *g, uint32_t phase, uint64_t number, uint32_t j)
{
    struct st_waiter *w = &g->waiter;
    int rc;

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
    st_store_seqcst_64(&st_line(g, number, g->me)->epoch, number); /* pairs with st_here */
    st_group_wake(g);
}

/* After this no member touches buffers for this operation any more. */
static inline int st_group_complete(struct st_group *g, uint64_t number)
{
    int rc;

    st_store_seqcst_64(&g->members[g->me].done, number); /* pairs with st_here */
    st_group_wake(g);
    rc = st_group_wait_all(g, ST_PHASE_COMPLETION, number);
    if (rc != ST_OK)
        return rc;
    /* A member that gave up says so first and then that it is done.  A failure
     * in the next operation is not this one's. */
    rc = st_group_failed(g);
    return rc != ST_OK && g->header->fail_number <= number ? rc : ST_OK;
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
            if (!st_die_alive(g->ctx, g->ranks[j]))
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

/* Before the first touch of a peer's buffer: either this member sees the
 * failure and stays away, or the member that declared it sees this one. */
static inline int st_group_begin(struct st_group *g, uint64_t number)
{
    int rc;

    st_store_seqcst_64(&g->members[g->me].began, number); /* pairs with st_group_quiesce */
    rc = st_load_seqcst_32(&g->header->fail_state) == ST_FAIL_NONE ? ST_OK : st_group_failed(g);
    if (rc != ST_OK)
        st_store_seqcst_64(&g->members[g->me].done, number); /* pairs with st_group_quiesce */
    return rc;
}

#endif
