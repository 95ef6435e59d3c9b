/* Sorting, by merging the runs that are there. */
#ifndef ST_SCHEDULE_SORT_H
#define ST_SCHEDULE_SORT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct st_sched_key { /* what is sorted: by key, then by second, then by at; no two are equal */
    uint64_t key, rest;
};

static inline struct st_sched_key st_sched_key(uint64_t key, int32_t second, uint32_t at)
{
    return (struct st_sched_key){key, (uint64_t)((uint32_t)second ^ 1u << 31) << 32 | at};
}

static inline int32_t st_sched_second(const struct st_sched_key *k)
{
    return (int32_t)((uint32_t)(k->rest >> 32) ^ 1u << 31);
}

static inline uint32_t st_sched_at(const struct st_sched_key *k) { return (uint32_t)k->rest; }

static inline int st_sched_before(const struct st_sched_key *a, const struct st_sched_key *b)
{
    return (a->key < b->key) | ((a->key == b->key) & (a->rest < b->rest));
}

/* Merges from[a, b) and from[b, c), each sorted, into `to`. */
static inline void st_sched_merge(const struct st_sched_key *from, size_t a, size_t b, size_t c, struct st_sched_key *to)
{
    size_t i = a, j = b;

    if (b < c && st_sched_before(&from[c - 1], &from[a])) { /* a rotation */
        memcpy(to, &from[b], (c - b) * sizeof(*to));
        to += c - b;
        j = c;
    }
    while (i < b && j < c)
        *to++ = from[st_sched_before(&from[j], &from[i]) ? j++ : i++];
    memcpy(to, &from[i], (b - i) * sizeof(*to));
    memcpy(to + (b - i), &from[j], (c - j) * sizeof(*to));
}

/* Sorts keys by merging the runs it finds: in linear time what is sorted, or sorted but
 * for a rotation, as peers usually are.  `spare` is as large. */
static inline void st_sched_sort(struct st_sched_key *keys, struct st_sched_key *spare, size_t n)
{
    struct st_sched_key *from = keys, *to = spare, *swap;
    size_t a, b, c, runs;

    do {
        for (a = 0, runs = 0; a < n; a = c, runs++) {
            for (b = a + 1; b < n && st_sched_before(&from[b - 1], &from[b]); b++) {
            }
            for (c = b + (b < n); c < n && st_sched_before(&from[c - 1], &from[c]); c++) {
            }
            if (c - a == n && b == n)
                break; /* all of it is sorted */
            st_sched_merge(from, a, b, c, &to[a]);
        }
        if (a < n || !n)
            break;
        swap = from;
        from = to;
        to = swap;
    } while (runs > 1);
    if (from != keys)
        memcpy(keys, from, n * sizeof(*keys));
}

#endif
