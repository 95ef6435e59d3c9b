/* The DMA thread's rounds: rings that have been rung have their turns. */
#ifndef ST_ENGINE_RUN_H
#define ST_ENGINE_RUN_H

#include "st_cycle.h"
#include "st_engine_do.h"
#include "st_engine_trace.h"

#define ST_TURN_DESCRIPTORS 64u      /* of one ring, before others have their turn */
#define ST_TURN_BYTES (4ull << 20)

enum st_turn { ST_TURN_EMPTY = 0, ST_TURN_GATED = 1, ST_TURN_MORE = 2 };

/* Nonzero: the status that everything ends with. */
static inline int st_engine_cancelled(const struct st_engine *e, uint32_t event)
{
    if (st_load_acquire_32(&e->stop)) /* pairs with st_engine_end */
        return ST_ENOJOB;
    if (!event || event >= ST_SDMA_EVENTS)
        return ST_OK;
    return (int)st_load_acquire_32(&e->events[event].cancel); /* pairs with st_event_cancel */
}

/* Its event hears of it, if it is the first that does. */
static inline void st_event_fail(struct st_engine *e, const struct st_engine_ring *r, const struct st_descriptor *d,
                                 int status)
{
    struct st_event *v = &e->events[d->event < ST_SDMA_EVENTS ? d->event : 0];

    if (v == e->events || !st_load_acquire_32(&v->used) || st_load_relaxed_32(&v->status) != ST_OK)
        return; /* pairs with st_event_take */
    v->ring = r->ring->index;
    v->index = r->head;
    v->failed = *d;
    v->ncycle = e->ncycle;
    memcpy(v->cycle, e->cycle, sizeof v->cycle);
    st_store_release_32(&v->status, (uint32_t)status); /* pairs with st_event_status */
}

/* The chain of r has failed at d. */
static inline void st_ring_fail(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *d, int status)
{
    struct st_ring *ring = r->ring;

    r->status = (uint32_t)status;
    st_count(&e->count.failed, 1);
    ring->failed_index = r->head;
    ring->failed_status = (uint32_t)status;
    ST_FAULT(ENGINE_FAILING);
    st_store_release_64(&ring->failed, ring->failed + 1); /* pairs with nothing: for people */
    st_event_fail(e, r, d, status);
    e->ncycle = 0;
}

/* A gate that is shut: has it been so for too long, or will it be so for ever (ST_EDEADLOCK)? */
static inline int st_engine_patience(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *d)
{
    struct st_ring *ring = r->ring;
    uint64_t now = st_now_ns(), limit = d->bytes ? d->bytes : e->timeout_ns ? e->timeout_ns : UINT64_MAX, cost;
    int rc;

    if (!r->gated_ns) {
        r->gated_ns = r->looked_ns = now;
        st_count(&e->count.gates, 1);
        st_store_release_64(&ring->gated_ns, now); /* pairs with st_cycle_ring */
    }
    if (now - r->gated_ns >= limit)
        return ST_ETIMEOUT;
    if (d->flags & ST_SDMA_HOST || now - r->looked_ns < e->ctx->wait.poll_ns)
        return ST_AGAIN;
    if (r->look_turn == e->look_turn && (e->wanted || e->wanted_before))
        return ST_AGAIN; /* others have not looked since this one did */
    if (now < e->look_ns) {
        e->wanted |= r->look_turn != e->look_turn;
        return ST_AGAIN;
    }
    e->look_turn += r->look_turn == e->look_turn;
    r->look_turn = e->look_turn;
    r->looked_ns = now;
    st_count(&e->count.looks, 1);
    cost = st_thread_ns();
    rc = st_cycle_look(e, r, d);
    e->look_ns = now + 8 * (st_thread_ns() - cost);
    return rc;
}

