/* Weak order: stores that wait.  The caller has the thread's lock.
 *
 * A store may take effect when no earlier one of its thread on the same bytes waits; one with release, when no earlier one
 * waits at all.  So later stores overtake earlier ones, and those with release, but not on the same bytes.
 */
#ifndef ST_WEAK_BUFFER_H
#define ST_WEAK_BUFFER_H

#include "st_weak_sight.h"

/* Store i takes effect. */
static inline void st_weak_make(struct st_weak_thread *t, uint32_t i)
{
    struct st_weak_store s = t->stores[i];

    if (s.data) {
        st_weak_making++;
        if (s.run)
            (void)s.run(s.dtype, s.op, s.to, s.data, s.count); /* it has said that it can */
        else
            memcpy(s.to, s.data, s.bytes);
        st_weak_making--;
        free(s.data);
        t->kept -= s.bytes;
    } else if (s.bytes == 4) { /* both pair with whatever the caller's does */
        (st_store_release_32)((uint32_t *)(void *)s.to, (uint32_t)s.value);
    } else {
        (st_store_release_64)((uint64_t *)(void *)s.to, s.value);
    }
    st_weak_forget(t, s.to, s.bytes);
    t->counts[ST_WEAK_OVERTOOK] += i > 0;
    t->nstores--;
    memmove(&t->stores[i], &t->stores[i + 1], (t->nstores - i) * sizeof s);
}

/* The first store that i must come after, or i: there is none. */
static inline uint32_t st_weak_before(const struct st_weak_thread *t, uint32_t i)
{
    const struct st_weak_store *s = &t->stores[i];
    uint32_t k;

    for (k = 0; k < i && !s->release; k++)
        if (st_weak_meets(s->to, s->bytes, t->stores[k].to, t->stores[k].bytes))
            return k;
    return s->release ? 0 : i;
}

/* Store i takes effect, and before it what must. */
static inline void st_weak_force(struct st_weak_thread *t, uint32_t i)
{
    uint32_t k;

    while ((k = st_weak_before(t, i)) != i) {
        uint32_t n = t->nstores;

        st_weak_force(t, k);
        i -= n - t->nstores; /* all that went were before it */
    }
    st_weak_make(t, i);
}

/* All of them, in an order that is allowed. */
static inline void st_weak_flush(struct st_weak_thread *t)
{
    while (t->nstores)
        st_weak_force(t, t->nstores > 1 ? (uint32_t)st_weak_below(t, t->nstores) : 0);
}

/* This thread reads or writes these bytes by itself. */
static inline void st_weak_touch(struct st_weak_thread *t, const void *p, uint64_t bytes)
{
    uint32_t i;

    for (i = 0; i < t->nstores;)
        if (st_weak_meets(p, bytes, t->stores[i].to, t->stores[i].bytes)) {
            st_weak_force(t, i);
            i = 0;
        } else {
            i++;
        }
}

/* Some of those that may. */
static inline void st_weak_settle(struct st_weak_thread *t)
{
    uint32_t n = t->nstores, k, i;

    for (k = n ? (uint32_t)st_weak_below(t, n) : 0, n = t->nstores; n && k < t->nstores; k++) {
        i = t->nstores - 1 - k; /* younger ones first */
        if (t->stores[i].due <= t->steps && st_weak_before(t, i) == i)
            st_weak_make(t, i);
    }
}

/* Those that have waited too long; how many wait still. */
static inline uint32_t st_weak_overdue(struct st_weak_thread *t, uint64_t now)
{
    uint32_t i;

    for (i = 0; i < t->nstores;)
        if (t->stores[i].due_ns <= now) {
            st_weak_force(t, i);
            i = 0;
        } else {
            i++;
        }
    return t->nstores;
}

static inline void st_weak_push(struct st_weak_thread *t, struct st_weak_store s)
{
    uint64_t r = st_weak_roll(t), ns = 10000ull << (r >> 8 & 7);

    while (t->nstores == ST_WEAK_STORES || (s.data && t->kept + s.bytes > ST_WEAK_KEPT))
        st_weak_make(t, 0);
    s.due = t->steps + ((r & 3) == 0 ? 0 : (r & 3) < 3 ? 1 + (r >> 16 & 7) : 1 + (r >> 16 & 63));
    s.due_ns = st_weak_clock() + (ns < ST_WEAK_MOST_NS ? ns : ST_WEAK_MOST_NS);
    t->kept += s.data ? s.bytes : 0;
    t->counts[ST_WEAK_LATE]++;
    t->stores[t->nstores++] = s;
}

/* Has this thread stored there what has not taken effect?  1: *v, 0: no, -1: in part, or bytes. */
static inline int st_weak_own(const struct st_weak_thread *t, const void *p, uint32_t bytes, uint64_t *v)
{
    uint32_t i;

    for (i = t->nstores; i-- > 0;) {
        const struct st_weak_store *s = &t->stores[i];

        if (!st_weak_meets(p, bytes, s->to, s->bytes))
            continue;
        *v = s->value;
        return s->to == p && s->bytes == bytes && !s->data ? 1 : -1;
    }
    return 0;
}

#endif
