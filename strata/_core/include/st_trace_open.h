/* What of a trace is not on the path: its memory, whose slices are, names. */
#ifndef ST_TRACE_OPEN_H
#define ST_TRACE_OPEN_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "st_flight.h"

#define ST_TRACE_STEP 2048u /* events for which memory is reserved at once */

#define ST_TRACE_COLD static __attribute__((noinline, cold, unused))

/* ---- memory --------------------------------------------------------------------- */

/* Backing for part of the control region: without it the first touch of a page would be a SIGBUS when the file system is
 * full.  Signals wait, since one would make the kernel undo the call. */
static inline int st_trace_reserve(int fd, uint64_t at, uint64_t bytes)
{
    sigset_t all, before;
    int rc, err = errno;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)bytes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = err; /* probes change nothing */
    return rc == 0;
}

/* What a word in shared memory says of how much has been written: anything. */
static inline uint64_t st_trace_sane(uint64_t head) { return head >> 48 ? 0 : head; }

/* The limit that a tracer's mode and memory set. */
static inline void st_trace_limit(struct st_tracer *t)
{
    uint64_t events = t->mask + 1, from = (st_load_relaxed_64)(&t->slice->from);

    t->limit = t->reserved < events ? t->reserved : UINT64_MAX;
    if (t->mode != ST_TRACE_STOP)
        return;
    from = from < t->head ? from : t->head;
    t->limit = from + events < t->limit ? from + events : t->limit;
}

/* Another mode since this thread wrote last. */
ST_TRACE_COLD void st_trace_adopt(struct st_tracer *t, uint32_t mode)
{
    t->mode = mode;
    t->starved = 0;
    t->last = st_flight_ticks(t->clock);
    st_trace_limit(t);
}

/* The limit has been reached.  0: the event is lost, and counted. */
ST_TRACE_COLD int st_trace_more(struct st_tracer *t)
{
    uint64_t events = t->mask + 1, bytes = sizeof *t->events, step;

    while (t->head >= t->reserved && t->reserved < events && !t->starved) {
        step = events - t->reserved < ST_TRACE_STEP ? events - t->reserved : ST_TRACE_STEP;
        if (st_trace_reserve(t->fd, t->at + bytes * t->reserved, bytes * step))
            t->reserved += step;
        else
            t->starved = 1; /* until the mode changes: a call for each event would be slow */
    }
    st_trace_limit(t);
    if (t->head < t->limit)
        return 1;
    (st_store_relaxed_64)(&t->slice->lost, (st_load_relaxed_64)(&t->slice->lost) + 1);
    return 0;
}

/* ---- the switch ------------------------------------------------------------------ */

static inline uint32_t st_trace_mode_of(const struct st_ctx *ctx, uint32_t die)
{
    return (st_load_relaxed_32)(&ctx->dies[die].trace_mode);
}

/* Of any die of the job, from any process that has it mapped. */
static inline void st_trace_set_mode(struct st_ctx *ctx, uint32_t die, uint32_t mode)
{
    if (ctx->flight && die == ctx->rank) /* memory may have come free: pairs with st_trace_area */
        (void)(st_cas_acq_rel_32)(&ctx->traces.state, ST_TRACES_FAILED, ST_TRACES_NONE);
    (st_store_release_32)(&ctx->dies[die].trace_mode, mode); /* pairs with nothing: threads find out */
}

/* ---- the die's area ---------------------------------------------------------------- */

/* Called when a die joins. */
static inline void st_trace_join(struct st_ctx *ctx, uint32_t rank)
{
    memset(&ctx->traces, 0, sizeof ctx->traces);
    ctx->traces.mode = &ctx->dies[rank].trace_mode;
}

static inline uint64_t st_trace_at(const struct st_header *job, uint32_t die)
{
    return job->traces_off + die * st_trace_bytes(job->trace_events);
}

