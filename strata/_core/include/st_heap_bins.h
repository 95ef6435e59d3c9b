/* Free ranges sorted by size: one list for each size, and a bitmap over the
 * lists with summary levels above it, so that the smallest range that is large
 * enough is found in a few word reads, whatever the number of ranges.
 *
 * Lists hold 32-bit handles; 0 is none.  The caller owns the links.
 * Sizes run from 1 to `cap`.  All memory comes zeroed from the caller. */
#ifndef ST_HEAP_BINS_H
#define ST_HEAP_BINS_H

#include <stddef.h>
#include <stdint.h>

enum { ST_BINS_LEVELS = 4 }; /* 64**4 sizes */

struct st_bins {
    uint32_t cap, levels;
    uint32_t *head;
    uint64_t *bits[ST_BINS_LEVELS];
    uint64_t words[ST_BINS_LEVELS];
};

/* Lays the bins out over `mem`; returns the bytes taken (also for b == NULL,
 * which only measures), or 0 if cap is too large. */
static inline size_t st_bins_layout(struct st_bins *b, uint32_t cap, void *mem)
{
    size_t at = ((size_t)cap + 1) * sizeof(uint32_t);
    uint64_t n = (uint64_t)cap + 1;
    uint32_t level = 0;

    at = (at + 63) & ~(size_t)63;
    do {
        if (level == ST_BINS_LEVELS)
            return 0;
        n = (n + 63) / 64;
        if (b) {
            b->bits[level] = (uint64_t *)((char *)mem + at);
            b->words[level] = n;
        }
        at += n * sizeof(uint64_t);
        level++;
    } while (n > 1);
    if (b) {
        b->cap = cap;
        b->levels = level;
        b->head = (uint32_t *)mem;
    }
    return (at + 63) & ~(size_t)63;
}

/* The list of `size` became non-empty. */
static inline void st_bins_mark(struct st_bins *b, uint64_t size)
{
    for (uint32_t l = 0; l < b->levels; l++, size >>= 6)
        b->bits[l][size >> 6] |= UINT64_C(1) << (size & 63);
}

/* The list of `size` became empty. */
static inline void st_bins_clear(struct st_bins *b, uint64_t size)
{
    for (uint32_t l = 0; l < b->levels; l++, size >>= 6) {
        b->bits[l][size >> 6] &= ~(UINT64_C(1) << (size & 63));
        if (b->bits[l][size >> 6])
            return;
    }
}

/* The smallest size >= `size` whose list is not empty; 0 if there is none. */
static inline uint32_t st_bins_find(const struct st_bins *b, uint64_t size)
{
    uint64_t i = size;

    for (uint32_t l = 0; l < b->levels; l++) {
        uint64_t w = i >> 6, m;
        if (w >= b->words[l])
            return 0;
        m = b->bits[l][w] & (~UINT64_C(0) << (i & 63));
        if (m) {
            i = (w << 6) + (uint64_t)__builtin_ctzll(m);
            while (l-- > 0)
                i = (i << 6) + (uint64_t)__builtin_ctzll(b->bits[l][i]);
            return (uint32_t)i;
        }
        i = w + 1;
    }
    return 0;
}

/* The largest size <= `size` whose list is not empty; 0 if there is none. */
static inline uint32_t st_bins_below(const struct st_bins *b, uint64_t size)
{
    uint64_t i = size;

    for (uint32_t l = 0; l < b->levels; l++) {
        uint64_t w = i >> 6, m = b->bits[l][w] & (~UINT64_C(0) >> (63 - (i & 63)));
        if (m) {
            i = (w << 6) + 63 - (uint64_t)__builtin_clzll(m);
            while (l-- > 0)
                i = (i << 6) + 63 - (uint64_t)__builtin_clzll(b->bits[l][i]);
            return (uint32_t)i;
        }
        if (w == 0)
            return 0;
        i = w - 1;
    }
    return 0;
}

/* The largest size whose list is not empty; 0 if all are empty. */
static inline uint32_t st_bins_largest(const struct st_bins *b)
{
    return st_bins_below(b, b->cap);
}

#endif
