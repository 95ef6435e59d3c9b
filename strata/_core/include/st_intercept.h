/* The memory of numpy's arrays, taken from a die's heap.
 *
 * numpy lets a program replace the four functions that it gets array data from
 * (NEP 49).  Here they are, without numpy and without Python: requests of at
 * least `min_bytes` are met by the heap, all others, and those that the heap
 * cannot meet, by the functions below, which were in use before.  What a pointer
 * is follows from its address alone, never from when or by whom it was made.
 *
 * What numpy asks of them, beyond C's rules:
 *
 * - It does not say how long the old memory is when it resizes.  The heap knows
 *   its own; memory from below is resized there first, so that as much as is
 *   copied may be read.
 * - It mostly holds the interpreter's lock; text is read without it.  The functions
 *   below may need it (numpy's own cache small pieces).  `hold` takes it if need be.
 * - While it resizes it has just found out that nobody else refers to the array.
 *   Other threads must not run then, so the lock is kept, however long pages
 *   take.  When memory is made or ended, nobody knows the array: `detach` lets
 *   others run while pages are mapped, as strata.empty() does.
 *
 * In a forked child, and after the die has left its job, requests go below.  The child frees
 * nothing of its parent's; how long that is it finds in `view` (only the heap's header is wiped). */
#ifndef ST_INTERCEPT_H
#define ST_INTERCEPT_H

#include "st_abi.h"
#include "st_atomic.h"
#include "st_cgroup.h"
#include "st_ctx.h"
#include "st_heap.h"

#define ST_INTERCEPT_OFF UINT64_MAX  /* a min_bytes that nothing reaches */
#define ST_INTERCEPT_FILL (1u << 18) /* zeroing more lets other threads run */

/* What numpy would use without us. */
struct st_below {
    void *arg;
    void *(*obtain)(void *arg, size_t bytes);
    void *(*obtain_zero)(void *arg, size_t count, size_t size);
    void *(*resize)(void *arg, void *p, size_t bytes);
    void (*release)(void *arg, void *p, size_t bytes);
};

/* The interpreter's lock, and its threads' warnings. */
struct st_intercept_hooks {
    void *(*detach)(void);   /* gives the lock up; NULL if this thread does not hold it */
    void (*attach)(void *);  /* takes it again */
    int (*hold)(void);       /* takes it, held or not */
    void (*drop)(int);       /* undoes hold */
    int (*notice)(void *arg); /* has a warning given later; 0: it will be */
};

struct st_intercept_counters {
    uint64_t arrays, bytes; /* met by the heap */
    uint64_t fallbacks, fallback_bytes;
};

/* A die's heap, as the interceptors of a process see it.  Never freed. */
struct st_intercept_source {
    struct st_heap *heap;
    struct st_heap view;    /* where the heap's tables are, also for forked children */
    uint64_t low, high;     /* the die's VA segment */
    const uint32_t *state;  /* of the die in shared memory; NULL: it never leaves */
    const struct st_cgroup *groups;
    uint32_t ngroups;
    uint32_t noticed; /* a warning is on its way */
    struct st_intercept_counters count;
    uint64_t refused; /* bytes of the first request that was not met, and why */
    int64_t why;
    const struct st_intercept_hooks *hooks;
    struct st_intercept_source *next; /* the heap of a job before, in a process forked from a die */
};

/* One handler of numpy's. */
struct st_intercept {
    struct st_intercept_source *source;
    uint64_t min_bytes;
    struct st_below below;
};

/* Sets up a source that is all zero but for groups and hooks.  ctx: the die that the heap's
 * pages are of, or NULL. */
static inline void st_intercept_bind(struct st_intercept_source *s, struct st_heap *heap,
                                     const struct st_ctx *ctx)
{
    s->heap = heap;
    pthread_mutex_lock(&heap->mu);
    s->view = *heap;
    pthread_mutex_unlock(&heap->mu);
    s->low = heap->cfg.base;
    s->high = heap->cfg.base + (heap->cfg.segment_pages << ST_HEAP_PAGE_SHIFT);
    s->state = ctx ? &ctx->dies[ctx->rank].state : NULL;
}