/* Another process was this die: what it has written stays until a thread needs the slice. */
static inline void st_trace_inherit(struct st_traces *traces)
{
    uint32_t used = (st_load_relaxed_32)(&traces->area->names_used);

    traces->names_used = used <= ST_TRACE_NAMES ? used : 0;
    traces->names = traces->names_used ? (st_load_relaxed_32)(&traces->area->names) : 0;
}

/* The destructor of the die's pthread key: the thread ends, and another may have its slice. */
static inline void st_trace_leave(void *tracer)
{
    (st_store_release_64)(((struct st_tracer *)tracer)->key, 0); /* pairs with st_trace_claim */
}

/* Points each tracer at its slice. */
static inline void st_trace_point(struct st_ctx *ctx, uint64_t offset)
{
    uint64_t bytes = (ctx->job.trace_events * sizeof(struct st_trace_event) + 4095) & ~4095ull, at;
    struct st_traces *traces = &ctx->traces;
    uint32_t k;

    for (k = 0; k < ST_TRACE_SLICES; k++) {
        at = offset + ST_TRACE_EVENTS_AT + k * bytes;
        traces->tracers[k] = (struct st_tracer){
            .slice = &traces->area->slices[k], .events = (struct st_trace_event *)(void *)(ctx->control + at),
            .mask = ctx->job.trace_events - 1, .at = ctx->job.control_offset + at, .fd = ctx->fd,
            .clock = ctx->flight->clock, .key = &traces->keys[k]};
    }
    traces->ends = pthread_key_create(&traces->end, st_trace_leave) == 0; /* without it ended threads keep their slices */
}

/* The die's area, with memory under its first part; NULL: there is none. */
ST_TRACE_COLD struct st_trace *st_trace_area(struct st_ctx *ctx)
{
    struct st_traces *traces = &ctx->traces;
    uint32_t *made = &ctx->dies[ctx->rank].trace_made, state;
    uint64_t offset = st_trace_at(&ctx->job, ctx->rank);

    do {
        state = (st_load_acquire_32)(&traces->state); /* pairs with the store below */
        if (state == ST_TRACES_OPEN)
            return traces->area;
        if (!ctx->flight || state == ST_TRACES_FAILED)
            return NULL;
        if (state == ST_TRACES_OPENING)
            sched_yield(); /* another thread is at it */
    } while (state || !(st_cas_acq_rel_32)(&traces->state, ST_TRACES_NONE, ST_TRACES_OPENING)); /* pairs with itself */
    if (st_trace_reserve(ctx->fd, ctx->job.control_offset + offset, ST_TRACE_EVENTS_AT)) {
        traces->area = (struct st_trace *)(void *)(ctx->control + offset);
        if ((st_load_relaxed_32)(made))
            st_trace_inherit(traces);
        st_trace_point(ctx, offset);
        (st_store_release_32)(made, 1); /* pairs with st_trace_clear */
        state = ST_TRACES_OPEN;
    } else {
        state = ST_TRACES_FAILED; /* until somebody sets the mode again */
    }
    (st_store_release_32)(&traces->state, state); /* pairs with the load above */
    return state == ST_TRACES_OPEN ? traces->area : NULL;
}

/* ---- whose slices are ------------------------------------------------------------------ */

ST_TRACE_COLD void st_trace_role(struct st_tracer *t, uint32_t role, uint32_t index)
{
    t->role = role;
    t->index = index;
    (st_store_relaxed_32)(&t->slice->index, index);
    (st_store_relaxed_32)(&t->slice->role, role);
}

/* How well a slice would do for a thread: 3, one of its kind had it; 2, nobody; 1, somebody else.  The caller has it. */
static inline int st_trace_fits(const struct st_tracer *t, uint32_t role, uint32_t index)
{
    if (t->role == role && t->index == index)
        return 3;
    return !t->role && !(st_load_relaxed_32)(&t->slice->role) ? 2 : 1;
}

