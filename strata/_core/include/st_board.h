/* What a member does with the boards: it posts, reads, says that it is done, gives up. */
#ifndef ST_BOARD_H
#define ST_BOARD_H

#include "st_board_wait.h"

/* ---- posting -------------------------------------------------------------------- */

/* The slot's own words are atomic: one that was left out may still read it.  A word that it reads of this round's makes it
 * see ST_BOARD_WRITING, or this round, when it looks at the epoch again. */
static inline void st_board_publish(struct st_boards *b, uint64_t round, const struct st_post *p)
{
    uint64_t *to = (uint64_t *)st_board_slot(b->at[b->g->me], round), words[sizeof *p / 8], k;

    memcpy(words, p, sizeof words);
    st_store_seqcst_64(&to[0], round | ST_BOARD_WRITING); /* pairs with st_board_copy */
    ST_FAULT(POST_WRITING);
    for (k = 1; k < sizeof words / 8; k++)
        st_store_release_64(&to[k], words[k]); /* pairs with st_board_copy */
    ST_FAULT(POST_FILLED);
    st_store_seqcst_64(&to[0], round); /* pairs with st_board_there */
    ST_FAULT(POST_AFTER);
    st_group_wake(b->g);
}

/* A consistent copy of member j's post; ST_EBROKEN: it has gone on to another round. */
static inline int st_board_copy(const struct st_boards *b, uint64_t round, uint32_t j, struct st_post *p)
{
    const uint64_t *from = (const uint64_t *)st_board_slot(b->at[j], round);
    uint64_t words[sizeof *p / 8], k;

    for (k = 0; k < sizeof words / 8; k++)
        words[k] = st_load_acquire_64(&from[k]); /* pairs with st_board_publish */
    memcpy(p, words, sizeof *p);
    return words[0] == round && st_load_acquire_64(&from[0]) == round ? ST_OK : ST_EBROKEN; /* pairs with st_board_publish */
}

static inline int st_board_range(const struct st_boards *b, uint32_t j, uint64_t va, uint64_t bytes)
{
    if (!bytes)
        return ST_OK;
    if (st_owner(b->g->ctx, va) != (int64_t)b->g->ranks[j])
        return ST_ECORRUPT;
    return st_ensure_mapped(b->g->ctx, va, bytes, 0);
}

/* Are the addresses in member j's post its own, and can they be read here? */
static inline int st_board_check(const struct st_boards *b, uint32_t j, const struct st_post *p)
{
    uint32_t k;
    int rc = p->block % 8 ? ST_ECORRUPT : st_board_range(b, j, p->block, p->block_bytes);

    for (k = 0; k < ST_BOARD_COLUMNS && rc == ST_OK; k++)
        rc = st_board_range(b, j, p->at[k], p->bytes[k]);
    return rc;
}

/* Waits until all have done the round; then whoever was left out finds its slot given away. */
static inline int st_board_drain(struct st_boards *b, uint64_t round, uint64_t timeout_ns, int masking, uint64_t *mask)
{
    struct st_board_wait w = {.what = ST_BOARD_DONE, .round = round, .masking = masking};
    int rc = st_board_await(b, &w, timeout_ns, mask);

    ST_FAULT(DRAIN_BEFORE);
    if (rc == ST_OK) /* pairs with st_board_there */
        st_cas_acq_rel_64(&st_board_slot(b->at[b->g->me], round)->epoch, round,
                          (round + ST_BOARD_ROUNDS) | ST_BOARD_WRITING);
    return rc;
}

/* Posts a round once all have done the one that had its slot.  ST_EINVAL: rounds begin at 1. */
static inline int st_board_post(struct st_boards *b, uint64_t round, const struct st_post *p, uint64_t timeout_ns,
                                int masking, uint64_t *mask)
{
    int rc = ST_OK;

    if (round == 0 || round >= ST_BOARD_WRITING - ST_BOARD_ROUNDS)
        return ST_EINVAL;
    if (round > ST_BOARD_ROUNDS)
        rc = st_board_drain(b, round - ST_BOARD_ROUNDS, timeout_ns, masking, mask);
    if (rc == ST_OK)
        st_board_publish(b, round, p);
    return rc;
}

/* Copies of all posts of a round, [n]; zeros for masked members.  waited: [n] or NULL, ns.  ST_EINVAL: this member has
 * not posted it. */
