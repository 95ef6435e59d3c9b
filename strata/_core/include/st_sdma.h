/* SDMA as a producer sees it: rings, and how descriptors come into them.
 *
 * Any die may put descriptors into any ring.  It takes the ring's lock, fills slots beyond
 * `tail`, and moves `tail`: what is not behind it does not exist.  So of a producer that dies
 * in between nothing is left but the lock, which the next one takes over. */
#ifndef ST_SDMA_H
#define ST_SDMA_H

#include "st_abi_sdma.h"
#include "st_live.h"
#include "st_poison.h"
#include "st_ready.h"

/* A die's hold on a ring, its own or another die's. */
struct st_lane {
    struct st_ring *ring;
    struct st_sdma *of;
    uint64_t opened;
    uint32_t die; /* whose DMA thread reads it */
    uint32_t depth;
    uint32_t index;
    uint32_t life; /* which process of the die */
};

/* What the page table says of a range now, in one number that is never 0: after the memory has
 * been given back, it is another. */
static inline uint32_t st_sdma_generation(const struct st_ctx *ctx, uint64_t va, uint64_t bytes)
{
    int64_t die = st_owner(ctx, va);
    uint64_t offset, i, last;
    uint32_t sum = 0;

    if (die < 0 || !bytes)
        return 0;
    offset = va - st_segment(ctx, (uint32_t)die);
    if (bytes > ctx->seg_bytes - offset)
        return 0;
    last = (offset + bytes - 1) >> ST_PAGE_SHIFT;
    for (i = offset >> ST_PAGE_SHIFT; i <= last && i < st_table_top(ctx, (uint32_t)die); i++)
        sum += ST_PTE_GEN(st_load_acquire_64(&st_table(ctx, (uint32_t)die)[i])) + 1; /* pairs with st_pages_publish */
    return sum ? sum : 1;
}

/* Bytes that a descriptor reads at src and writes at dst; 0: that is no address of data. */
static inline void st_sdma_extent(const struct st_descriptor *d, uint64_t *src, uint64_t *dst)
{
    *src = *dst = 0;
    switch (d->type) {
    case ST_SDMA_COPY:
    case ST_SDMA_REDUCE:
    case ST_SDMA_ACCUMULATE:
        *src = *dst = d->bytes;
        if (d->type == ST_SDMA_REDUCE && d->flags & ST_SDMA_LIST) {
            *src = (ST_SDMA_NSRC(d->value) + ST_SDMA_NDST(d->value)) * sizeof(struct st_sdma_operand);
            *dst = 0;
        }
        break;
    case ST_SDMA_FILL:
        *dst = d->bytes;
        break;
    case ST_SDMA_COUNT:
        *src = 8;
        *dst = d->flags & ST_SDMA_WORLD ? 0 : 8;
        break;
    case ST_SDMA_WRITE:
    case ST_SDMA_ADD:
        *dst = d->flags & ST_SDMA_WORLD ? 0 : 8;
        break;
    case ST_SDMA_GATE:
        *src = d->flags & ST_SDMA_WORLD ? 0 : 8;
        break;
    case ST_SDMA_CALL:
        *src = d->bytes > ST_SDMA_MOST ? 0 : d->bytes * sizeof(struct st_descriptor);
        break;
    default:
        break;
    }
}

/* States which memory a descriptor means: if it is given back before the descriptor is executed,
 * that fails with ST_EREG. */
static inline void st_sdma_seal(const struct st_ctx *ctx, struct st_descriptor *d)
{
    uint64_t src, dst;

    st_sdma_extent(d, &src, &dst);
    d->src_gen = st_sdma_generation(ctx, d->src, src);
    d->dst_gen = st_sdma_generation(ctx, d->dst, dst);
}

/* The rings of a die, or NULL: it takes no descriptors. */
static inline struct st_sdma *st_sdma_of(struct st_ctx *ctx, uint32_t die)
{
    uint64_t va = st_load_acquire_64(&ctx->dies[die].sdma); /* pairs with st_engine_open */
    struct st_sdma *s = (struct st_sdma *)(uintptr_t)va;

    if (!va || va % ST_LINE || st_owner(ctx, va) != (int64_t)die || st_ensure_mapped(ctx, va, sizeof *s, 1) != ST_OK ||
        s->magic != ST_SDMA_MAGIC)
        return NULL;
    return s;
}

