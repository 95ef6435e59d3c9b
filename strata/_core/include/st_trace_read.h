/* Reading traces from outside, also of dies that have died or go on meanwhile.  What stands there may be anything. */
#ifndef ST_TRACE_READ_H
#define ST_TRACE_READ_H

#include "st_inspect.h"
#include "st_trace.h"

/* What a slice was found to hold. */
struct st_trace_found {
    uint64_t first, count; /* events [first, first + count) of where they were read to */
    uint64_t lost;
    uint32_t tid, role, index;
};

/* The first part of a die's area.  ST_AGAIN: it has never traced. */
static inline int st_trace_read(const struct st_inspect *v, uint32_t die, struct st_die *d, struct st_trace *trace)
{
    int rc = st_inspect_die(v, die, d);

    if (rc == ST_OK && !d->trace_made)
        return ST_AGAIN;
    return rc == ST_OK ? st_inspect_control(v, st_trace_at(&v->h, die), trace, sizeof *trace) : rc;
}

/* Names of a die, in `room` (ST_TRACE_NAMES bytes): each its length in 2 bytes, then the text; *used: bytes of whole ones. */
static inline int st_trace_names_read(const struct st_inspect *v, uint32_t die, const struct st_trace *trace,
                                      uint8_t *room, uint32_t *used)
{
    uint32_t bytes = trace->names_used < ST_TRACE_NAMES ? trace->names_used : ST_TRACE_NAMES, k;
    uint16_t length;
    int rc = st_inspect_control(v, st_trace_at(&v->h, die) + ST_TRACE_NAMES_AT, room, bytes);

    *used = 0;
    for (k = 0; rc == ST_OK && k < trace->names && bytes - *used >= sizeof length; k++) {
        memcpy(&length, room + *used, sizeof length);
        if (length > bytes - *used - sizeof length)
            break;
        *used += (uint32_t)sizeof length + length;
    }
    return rc;
}

/* Events [from, to) of a slice at `offset` in the control region, in their order. */
static inline int st_trace_copy(const struct st_inspect *v, uint64_t offset, uint64_t from, uint64_t to,
                                struct st_trace_event *room)
{
    uint64_t events = v->h.trace_events, at = from & (events - 1), n = to - from, part = events - at < n ? events - at : n;
    int rc = st_inspect_control(v, offset + at * sizeof *room, room, part * sizeof *room);

    return rc == ST_OK ? st_inspect_control(v, offset, room + part, (n - part) * sizeof *room) : rc;
}

/* Is the thread as it was, and has what is shown now been there before? */
static inline int st_trace_same(const struct st_trace_slice *a, const struct st_trace_slice *b)
{
    return a->tid == b->tid && a->role == b->role && a->index == b->index && a->life == b->life &&
           b->head >= a->head && b->from >= a->from;
}

/* Slice k of a die, into room for h.trace_events events.  Those that were written over meanwhile are left out.  found->role
 * ST_TRACE_NO_ROLE: nobody has been here, or its thread changed meanwhile time and again. */
static inline int st_trace_slice_read(const struct st_inspect *v, uint32_t die, uint32_t k, struct st_trace_event *room,
                                      struct st_trace_found *found)
{
    uint64_t at = st_trace_at(&v->h, die), events = v->h.trace_events, from, head, least, span;
    uint64_t head_at = at + offsetof(struct st_trace, slices) + k * sizeof(struct st_trace_slice);
    uint64_t events_at = at + ST_TRACE_EVENTS_AT + k * ((events * sizeof *room + 4095) & ~4095ull);
    struct st_trace_slice s, again;
    struct st_die d;
    uint32_t look;
    int rc;

    memset(found, 0, sizeof *found);
    for (look = 0; look < 4; look++) {
        rc = st_inspect_control(v, head_at, &s, sizeof s);
        if (rc != ST_OK || !s.role || s.role >= ST_TRACE_ROLES)
            return rc;
        head = st_trace_sane(s.head);
        from = s.from < head ? s.from : head;
        from = head - from < events ? from : head - events;
        rc = st_trace_copy(v, events_at, from, head, room);
        if (rc == ST_OK)
            rc = st_inspect_control(v, head_at, &again, sizeof again);
        if (rc == ST_OK)
            rc = st_inspect_die(v, die, &d);
        if (rc != ST_OK)
            return rc;
        if (!st_trace_same(&s, &again) || st_trace_sane(again.head) < head)
            continue;
        /* Event `again.head` may be on its way, where the one was that is `events` before it. */
        span = again.head - (again.from < again.head ? again.from : again.head);
        least = span > events || (span == events && d.trace_mode == ST_TRACE_RING) ? again.head - events + 1 : 0;
        least = least > again.from ? least : again.from;
        least = least > from ? least : from;
        least = least < head ? least : head;
        found->first = least - from;
        found->count = head - least;
        found->lost = again.lost - again.lost_from + (head - (again.from < head ? again.from : head)) - found->count;
        found->tid = s.tid;
        found->role = s.role;
        found->index = s.index;
        return ST_OK;
    }
    return ST_OK;
}

/* Nanoseconds of a tick: since the first die of the job has looked at both clocks, which is the longest time.  0: it
 * cannot be told, since no die has, or what they say of it makes no sense. */
static inline double st_trace_rate(const struct st_inspect *v, uint32_t clock, uint64_t ticks, uint64_t ns)
{
    uint64_t first = UINT64_MAX, first_ns = 0;
    struct st_flight f; /* only the beginning of it is read */
    double rate;
    uint32_t die;

    if (clock != ST_CLOCK_TICKS)
        return 1.0;
    for (die = 0; die < v->h.ndies; die++) {
        if (st_inspect_control(v, v->h.flight_off + die * sizeof f, &f, offsetof(struct st_flight, groups)) != ST_OK ||
            f.clock != clock || !f.ticks || f.ticks >= ticks || f.time_ns >= ns || f.ticks >= first)
            continue;
        first = f.ticks;
        first_ns = f.time_ns;
    }
    rate = first == UINT64_MAX ? 0.0 : (double)(ns - first_ns) / (double)(ticks - first);
    return rate > 0.01 && rate < 1000.0 ? rate : 0.0; /* counters of 1 MHz to 100 GHz */
}

/* What has been written so far is not shown any more; from any process that has the job mapped. */
static inline void st_trace_clear(struct st_ctx *ctx, uint32_t die)
{
    struct st_trace *area = (struct st_trace *)(void *)(ctx->control + st_trace_at(&ctx->job, die));
    uint32_t k;

    (st_store_relaxed_64)(&ctx->dies[die].trace_lost, 0);
    if (!(st_load_acquire_32)(&ctx->dies[die].trace_made)) /* pairs with st_trace_area */
        return;
    for (k = 0; k < ST_TRACE_SLICES; k++) {
        struct st_trace_slice *s = &area->slices[k];

        (st_store_relaxed_64)(&s->lost_from, (st_load_relaxed_64)(&s->lost));
        (st_store_relaxed_64)(&s->from, (st_load_acquire_64)(&s->head)); /* pairs with st_trace_put */
    }
}

#endif