/* What stands in a slice that is another's now is not shown any more, and counted. */
static inline void st_trace_take(struct st_tracer *t, uint32_t life, uint32_t role, uint32_t index)
{
    struct st_trace_slice *s = t->slice;
    uint64_t events = t->mask + 1, from;

    if (!t->role) { /* of a process before this one, or of nobody */
        t->head = st_trace_sane((st_load_relaxed_64)(&s->head));
        if (t->head >= events && !st_trace_reserve(t->fd, t->at, events * sizeof *t->events))
            t->head = 0;
        t->reserved = t->head >= events ? events : 0;
    }
    t->tid = (uint32_t)(syscall)(SYS_gettid);
    if (t->role != role || t->index != index) {
        from = (st_load_relaxed_64)(&s->from);
        from = from < t->head ? t->head - from : 0;
        from = from < events ? from : events;
        (st_store_relaxed_64)(&s->lost, (st_load_relaxed_64)(&s->lost) + from);
        (st_store_relaxed_64)(&s->from, t->head);
        (st_store_relaxed_64)(&s->head, t->head);
    }
    (st_store_relaxed_32)(&s->tid, t->tid);
    (st_store_relaxed_32)(&s->life, life);
    st_trace_role(t, role, index);
}

/* A slice for a thread that has none; NULL: the event is lost, and counted. */
ST_TRACE_COLD struct st_tracer *st_trace_claim(struct st_ctx *ctx, uint64_t key, uint32_t mode, uint32_t role,
                                               uint32_t index)
{
    struct st_traces *traces = &ctx->traces;
    uint64_t *lost = &ctx->dies[ctx->rank].trace_lost;
    uint32_t k;
    int wanted;

    if (!st_is_die(ctx))
        return NULL; /* a forked child */
    for (wanted = st_trace_area(ctx) ? 3 : 0; wanted; wanted--)
        for (k = 0; k < ST_TRACE_SLICES; k++) {
            struct st_tracer *t = &traces->tracers[k];

            if ((st_load_relaxed_64)(&traces->keys[k]) ||
                !(st_cas_acq_rel_64)(&traces->keys[k], 0, key)) /* pairs with st_trace_leave, and the store below */
                continue;
            if (st_trace_fits(t, role, index) < wanted) {
                (st_store_release_64)(&traces->keys[k], 0); /* pairs with the cas above */
                continue;
            }
            st_trace_take(t, (uint32_t)ctx->dies[ctx->rank].incarnation, role, index);
            st_trace_adopt(t, mode);
            if (traces->ends)
                (void)pthread_setspecific(traces->end, t);
            return t;
        }
    (void)(st_add_acq_rel_64)(lost, 1); /* pairs with nothing: a count */
    return NULL;
}

/* ---- names ------------------------------------------------------------------------------ */

/* The number of a new name; 0: there is no room. */
ST_TRACE_COLD uint32_t st_trace_name(struct st_ctx *ctx, const char *text, uint32_t bytes)
{
    struct st_traces *traces = &ctx->traces;
    struct st_trace *area = bytes <= ST_TRACE_NAME_MOST && st_is_die(ctx) ? st_trace_area(ctx) : NULL;
    uint16_t length = (uint16_t)bytes;
    uint32_t made = 0;
    uint8_t *at;

    if (!area)
        return 0;
    while (!(st_cas_acq_rel_32)(&traces->naming, 0, 1)) /* pairs with the store below */
        sched_yield();
    at = (uint8_t *)area + ST_TRACE_NAMES_AT + traces->names_used;
    if (sizeof length + bytes <= ST_TRACE_NAMES - traces->names_used) {
        memcpy(at, &length, sizeof length);
        memcpy(at + sizeof length, text, bytes);
        traces->names_used += (uint32_t)sizeof length + bytes;
        made = ++traces->names;
        (st_store_relaxed_32)(&area->names_used, traces->names_used);
        (st_store_release_32)(&area->names, made); /* pairs with st_trace_names_read */
    } else {
        (st_store_relaxed_32)(&area->names_lost, (st_load_relaxed_32)(&area->names_lost) + 1);
    }
    (st_store_release_32)(&traces->naming, 0); /* pairs with the cas above */
    return made;
}

#endif
