/* Traces: what the threads of a die did, and when.
 *
 * Off, a probe is a look at one word.  On, each thread writes to a slice of its own, without an atomic
 * read-modify-write: an event costs a look at the counter and five stores.  The end of a span is the begin of the next
 * one of its thread, unless st_trace_mark says otherwise.
 */
#ifndef ST_TRACE_H
#define ST_TRACE_H

#include "st_trace_open.h"

/* Which thread this is, as long as it lives: by no call, and without a variable. */
static inline uint64_t st_trace_key(void)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_thread_pointer)
    return (uint64_t)(uintptr_t)__builtin_thread_pointer();
#else
    return (uint64_t)(uintptr_t)pthread_self();
#endif
#else
    return (uint64_t)(uintptr_t)pthread_self();
#endif
}

static inline uint32_t st_trace_mode(const struct st_ctx *ctx) { return (st_load_relaxed_32)(ctx->traces.mode); }

/* This thread's tracer, in a role; index: which of its kind.  NULL, which is counted: there is none for it. */
static inline struct st_tracer *st_trace_enter(struct st_ctx *ctx, uint32_t mode, uint32_t role, uint32_t index)
{
    struct st_traces *traces = &ctx->traces;
    uint64_t key = st_trace_key();
    struct st_tracer *t;
    uint32_t k;

    for (k = 0; k < ST_TRACE_SLICES && st_is_die(ctx); k++) { /* a forked child has its parent's keys */
        if ((st_load_relaxed_64)(&traces->keys[k]) != key)
            continue;
        t = &traces->tracers[k];
        if (__builtin_expect(t->mode != mode, 0))
            st_trace_adopt(t, mode);
        if (__builtin_expect(role != ST_TRACE_CALLER && t->role != role, 0))
            st_trace_role(t, role, index);
        return t;
    }
    return st_trace_claim(ctx, key, mode, role, index);
}

/* NULL: tracing is off.  All that follows wants to know that first. */
static inline struct st_tracer *st_trace_as(struct st_ctx *ctx, uint32_t role, uint32_t index)
{
    uint32_t mode = st_trace_mode(ctx);

    return __builtin_expect(mode != ST_TRACE_OFF, 0) ? st_trace_enter(ctx, mode, role, index) : NULL;
}

static inline struct st_tracer *st_trace_on(struct st_ctx *ctx) { return st_trace_as(ctx, ST_TRACE_CALLER, 0); }

static inline uint64_t st_trace_now(const struct st_tracer *t) { return st_flight_ticks(t->clock); }

/* Writes an event. */
static inline void st_trace_put(struct st_tracer *t, uint64_t what, uint64_t begin, uint64_t end, uint64_t arg)
{
    struct st_trace_event *e;

    if (__builtin_expect(t->head >= t->limit, 0) && !st_trace_more(t))
        return;
    e = &t->events[t->head & t->mask];
    /* So that no store waits for its line, and with it what the thread tells its peers next. */
    __builtin_prefetch(&t->events[(t->head + 4) & t->mask], 1);
    (st_store_release_64)(&e->begin, begin); /* each after the head before it: a reader that finds the head */
    (st_store_release_64)(&e->end, end);     /* unmoved has read no event that is being written; pairs with */
    (st_store_release_64)(&e->what, what);   /* st_trace_slice_read, as all of these */
    (st_store_release_64)(&e->arg, arg);
    (st_store_release_64)(&t->slice->head, ++t->head);
}

/* The next span begins now. */
static inline void st_trace_mark(struct st_tracer *t) { t->last = st_trace_now(t); }

static inline void st_trace_begins(struct st_tracer *t)
{
    if (__builtin_expect(t != NULL, 0))
        st_trace_mark(t);
}

/* A span from the end of the last one, or the mark, to now.  Not inline: what is beside it is mostly run without. */
ST_TRACE_COLD void st_trace_span(struct st_tracer *t, uint64_t what, uint64_t arg)
{
    uint64_t begin = t->last;

    t->last = st_trace_now(t);
    st_trace_put(t, what, begin, t->last, arg);
}

/* What is compiled once for threads that are traced, and once, with a tracer that is NULL for certain, for the others. */
#define ST_TRACE_TWICE static inline __attribute__((always_inline))

/* The same, where t is NULL while tracing is off. */
#define ST_TRACE(t, kind, core, peer, index, arg)                                 \
    (__builtin_expect((t) != NULL, 0)                                            \
         ? st_trace_span((t), ST_TRACE_WHAT((kind), (core), (peer), (index)), (arg)) \
         : (void)0)

#endif