static inline void st_intercept_limit(struct st_intercept *s, uint64_t min_bytes)
{
    st_store_relaxed_64(&s->min_bytes, min_bytes);
}

/* The source that an address belongs to; NULL: it is from below. */
static inline struct st_intercept_source *st_intercept_find(struct st_intercept *s, const void *p)
{
    struct st_intercept_source *from = s->source;

    while (from && ((uintptr_t)p < from->low || (uintptr_t)p >= from->high))
        from = from->next;
    return from;
}

/* Whether a request is for the heap. */
static inline int st_intercept_wants(struct st_intercept *s, uint64_t bytes)
{
    return bytes >= st_load_relaxed_64(&s->min_bytes) &&
           (!s->source->state || st_load_relaxed_32(s->source->state) == ST_DIE_JOINED);
}

/* A request that was for the heap has been met from below.  Nothing is said of a forked child. */
static inline void st_intercept_refused(struct st_intercept_source *from, uint64_t bytes, int why)
{
    if (why == ST_OK || why == ST_ENOJOB)
        return;
    st_count(&from->count.fallbacks, 1);
    st_count(&from->count.fallback_bytes, bytes);
    if (!st_cas_acq_rel_32(&from->noticed, 0, 1)) /* pairs with itself: one thread gives notice */
        return;
    from->refused = bytes;
    from->why = why;
    if (from->hooks->notice(from) != 0)
        st_store_release_32(&from->noticed, 0); /* pairs with the cas above: the next may try */
}

/* Maps pages for a request, unless a cgroup would kill somebody for them. */
static inline int st_intercept_grow(struct st_intercept_source *from, uint64_t bytes, uint64_t *va,
                                    int *fresh)
{
    uint64_t pages = (bytes + ST_HEAP_PAGE - 1) & ~(ST_HEAP_PAGE - 1);

    if (from->ngroups && st_cgroup_free(from->groups, from->ngroups) < pages) {
        (void)st_heap_trim(from->heap, 0); /* whatever it says, the next look decides */
        if (st_cgroup_free(from->groups, from->ngroups) < pages)
            return ST_ENOMEM;
    }
    return st_heap_grow_as(from->heap, bytes, ST_HEAP_FOREIGN, va, fresh);
}

/* Memory of the heap; NULL if it cannot meet the request, and *why. */
static inline void *st_intercept_take(struct st_intercept_source *from, uint64_t bytes, int *fresh,
                                      int may_detach, int *why)
{
    uint64_t va = 0;
    int rc = st_heap_take_as(from->heap, bytes, ST_HEAP_FOREIGN, &va, fresh);

    if (rc == ST_AGAIN) {
        void *held = may_detach ? from->hooks->detach() : NULL;
        rc = st_intercept_grow(from, bytes, &va, fresh);
        if (held)
            from->hooks->attach(held);
    }
    if (rc == ST_OK) {
        st_count(&from->count.arrays, 1);
        st_count(&from->count.bytes, bytes);
    }
    *why = rc;
    return (void *)(uintptr_t)va;
}

static inline void st_intercept_put(struct st_intercept_source *from, void *p, int may_detach)
{
    void *held;

    if (st_heap_put(from->heap, (uintptr_t)p) != ST_AGAIN)
        return;
    held = may_detach ? from->hooks->detach() : NULL;
    st_heap_settle(from->heap);
    if (held)
        from->hooks->attach(held);
}

/* Bytes that may be read and written at a live allocation of the heap; 0: none begins there. */
static inline uint64_t st_intercept_extent(struct st_intercept_source *from, const void *p)
{
    uint64_t size;

    if (!st_heap_mine(from->heap))
        return st_heap_extent_locked(&from->view, (uintptr_t)p);
    pthread_mutex_lock(&from->heap->mu);
    size = st_heap_extent_locked(from->heap, (uintptr_t)p);
    pthread_mutex_unlock(&from->heap->mu);
    return size;
}

