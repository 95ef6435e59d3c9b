/* What a heap counts, so that it can be read at any time without a walk.
 *
 * Each figure is kept for the small pool (blocks in shared one-page chunks, and
 * those chunks), for the large pool (runs of whole pages, cached ones included),
 * and for both together: how much there is, the most there was, and how much
 * was ever added.  What was ever taken away is the difference. */
#ifndef ST_HEAP_STATS_H
#define ST_HEAP_STATS_H

#include <stdint.h>

enum { ST_HEAP_SMALL = 0, ST_HEAP_LARGE = 1, ST_HEAP_ALL = 2, ST_HEAP_POOLS = 3 };

struct st_heap_stat {
    uint64_t now[ST_HEAP_POOLS], peak[ST_HEAP_POOLS], added[ST_HEAP_POOLS];
};

struct st_heap_stats {
    struct st_heap_stat count;      /* live allocations */
    struct st_heap_stat allocated;  /* their bytes, rounded as they are */
    struct st_heap_stat requested;  /* their bytes, as asked for */
    struct st_heap_stat reserved;   /* bytes of mapped pages */
    struct st_heap_stat segments;   /* ranges of mapped pages of one pool without a gap */
    struct st_heap_stat holes;      /* free pieces of chunks: they cannot be given back */
    struct st_heap_stat hole_bytes; /* their bytes */
    uint64_t cached_bytes;          /* mapped pages without a live allocation */
    uint64_t maps, unmaps;          /* mappings made, and parts of them given back */
    uint64_t remaps, remapped_pages; /* mappings that made a cached run longer, and their pages */
    uint64_t flushes;               /* times cached pages were given back for lack of room */
    uint64_t refusals;              /* allocations that found no room */
    uint64_t bad_frees, unmap_errors;
    uint64_t largest_free; /* the largest allocation that needs no mapping */
};

static inline void st_heap_peak(struct st_heap_stat *s, int pool)
{
    if (s->now[pool] > s->peak[pool])
        s->peak[pool] = s->now[pool];
}

/* Of what changes with each allocation, the pools are kept and the peaks; the rest of
 * ST_HEAP_ALL is left to st_heap_sum_up. */
static inline void st_heap_add(struct st_heap_stat *s, int pool, uint64_t by)
{
    uint64_t all;

    s->now[pool] += by;
    s->added[pool] += by;
    all = s->now[ST_HEAP_SMALL] + s->now[ST_HEAP_LARGE];
    st_heap_peak(s, pool);
    if (all > s->peak[ST_HEAP_ALL])
        s->peak[ST_HEAP_ALL] = all;
}

static inline void st_heap_sub(struct st_heap_stat *s, int pool, uint64_t by)
{
    s->now[pool] -= by;
}

/* A figure that only the small pool has; the rest is left to st_heap_sum_up. */
static inline void st_heap_set_small(struct st_heap_stat *s, uint64_t value)
{
    uint64_t old = s->now[ST_HEAP_SMALL];

    s->now[ST_HEAP_SMALL] = value;
    s->added[ST_HEAP_SMALL] += value > old ? value - old : 0;
    st_heap_peak(s, ST_HEAP_SMALL);
}

static inline void st_heap_change_one(struct st_heap_stat *s, int pool, int64_t by)
{
    s->now[pool] += (uint64_t)by;
    s->added[pool] += by > 0 ? (uint64_t)by : 0;
    st_heap_peak(s, pool);
}

/* Both pools change at once; what only moves is not new to both together. */
static inline void st_heap_change(struct st_heap_stat *s, int64_t small, int64_t large)
{
    st_heap_change_one(s, ST_HEAP_SMALL, small);
    st_heap_change_one(s, ST_HEAP_LARGE, large);
    st_heap_change_one(s, ST_HEAP_ALL, small + large);
}

/* What the frequent operations leave out, for who reads the figures. */
static inline void st_heap_sum_up(struct st_heap_stats *t)
{
    struct st_heap_stat *sums[] = {&t->count, &t->allocated, &t->requested};
    struct st_heap_stat *small[] = {&t->holes, &t->hole_bytes};

    for (int i = 0; i < 3; i++) {
        sums[i]->now[ST_HEAP_ALL] = sums[i]->now[ST_HEAP_SMALL] + sums[i]->now[ST_HEAP_LARGE];
        sums[i]->added[ST_HEAP_ALL] = sums[i]->added[ST_HEAP_SMALL] + sums[i]->added[ST_HEAP_LARGE];
    }
    for (int i = 0; i < 2; i++) {
        small[i]->now[ST_HEAP_ALL] = small[i]->now[ST_HEAP_SMALL];
        small[i]->peak[ST_HEAP_ALL] = small[i]->peak[ST_HEAP_SMALL];
        small[i]->added[ST_HEAP_ALL] = small[i]->added[ST_HEAP_SMALL];
    }
}

static inline void st_heap_forget_peak(struct st_heap_stat *s)
{
    for (int pool = 0; pool < ST_HEAP_POOLS; pool++)
        s->peak[pool] = s->now[pool];
}

/* Peaks begin anew with what there is. */
static inline void st_heap_forget_peaks(struct st_heap_stats *t)
{
    st_heap_sum_up(t);
    st_heap_forget_peak(&t->count);
    st_heap_forget_peak(&t->allocated);
    st_heap_forget_peak(&t->requested);
    st_heap_forget_peak(&t->reserved);
    st_heap_forget_peak(&t->segments);
    st_heap_forget_peak(&t->holes);
    st_heap_forget_peak(&t->hole_bytes);
}

#endif
