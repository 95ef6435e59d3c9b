/* How a newcomer, a process that was started again in a running job, comes into a group that grows.
 *
 * The newcomer says that it waits.  The first member of the growing group claims it, when all newcomers that are wanted
 * wait, and offers the new group's memory when all members have it.  A word in the die table says how far that has come
 * and who has the claim, so that a newcomer whose claimer dies waits again.
 */
#ifndef ST_INVITE_H
#define ST_INVITE_H

#include "st_sync.h"

enum st_invite_state {
    ST_INVITE_NONE = 0,
    ST_INVITE_WAITING = 1,
    ST_INVITE_CLAIMED = 2,
    ST_INVITE_OFFERED = 3,
    ST_INVITE_TAKEN = 4 /* it is in the group, or about to be */
};

#define ST_INVITE(state, by, life) \
    ((uint64_t)(state) | (uint64_t)(by) << 8 | (uint64_t)(uint32_t)(life) << 24)
#define ST_INVITE_STATE(w) ((uint32_t)((w) & 255u))
#define ST_INVITE_BY(w) ((uint32_t)((w) >> 8 & 0xffffu))
#define ST_INVITE_LIFE(w) ((uint32_t)((w) >> 24))

/* What is offered. */
struct st_offer {
    uint64_t va;    /* of the group's memory, */
    uint64_t bytes; /* with the group's name behind it */
    uint64_t life;  /* of the process that has the memory */
};

static inline void st_invite_told(struct st_ctx *ctx)
{
    st_wake(&ctx->header->wake_word, &ctx->header->sleepers);
}

static inline uint64_t st_invite_mine(const struct st_ctx *ctx, uint32_t state)
{
    return ST_INVITE(state, ctx->rank, st_die_life(ctx, ctx->rank));
}

/* ---- the newcomer ------------------------------------------------------------------ */

/* Is there a die that could still come with an offer: one that lives and does not wait for one itself? */
static inline int st_invite_hope(struct st_ctx *ctx)
{
    uint32_t i;

    for (i = 0; i < ctx->ndies; i++)
        if (i != ctx->rank && st_die_alive(ctx, i) &&
            ST_INVITE_STATE(st_load_acquire_64(&ctx->dies[i].invite)) != ST_INVITE_WAITING) /* pairs with st_invite_await */
            return 1;
    return 0;
}

/* Is the process that a word says has claimed this newcomer there?  Any of the dies may have written over the word. */
static inline int st_invite_claimed(struct st_ctx *ctx, uint64_t word)
{
    return ST_INVITE_BY(word) < ctx->ndies && st_die_alive_as(ctx, ST_INVITE_BY(word), ST_INVITE_LIFE(word));
}

/* Waits to be taken into a group.  ST_EDEAD: nobody is left who could; ST_ETIMEOUT; ST_EINTR. */
static inline int st_invite_await(struct st_ctx *ctx, uint64_t timeout_ns, struct st_offer *offer)
{
    struct st_die *me = &ctx->dies[ctx->rank];
    uint64_t word, waiting = ST_INVITE(ST_INVITE_WAITING, 0, 0);
    struct st_waiter w;
    int rc = ST_OK;

    st_store_seqcst_64(&me->invite, waiting); /* pairs with st_invite_claim */
    st_invite_told(ctx);
    ST_FAULT(INVITE_WAITING);
    st_wait_begin(&w, &ctx->wait, &ctx->header->wake_word, &ctx->header->sleepers, timeout_ns);
    for (;;) {
        word = st_load_acquire_64(&me->invite); /* pairs with st_invite_offer */
        if (ST_INVITE_STATE(word) == ST_INVITE_OFFERED &&
            st_cas_acq_rel_64(&me->invite, word, (word & ~255ull) | ST_INVITE_TAKEN)) /* pairs with st_invite_retract */
            break;
        if (rc == ST_ETIMEOUT || rc == ST_EINTR || rc == ST_EDEAD) {
            if (st_cas_acq_rel_64(&me->invite, word, 0)) /* pairs with st_invite_claim, st_invite_offer */
                break;
            continue;
        }
        rc = st_wait_step(&w);
        if (rc != ST_AGAIN)
            continue;
        rc = ST_OK;
        if (ST_INVITE_STATE(word) != ST_INVITE_WAITING && !st_invite_claimed(ctx, word)) {
            (void)st_cas_acq_rel_64(&me->invite, word, waiting); /* pairs with nothing: its claimer is dead */
            st_invite_told(ctx);
        } else if (ST_INVITE_STATE(word) == ST_INVITE_WAITING && !st_invite_hope(ctx)) {
            rc = ST_EDEAD;
        }
    }
    st_wait_end(&w);
    if (ST_INVITE_STATE(word) != ST_INVITE_OFFERED)
        return rc;
    ST_FAULT(INVITE_TAKEN);
    offer->va = st_load_relaxed_64(&me->invite_va);
    offer->bytes = st_load_relaxed_64(&me->invite_bytes);
    offer->life = ST_INVITE_LIFE(word);
    return st_owner(ctx, offer->va) == (int64_t)ST_INVITE_BY(word) ? ST_OK : ST_ECORRUPT;
}