/* ---- what numpy calls ------------------------------------------------------------ */

static inline void *st_intercept_malloc(void *arg, size_t bytes)
{
    struct st_intercept *s = arg;
    int fresh, why = ST_OK;
    void *p = NULL;

    if (st_intercept_wants(s, bytes))
        p = st_intercept_take(s->source, bytes, &fresh, 1, &why);
    if (!p) {
        p = s->below.obtain(s->below.arg, bytes);
        if (p)
            st_intercept_refused(s->source, bytes, why);
    }
    return p;
}

/* Zeroes memory that no thread knows yet. */
static inline void st_intercept_clear(struct st_intercept_source *from, void *p, size_t bytes)
{
    void *held = bytes >= ST_INTERCEPT_FILL ? from->hooks->detach() : NULL;

    memset(p, 0, bytes);
    if (held)
        from->hooks->attach(held);
}

static inline void *st_intercept_calloc(void *arg, size_t count, size_t size)
{
    struct st_intercept *s = arg;
    size_t bytes;
    int fresh = 0, why = ST_OK;
    void *p = NULL;

    if (!__builtin_mul_overflow(count, size, &bytes) && st_intercept_wants(s, bytes))
        p = st_intercept_take(s->source, bytes, &fresh, 1, &why);
    if (!p) {
        p = s->below.obtain_zero(s->below.arg, count, size);
        if (p)
            st_intercept_refused(s->source, bytes, why);
    } else if (!fresh) {
        st_intercept_clear(s->source, p, bytes);
    }
    return p;
}

static inline void st_intercept_free(void *arg, void *p, size_t bytes)
{
    struct st_intercept *s = arg;
    struct st_intercept_source *from = st_intercept_find(s, p);

    if (from)
        st_intercept_put(from, p, 1);
    else
        s->below.release(s->below.arg, p, bytes);
}

/* Memory from below, resized there and moved to the heap if it is large enough now. */
static inline void *st_intercept_raise(struct st_intercept *s, void *p, size_t bytes)
{
    void *now, *old = s->below.resize(s->below.arg, p, bytes);
    int fresh, held, why;

    if (!old || !st_intercept_wants(s, bytes))
        return old;
    now = st_intercept_take(s->source, bytes, &fresh, 0, &why);
    if (!now) {
        st_intercept_refused(s->source, bytes, why);
        return old;
    }
    memcpy(now, old, bytes);
    held = s->source->hooks->hold();
    s->below.release(s->below.arg, old, bytes);
    s->source->hooks->drop(held);
    return now;
}

static inline void *st_intercept_realloc(void *arg, void *p, size_t bytes)
{
    struct st_intercept *s = arg;
    struct st_intercept_source *from = st_intercept_find(s, p);
    uint64_t size;
    void *now = NULL;
    int fresh, held, why = ST_OK, wanted = st_intercept_wants(s, bytes);

    if (!from)
        return st_intercept_raise(s, p, bytes);
    size = st_intercept_extent(from, p);
    if (!size)
        return NULL; /* numpy's pointer is not what it was given: nothing is right to do */
    if (wanted && from == s->source && st_heap_mine(from->heap) && st_heap_round(bytes) == size)
        return p;
    if (wanted)
        now = st_intercept_take(s->source, bytes, &fresh, 0, &why);
    if (!now) {
        held = s->source->hooks->hold();
        now = s->below.obtain(s->below.arg, bytes);
        s->source->hooks->drop(held);
        if (!now)
            return NULL;
        st_intercept_refused(s->source, bytes, why);
    }
    memcpy(now, p, bytes < size ? bytes : size);
    st_intercept_put(from, p, 0);
    return now;
}

#endif
