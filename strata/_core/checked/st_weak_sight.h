/* Weak order: loads that are early.  The caller has the thread's lock.
 *
 * A thread knows some lines of shared memory that it has read before.  At an acquire it looks at some of them, and now and
 * then at one in between; relaxed loads and the source of a copy may then see what was there, until the next acquire: as if
 * they had been made early.  Of what it has loaded since, or stored, it sees nothing older.
 */
#ifndef ST_WEAK_SIGHT_H
#define ST_WEAK_SIGHT_H

#include "st_weak_state.h"

#define ST_WEAK_SIZE 64u /* bytes of a line */

/* As it is in memory, while others store by whatever means. */
__attribute__((noinline, no_sanitize("thread"), no_sanitize("address"))) static void
st_weak_look(uint64_t *word, const uint64_t *from)
{
    uint32_t i;

    for (i = 0; i < ST_WEAK_SIZE / 8; i++)
        word[i] = ((const volatile uint64_t *)from)[i];
}

/* Nothing that was seen before counts: an acquire, or a full barrier. */
static inline void st_weak_blind(struct st_weak_thread *t) { t->sight++; }

/* Nor are the places known: they may be unmapped. */
static inline void st_weak_unknown(struct st_weak_thread *t)
{
    t->sight++;
    t->nlines = 0;
}

static inline struct st_weak_line *st_weak_line(struct st_weak_thread *t, uint64_t at)
{
    uint32_t i;

    for (i = 0; i < t->nlines; i++)
        if (t->places[i] == at)
            return &t->lines[i];
    return NULL;
}

static inline void st_weak_see(struct st_weak_thread *t, uint32_t i, uint64_t now)
{
    struct st_weak_line *l = &t->lines[i];

    st_weak_look(l->word, (const uint64_t *)(uintptr_t)t->places[i]);
    l->sight = t->sight;
    l->seen = 0xff;
    l->left = (uint32_t)st_weak_roll(t) & 15;
    l->until_ns = now + ST_WEAK_MOST_NS;
}

/* This line may be read again. */
static inline void st_weak_learn(struct st_weak_thread *t, uint64_t at)
{
    uint32_t i = t->nlines;

    if (!st_weak_shared((const void *)(uintptr_t)at) || !st_weak_shared((const void *)(uintptr_t)(at + ST_WEAK_SIZE - 1)))
        return;
    if (i < ST_WEAK_LINES)
        t->nlines++;
    else
        i = (uint32_t)st_weak_below(t, ST_WEAK_LINES);
    t->places[i] = at;
    t->lines[i] = (struct st_weak_line){.used_ns = st_weak_clock()};
}

/* At an acquire, after it: some lines are loaded now, for what comes later.  Those long unused are forgotten. */
static inline void st_weak_acquired(struct st_weak_thread *t)
{
    uint64_t r = st_weak_roll(t), which, now;
    uint32_t i;

    st_weak_blind(t);
    if (!t->nlines || r >> 63)
        return;
    which = r >> 62 & 1 ? ~0ull : st_weak_roll(t) & (r >> 61 & 1 ? ~0ull : st_weak_roll(t));
    now = st_weak_clock();
    for (i = 0; i < t->nlines; i++)
        if (t->lines[i].used_ns + ST_WEAK_KNOWN_NS < now) {
            t->places[i] = t->places[--t->nlines];
            t->lines[i] = t->lines[t->nlines];
            i--;
        } else if (which >> i & 1) {
            st_weak_see(t, i, now);
        }
}

/* In between: one line, or all, of which nothing is known. */
static inline void st_weak_glance(struct st_weak_thread *t)
{
    uint64_t r = st_weak_roll(t), now;
    uint32_t i = t->nlines && r >> 63 ? (uint32_t)(r >> 8) % t->nlines : 0, end = r >> 63 ? i + 1 : t->nlines;

    if (r & 3 || !t->nlines)
        return;
    (pthread_mutex_lock)(&t->mu);
    now = st_weak_clock();
    for (; i < end && i < t->nlines; i++)
        if (t->lines[i].sight != t->sight || !t->lines[i].left)
            st_weak_see(t, i, now);
    (pthread_mutex_unlock)(&t->mu);
}

/* It has stored there, or loaded as it is now: nothing older is seen again. */
static inline void st_weak_forget(struct st_weak_thread *t, const void *p, uint64_t bytes)
{
    uint64_t begin = (uint64_t)(uintptr_t)p / 8, end = ((uint64_t)(uintptr_t)p + bytes + 7) / 8, k, first;
    uint32_t i;

    for (i = 0; i < t->nlines; i++) {
        first = t->places[i] / 8;
        if (first >= end || first + 8 <= begin)
            continue;
        for (k = first > begin ? first : begin; k < end && k < first + 8; k++)
            t->lines[i].seen &= (uint8_t)~(1u << (k - first));
    }
}

/* May this line be seen as it was?  Then the words in `seen` may. */
static inline struct st_weak_line *st_weak_old(struct st_weak_thread *t, uint64_t at)
{
    struct st_weak_line *l = st_weak_line(t, at);

    if (!l) {
        st_weak_learn(t, at);
        return NULL;
    }
    if (l->sight != t->sight || !l->left || !(st_weak_roll(t) >> 63))
        return NULL;
    l->used_ns = st_weak_clock();
    if (l->used_ns > l->until_ns) {
        l->left = 0;
        return NULL;
    }
    l->left--;
    return l;
}

/* A relaxed load that is early: 1, and its value. */
static inline int st_weak_stale(struct st_weak_thread *t, const void *p, uint32_t bytes, uint64_t *v)
{
    uint64_t at = (uint64_t)(uintptr_t)p, word = at % ST_WEAK_SIZE / 8, now;
    struct st_weak_line *l = st_weak_old(t, at & ~(ST_WEAK_SIZE - 1ull));

    if (!l || !(l->seen >> word & 1))
        return 0;
    *v = bytes == 8 ? l->word[word] : ((const uint32_t *)(const void *)&l->word[word])[at % 8 / 4];
    now = bytes == 8 ? (st_load_relaxed_64)(p) : (st_load_relaxed_32)(p);
    t->counts[ST_WEAK_STALE] += *v != now;
    return 1;
}

/* Bytes of shared memory that have just been copied: whole words of it may be older. */
static inline void st_weak_earlier(struct st_weak_thread *t, uint8_t *to, const void *from, uint64_t bytes)
{
    uint64_t begin = (uint64_t)(uintptr_t)from, end = begin + bytes, at, k;

    for (at = begin & ~(ST_WEAK_SIZE - 1ull); at < end; at += ST_WEAK_SIZE) {
        struct st_weak_line *l = st_weak_old(t, at);

        if (!l) {
            st_weak_forget(t, (const void *)(uintptr_t)at, ST_WEAK_SIZE);
            continue;
        }
        for (k = 0; k < 8; k++)
            if (at + 8 * k < begin || at + 8 * k + 8 > end) {
                l->seen &= (uint8_t)~(1u << k);
            } else if (l->seen >> k & 1) {
                t->counts[ST_WEAK_STALE] += memcmp(to + (at + 8 * k - begin), &l->word[k], 8) != 0;
                memcpy(to + (at + 8 * k - begin), &l->word[k], 8);
            }
    }
}

#endif
