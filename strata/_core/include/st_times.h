/* Virtual times that dies tell each other: one ring of records from each die to each other.
 *
 * Nobody waits here: a full ring takes no record, and its writer keeps it for later.
 */
#ifndef ST_TIMES_H
#define ST_TIMES_H

#include <string.h>

#include "st_ready.h"

#define ST_TIMES_DEPTH_MAX 256u

/* This die's board, and where peers' lanes to it are. */
struct st_board {
    struct st_ctx *ctx;
    struct st_times *own;
    uint64_t *written; /* by die: records put into the lane to it */
    uint64_t *taken;   /* by die: records taken out of its lane to this die */
    uint64_t *lane;    /* by die: address of that lane, checked and mapped; 0: not yet */
    uint64_t *depth;   /* by die: records that it holds; by this one: that its own lanes hold */
};

static inline uint64_t st_times_lane_bytes(uint32_t depth)
{
    return sizeof(struct st_times_lane) + (uint64_t)depth * sizeof(struct st_times_record);
}

static inline uint64_t st_times_bytes(uint32_t ndies, uint32_t depth)
{
    return sizeof(struct st_times) + ndies * st_times_lane_bytes(depth);
}

static inline struct st_times_record *st_times_records(struct st_times_lane *lane)
{
    return (struct st_times_record *)(lane + 1);
}

/* The own lane to a die.  How deep it is, is not read from what others could overwrite. */
static inline uint64_t st_times_lane_at(const struct st_board *b, uint32_t die)
{
    return (uint64_t)(uintptr_t)b->own + sizeof *b->own + die * st_times_lane_bytes((uint32_t)b->depth[b->ctx->rank]);
}

/* Shows the board, in zeroed memory of this die, to the others. */
static inline void st_times_open(struct st_board *b, uint64_t va, uint32_t depth)
{
    b->own = (struct st_times *)(uintptr_t)va;
    b->own->ndies = b->ctx->ndies;
    b->own->depth = depth;
    b->depth[b->ctx->rank] = depth;
    b->own->magic = ST_MAGIC;
    st_store_release_64(&b->ctx->dies[b->ctx->rank].times, va); /* pairs with st_times_find */
}

/* The lane from a peer to this die, or NULL: it has none yet (rc ST_OK), or it cannot be read. */
static inline struct st_times_lane *st_times_find(struct st_board *b, uint32_t die, int *rc)
{
    struct st_ctx *ctx = b->ctx;
    struct st_times *t;
    uint64_t va, bytes;
    uint32_t depth;

    *rc = ST_OK;
    if (b->lane[die])
        return (struct st_times_lane *)(uintptr_t)b->lane[die];
    va = st_load_acquire_64(&ctx->dies[die].times); /* pairs with st_times_open */
    if (!va)
        return NULL;
    *rc = ST_ECORRUPT;
    if (va % ST_LINE || st_owner(ctx, va) != (int64_t)die || st_owner(ctx, va + sizeof *t - 1) != (int64_t)die)
        return NULL;
    *rc = st_ensure_mapped(ctx, va, sizeof *t, 1);
    if (*rc != ST_OK)
        return NULL;
    t = (struct st_times *)(uintptr_t)va;
    depth = t->depth;
    *rc = ST_ECORRUPT;
    if (t->magic != ST_MAGIC || t->ndies != ctx->ndies || !depth || depth > ST_TIMES_DEPTH_MAX || (depth & (depth - 1)))
        return NULL;
    bytes = st_times_bytes(ctx->ndies, depth);
    if (st_owner(ctx, va + bytes - 1) != (int64_t)die)
        return NULL;
    *rc = st_ensure_mapped(ctx, va, bytes, 1);
    if (*rc != ST_OK)
        return NULL;
    b->depth[die] = depth;
    b->lane[die] = va + sizeof *t + ctx->rank * st_times_lane_bytes(depth);
    return (struct st_times_lane *)(uintptr_t)b->lane[die];
}

/* Tells a die something.  ST_EFULL: its lane is full. */
static inline int st_times_put(struct st_board *b, uint32_t die, const struct st_times_record *what)
{
    struct st_times_lane *lane = (struct st_times_lane *)(uintptr_t)st_times_lane_at(b, die);
    uint64_t at = b->written[die], depth = b->depth[b->ctx->rank];
    struct st_times_record *r = &st_times_records(lane)[at & (depth - 1)];

    if (at - st_load_acquire_64(&lane->taken) >= depth) /* pairs with st_times_take */
        return ST_EFULL;
    st_store_relaxed_64(&r->channel, what->channel);
    st_store_relaxed_64(&r->number, what->number);
    st_store_relaxed_64((uint64_t *)(void *)&r->begin_ps, (uint64_t)what->begin_ps);
    st_store_relaxed_64(&r->way, what->way);
    b->written[die] = at + 1;
    ST_FAULT(TIME_BEFORE);
    st_store_release_64(&r->seq, at + 1); /* pairs with st_times_take */
    return ST_OK;
}

/* The oldest record from a die that has not been taken.  ST_AGAIN: there is none. */
static inline int st_times_take(struct st_board *b, uint32_t die, struct st_times_record *what)
{
    int rc;
    struct st_times_lane *lane = st_times_find(b, die, &rc);
    struct st_times_record *r;
    uint64_t at = b->taken[die];

    if (!lane)
        return rc == ST_OK ? ST_AGAIN : rc;
    r = &st_times_records(lane)[at & (b->depth[die] - 1)];
    if (st_load_acquire_64(&r->seq) != at + 1) /* pairs with st_times_put */
        return ST_AGAIN;
    *what = *r;
    ST_FAULT(TIME_TAKEN);
    b->taken[die] = at + 1;
    st_store_release_64(&lane->taken, at + 1); /* pairs with st_times_put */
    return ST_OK;
}

#endif
