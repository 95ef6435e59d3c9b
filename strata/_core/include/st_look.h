/* What a look for gates that wait for each other (st_cycle.h) reads of rings that move meanwhile. */
#ifndef ST_LOOK_H
#define ST_LOOK_H

#include "st_engine_reach.h"

#define ST_CYCLE_GATES 256u      /* of a look */
#define ST_CYCLE_WORK (1u << 16)  /* descriptors and rings that a look reads */
#define ST_CYCLE_CHUNK 32u        /* descriptors read under one hold */

struct st_shut { /* a gate, as a look finds it */
    uint32_t die, ring;
    uint64_t index;  /* of its descriptor, */
    uint64_t called; /* and in the list, if that is a call */
    uint64_t opened;
    uint64_t va, value, key;
    uint32_t waits; /* gate of the look that waits for this one */
    uint32_t found; /* something pending raises its flag */
};

struct st_look {
    struct st_engine *e;
    uint32_t from, to; /* gates that openers are looked for */
    uint32_t n;
    uint32_t closes;   /* gate that waits for the first one; n: none has been found */
    uint64_t work;
    struct st_shut gates[ST_CYCLE_GATES];
    struct st_descriptor chunk[ST_CYCLE_CHUNK], listed[ST_CYCLE_CHUNK];
};

/* A ring, as a look finds it. */
struct st_seen {
    uint32_t die, shut; /* shut: `gate` is where it stands */
    uint64_t va, head, tail, depth, called;
    struct st_shut gate;
};

/* Which memory a flag is, under whatever address; 0: none. */
static inline uint64_t st_cycle_key(const struct st_ctx *ctx, const struct st_descriptor *d, uint64_t at)
{
    int64_t die = st_owner(ctx, at);
    uint64_t page, w;

    if (at % 8)
        return 0;
    if (d->flags & ST_SDMA_WORLD)
        return at | 1;
    if (die < 0)
        return 0;
    page = (at - st_segment(ctx, (uint32_t)die)) >> ST_PAGE_SHIFT;
    if (page >= st_table_top(ctx, (uint32_t)die))
        return 0;
    w = st_load_acquire_64(&st_table(ctx, (uint32_t)die)[page]); /* pairs with st_pages_publish */
    if (ST_PTE_STATE(w) == ST_PAGE_FREE)
        return 0;
    return (ST_PTE_FOREIGN(w) ? (uint64_t)(die + 1) << 53 : 0) | ST_PTE_FRAME(w) << ST_PAGE_SHIFT | at % ST_PAGE_BYTES | 2;
}

/* Reads n descriptors at va, at most ST_CYCLE_CHUNK, without their last word.  0: they cannot be read. */
static inline int st_cycle_read(struct st_look *l, uint64_t va, uint64_t n, struct st_descriptor *to)
{
    uint64_t words[sizeof *to / 8] = {0}, i, k;
    const uint64_t *from = (const uint64_t *)(uintptr_t)va;

    l->work += n;
    if (va % 8 || st_engine_hold_range(l->e, va, n * sizeof *to, 0, 0) != ST_OK)
        return 0;
    for (i = 0; i < n; i++) {
        for (k = 0; k < sizeof words / 8 - 1; k++)
            words[k] = st_load_relaxed_64(&from[i * (sizeof words / 8) + k]);
        memcpy(&to[i], words, sizeof words);
    }
    st_hold_none(&l->e->hold);
    return 1;
}

/* The descriptor of a call's list, as the call makes it. */
static inline void st_cycle_relative(struct st_descriptor *d, const struct st_descriptor *call)
{
    if (d->flags & ST_SDMA_RELATIVE)
        d->value += call->value;
    if (d->type == ST_SDMA_CALL)
        d->type = 0;
}

/* A gate's flag: is it not there yet? */
static inline int st_cycle_shut(struct st_look *l, const struct st_descriptor *d)
{
    uint64_t *flag, value;

    if (st_engine_hold(l->e, d, &flag) != ST_OK)
        return 0;
    value = st_load_acquire_64(flag); /* pairs with st_engine_flag */
    st_hold_none(&l->e->hold);
    return st_flag_look(value, d->value) == ST_AGAIN;
}

/* Where a ring stands, if that is a gate. */
static inline void st_cycle_gate(struct st_look *l, struct st_seen *s)
{
    struct st_descriptor d, call;

    s->shut = 0;
    if (!st_cycle_read(l, s->va + sizeof(struct st_ring) + (s->head & (s->depth - 1)) * sizeof d, 1, &d) ||
        d.commit != s->head + 1)
        return;
    if (d.type == ST_SDMA_CALL) {
        call = d;
        if (s->called >= call.bytes || !st_cycle_read(l, call.src + s->called * sizeof d, 1, &d))
            return;
        st_cycle_relative(&d, &call);
    }
    if (d.type != ST_SDMA_GATE || d.flags & ST_SDMA_HOST)
        return;
    d.wake = 0; /* not read */
    s->gate.index = s->head;
    s->gate.called = s->called;
    s->gate.va = d.src;
    s->gate.value = d.value;
    s->gate.key = st_cycle_key(l->e->ctx, &d, d.src);
    s->shut = s->gate.key && st_cycle_shut(l, &d);
}

#endif
