/* How the members of a new group find its memory: the first member allocates
 * it and publishes the address in its own table under a key that all compute.
 */
#ifndef ST_RENDEZVOUS_H
#define ST_RENDEZVOUS_H

#include "st_shrink.h"

static inline struct st_rendezvous *st_rendezvous_table(struct st_ctx *ctx, uint32_t die)
{
    return ctx->rendezvous + (uint64_t)die * ST_RENDEZVOUS_SLOTS;
}

/* Has every reader of a group's memory, which is this die's, read it or died? */
static inline int st_rendezvous_stale(struct st_ctx *ctx, uint64_t va)
{
    const uint8_t *memory = (const uint8_t *)(uintptr_t)va;
    const struct st_group_header *h = (const struct st_group_header *)memory;
    const uint32_t *ranks;
    const uint32_t *lives;
    const struct st_member *m;
    uint32_t n, j, rank;

    if (va % 8 || st_owner(ctx, va) != (int64_t)ctx->rank || st_ensure_mapped(ctx, va, sizeof *h, 0) != ST_OK)
        return 1; /* somebody has overwritten the slot: it leads nowhere */
    n = h->nmembers;
    if (n > ctx->ndies || st_ensure_mapped(ctx, va, st_group_flags_off(n), 0) != ST_OK)
        return 1;
    ranks = (const uint32_t *)(memory + st_group_ranks_off());
    lives = (const uint32_t *)(memory + st_group_lives_off(n));
    m = (const struct st_member *)(memory + st_group_members_off(n));
    for (j = 0; j < n; j++) {
        rank = ranks[j];
        if (rank < ctx->ndies && rank != ctx->rank && !st_load_acquire_64(&m[j].found) && /* pairs with st_group_found */
            st_die_alive_as(ctx, rank, lives[j]))
            return 0;
    }
    return 1;
}

/* A slot of this die that nobody will read any more; NULL: none yet.  Readers
 * that died first are looked for only when there is no other. */
static inline struct st_rendezvous *st_rendezvous_free(struct st_ctx *ctx)
{
    struct st_rendezvous *s = st_rendezvous_table(ctx, ctx->rank);
    uint32_t i;

    for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++)
        if (!st_load_relaxed_64(&s[i].state) ||
            st_load_acquire_64(&s[i].attached) >= s[i].readers) /* pairs with st_rendezvous_find */
            return &s[i];
    for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++)
        if (st_load_relaxed_64(&s[i].va) && st_rendezvous_stale(ctx, st_load_relaxed_64(&s[i].va)))
            return &s[i];
    return NULL;
}

static inline void st_rendezvous_write(struct st_rendezvous *slot, const uint64_t key[2], uint64_t va,
                                       uint64_t bytes, int status, uint32_t readers)
{
    uint64_t number = st_load_relaxed_64(&slot->state) + 1;

    st_store_relaxed_64(&slot->state, 0); /* a reader in between sees a hole, not a mixture */
    st_fence_seqcst();
    st_store_relaxed_64(&slot->key[0], key[0]);
    st_store_relaxed_64(&slot->key[1], key[1]);
    st_store_relaxed_64(&slot->va, va);
    st_store_relaxed_64(&slot->bytes, bytes);
    st_store_relaxed_64(&slot->status, (uint64_t)status);
    slot->readers = readers;
    ST_FAULT(SLOT_HALF);
    st_store_relaxed_64(&slot->attached, 0);
    st_store_seqcst_64(&slot->state, number); /* pairs with st_rendezvous_read */
}

/* Publishes a group's memory (va 0: it failed with status).  ST_ETIMEOUT: 64
 * groups wait for members that do not come. */
static inline int st_rendezvous_publish(struct st_ctx *ctx, const uint64_t key[2], uint64_t va,
                                        uint64_t bytes, int status, uint32_t readers,
                                        uint64_t timeout_ns)
{
    struct st_rendezvous *slot;
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    int rc = ST_OK;

    if (!readers)
        return ST_OK;
    ST_FAULT(SLOT_BEFORE);
    st_wait_begin(&w, &ctx->wait, &ctx->header->wake_word, &ctx->header->sleepers, timeout_ns);
    for (;;) {
        pthread_mutex_lock(&ctx->lock); /* other threads of this die form groups too */
        slot = st_rendezvous_free(ctx);
        if (slot && rc != ST_EINTR) /* interrupted: the caller is about to free the memory */
            st_rendezvous_write(slot, key, va, bytes, status, readers);
        pthread_mutex_unlock(&ctx->lock);
        if (slot || rc == ST_ETIMEOUT || rc == ST_EINTR)
            break;
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN)
            st_flight_waits(ctx, &record, ST_FLIGHT_GROUP, ST_FLIGHT_NOBODY, key[0], 0, 0);
    }
    st_wait_end(&w);
    st_flight_waited(ctx, record, rc);
    if (!slot || rc == ST_EINTR)
        return rc;
    ST_FAULT(SLOT_AFTER);
    st_wake(&ctx->header->wake_word, &ctx->header->sleepers);
    return ST_OK;
}