/* st_engine_do, but for the trace. */
static inline int st_engine_execute(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *d)
{
    int status = (int)r->status, rc, cancel = st_engine_cancelled(e, d->event);

    if (status == ST_OK && cancel != ST_OK) {
        st_ring_fail(e, r, d, cancel);
        status = cancel;
    }
    switch (d->type) {
    case ST_SDMA_WRITE:
    case ST_SDMA_ADD:
    case ST_SDMA_COUNT:
        rc = st_engine_flag(e, d, status);
        break;
    case ST_SDMA_NOTIFY:
        if (d->event == 0 || d->event >= ST_SDMA_EVENTS) {
            rc = ST_EINVAL; /* in a chain that has failed as well */
            break;
        }
        rc = status;
        if (status != ST_OK)
            st_event_fail(e, r, d, status);
        st_count(&e->count.notifies, 1);
        st_event_notify(e, d->event);
        return rc;
    case ST_SDMA_NOP:
        rc = ST_OK;
        break;
    case ST_SDMA_COPY:
    case ST_SDMA_REDUCE:
    case ST_SDMA_ACCUMULATE:
    case ST_SDMA_FILL:
        rc = status == ST_OK ? st_engine_move(e, d) : ST_ECANCELED;
        break;
    case ST_SDMA_GATE:
        rc = status == ST_OK ? st_engine_gate(e, d) : ST_ECANCELED;
        if (rc == ST_AGAIN)
            rc = st_engine_patience(e, r, d);
        if (rc == ST_OK)
            ST_FAULT(ENGINE_GATE_OPEN);
        break;
    default:
        rc = ST_EINVAL;
    }
    if (rc != ST_OK && rc != ST_AGAIN && status == ST_OK)
        st_ring_fail(e, r, d, rc);
    return rc == ST_OK && status != ST_OK ? ST_ECANCELED : rc;
}

/* Executes one descriptor of a ring.  ST_AGAIN: it is a gate, and shut.  Whatever else: it is done, its
 * status if it failed or was not executed. */
static inline int st_engine_do(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *d)
{
    int rc = st_engine_execute(e, r, d);

    if (__builtin_expect(e->trace != NULL, 0))
        st_engine_traced(e, r, d, rc);
    return rc;
}

/* No gate is shut any more. */
static inline void st_ring_ungate(struct st_engine_ring *r)
{
    if (r->gated_ns) /* pairs with st_cycle_ring */
        st_store_release_64(&r->ring->gated_ns, 0);
    r->gated_ns = r->suspect = 0;
}

/* The next descriptor of the list of a call; ST_AGAIN also when there are more. */
static inline int st_engine_call(struct st_engine *e, struct st_engine_ring *r, const struct st_descriptor *call)
{
    struct st_ring *ring = r->ring;
    struct st_descriptor d;
    int rc = ST_OK;

    if (call->bytes > ST_SDMA_MOST)
        rc = ST_EINVAL;
    if (rc == ST_OK && r->done < call->bytes) {
        rc = st_engine_fetch(e, &d, call->src + r->done * sizeof d, sizeof d, 0);
        if (rc == ST_OK && call->src_gen && /* given back meanwhile, maybe something else by now */
            call->src_gen != st_sdma_generation(e->ctx, call->src, call->bytes * sizeof d))
            rc = ST_EREG;
    }
    if (rc != ST_OK) {
        if (r->status == ST_OK)
            st_ring_fail(e, r, call, rc);
        return rc;
    }
    if (r->done == call->bytes)
        return (int)r->status;
    if (d.flags & ST_SDMA_RELATIVE)
        d.value += call->value;
    d.event = call->event;
    if (d.type == ST_SDMA_CALL || d.type == ST_SDMA_NOTIFY)
        d.type = 0; /* no call calls, and it is the caller who is notified */
    if (st_engine_do(e, r, &d) == ST_AGAIN)
        return ST_AGAIN;
    st_ring_ungate(r);
    ST_FAULT(ENGINE_LISTED);
    r->done++;
    st_store_release_64(&ring->called, r->done); /* pairs with st_cycle_ring */
    return ST_AGAIN;
}

/* The descriptor at the head is done. */
static inline void st_ring_pass(struct st_engine *e, struct st_engine_ring *r, int status)
{
    struct st_ring *ring = r->ring;

    st_count(&e->count.descriptors, 1);
    st_store_relaxed_32(&st_ring_slot(ring, r->depth, r->head)->status, (uint32_t)status);
    st_ring_ungate(r);
    if (r->done)
        st_store_release_64(&ring->called, 0); /* pairs with st_cycle_ring */
    r->done = 0;
    ST_FAULT(ENGINE_PASS_BEFORE);
    st_store_seqcst_64(&ring->head, ++r->head); /* pairs with st_lane_room */
    ST_FAULT(ENGINE_PASS_AFTER);
    st_wake(&ring->room_word, &ring->room_sleepers);
}