/* Finds ring `index` of a die.  ST_ENOJOB: the die takes no descriptors, or has no such ring. */
static inline int st_lane_attach(struct st_ctx *ctx, uint32_t die, uint32_t index, struct st_lane *lane)
{
    uint64_t life = die < ctx->ndies ? st_die_life(ctx, die) : 0; /* before its rings are looked for */
    struct st_sdma *s = die < ctx->ndies && index < ST_SDMA_RINGS ? st_sdma_of(ctx, die) : NULL;
    uint64_t va = s ? st_load_acquire_64(&s->rings[index]) : 0; /* pairs with st_engine_add */
    struct st_ring *r = (struct st_ring *)(uintptr_t)va;

    if (!va)
        return ST_ENOJOB;
    if (va % ST_LINE || st_owner(ctx, va) != (int64_t)die || st_ensure_mapped(ctx, va, sizeof *r, 1) != ST_OK)
        return ST_ECORRUPT;
    *lane = (struct st_lane){.ring = r, .of = s, .opened = st_load_acquire_64(&r->opened), /* pairs with st_engine_add */
                             .die = die, .depth = r->depth, .index = index, .life = (uint32_t)life};
    if (!lane->opened)
        return ST_ENOJOB;
    if (r->magic != ST_SDMA_MAGIC || r->index != index || !lane->depth || lane->depth & (lane->depth - 1) ||
        lane->depth > 1u << 20 || st_ensure_mapped(ctx, va, st_ring_bytes(lane->depth), 1) != ST_OK)
        return ST_ECORRUPT;
    return ST_OK;
}

/* Is it still the ring that it was, and does anybody read it? */
static inline int st_lane_open(struct st_ctx *ctx, const struct st_lane *lane)
{
    uint64_t va = (uint64_t)(uintptr_t)lane->ring, of = (uint64_t)(uintptr_t)lane->of;

    if (lane->die != ctx->rank) {
        if (!st_die_alive_as(ctx, lane->die, lane->life))
            return ST_EDEAD;
        if (st_ensure_mapped(ctx, of, sizeof *lane->of, 1) != ST_OK ||
            st_ensure_mapped(ctx, va, st_ring_bytes(lane->depth), 1) != ST_OK)
            return ST_ENOJOB;
    }
    if (st_load_acquire_64(&ctx->dies[lane->die].sdma) != of ||       /* pairs with st_engine_open, st_engine_end */
        st_load_acquire_64(&lane->of->rings[lane->index]) != va) /* pairs with st_engine_add, st_engine_remove */
        return ST_ENOJOB;
    return st_load_acquire_64(&lane->ring->opened) == lane->opened ? ST_OK : ST_ENOJOB; /* pairs with st_engine_remove */
}

/* Has the DMA thread look at ring `index`. */
static inline void st_sdma_bell(struct st_sdma *s, uint32_t index)
{
    st_or_acq_rel_64(&s->pending[index >> 6], 1ull << (index & 63)); /* pairs with st_engine_gather */
    ST_FAULT(BELL_BEFORE);
    st_fence_seqcst(); /* pairs with st_engine_arm: it sees the bit, or this sees the sleeper */
    st_wake(&s->bell, &s->bell_sleepers);
}

/* Takes the ring for filling; from a producer that died with it, too, which is looked for now and then and before
 * giving up.  One that is stopped there holds others up until their deadline (ST_ETIMEOUT). */
static inline int st_lane_lock(struct st_ctx *ctx, const struct st_lane *lane, struct st_waiter *w)
{
    uint32_t *lock = &lane->ring->lock, holder, mine = st_die_stamp(ctx, ctx->rank);
    int rc = st_lane_open(ctx, lane), step;

    while (rc == ST_OK && !st_cas_acq_rel_32(lock, 0, mine)) { /* pairs with st_lane_unlock */
        step = st_wait_step(w);
        if (step == ST_OK)
            continue;
        rc = step == ST_EINTR ? step : st_lane_open(ctx, lane);
        holder = st_load_acquire_32(lock); /* pairs with st_lane_unlock */
        if (rc == ST_OK && holder != mine && st_stamp_dead(ctx, holder) &&
            st_cas_acq_rel_32(lock, holder, mine)) { /* pairs with nothing: the holder is dead */
            ST_FAULT(RING_TAKEN_OVER);
            st_sdma_bell(lane->of, lane->index); /* it may have moved the tail, and not rung: a full ring would stay full */
            return ST_OK;
        }
        if (rc == ST_OK && step == ST_ETIMEOUT)
            rc = step;
    }
    return rc;
}

static inline void st_lane_unlock(struct st_lane *lane)
{
    st_store_release_32(&lane->ring->lock, 0); /* pairs with st_lane_lock */
}

/* Slots that may be filled now; the caller has the lock.  ST_ECORRUPT in *rc if the ring makes no sense. */
static inline uint64_t st_lane_room(const struct st_lane *lane, int *rc)
{
    uint64_t used = lane->ring->tail - st_load_acquire_64(&lane->ring->head); /* pairs with st_ring_pass */

    *rc = used > lane->depth ? ST_ECORRUPT : ST_OK;
    return used > lane->depth ? 0 : lane->depth - used;
}

/* The descriptor `ahead` slots beyond the tail.  Whoever looks for cycles of gates may still read what was there. */
static inline void st_lane_put(struct st_lane *lane, uint64_t ahead, const struct st_descriptor *d)
{
    uint64_t index = lane->ring->tail + ahead, words[sizeof *d / 8], k;
    uint64_t *slot = (uint64_t *)(void *)st_ring_slot(lane->ring, lane->depth, index);
    struct st_descriptor made = *d;

    made.status = ST_OK;
    made.commit = index + 1;
    memcpy(words, &made, sizeof words);
    for (k = 0; k < sizeof words / 8; k++)
        st_store_relaxed_64(&slot[k], words[k]);
}

