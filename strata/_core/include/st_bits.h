/* Bitmaps: which pages and frames are in use. */
#ifndef ST_BITS_H
#define ST_BITS_H

#include <stdint.h>

static inline int st_bit(const uint64_t *map, uint64_t i) { return (map[i >> 6] >> (i & 63)) & 1; }

static inline void st_bits_set(uint64_t *map, uint64_t at, uint64_t n, int value)
{
    uint64_t i;

    for (i = at; i < at + n; i++) {
        if (value)
            map[i >> 6] |= 1ull << (i & 63);
        else
            map[i >> 6] &= ~(1ull << (i & 63));
    }
}

/* First run of free bits, at most n long, at or after `from`; its length in
 * *found (0: none).  With whole set, only a run of all n will do. */
static inline uint64_t st_bits_find(const uint64_t *map, uint64_t size, uint64_t from, uint64_t n,
                                    int whole, uint64_t *found)
{
    uint64_t i = from, run;

    *found = 0;
    while (i < size) {
        if ((i & 63) == 0 && map[i >> 6] == ~0ull) {
            i += 64;
            continue;
        }
        if (st_bit(map, i)) {
            i++;
            continue;
        }
        for (run = 1; run < n && i + run < size && !st_bit(map, i + run); run++) {
        }
        if (run == n || !whole) {
            *found = run;
            return i;
        }
        i += run;
    }
    return size;
}

#endif