/* One ring's turn. */
static inline enum st_turn st_engine_turn(struct st_engine *e, struct st_engine_ring *r)
{
    struct st_ring *ring = r->ring;
    uint64_t bytes = e->count.bytes, tail, k, done, turn = ST_PICK(ST_TURN_DESCRIPTORS, ST_TURN_DESCRIPTORS - 1);
    struct st_descriptor d;
    int rc;

    e->trace = st_trace_as(e->ctx, ST_TRACE_ENGINE, 0);
    st_trace_begins(e->trace);
    for (k = 0; k <= turn && e->count.bytes - bytes < ST_TURN_BYTES; k++) {
        tail = st_load_acquire_64(&ring->tail); /* pairs with st_lane_ring */
        if (tail == r->head)
            return k ? ST_TURN_MORE : ST_TURN_EMPTY;
        d = *st_ring_slot(ring, r->depth, r->head);
        if (d.flags & ST_SDMA_BEGIN && r->done == 0 && r->gated_ns == 0)
            r->status = ST_OK;
        if (tail - r->head > r->depth || d.commit != r->head + 1) {
            if (tail - r->head > r->depth)
                r->head = tail - 1; /* somebody has overwritten the ring: nothing in it means anything */
            st_ring_fail(e, r, &d, ST_ECORRUPT);
            st_ring_pass(e, r, ST_ECORRUPT);
            continue;
        }
        ST_FAULT(ENGINE_FETCHED);
        done = r->done;
        rc = d.type == ST_SDMA_CALL ? st_engine_call(e, r, &d) : st_engine_do(e, r, &d);
        if (rc != ST_AGAIN)
            st_ring_pass(e, r, rc);
        else if (r->done == done)
            return k ? ST_TURN_MORE : ST_TURN_GATED;
    }
    return ST_TURN_MORE;
}

/* Takes over which rings have been rung. */
static inline void st_engine_gather(struct st_engine *e)
{
    uint64_t rung;
    uint32_t i;

    for (i = 0; i < ST_SDMA_RINGS / 64; i++)
        if (st_load_relaxed_64(&e->shared->pending[i])) {
            rung = st_swap_acq_rel_64(&e->shared->pending[i], 0); /* pairs with st_sdma_bell */
            st_count(&e->count.doorbells, (uint64_t)__builtin_popcountll(rung));
            e->active[i] |= rung;
        }
}

/* A turn for each ring that has something: the most that any did. */
static inline enum st_turn st_engine_round(struct st_engine *e)
{
    enum st_turn most = ST_TURN_EMPTY, turn;
    uint32_t k, i, first = ST_PICK(ST_SDMA_RINGS, e->turn);
    uint64_t word;

    st_store_seqcst_64(&e->round, e->round + 1); /* pairs with st_engine_remove */
    st_engine_gather(e);
    e->wanted_before = e->wanted;
    e->wanted = 0;
    for (k = 0; k < ST_SDMA_RINGS; k++) {
        i = (first + k) % ST_SDMA_RINGS;
        word = e->active[i >> 6] >> (i & 63);
        if (!word) {
            k += 63 - (i & 63);
            continue;
        }
        if (!(word & 1))
            continue;
        if (!st_load_seqcst_64(&e->rings[i].at)) { /* pairs with st_engine_add, st_engine_remove */
            e->active[i >> 6] &= ~(1ull << (i & 63));
            continue;
        }
        if (!ST_PICK(4, 1)) { /* another round will do */
            most = ST_TURN_MORE;
            continue;
        }
        turn = st_engine_turn(e, &e->rings[i]);
        if (turn == ST_TURN_EMPTY)
            e->active[i >> 6] &= ~(1ull << (i & 63));
        most = turn > most ? turn : most;
        if (e->turn == first) /* each is the first once: who looks for cycles may keep the others from it */
            e->turn = (i + 1) % ST_SDMA_RINGS;
    }
    st_store_release_64(&e->round, e->round + 1); /* pairs with st_engine_remove */
    return most;
}

#endif