/* The doorbell: the next `count` descriptors may be executed. */
static inline void st_lane_ring(struct st_lane *lane, uint64_t count)
{
    ST_FAULT(RING_FILLED);
    st_store_release_64(&lane->ring->tail, lane->ring->tail + count); /* pairs with st_engine_turn */
    ST_FAULT(RING_MOVED);
    st_sdma_bell(lane->of, lane->index);
}

/* Waits for at least one free slot; the caller has the lock.  Returns how many there are, 0: see *rc. */
static inline uint64_t st_lane_wait(struct st_ctx *ctx, struct st_lane *lane, const struct st_wait_policy *policy,
                                    uint64_t timeout_ns, int *rc)
{
    struct st_waiter w;
    uint64_t room = st_lane_room(lane, rc);

    if (room || *rc != ST_OK)
        return room;
    st_wait_begin(&w, policy, &lane->ring->room_word, &lane->ring->room_sleepers, timeout_ns);
    do {
        *rc = st_wait_step(&w);
        if (*rc == ST_AGAIN)
            *rc = st_lane_open(ctx, lane);
        if (*rc == ST_OK)
            room = st_lane_room(lane, rc);
    } while (!room && *rc == ST_OK);
    st_wait_end(&w);
    return room;
}

/* Indices of the next descriptor to be executed and to be submitted. */
static inline uint64_t st_lane_head(const struct st_lane *l) { return st_load_acquire_64(&l->ring->head); } /* pairs with st_ring_pass */

static inline uint64_t st_lane_tail(const struct st_lane *l) { return st_load_acquire_64(&l->ring->tail); } /* pairs with st_lane_ring */

#define ST_SDMA_NOWAIT 1ull

/* Puts n descriptors into the ring as one chain and rings; *first is the index of the first.  A full
 * ring makes it wait, at most timeout_ns for each bit of room; with ST_SDMA_NOWAIT it does not, and what does not
 * fit as a whole, or into a ring that another producer is filling, is ST_EFULL.  *done counts those that are in the
 * ring, also after a failure.  ST_ENOJOB: the ring was closed, maybe before it came to them. */
static inline int st_lane_submit(struct st_ctx *ctx, struct st_lane *lane, const struct st_descriptor *d, uint64_t n,
                                 const struct st_wait_policy *policy, uint64_t timeout_ns, uint64_t *first,
                                 uint64_t *done)
{
    struct st_tracer *t = st_trace_on(ctx);
    struct st_flight_record *record;
    struct st_waiter w;
    struct st_descriptor begin;
    uint64_t room, k;
    int rc;

    *done = 0;
    st_trace_begins(t);
    record = st_flight_begin(ctx, ST_FLIGHT_SUBMIT, lane->die, 0, lane->index, 0, n, 0);
    st_flight_time(ctx, record);
    st_wait_begin(&w, policy, NULL, NULL, timeout_ns);
    rc = st_lane_lock(ctx, lane, &w);
    st_wait_end(&w);
    if (rc != ST_OK) {
        rc = rc == ST_ETIMEOUT && timeout_ns == ST_SDMA_NOWAIT ? ST_EFULL : rc;
        st_flight_end(ctx, record, rc, 1);
        return rc;
    }
    ST_FAULT(RING_LOCKED);
    *first = lane->ring->tail;
    if (timeout_ns == ST_SDMA_NOWAIT && st_lane_room(lane, &rc) < n)
        rc = rc != ST_OK ? rc : ST_EFULL;
    while (rc == ST_OK && *done < n && (room = st_lane_wait(ctx, lane, policy, timeout_ns, &rc)) > 0) {
        room = room < n - *done ? room : n - *done;
        for (k = 0; k < room; k++) {
            if (*done + k) {
                st_lane_put(lane, k, &d[*done + k]);
                continue;
            }
            begin = d[0];
            begin.flags |= ST_SDMA_BEGIN;
            st_lane_put(lane, k, &begin);
        }
        ST_TRACE(t, ST_TRACE_SUBMIT, 0, lane->die, lane->index, room);
        st_lane_ring(lane, room);
        ST_TRACE(t, ST_TRACE_DOORBELL, 0, lane->die, lane->index, room);
        *done += room;
    }
    /* st_lane_ring has a fence: the DMA thread sees the bell before it ends, or this sees that the ring is closed. */
    if (rc == ST_OK && st_load_seqcst_64(&lane->ring->opened) != lane->opened) /* pairs with st_engine_end */
        rc = ST_ENOJOB;
    ST_FAULT(RING_RUNG);
    st_lane_unlock(lane);
    st_flight_end(ctx, record, rc, rc != ST_OK || n > lane->depth);
    return rc;
}

#endif
