/* Gates that wait for each other.
 *
 * A gate is stuck if what could raise its flag is there, in rings, and all of it lies behind
 * gates that are stuck.  From one gate a look follows this to its end: any descriptor on the
 * way that may still be executed, and any gate whose flag nothing pending raises (a CPU may),
 * and the look is over.  If the way comes back to where it began, the gates on it are a cycle,
 * which nothing but a new submission or a store could open.
 *
 * Other dies' rings are read while they move, so a look is believed when the next one finds the
 * same gates.  Its work is bounded: what is too large to look through ends by its timeout.
 *
 * A flag that its own waiter is to raise further when it has come (1: full, 2: empty again)
 * looks like a cycle while what raises it first has not been submitted: use two flags, or
 * ST_SDMA_HOST, as streams do, whose flags workers raise in turn with descriptors. */
#ifndef ST_CYCLE_H
#define ST_CYCLE_H

#include "st_look.h"

/* Something of ring s raises the flag of gate k, behind where s stands.  0: the look is over. */
static inline int st_cycle_edge(struct st_look *l, const struct st_seen *s, uint32_t k)
{
    uint32_t i = 0;

    l->gates[k].found = 1;
    while (i < l->n && (l->gates[i].die != s->gate.die || l->gates[i].ring != s->gate.ring))
        i++;
    if (i == 0 && l->closes == UINT32_MAX)
        l->closes = k;
    if (i < l->n)
        return l->gates[i].index == s->gate.index && l->gates[i].called == s->gate.called;
    if (l->n == ST_CYCLE_GATES)
        return 0;
    l->gates[l->n] = s->gate;
    l->gates[l->n].waits = k;
    l->gates[l->n++].found = 0;
    return 1;
}

/* One pending descriptor of ring s; `behind`: it is not what the ring stands at.  0: the look is over. */
static inline int st_cycle_one(struct st_look *l, const struct st_seen *s, const struct st_descriptor *d, int behind)
{
    uint64_t key;
    uint32_t k;

    if (d->type != ST_SDMA_WRITE && d->type != ST_SDMA_ADD && d->type != ST_SDMA_COUNT)
        return 1;
    key = st_cycle_key(l->e->ctx, d, d->dst);
    for (k = l->from; k < l->to; k++) {
        if (!key || l->gates[k].key != key || (d->type != ST_SDMA_ADD && d->value < l->gates[k].value))
            continue;
        if (!s->shut || !behind || !st_cycle_edge(l, s, k))
            return 0;
    }
    return 1;
}

/* The list of a call, from its first descriptor that is not done. */
static inline int st_cycle_list(struct st_look *l, const struct st_seen *s, const struct st_descriptor *call,
                                uint64_t done, int head)
{
    uint64_t i, k, n;

    if (call->bytes > ST_SDMA_MOST ||
        (call->src_gen && call->src_gen != st_sdma_generation(l->e->ctx, call->src, call->bytes * sizeof *call)))
        return 1; /* it will fail */
    for (i = done; i < call->bytes && l->work < ST_CYCLE_WORK; i += n) {
        n = call->bytes - i < ST_CYCLE_CHUNK ? call->bytes - i : ST_CYCLE_CHUNK;
        if (!st_cycle_read(l, call->src + i * sizeof *call, n, l->listed))
            return 1;
        for (k = 0; k < n; k++) {
            st_cycle_relative(&l->listed[k], call);
            if (!st_cycle_one(l, s, &l->listed[k], !head || i + k > done))
                return 0;
        }
    }
    return 1;
}

/* All that is pending in a ring. */
static inline int st_cycle_pending(struct st_look *l, const struct st_seen *s)
{
    uint64_t i, k, n, slot;

    for (i = s->head; i != s->tail && l->work < ST_CYCLE_WORK; i += n) {
        slot = i & (s->depth - 1);
        n = s->tail - i < ST_CYCLE_CHUNK ? s->tail - i : ST_CYCLE_CHUNK;
        n = n < s->depth - slot ? n : s->depth - slot;
        if (!st_cycle_read(l, s->va + sizeof(struct st_ring) + slot * sizeof *l->chunk, n, l->chunk))
            return 0;
        for (k = 0; k < n; k++) {
            const struct st_descriptor *d = &l->chunk[k];
            int head = i + k == s->head;

            if (d->commit != i + k + 1)
                continue; /* executed meanwhile */
            if (d->type == ST_SDMA_CALL ? !st_cycle_list(l, s, d, head ? s->called : 0, head)
                                        : !st_cycle_one(l, s, d, !head))
                return 0;
        }
    }
    return l->work < ST_CYCLE_WORK;
}