static inline int st_board_read(struct st_boards *b, uint64_t round, uint64_t timeout_ns, int masking,
                                struct st_post *posts, uint64_t *waited, uint64_t *mask)
{
    struct st_board_wait w = {.what = ST_BOARD_POSTS, .round = round, .masking = masking, .waited = waited};
    uint32_t j;
    int rc = st_board_there(b, ST_BOARD_POSTS, round, b->g->me) == ST_OK ? ST_OK : ST_EINVAL;

    if (rc == ST_OK)
        rc = st_board_await(b, &w, timeout_ns, mask);
    ST_FAULT(POSTS_THERE);
    for (j = 0; j < b->g->n && rc == ST_OK; j++) {
        memset(&posts[j], 0, sizeof posts[j]);
        if (st_board_masked(b, j))
            continue;
        rc = st_board_copy(b, round, j, &posts[j]);
        if (rc == ST_OK)
            rc = st_board_check(b, j, &posts[j]);
        if (rc != ST_OK)
            st_mask_set(mask, j);
    }
    return rc;
}

/* Copies the routing block of member j's post.  ST_EINVAL: it is not that member's; ST_EBROKEN: the member has gone on to
 * another round meanwhile. */
static inline int st_board_block(const struct st_boards *b, uint64_t round, uint32_t j, const struct st_post *p, void *to)
{
    int rc;

    if (st_board_masked(b, j) || st_owner(b->g->ctx, p->block) != (int64_t)b->g->ranks[j])
        return ST_EINVAL;
    rc = st_board_reach(b, j);
    if (rc == ST_OK)
        rc = st_board_range(b, j, p->block, p->block_bytes);
    if (rc != ST_OK)
        return rc;
    memcpy(to, (const void *)(uintptr_t)p->block, p->block_bytes);
    st_fence_seqcst(); /* what was read, before the look at the epoch */
    return st_board_there(b, ST_BOARD_POSTS, round, j) == ST_OK && !st_member_replaced(b->g, j) ? ST_OK : ST_EBROKEN;
}

static inline void st_board_tell(struct st_boards *b, uint64_t round, uint32_t j)
{
    st_store_seqcst_64(st_board_mark(b->at[j], b->g->n, round, b->g->me), round); /* pairs with st_board_there */
}

/* This member has read all that it wants of a round.  ST_EBROKEN: members in mask have gone on without it, or have given
 * up meanwhile, so that what it read of them may be anything; with `masking` they are masked instead. */
static inline int st_board_done(struct st_boards *b, uint64_t round, int masking, uint64_t *mask)
{
    uint32_t j;
    int rc = ST_OK;

    ST_FAULT(MARK_BEFORE);
    st_fence_seqcst(); /* what was read, before the look at the epochs */
    for (j = 0; j < b->g->n; j++) {
        if (j == b->g->me || st_board_masked(b, j))
            continue;
        if (st_board_reach(b, j) != ST_OK || st_board_there(b, ST_BOARD_POSTS, round, j) != ST_OK ||
            st_member_replaced(b->g, j) ||
            st_load_acquire_32(&b->at[j]->failed)) { /* pairs with st_board_fail */
            if (masking) {
                st_board_leave_out(b, j, 1);
                continue;
            }
            st_mask_set(mask, j);
            rc = ST_EBROKEN;
            continue;
        }
        st_board_tell(b, round, j);
        ST_FAULT(MARK_AFTER);
    }
    st_group_wake(b->g);
    return rc;
}

/* This member gives up, for good: whoever waits for it stops with ST_EBROKEN. */
static inline void st_board_fail(struct st_boards *b, int status, uint64_t round)
{
    struct st_board_head *h = b->at[b->g->me];

    if (st_load_acquire_32(&h->failed)) /* pairs with itself: the first failure counts */
        return;
    st_store_relaxed_64(&h->failed_round, round);
    ST_FAULT(BOARD_FAILING);
    st_store_seqcst_32(&h->failed, (uint32_t)status); /* pairs with st_board_look */
    st_group_wake(b->g);
}

/* Why and at which round a member has given up; ST_OK: it has not. */
static inline int st_board_failure(const struct st_boards *b, uint32_t j, uint64_t *round)
{
    uint32_t status;

    if (st_board_reach(b, j) != ST_OK)
        return ST_OK;
    status = st_load_acquire_32(&b->at[j]->failed); /* pairs with st_board_fail */
    *round = st_load_relaxed_64(&b->at[j]->failed_round);
    return status < ST_NSTATUS ? (int)status : ST_ECORRUPT;
}

#endif
