/* A group: its memory, and its failure.
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
#include "st_flight.h"
#include "st_group_layout.h"
#include "st_live.h"
#include "st_plan.h"
#include "st_ready.h"

#define ST_MASK_WORDS (ST_MAX_DIES / 64)
#define ST_DESC_NOTHING 11ull /* of a member that cannot take part: no other member asks for that */

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
    uint64_t id;         /* first word of the group's, as in the flight recorder */
    const uint32_t *ranks; /* world ranks, a private copy */
    const uint32_t *lives; /* their incarnations when the group was made, in its memory: one that was started again is not
                            * the member */
    struct st_user user;   /* this group in the die's list */
    uint32_t pin;          /* of the memory, if that is another die's, */
    uint64_t pinned;       /* and bytes of it */
    struct st_base *bases; /* [n], of the operation in progress */
    struct st_waiter waiter;
    uint32_t waited;     /* the operation in progress did not find all members there */
    uint32_t late;       /* the last member of those that were waited for, and one more */
    struct st_wait_policy policy; /* of whoever runs the operation */
    pthread_mutex_t lock;       /* one collective at a time */
    struct st_p2p *p2p;         /* [n], point to point by peer */
    uint32_t casts;             /* that this member has been part of, as root or as reader */
    pthread_mutex_t p2p_lock;   /* their lists and cursors; held for moments */
    void *(*alloc)(size_t);     /* for messages nobody has asked for yet */
    void (*release)(void *);
};

/* `lock` knows whose it is: st_group_nested asks. */
static inline int st_group_locks(struct st_group *g)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);

    if (rc == 0) {
        rc = pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
        rc = rc ? rc : pthread_mutex_init(&g->lock, &attr);
        pthread_mutexattr_destroy(&attr);
    }
    return rc || pthread_mutex_init(&g->p2p_lock, NULL) != 0 ? ST_ESYS : ST_OK;
}

/* Points g at a group's memory and checks that it is one.  The caller has
 * filled ctx, n, me, ranks, bases. */
static inline int st_group_bind(struct st_group *g, uint8_t *memory, uint64_t bytes)
{
    struct st_group_header *h = (struct st_group_header *)memory;
    uint64_t mailbox = g->ctx->job.mailbox_bytes, all = st_group_bytes(g->n, mailbox);

    if (bytes < all || h->magic != ST_MAGIC || h->nmembers != g->n || h->mailbox_bytes != mailbox || h->bytes != all)
        return ST_EABI;
    if (memcmp(memory + st_group_ranks_off(), g->ranks, 4 * (size_t)g->n) != 0)
        return ST_EABI;
    g->header = h;
    g->id = h->id[0];
    g->lives = (const uint32_t *)(memory + st_group_lives_off(g->n));
    g->arrivals = (struct st_arrival *)(memory + st_group_arrivals_off(g->n));
    g->members = (struct st_member *)(memory + st_group_members_off(g->n));
    g->flags = (uint64_t *)(memory + st_group_flags_off(g->n));
    g->channels = (uint64_t *)(memory + st_group_channels_off(g->n));
    g->mailboxes = memory + st_group_mailboxes_off(g->n);
    g->mailbox_bytes = mailbox;
    g->number = 0;
    g->policy = g->ctx->wait;
    return st_group_locks(g);
}

/* Member j is there, and the process that it was when the group was made. */
static inline int st_member_alive(const struct st_group *g, uint32_t j)
{
    return st_die_alive_as(g->ctx, g->ranks[j], st_load_relaxed_32(&g->lives[j]));
}

static inline int st_member_runs(const struct st_group *g, uint32_t j)
{
    return st_die_runs_as(g->ctx, g->ranks[j], st_load_relaxed_32(&g->lives[j]));
}

/* Was member j started again since?  What was read of it before this call may then be anything. */
static inline int st_member_replaced(const struct st_group *g, uint32_t j)
{
    st_fence_seqcst(); /* what was read, before the look */
    return st_die_life(g->ctx, g->ranks[j]) != st_load_relaxed_32(&g->lives[j]);
}

/* While a group is listed, no peer's pages go blank in the middle of its operations (st_accept.h). */
static inline void st_group_list(struct st_group *g)
{
    g->user = (struct st_user){g->ctx->users, {&g->lock, &g->p2p_lock}, g->ranks, g->lives, g->n};
    pthread_mutex_lock(&g->ctx->users_lock);
    g->user.next = g->ctx->users;
    g->ctx->users = &g->user;
    pthread_mutex_unlock(&g->ctx->users_lock);
}

static inline void st_group_unlist(struct st_group *g)
{
    struct st_user **at;

    pthread_mutex_lock(&g->ctx->users_lock);
    for (at = &g->ctx->users; *at && *at != &g->user; at = &(*at)->next) {
    }
    if (*at)
        *at = g->user.next;
    pthread_mutex_unlock(&g->ctx->users_lock);
}