/* Ring `index` of a die, at va.  0: the look is over. */
static inline int st_cycle_ring(struct st_look *l, uint32_t die, uint32_t index, uint64_t va)
{
    struct st_ring *r = (struct st_ring *)(uintptr_t)va;
    struct st_seen s = {.die = die, .va = va};
    uint64_t gated;

    if (va % ST_LINE || st_owner(l->e->ctx, va) != (int64_t)die ||
        st_engine_hold_range(l->e, va, sizeof *r, 0, 0) != ST_OK)
        return 1;
    s.gate = (struct st_shut){.die = die, .ring = index, .opened = st_load_acquire_64(&r->opened)}; /* pairs with st_engine_add */
    s.depth = st_load_relaxed_32(&r->depth);
    gated = st_load_acquire_64(&r->gated_ns); /* pairs with st_engine_patience */
    s.called = st_load_acquire_64(&r->called); /* pairs with st_engine_call */
    s.head = st_load_acquire_64(&r->head); /* pairs with st_ring_pass */
    s.tail = st_load_acquire_64(&r->tail); /* pairs with st_lane_ring */
    st_hold_none(&l->e->hold);
    l->work++;
    if (!s.gate.opened || !s.depth || s.depth & (s.depth - 1) || s.depth > 1u << 20 || s.tail - s.head > s.depth ||
        s.tail == s.head)
        return 1;
    if (gated)
        st_cycle_gate(l, &s);
    return st_cycle_pending(l, &s);
}

/* All rings of a die; of one that is dead nothing will be executed. */
static inline int st_cycle_die(struct st_look *l, uint32_t die)
{
    uint64_t rings[ST_SDMA_RINGS], any = 0;
    struct st_sdma *s;
    uint32_t i, n;

    if (st_engine_hold_sdma(l->e, die, &s) != ST_OK)
        return 1;
    n = st_load_relaxed_32(&s->top);
    n = n < ST_SDMA_RINGS ? n : ST_SDMA_RINGS;
    for (i = 0; i < n; i++)
        any |= rings[i] = st_load_acquire_64(&s->rings[i]); /* pairs with st_engine_add */
    st_hold_none(&l->e->hold);
    if (!any || !st_die_alive(l->e->ctx, die))
        return 1;
    for (i = 0; i < n; i++)
        if (rings[i] && !st_cycle_ring(l, die, i, rings[i]))
            return 0;
    return 1;
}

/* Follows all that the first gate of a look waits for.  1: it is stuck, on a cycle. */
static inline int st_cycle_follow(struct st_look *l)
{
    uint32_t k, n = l->e->ctx->ndies;

    for (l->from = 0; l->from < l->n; l->from = l->to) {
        l->to = l->n;
        for (k = 0; k < n; k++)
            if (!st_cycle_die(l, (l->e->ctx->rank + k) % n))
                return 0;
        for (k = l->from; k < l->to; k++)
            if (!l->gates[k].found)
                return 0;
    }
    return l->closes != UINT32_MAX;
}

/* Is the gate d, at which ring r of this die stands, on a cycle?  Then, if the last look found the same, ST_EDEADLOCK,
 * and e->cycle has its gates, each waiting for the next one.  Else ST_AGAIN. */
static inline int st_cycle_look(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *d)
{
    struct st_look l = {.e = e, .n = 1, .closes = UINT32_MAX};
    uint64_t digest = 0, x;
    uint32_t k, n;

    l.gates[0] = (struct st_shut){.die = e->ctx->rank, .ring = r->ring->index, .index = r->head, .called = r->done,
                                  .opened = st_load_relaxed_64(&r->ring->opened), .va = d->src, .value = d->value,
                                  .key = st_cycle_key(e->ctx, d, d->src)};
    if (!l.gates[0].key || !st_cycle_follow(&l)) {
        r->suspect = 0;
        return ST_AGAIN;
    }
    for (k = 0; k < l.n; k++) {
        x = ((uint64_t)l.gates[k].die << 32 | l.gates[k].ring) * 0x9e3779b97f4a7c15ull;
        x = (x ^ x >> 32 ^ l.gates[k].index) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ x >> 32 ^ l.gates[k].called) * 0x94d049bb133111ebull;
        digest += (x ^ x >> 32 ^ l.gates[k].opened) * 0x9e3779b97f4a7c15ull | 1;
    }
    if (r->suspect != digest) {
        r->suspect = digest;
        return ST_AGAIN;
    }
    for (n = 1, k = l.closes; k; k = l.gates[k].waits)
        n++;
    e->ncycle = n < ST_CYCLE_MOST ? n : ST_CYCLE_MOST;
    for (k = l.closes; n--; k = l.gates[k].waits)
        if (n < ST_CYCLE_MOST)
            e->cycle[n] = (struct st_gate){l.gates[k].die, l.gates[k].ring, l.gates[k].va, l.gates[k].value};
    return ST_EDEADLOCK;
}

#endif
