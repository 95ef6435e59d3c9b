/* What is due, earliest first and in one order of what is due at one instant; and the digest of what has happened. */
#ifndef ST_SIM_EVENTS_H
#define ST_SIM_EVENTS_H

#include "st_sim_types.h"

static inline int st_sim_before(const struct st_sim_due *a, const struct st_sim_due *b)
{
    return a->time < b->time || (a->time == b->time && a->what < b->what);
}

static inline void st_sim_push(struct st_sim *s, int64_t time, enum st_sim_event event, uint32_t id)
{
    struct st_sim_due x = {time, (uint64_t)event << 32 | id};
    uint64_t at = s->ndue++;

    if (time > ST_SIM_LAST)
        s->error = ST_SIM_ETIME;
    for (uint64_t up; at && st_sim_before(&x, &s->due[up = (at - 1) / 4]); at = up)
        s->due[at] = s->due[up];
    s->due[at] = x;
}

static inline struct st_sim_due st_sim_pop(struct st_sim *s)
{
    struct st_sim_due top = s->due[0], x = s->due[--s->ndue];
    uint64_t at = 0;

    for (uint64_t first; (first = 4 * at + 1) < s->ndue;) {
        uint64_t least = first, end = first + 4 < s->ndue ? first + 4 : s->ndue;

        for (uint64_t c = first + 1; c < end; c++)
            if (st_sim_before(&s->due[c], &s->due[least]))
                least = c;
        if (!st_sim_before(&s->due[least], &x))
            break;
        s->due[at] = s->due[least];
        at = least;
    }
    s->due[at] = x;
    return top;
}

static inline void st_sim_sift(struct st_sim_due *a, uint64_t at, uint64_t n)
{
    struct st_sim_due x = a[at];

    for (uint64_t child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && st_sim_before(&a[child], &a[child + 1]);
        if (!st_sim_before(&x, &a[child]))
            break;
        a[at] = a[child];
    }
    a[at] = x;
}

/* Mostly in order already. */
static inline void st_sim_sort(struct st_sim_due *a, uint64_t n)
{
    uint64_t i = 1;

    while (i < n && st_sim_before(&a[i - 1], &a[i]))
        i++;
    if (i >= n)
        return;
    for (i = n / 2; i-- > 0;)
        st_sim_sift(a, i, n);
    for (i = n; i-- > 1;) {
        struct st_sim_due x = a[0];

        a[0] = a[i];
        a[i] = x;
        st_sim_sift(a, 0, i);
    }
}

static inline void st_sim_digest(struct st_sim *s, uint64_t word)
{
    s->digest = (s->digest ^ word) * UINT64_C(0x9fb21c651e98df25);
    s->digest ^= s->digest >> 32;
}

#endif