/* Holds on to the group's memory at va, which is another die's: its process `life`, or none (ST_EDEAD). */
static inline int st_group_pin(struct st_group *g, uint64_t va, uint64_t bytes, uint64_t life)
{
    int64_t die = st_owner(g->ctx, va);

    if (die < 0 || st_owner(g->ctx, va + bytes - 1) != die)
        return ST_ECORRUPT;
    if ((uint64_t)die == g->ctx->rank)
        return ST_OK;
    g->va = va;
    g->pinned = bytes;
    g->pin = st_pin(g->ctx, va, bytes);
    return st_die_life(g->ctx, (uint32_t)die) == life ? ST_OK : ST_EDEAD;
}

static inline void st_group_unpin(struct st_group *g)
{
    if (g->pin)
        st_let_go(g->ctx, g->pin, (uint32_t)st_owner(g->ctx, g->va), g->va, g->pinned);
    g->pin = 0;
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

static inline void st_group_set_lives(uint8_t *memory, uint32_t n, const uint32_t *lives)
{
    memcpy(memory + st_group_lives_off(n), lives, 4 * (size_t)n);
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

/* Waits for a failure that somebody is writing down: that takes a few stores.
 * Returns ST_FAIL_PUBLISHED; or the word of a writer that died between them; or
 * ST_FAIL_NONE, when the writer is stopped there. */
static uint32_t st_fail_wait(struct st_group *g)
{
    uint64_t until = st_now_ns() + 2000000000ull;
    uint32_t state, by;

    for (;;) {
        state = st_load_acquire_32(&g->header->fail_state); /* pairs with st_group_fail */
        by = state >> 8;
        if (state == ST_FAIL_PUBLISHED)
            return state;
        if (by < g->n && by != g->me && !st_member_runs(g, by))
            return state;
        if (st_now_ns() > until)
            return ST_FAIL_NONE;
        sched_yield();
    }
}

/* Declares the group's first failure; later ones are dropped.  Returns the
 * status that counts.  The word names the writer, so that the place of one that
 * dies while it writes can be taken: by compare-and-swap, hence by one. */
static inline int st_group_fail(struct st_group *g, int status, uint32_t phase, uint64_t desc,
                                const uint64_t *mask)
{
    struct st_group_header *h = g->header;
    uint32_t i, state = ST_FAIL_NONE;

    ST_FAULT(FAIL_BEFORE);
    while (!st_cas_acq_rel_32(&h->fail_state, state, ST_FAIL_CLAIM(g->me))) { /* pairs with st_group_failed */
        state = st_fail_wait(g);
        if (state == ST_FAIL_PUBLISHED)
            return st_status_of(st_load_relaxed_32(&h->fail_status));
        if (state == ST_FAIL_NONE)
            return ST_EBROKEN;
    }
    ST_FAULT(FAIL_CLAIMED);
    h->fail_status = (uint32_t)status; /* plain, so that ThreadSanitizer sees what is ordered here */
    st_store_relaxed_32(&h->fail_by, g->me);
    st_store_relaxed_32(&h->fail_phase, phase);
    st_store_relaxed_64(&h->fail_number, g->number);
    st_store_relaxed_64(&h->fail_desc, desc);
    ST_FAULT(FAIL_HALF);
    for (i = 0; i < ST_MASK_WORDS; i++)
        st_store_relaxed_64(&h->fail_mask[i], mask[i]);
    st_store_seqcst_32(&h->fail_state, ST_FAIL_PUBLISHED); /* pairs with st_group_failed */
    ST_FAULT(FAIL_AFTER);
    st_group_wake(g);
    return status;
}

static int st_group_settled(struct st_group *g)
{
    uint64_t mask[ST_MASK_WORDS] = {0};
    uint32_t state = st_fail_wait(g);

    if (state == ST_FAIL_PUBLISHED)
        return st_status_of(st_load_relaxed_32(&g->header->fail_status));
    if (state == ST_FAIL_NONE)
        return ST_EBROKEN;
    st_mask_set(mask, state >> 8); /* what it wanted to say died with it */
    return st_group_fail(g, ST_EDEAD, ST_PHASE_EXECUTION, 0, mask);
}

/* ST_OK, or the status of the failure that somebody has declared. */
static inline int st_group_failed(struct st_group *g)
{
    uint32_t state = st_load_acquire_32(&g->header->fail_state); /* pairs with st_group_fail */

    return __builtin_expect(state == ST_FAIL_NONE, 1) ? ST_OK : st_group_settled(g);
}

/* Has the group failed in an operation after this one?  Then all members had
 * arrived at this one. */
static inline int st_group_failed_later(const struct st_group *g, uint64_t number)
{
    return st_load_acquire_32(&g->header->fail_state) == ST_FAIL_PUBLISHED && /* pairs with st_group_fail */
           g->header->fail_number > number;
}

#endif
