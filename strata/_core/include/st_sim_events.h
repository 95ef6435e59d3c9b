/* What is due, earliest first and in one order of what is due at one instant; and the digest of what has happened. */
#ifndef ST_SIM_EVENTS_H
#define ST_SIM_EVENTS_H

#include "st_sim_types.h"

static inline int st_sim_before(const struct st_sim_due *a, const struct st_sim_due *b)
{
    return a->time < b->time || (a->time == b->time && a->what < b->what);
}

static inline uint32_t st_sim_new_bucket(struct st_sim *s, int64_t time)
{
    uint32_t b = s->free_bucket ? s->free_bucket - 1 : s->nbuckets++;
    uint32_t at = s->ndue++;

    if (s->free_bucket)
        s->free_bucket = s->bucket[b].next;
    for (uint32_t up; at && time < s->due[up = (at - 1) / 4].time; at = up)
        s->due[at] = s->due[up];
    s->due[at] = (struct st_sim_instant){time, b, 0};
    s->bucket[b] = (struct st_sim_bucket){.time = time, .live = 1};
    return b;
}

static inline void st_sim_push(struct st_sim *s, int64_t time, enum st_sim_event event, uint32_t id)
{
    uint32_t *recent = &s->recent[((uint64_t)time * UINT64_C(0x9e3779b97f4a7c15) >> 40) % ST_SIM_RECENT];
    uint32_t node = event == ST_SIM_START ? (uint32_t)s->nlanes + id : id;
    struct st_sim_bucket *b = &s->bucket[*recent ? *recent - 1 : 0];

    if (time > ST_SIM_LAST)
        s->error = ST_SIM_ETIME;
    s->pending[node] = (struct st_sim_pending){(uint64_t)event << 32 | id, 0, 0};
    if (*recent && b->live && b->time == time) {
        s->pending[b->last].next = node + 1;
        b->last = node;
        return;
    }
    *recent = st_sim_new_bucket(s, time) + 1;
    b = &s->bucket[*recent - 1];
    b->first = b->last = node;
}

/* Moves all of the first bucket to the batch. */
static inline void st_sim_pop(struct st_sim *s)
{
    uint32_t number = s->due[0].bucket, at = 0;
    struct st_sim_bucket *b = &s->bucket[number];
    struct st_sim_instant x = s->due[--s->ndue];

    for (uint32_t node = b->first + 1; node; node = s->pending[node - 1].next)
        s->batch[s->nbatch++] = (struct st_sim_due){b->time, s->pending[node - 1].what};
    b->live = 0;
    b->next = s->free_bucket;
    s->free_bucket = number + 1;
    for (uint32_t first; (first = 4 * at + 1) < s->ndue;) {
        uint32_t least = first, end = first + 4 < s->ndue ? first + 4 : s->ndue;

        for (uint32_t c = first + 1; c < end; c++)
            if (s->due[c].time < s->due[least].time)
                least = c;
        if (s->due[least].time >= x.time)
            break;
        s->due[at] = s->due[least];
        at = least;
    }
    s->due[at] = x;
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
