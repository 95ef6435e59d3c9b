/* Weak order: the hooks. */
#ifndef ST_WEAK_H
#define ST_WEAK_H

#include "st_weak_access.h"

#define ST_WEAK_ON (__builtin_expect(st_weak.seed != 0, 0) && !st_weak_making)

#define ST_WEAK_FAMILY(bits)                                                                                        \
    ST_EXPORTED uint##bits##_t st_hook_load_##bits(const uint##bits##_t *p, enum st_order order, const char *where) \
    {                                                                                                               \
        if (ST_WEAK_ON)                                                                                             \
            return (uint##bits##_t)st_weak_load(p, bits / 8, order, where);                                         \
        if (order == ST_RELAXED)                                                                                    \
            return (st_load_relaxed_##bits)(p);                                                                     \
        return order == ST_ACQUIRE ? (st_load_acquire_##bits)(p) : (st_load_seqcst_##bits)(p);                      \
    }                                                                                                               \
    ST_EXPORTED void st_hook_store_##bits(uint##bits##_t *p, uint##bits##_t v, enum st_order order,                 \
                                          const char *where)                                                        \
    {                                                                                                               \
        if (ST_WEAK_ON)                                                                                             \
            st_weak_store(p, bits / 8, v, order, where);                                                            \
        else if (order == ST_RELAXED)                                                                               \
            (st_store_relaxed_##bits)(p, v);                                                                        \
        else if (order == ST_RELEASE)                                                                               \
            (st_store_release_##bits)(p, v); /* pairs with whatever the caller's does */                            \
        else                                                                                                        \
            (st_store_seqcst_##bits)(p, v); /* pairs with whatever the caller's does */                             \
    }

ST_WEAK_FAMILY(32)
ST_WEAK_FAMILY(64)

ST_EXPORTED void st_hook_rmw(const void *p, enum st_order order, const char *where)
{
    struct st_weak_thread *t;

    if (!ST_WEAK_ON)
        return;
    t = st_weak_step(128);
    if (st_weak_order(order, where) == ST_RELAXED) {
        st_weak_touch(t, p, 8);
        st_weak_forget(t, p, 8);
    } else {
        st_weak_flush(t);
        st_weak_blind(t);
    }
    st_weak_over(t);
}

ST_EXPORTED void st_hook_fence(const char *where) { st_hook_rmw(NULL, ST_SEQCST, where); }

/* A large copy, in pieces, in any order. */
static void st_weak_pieces(struct st_weak_thread *t, uint8_t *to, const uint8_t *from, uint64_t bytes, int nt)
{
    uint64_t n = (bytes + ST_WEAK_COPY - 1) / ST_WEAK_COPY, k, at = st_weak_below(t, n), step, x, y, rest;

    do { /* a step that comes to every piece */
        step = 1 + st_weak_below(t, n);
        for (x = step, y = n; y; rest = x % y, x = y, y = rest) {
        }
    } while (x != 1);
    for (k = 0; k < n; k++, at = (at + step) % n) {
        uint64_t begin = at * ST_WEAK_COPY;

        rest = bytes - begin;
        t->counts[ST_WEAK_PIECES]++;
        (st_copy)(to + begin, from + begin, rest < ST_WEAK_COPY ? rest : ST_WEAK_COPY, nt);
        st_weak_pause(t, 16);
    }
}

/* What a copy has read: bytes of it may be older. */
static inline void st_weak_read(struct st_weak_thread *t, uint8_t *to, const void *from, uint64_t bytes)
{
    if (!st_weak_shared(from))
        return;
    if (bytes <= ST_WEAK_READ)
        st_weak_earlier(t, to, from, bytes);
    else
        st_weak_forget(t, from, bytes);
}

ST_EXPORTED void st_hook_copy(void *dst, const void *src, uint64_t bytes, int nt)
{
    struct st_weak_thread *t;
    uint64_t done, cut;

    if (!bytes || dst == src)
        return;
    if (!ST_WEAK_ON) {
        (st_copy)(dst, src, bytes, nt);
        return;
    }
    t = st_weak_step(128);
    st_weak_touch(t, src, bytes);
    st_weak_forget(t, dst, bytes);
    if (bytes > ST_WEAK_COPY || !st_weak_shared(dst)) {
        st_weak_touch(t, dst, bytes);
        if (bytes <= ST_WEAK_READ)
            (st_copy)(dst, src, bytes, nt);
        st_weak_read(t, dst, src, bytes);
        st_weak_over(t);
        if (bytes > ST_WEAK_COPY)
            st_weak_pieces(t, dst, src, bytes, nt);
        else if (bytes > ST_WEAK_READ)
            (st_copy)(dst, src, bytes, nt);
        return;
    }
    for (done = 0; done < bytes; done += cut) { /* in up to about four parts, each as late as it likes */
        uint8_t *data;

        cut = bytes - done > 64 && st_weak_below(t, 2) ? (bytes - done) / 2 & ~63ull : bytes - done;
        cut = cut ? cut : bytes - done;
        data = malloc(cut);
        if (!data)
            abort(); /* a test cannot go on without what it tests with */
        memcpy(data, (const uint8_t *)src + done, cut);
        st_weak_read(t, data, (const uint8_t *)src + done, cut);
        st_weak_push(t, (struct st_weak_store){.to = (uint8_t *)dst + done, .data = data, .bytes = cut});
    }
    st_weak_settle(t);
    st_weak_over(t);
}

ST_EXPORTED void st_hook_touch(const void *p, uint64_t bytes)
{
    struct st_weak_thread *t;

    if (!ST_WEAK_ON || !st_weak_me)
        return;
    t = st_weak_me;
    (pthread_mutex_lock)(&t->mu);
    st_weak_touch(t, p, bytes);
    st_weak_forget(t, p, bytes);
    (pthread_mutex_unlock)(&t->mu);
}

ST_EXPORTED void st_hook_forget(void)
{
    struct st_weak_thread *t = st_weak_me;

    if (!ST_WEAK_ON || !t)
        return;
    (pthread_mutex_lock)(&t->mu);
    st_weak_blind(t);
    (pthread_mutex_unlock)(&t->mu);
}

ST_EXPORTED void st_hook_drain(void)
{
    struct st_weak_thread *t = st_weak_me;

    if (!ST_WEAK_ON || !t)
        return;
    (pthread_mutex_lock)(&t->mu);
    st_weak_flush(t);
    st_weak_blind(t);
    (pthread_mutex_unlock)(&t->mu);
}

ST_EXPORTED void st_hook_unmapping(const void *p, uint64_t bytes)
{
    uint32_t i;

    if (st_weak.seed)
        st_weak_flush_all();
    (pthread_mutex_lock)(&st_weak.mu);
    for (i = 0; p && i < st_weak.nranges; i++)
        if (st_weak.ranges[i][0] - (uint64_t)(uintptr_t)p < bytes && st_weak.ranges[i][1] <= bytes)
            st_weak.ranges[i][1] = 0; /* its place is used again */
    (pthread_mutex_unlock)(&st_weak.mu);
}

ST_EXPORTED void st_hook_shared(const void *p, uint64_t bytes)
{
    uint32_t i;

    (pthread_mutex_lock)(&st_weak.mu);
    for (i = 0; i < st_weak.nranges && st_weak.ranges[i][1]; i++) {
    }
    if (i < ST_WEAK_RANGES) { /* else it is not delayed */
        st_weak.ranges[i][0] = (uint64_t)(uintptr_t)p;
        st_weak.ranges[i][1] = bytes;
        if (i == st_weak.nranges) /* pairs with st_weak_shared */
            (st_store_release_32)(&st_weak.nranges, i + 1);
    }
    (pthread_mutex_unlock)(&st_weak.mu);
}

ST_EXPORTED uint32_t st_hook_choose(uint32_t n, uint32_t usual)
{
    struct st_weak_thread *t;

    if (!ST_WEAK_ON || !n)
        return usual;
    t = st_weak_self();
    t->counts[ST_WEAK_TURNS]++;
    return (uint32_t)st_weak_below(t, n);
}

/* From now on; seed 0: as strong as the hardware's.  `broken` stays the caller's; NULL: nothing is. */
static void st_weak_begin(uint64_t seed, uint32_t rank, const char *broken)
{
    st_weak_flush_all();
    st_weak.rank = rank;
    st_weak.broken = broken;
    st_weak.numbers = 0;
    st_weak.epoch++;
    st_weak.seed = seed;
}

static void st_weak_counted(uint64_t *counts)
{
    struct st_weak_thread *t;
    uint32_t i;

    (pthread_mutex_lock)(&st_weak.mu);
    memcpy(counts, st_weak.counts, sizeof st_weak.counts);
    for (t = st_weak.first; t; t = t->next) {
        (pthread_mutex_lock)(&t->mu);
        for (i = 0; i < ST_WEAK_COUNTS; i++)
            counts[i] += t->counts[i];
        (pthread_mutex_unlock)(&t->mu);
    }
    (pthread_mutex_unlock)(&st_weak.mu);
}

#endif