/* The number under which slot s holds the key, with what it says; 0: it does not.
 * The slot may be rewritten meanwhile, unless this die is one of its readers. */
static inline uint64_t st_rendezvous_read(const struct st_rendezvous *s, const uint64_t key[2],
                                          uint64_t *va, uint64_t *bytes, uint64_t *status)
{
    uint64_t number = st_load_acquire_64(&s->state); /* pairs with st_rendezvous_write */

    if (!number || st_load_relaxed_64(&s->key[0]) != key[0] || st_load_relaxed_64(&s->key[1]) != key[1])
        return 0;
    *va = st_load_relaxed_64(&s->va);
    *bytes = st_load_relaxed_64(&s->bytes);
    *status = st_load_relaxed_64(&s->status);
    st_fence_seqcst();
    return st_load_relaxed_64(&s->state) == number ? number : 0;
}

/* Waits for a group's memory, from process `life` of its leader.  ST_EDEAD: that died first. */
static inline int st_rendezvous_await(struct st_ctx *ctx, uint32_t leader, uint64_t life, const uint64_t key[2],
                                      uint64_t timeout_ns, uint64_t *va, uint64_t *bytes)
{
    struct st_rendezvous *s = st_rendezvous_table(ctx, leader);
    struct st_flight_record *record = NULL;
    struct st_waiter w;
    uint64_t status;
    uint32_t i;
    int rc = ST_OK, dead = 0;

    st_wait_begin(&w, &ctx->wait, &ctx->header->wake_word, &ctx->header->sleepers, timeout_ns);
    for (;;) {
        for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++)
            if (st_rendezvous_read(&s[i], key, va, bytes, &status))
                goto found;
        if (dead || rc == ST_ETIMEOUT)
            break;
        rc = st_wait_step(&w);
        if (rc == ST_EINTR)
            break;
        if (rc == ST_AGAIN) {
            st_flight_waits(ctx, &record, ST_FLIGHT_GROUP, leader, key[0], 0, 0);
            dead = !st_die_alive_as(ctx, leader, life); /* one more look at what it left */
        }
    }
    st_wait_end(&w);
    rc = dead ? ST_EDEAD : rc;
    st_flight_waited(ctx, record, rc);
    return rc;
found:
    st_wait_end(&w);
    rc = *va ? ST_OK : st_status_of(status);
    ST_FAULT(SLOT_FOUND);
    st_flight_waited(ctx, record, rc);
    st_add_seqcst_64(&s[i].attached, 1); /* pairs with st_rendezvous_free */
    ST_FAULT(SLOT_ATTACHED);
    st_wake(&ctx->header->wake_word, &ctx->header->sleepers);
    if (rc == ST_OK && (*va % ST_LINE || st_owner(ctx, *va) != (int64_t)leader))
        rc = ST_ECORRUPT;
    return rc;
}

static inline int st_rendezvous_find(struct st_ctx *ctx, uint32_t leader, const uint64_t key[2],
                                     uint64_t timeout_ns, uint64_t *va, uint64_t *bytes)
{
    return st_rendezvous_await(ctx, leader, st_die_life(ctx, leader), key, timeout_ns, va, bytes);
}

/* A member has the group's memory. */
static inline void st_group_found(struct st_group *g)
{
    ST_FAULT(FOUND_BEFORE);
    st_store_release_64(&g->members[g->me].found, 1); /* pairs with st_rendezvous_stale */
    ST_FAULT(FOUND_AFTER);
}

/* The leader is about to free the group's memory: its slot must not lead there. */
static inline void st_rendezvous_forget(struct st_group *g)
{
    struct st_rendezvous *s = st_rendezvous_table(g->ctx, g->ctx->rank);
    uint32_t i;

    pthread_mutex_lock(&g->ctx->lock);
    for (i = 0; i < ST_RENDEZVOUS_SLOTS; i++)
        if (st_load_relaxed_64(&s[i].state) && s[i].va == g->va)
            st_store_relaxed_64(&s[i].attached, s[i].readers);
    pthread_mutex_unlock(&g->ctx->lock);
    ST_FAULT(SLOT_FORGOTTEN);
}

/* What a member that closes a group says in its `left` word. */
enum st_left {
    ST_LEFT_CLOSED = 1, /* it sends and receives no more */
    ST_LEFT_GONE = 2    /* it does not look at the group's memory any more */
};

static inline void st_group_leave(struct st_group *g, uint64_t how)
{
    ST_FAULT(LEAVE_BEFORE);
    st_store_release_64(&g->members[g->me].left, how); /* pairs with st_group_deserted */
    ST_FAULT(LEAVE_AFTER);
}

/* Has every other member gone that far, or died? */
static inline int st_group_deserted(struct st_group *g, uint64_t how)
{
    uint32_t j;

    for (j = 0; j < g->n; j++)
        if (j != g->me && st_load_acquire_64(&g->members[j].left) < how && /* pairs with st_group_leave */
            st_member_alive(g, j))
            return 0;
    return 1;
}

/* ---- for error texts -------------------------------------------------------------- */

static inline uint8_t *st_world_memory(struct st_ctx *ctx)
{
    return ctx->control + ctx->job.world_off;
}

#endif