/* ---- the first member of the group that grows ---------------------------------------- */

static inline int st_invite_claim(struct st_ctx *ctx, uint32_t die)
{
    return st_die_alive(ctx, die) && st_cas_acq_rel_64(&ctx->dies[die].invite, ST_INVITE(ST_INVITE_WAITING, 0, 0),
                                                       st_invite_mine(ctx, ST_INVITE_CLAIMED)); /* pairs with st_invite_await */
}

/* The claim is given up: the newcomer waits again, unless it is in the group already. */
static inline void st_invite_retract(struct st_ctx *ctx, uint32_t die)
{
    uint64_t waiting = ST_INVITE(ST_INVITE_WAITING, 0, 0);

    if (!st_cas_acq_rel_64(&ctx->dies[die].invite, st_invite_mine(ctx, ST_INVITE_CLAIMED), waiting)) /* pairs with st_invite_await */
        (void)st_cas_acq_rel_64(&ctx->dies[die].invite, st_invite_mine(ctx, ST_INVITE_OFFERED), waiting); /* as above */
    st_invite_told(ctx);
}

/* 0: the newcomer is gone. */
static inline int st_invite_offer(struct st_ctx *ctx, uint32_t die, uint64_t va, uint64_t bytes)
{
    st_store_relaxed_64(&ctx->dies[die].invite_va, va);
    st_store_relaxed_64(&ctx->dies[die].invite_bytes, bytes);
    if (!st_cas_acq_rel_64(&ctx->dies[die].invite, st_invite_mine(ctx, ST_INVITE_CLAIMED),
                           st_invite_mine(ctx, ST_INVITE_OFFERED))) /* pairs with st_invite_await */
        return 0;
    st_invite_told(ctx);
    ST_FAULT(INVITE_OFFERED);
    return 1;
}

/* Claims all of n dies at once, as soon as all of them wait.  lives[]: which processes they are.  ST_ETIMEOUT: those
 * marked in missing[] do not wait; ST_EDEAD: a member of g has died meanwhile, or g has failed. */
static inline int st_invite_claim_all(struct st_group *g, const uint32_t *dies, uint32_t n, uint64_t timeout_ns,
                                      uint32_t *lives, uint8_t *missing)
{
    struct st_ctx *ctx = g->ctx;
    struct st_waiter w;
    uint32_t i, j;
    int rc = ST_OK, there;

    st_wait_begin(&w, &ctx->wait, &ctx->header->wake_word, &ctx->header->sleepers, timeout_ns);
    for (;;) {
        for (i = 0, there = 1; i < n; i++) {
            missing[i] = ST_INVITE_STATE(st_load_acquire_64(&ctx->dies[dies[i]].invite)) != ST_INVITE_WAITING || /* pairs with st_invite_await */
                         !st_die_alive(ctx, dies[i]);
            there &= !missing[i];
        }
        for (i = 0; there && i < n; i++) {
            lives[i] = (uint32_t)st_die_life(ctx, dies[i]);
            there = st_invite_claim(ctx, dies[i]) && lives[i] == (uint32_t)st_die_life(ctx, dies[i]);
            missing[i] = (uint8_t)!there;
        }
        for (j = 0; !there && j < n; j++)
            st_invite_retract(ctx, dies[j]);
        if (there || rc == ST_ETIMEOUT || rc == ST_EINTR || rc == ST_EDEAD)
            break;
        rc = st_wait_step(&w);
        if (rc == ST_AGAIN) {
            rc = st_group_failed(g) == ST_OK ? ST_OK : ST_EDEAD;
            for (j = 0; j < g->n && rc == ST_OK; j++)
                rc = j == g->me || st_member_alive(g, j) ? ST_OK : ST_EDEAD;
        }
    }
    st_wait_end(&w);
    if (there)
        ST_FAULT(INVITE_CLAIMED);
    return there ? ST_OK : rc;
}

#endif
